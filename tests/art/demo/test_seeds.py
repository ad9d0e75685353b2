"""Which opponents a run meets, and what it remembers of a process tree."""

import itertools
import subprocess
import sys

import pytest

from art.demo.memory import PeakMemory
from art.demo.records import RunConfig
from art.demo.run import held_out_seeds, score_random_player, training_seeds


def config(seed: int) -> RunConfig:
    return RunConfig(
        seed=seed, groups=8, group_size=16, learning_rate=3e-4, episodes=500, base_model="b", model_name="m"
    )


def test_no_opponent_is_met_twice_in_training_nor_in_evaluation() -> None:
    met = [seed for run in (1, 2, 3) for step in range(1, 101) for seed in training_seeds(config(run), step)]
    assert len(met) == len(set(met)) == 3 * 100 * 8
    assert not set(met) & set(held_out_seeds(config(1)))


def test_a_repeated_step_meets_the_same_opponents() -> None:
    assert training_seeds(config(1), 4) == training_seeds(config(1), 4)
    assert list(held_out_seeds(config(1))) == list(held_out_seeds(config(9)))


def test_the_random_player_meets_the_held_out_opponents_many_times() -> None:
    score = score_random_player(50)
    assert score.games == 500
    assert score.illegal.value == 0.0
    assert score == score_random_player(50)


def test_memory_of_children_counts() -> None:
    pytest.importorskip("psutil")
    memory = PeakMemory()
    alone = memory.measure()
    code = "import sys; block = bytearray(b'x' * 200_000_000); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert memory.measure() - alone > 190_000_000
    assert memory.stop() == 0, "nothing was sampled in the background"


def test_sampling_keeps_the_peak() -> None:
    pytest.importorskip("psutil")
    memory = PeakMemory()
    memory.start()
    block = bytearray(b"x" * 100_000_000)
    for _ in itertools.repeat(None, 200):
        if memory._peak_bytes:
            break
        memory._stop.wait(0.05)
    assert memory.stop() > len(block)
