"""Two steps of each example through the real service, resumed after the first, and the comparison afterwards."""

from dataclasses import replace

import pytest
from examples.game_2048 import evaluate as evaluate_2048
from examples.game_2048 import train as train_2048
from examples.temporal_clue import evaluate as evaluate_clue
from examples.temporal_clue import train as train_clue
from examples.tic_tac_toe import evaluate as evaluate_tic_tac_toe
from examples.tic_tac_toe import train as train_tic_tac_toe

from art.history import read_history


async def train_and_evaluate(run, train, evaluate):
    """Stops after a step, goes on, compares; returns the results."""
    await train(replace(run, settings=replace(run.settings, steps=1)))
    await train(run)
    results = await evaluate(run)
    history = read_history(run.directory / "examples/models" / run.name / "history.jsonl")
    trained = [row["step"] for row in history if "train/reward" in row]
    assert trained == [run.warm_up_step + 1, run.warm_up_step + 2], "each step was taken once"
    versions = [player.step for player in results.players if player.step is not None]
    assert versions == sorted({0, run.warm_up_step, run.last_step})
    assert all(player.episodes == run.settings.episodes and not player.failed for player in results.players)
    assert [one.step for one in results.steps] == trained
    assert any(player.step is None for player in results.players), "there is a scripted player to compare with"
    return results


@pytest.mark.parametrize("opponent", ["minimax", "self"])
async def test_tic_tac_toe(make_run, opponent):
    run = make_run("tic-tac-toe", train_tic_tac_toe.SMALL, opponent)
    results = await train_and_evaluate(run, train_tic_tac_toe.train, evaluate_tic_tac_toe.evaluate)
    assert -0.5 <= results.player("trained").reward.value <= 1


async def test_2048(make_run):
    results = await train_and_evaluate(make_run("2048", train_2048.SMALL), train_2048.train, evaluate_2048.evaluate)
    assert 0 <= results.player("trained").reward.value <= 1


async def test_temporal_clue(make_run):
    run = make_run("temporal-clue", train_clue.SMALL, "easy")
    results = await train_and_evaluate(run, train_clue.train, evaluate_clue.evaluate)
    assert 0 <= results.player("trained").reward.value <= 1
