"""Options, directories and how a command ends."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recording_backend import Recorder

import art
from art.errors import ARTError
from art.experiment import Example, Run, Settings, compare, training_command

SMALL, FULL = Settings(steps=4, warm_up=8), Settings(base_model="org/large", steps=40)
EXAMPLE = Example("game", SMALL, FULL, variants=("easy", "hard"), variant_option="--level")


def command(train, *arguments):
    training_command(EXAMPLE, train, arguments)


def test_options_make_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = []

    async def train(run: Run) -> None:
        runs.append(run)

    command(train, "--small")
    command(
        train,
        "--full",
        "--seed",
        "3",
        "--warm-up",
        "5",
        "--level",
        "hard",
        "--steps",
        "7",
        "--base-model",
        "m",
        "--output",
        "there",
    )
    small, full = runs
    assert (small.name, small.directory) == (
        "game-easy-small-seed-1",
        Path("runs/examples/game-easy-small-seed-1").resolve(),
    )
    assert (small.settings, small.warm_up_step, small.last_step) == (SMALL, 1, 5)
    assert full.settings == replace(FULL, steps=7, warm_up=5, base_model="m")
    assert (full.warm_up_step, full.last_step, full.directory) == (1, 8, tmp_path / "there")
    assert small.training_seconds() > 0
    assert full.loop_options == {
        "steps": 8,
        "groups_per_step": FULL.groups_per_step,
        "group_size": FULL.group_size,
        "max_staleness": FULL.max_staleness,
        "learning_rate": FULL.learning_rate,
        "eval_scenarios": [],
    }


def test_time_adds_up_over_sittings_and_a_failed_one_counts(tmp_path, capsys):
    async def train(run: Run) -> None:
        await asyncio.sleep(0.05)
        raise ARTError("no such thing", 404)

    spent = []
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            command(train, "--small", "--output", str(tmp_path))
        assert end.value.code == 1
        spent.append(Run("game", "small", 1, SMALL, tmp_path).training_seconds())
    assert spent[1] >= spent[0] + 0.05
    assert capsys.readouterr().err.count("Error: no such thing") == 2


def test_a_directory_keeps_to_its_settings(tmp_path, capsys):
    async def train(run: Run) -> None:
        pass

    command(train, "--small", "--output", str(tmp_path))
    command(train, "--small", "--output", str(tmp_path), "--steps", "100")  # training on is no other run
    with pytest.raises(SystemExit):
        command(train, "--small", "--output", str(tmp_path), "--base-model", "other")
    assert "base_model is 'HuggingFaceTB/SmolLM2-135M-Instruct' there, not 'other'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command(train, "--small", "--output", str(tmp_path), "--seed", "2")


def test_ctrl_c_says_how_to_go_on(tmp_path, capsys):
    async def train(run: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        command(train, "--small", "--output", str(tmp_path))
    assert end.value.code == 130
    assert "the same command goes on from there" in capsys.readouterr().err


async def test_there_is_nothing_to_compare_before_training(tmp_path):
    with pytest.raises(ARTError, match="train first"):
        await compare(Run("game", "small", 1, SMALL, tmp_path), None, [], {})


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ([1.0, 0.5, 0.4, 0.0], "2 of 4 test rollouts succeed now (reward of at least 0.5)"),
        ([0.0] * 4, "0 of 4 test rollouts succeed now (reward of at least 0.5); show it more lessons"),
    ],
)
async def test_a_warm_up_says_how_the_loss_went_and_what_succeeds_now(tmp_path, capsys, rewards, said):
    class Teacher(Recorder):
        async def train_sft(self, model, lessons, config, **options):
            self.step += 1
            lessons = list(lessons)
            metrics = {
                "data/step_num_gradient_steps": len(lessons) / config.batch_size,
                "loss/sft_first_batch": 3.25,
                "loss/sft_last_batch": 0.5,
            }
            return art.TrainResult(self.step, metrics)

    async def rollout(model, scenario):
        return art.Trajectory(reward=rewards[scenario])

    run = Run("game", "small", 1, SMALL, tmp_path)
    model = run.make_model()
    await model.register(Teacher())
    lessons = [art.Trajectory(messages_and_choices=[{"role": "assistant", "content": "so"}])] * 8
    await run.warm_up(model, lessons, rollout, range(4))
    told = capsys.readouterr()
    assert (
        "game-small-seed-1: 2 updates on examples made step 1; loss per token 3.25 at first, 0.50 at last" in told.err
    )
    assert said in told.out
    await run.warm_up(model, lessons, rollout, range(4))
    assert capsys.readouterr().out == "", "it was done"
