"""Options, directories and how a command ends."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.recording_backend import Recorder

import art
from art.errors import ARTError
from art.experiment import (
    Example,
    Results,
    Run,
    Settings,
    compare,
    evaluation_command,
    training_command,
    training_seeds,
)
from art.experiment.results import Player
from art.logs.statistics import Interval

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


def test_a_directory_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "run.json").write_text('{"name": "gam')
    with pytest.raises(ARTError, match=r"run\.json cannot be read"):
        Run("game", "small", 1, SMALL, tmp_path).open()


def test_runs_that_share_a_backend_have_models_of_their_own_and_keep_them(tmp_path):
    runs = [Run("game", "small", 1, SMALL, tmp_path / name, shares_backend=True) for name in "ab"]
    for run in runs:
        run.open()
    names = [run.make_model().name for run in runs]
    assert names[0] != names[1]
    assert all(name.startswith("game-small-seed-1-") for name in names)
    runs[0].open()
    assert runs[0].make_model().name == names[0]


def test_setting_aside_keeps_everything(tmp_path):
    run = Run("game", "small", 1, SMALL, tmp_path / "run")
    assert run.set_aside() is None
    run.open()
    old = run.set_aside()
    assert (old / "run.json").exists()
    assert not run.directory.exists()


def test_no_two_runs_share_a_seed_and_none_meets_the_held_out_ones():
    one, two = training_seeds(1), training_seeds(2)
    assert one[-1] < two[0]
    assert training_seeds(0)[0] > 100_000_000, "held-out seeds are small"
    assert list(one[:3]) == [one[0], one[0] + 1, one[0] + 2]


def test_an_evaluation_prints_its_table_and_keeps_its_results(tmp_path, capsys):
    async def evaluate(run):
        share = Interval(0.8, 0.7, 0.9)
        players = [
            Player(name=name, step=4, episodes=9, failed=0, reward=share, metrics={})
            for name in ("base model", "after warm-up", "trained")
        ]
        return Results(
            example="game", variant="easy", form="small", seed=1, base_model="m", step=4, warm_up=8, steps=[],
            players=players, training_s=9.0, evaluation_s=1.0,
        )  # fmt: skip

    evaluation_command(EXAMPLE, evaluate, ["--small", "--output", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| base model, step 4 | 9 | 0.80 [0.70, 0.90] |",
        "| after warm-up, step 4 | 9 | 0.80 [0.70, 0.90] |",
        "| trained, step 4 | 9 | 0.80 [0.70, 0.90] |",
        "",
        f"game-easy-small-seed-1: did not learn. Results and plot are in {tmp_path}.",
    ]
    assert Results.read(tmp_path / "results.json").step == 4
    assert (tmp_path / "reward.png").exists()


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
