"""Scenarios that are evaluated and never trained on."""

import itertools

import pytest

import art
from art.loop.train import hold_out

SMALL = {"groups_per_step": 2, "group_size": 2, "handle_signals": False}


async def rollout(model, scenario):
    return art.Trajectory(reward=scenario / 100, metadata={"scenario": scenario})


@pytest.mark.parametrize(
    ("scenarios", "step_rollouts", "held_out"),
    [
        (range(49), 64, 0),
        (range(50), 64, 5),
        (range(10_000), 256, 64),
        (range(10_000), 16, 16),
        (iter(range(100)), 64, 0),
    ],
)
def test_a_tenth_of_a_long_sequence_is_held_out(scenarios, step_rollouts, held_out):
    trained, evaluated = hold_out(scenarios, step_rollouts)
    assert len(evaluated) == held_out
    everything = [*trained, *evaluated]
    assert everything == list(range(len(everything)))


async def test_by_default_a_run_is_evaluated_before_and_after(make_model, backend, read_history, capsys):
    model = await make_model()
    await art.train(model, rollout, range(60), **SMALL, steps=2)
    trained = set(itertools.chain.from_iterable(backend.scenarios()))
    assert trained <= set(range(56))
    rows = [row for row in read_history(model) if "val/reward" in row]
    assert [(row["step"], row["val/reward"]) for row in rows] == [(0, pytest.approx(0.575)), (2, pytest.approx(0.575))]
    told = capsys.readouterr().err
    assert "The last 4 scenarios are held out" in told
    assert "On val, step 2 against step 0: +0.575 ± 0.021 → +0.575 ± 0.021, a change of +0.000 ± 0.000 (95 %" in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "No held-out evaluation was made"),
        ({"eval_scenarios": []}, None),
        ({"eval_scenarios": [1, 2, 3]}, "on val: 3 rollouts"),
    ],
)
async def test_a_run_without_one_says_so_unless_it_was_wanted(make_model, capsys, options, said):
    await art.train(await make_model(), rollout, range(4), **SMALL, **options)
    told = capsys.readouterr().err
    assert "scenarios are held out" not in told
    assert ("No held-out evaluation" in told) == (said == "No held-out evaluation was made")
    assert said is None or said in told


async def test_both_ways_to_evaluate_exclude_each_other(make_model):
    async def evaluate(model, step):
        return []

    with pytest.raises(ValueError, match="either eval or eval_scenarios"):
        await art.train(await make_model(), rollout, range(4), **SMALL, eval=evaluate, eval_scenarios=[1])
