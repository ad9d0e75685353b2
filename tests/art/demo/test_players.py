"""The player who only knows the rules, and the memory of a process tree."""

import itertools
import subprocess
import sys

import pytest

from art.demo.memory import PeakMemory
from art.demo.run import play_randomly


def test_the_random_player_meets_the_held_out_opponents_many_times() -> None:
    player = play_randomly(50)
    assert player.episodes == 500
    assert player.metrics["illegal"].value == 0.0
    assert player == play_randomly(50)


def test_memory_of_children_counts() -> None:
    pytest.importorskip("psutil")
    memory = PeakMemory()
    alone = memory.measure()
    code = "import sys; block = bytearray(b'x' * 200_000_000); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert memory.measure() - alone > 150_000_000
    assert memory.stop() == 0, "nothing was sampled in the background"


def test_sampling_keeps_the_peak() -> None:
    pytest.importorskip("psutil")
    memory = PeakMemory()
    memory.start()
    block = bytearray(b"x" * 100_000_000)
    for _ in itertools.repeat(None, 1200):
        if memory._peak_bytes:
            break
        memory._stop.wait(0.05)
    assert memory.stop() > len(block)
