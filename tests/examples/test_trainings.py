"""Two steps of each example through the real service, resumed after the first, and the comparison afterwards."""

import json
import re
from dataclasses import replace

import pytest
from examples.email_agent import evaluate as evaluate_email
from examples.email_agent import train as train_email
from examples.game_2048 import evaluate as evaluate_2048
from examples.game_2048 import train as train_2048
from examples.hn_titles import evaluate as evaluate_titles
from examples.hn_titles import train as train_titles
from examples.temporal_clue import evaluate as evaluate_clue
from examples.temporal_clue import train as train_clue
from examples.tic_tac_toe import evaluate as evaluate_tic_tac_toe
from examples.tic_tac_toe import train as train_tic_tac_toe

from art.logs.files import read_history

pytestmark = pytest.mark.timeout(400)


async def train_and_evaluate(run, train, evaluate, *, resumed=True):
    """Stops after a step, goes on, compares; returns the results."""
    if resumed:
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


@pytest.mark.parametrize("agent", ["plain", "agents-sdk"])
async def test_email_agent(make_run, agent):
    run = make_run("email-agent", train_email.SMALL, agent, warm_up=4)
    results = await train_and_evaluate(run, train_email.train, evaluate_email.evaluate)
    assert results.warm_up == 4
    assert 0 <= results.start.reward.value <= 1


async def test_email_agent_with_a_judge(make_run):
    async def judge(messages):
        ids = sorted(set(re.findall(r'id="(\d+)"', messages[-1]["content"])))
        return json.dumps({"scores": [{"trajectory_id": i, "score": 0.1 * int(i), "explanation": "so"} for i in ids]})

    run = make_run("email-agent", train_email.SMALL, "ruler", warm_up=0, steps=1)
    async with run.open_backend() as backend:
        model = run.make_model()
        await model.register(backend)
        await train_email.train_with_judge(run, model, backend, judge)
        assert await model.get_step() == 1
    (row,) = read_history(run.directory / "examples/models" / run.name / "history.jsonl")
    assert row["train/reward"] > 0
    assert row["train/independent_reward"] == 0


@pytest.mark.long
async def test_hn_titles(make_run, monkeypatch):
    monkeypatch.setitem(train_titles.PAIRS, "small", 40)
    run = make_run("hn-titles", train_titles.SMALL)
    results = await train_and_evaluate(run, train_titles.train, evaluate_titles.evaluate, resumed=False)
    (accuracy,) = results.measured.values()
    assert 0 <= accuracy.low <= accuracy.value <= accuracy.high <= 1
    assert 0 <= results.player("trained").reward.value <= 1
    assert results.player("submitted title").reward.value > 0
