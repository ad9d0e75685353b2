"""``art show``, over a run that was logged by the library itself."""

import asyncio
import json
from array import array
from pathlib import Path

import pytest
from tests.support.tiny import build_tiny_tokenizer
from typer.testing import CliRunner

import art
from art.cli import app
from art_backend.settings import Settings
from art_backend.store.captures import CaptureStore
from art_backend.store.database import open_database
from art_backend.tokens.render import ChatRenderer
from art_backend.tokens.tree import Sampled

QUESTION = {"role": "user", "content": "Guess a number."}


def trajectory(said: str, reward: float, **fields):
    return art.Trajectory(
        messages_and_choices=[QUESTION, {"role": "assistant", "content": said}], reward=reward, **fields
    )


@pytest.fixture
def art_path(tmp_path: Path) -> Path:
    model = art.Model(name="pupil", project="games", base_path=str(tmp_path / ".art"), report_metrics=[])

    async def log():
        first = art.TrajectoryGroup([trajectory("seven, to be sure", 0.5, metrics={"turns": 2}), trajectory("four", 1)])
        second = art.TrajectoryGroup([trajectory("nine", 0, initial_policy_version=2), ValueError("no dice")])
        for step in (1, 2, 3):
            many = {f"throughput/some_{i}": 1.0 for i in range(80)}
            await model.log([first, second], split="train", step=step, metrics={"loss/entropy": 1.0, **many})
        await model.log([trajectory("held out", 0.25)], split="val", step=0)

    asyncio.run(log())
    return tmp_path / ".art"


def show(art_path: Path, *arguments: str, width: int = 80):
    """What the command prints, searching above the directory of the run as one does in the tutorial."""
    return CliRunner(env={"COLUMNS": str(width)}).invoke(
        app, ["show", *arguments, "--path", str(art_path.parent)], catch_exceptions=False
    )


def test_a_model_s_metrics_lead_to_its_rollouts(art_path: Path) -> None:
    result = show(art_path, "pupil")
    assert "train/reward " in result.stdout
    assert f"art show games/pupil 3 --path {art_path.parent}" in result.stdout


def test_a_step_lists_its_rollouts_and_what_failed(art_path: Path) -> None:
    result = show(art_path, "pupil", "2")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["1", "1", "+0.500", "2", "seven,", "to", "be", "sure"] in lines
    assert ["3", "2", "+0.000", "2", "nine"] in lines
    assert "group 2: a rollout failed: no dice" in result.stdout
    assert "art show games/pupil 2 ROLLOUT" in result.stdout
    assert "did not log" not in result.stdout


def test_a_rollout_is_read_with_its_reward_and_metrics(art_path: Path) -> None:
    result = show(art_path, "pupil", "2", "1")
    assert result.stdout == (
        "games/pupil, step 2, train, rollout 1 of 3 (group 1)\n"
        "reward 0.5, turns 2\n"
        "\n"
        "user\n"
        "  Guess a number.\n"
        "\n"
        "assistant\n"
        "  seven, to be sure\n"
    )
    assert "policy version 2" in show(art_path, "pupil", "2", "3").stdout
    assert "held out" in show(art_path, "pupil", "0", "1", "--split", "val").stdout
    assert json.loads(show(art_path, "pupil", "2", "1", "--json").stdout)["messages"][1]["content"] == (
        "seven, to be sure"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nobody"], "No model is named 'nobody' in {path}. Models there: games/pupil."),
        (["pupil", "9"], "No rollouts were logged at step 9 for games/pupil. Logged steps: train 1-3; val 0."),
        (["pupil", "0"], "Step 0 has no rollouts of split 'train', only of val: pass --split val."),
        (["pupil", "2", "7"], "Step 2 has rollouts 1 to 3 of split 'train', not 7."),
        (
            ["pupil", "--metric", "reward"],
            "games/pupil has no metric 'reward'. Nearest of its 96: val/reward, train/reward, ",
        ),
    ],
)
def test_what_is_not_there_is_told_with_what_is(art_path: Path, arguments, expected) -> None:
    result = show(art_path, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: " + expected.format(path=art_path.parent))
    assert len(result.stderr) < 400


@pytest.mark.parametrize("width", [67, 80])
def test_every_line_fits_the_terminal(art_path: Path, width: int) -> None:
    long = "a word " * 40
    model = art.Model(name="pupil", project="games", base_path=str(art_path), report_metrics=[])
    asyncio.run(model.log([trajectory(long, 1, metadata={"scenario": long})], split="train", step=4))
    for arguments in (["pupil", "4"], ["pupil", "4", "1"]):
        lines = show(art_path, *arguments, width=width).stdout.splitlines()
        lines = [line for line in lines if not line.startswith("Read one: art show")]  # whole, to be copied
        assert max(map(len, lines)) <= width
        assert "messages  said last" in lines[1] or arguments[2:]
    assert "  a word a word" in "\n".join(lines)


def test_a_conversation_that_only_the_backend_recorded_is_found(art_path: Path) -> None:
    db = open_database(Settings(path=art_path).database_path)
    captures = CaptureStore(db)
    rollout = captures.create_rollout("games", "pupil").id
    tree = captures.tree(rollout)
    placed = tree.place([QUESTION], None, ChatRenderer(build_tiny_tokenizer()))
    message = {"role": "assistant", "content": "seven"}
    sampled = Sampled(array("i", [5, 2]), array("d", [-0.5] * 2), message, 0, {"temperature": 1.0}, None, "stop", "t_1")
    tree.commit(placed, placed.path_ids(), [sampled], lambda turns: captures.store_turns(rollout, turns))
    model = art.Model(name="pupil", project="games", base_path=str(art_path), report_metrics=[])
    scored = [art.Trajectory(reward=1, rollout_id=name) for name in (rollout, "r_gone")]
    asyncio.run(model.log(scored, split="train", step=5))
    shown = show(art_path, "pupil", "5", "1").stdout  # while the database is open elsewhere
    db.close()
    assert "user\n  Guess a number.\n\nassistant\n  seven\n" in shown
    assert "did not log their conversation" in show(art_path, "pupil", "5").stdout
    lost = show(art_path, "pupil", "5", "2")
    assert lost.exit_code == 1
    assert "'r_gone'" in lost.stderr
    assert "await rollout.fill(trajectory)" in lost.stderr
