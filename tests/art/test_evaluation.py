"""Intervals against tables, and what an evaluation makes of a rollout function."""

import math

import pytest

import art
from art.errors import BackendDiedError
from art.evaluation import Evaluation, evaluate
from art.logs.statistics import interval, t_quantile


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)]
)
def test_quantiles_of_student_s_distribution(freedom, table):
    assert t_quantile(freedom) == pytest.approx(table, abs=6e-3)


def test_the_interval_of_four_values():
    # mean 2.5, s² = 5/3, so 3.182 · sqrt(5/12) = 2.054
    found = interval([1.0, 2.0, 3.0, 4.0])
    assert (found.value, found.low, found.high) == pytest.approx((2.5, 0.446, 4.554), abs=2e-3)
    assert interval([]) is None
    assert interval([1.0]).high == math.inf


def test_models_are_compared_scenario_by_scenario():
    # Scenarios differ far more than the models: only the paired difference sees that one is better.
    first = Evaluation("first", [[0.0, 0.0], [10.0], [20.0], []], 0)
    second = Evaluation("second", [[1.0], [11.0, 11.0], [21.0], [5.0]], 0)
    assert second.minus(first).value == pytest.approx(1.0)
    assert (second.minus(first).low, second.minus(first).high) == pytest.approx((1.0, 1.0))
    assert first.reward.high > second.reward.low
    row = second.to_json(first)
    assert (row["runs"], row["scenarios"], row["difference_to_first"]["value"]) == (5, 4, pytest.approx(1.0))
    assert first.to_json(first)["difference_to_first"] is None


async def test_failed_runs_are_counted_and_do_not_end_the_evaluation():
    calls = []

    async def rollout(model, scenario):
        calls.append((model, scenario))
        if scenario == "broken" or (scenario == "shaky" and len(calls) % 2):
            raise RuntimeError("the environment is down")
        return art.Trajectory(), 1.0

    found = await evaluate("m", "the model", rollout, ["shaky", "broken", "fine"], runs=2)
    assert found.rewards == [[1.0], [], [1.0, 1.0]]
    assert found.failed == 3
    assert "the environment is down" in found.first_failure
    assert len(calls) == 6


async def test_a_failure_of_the_service_ends_the_evaluation():
    async def rollout(model, scenario):
        raise BackendDiedError("the engine is gone", 503)

    with pytest.raises(BackendDiedError, match="the engine is gone"):
        await evaluate("m", None, rollout, [0, 1], runs=2)


async def test_a_reward_that_is_no_number_is_an_error_that_names_the_scenario():
    async def rollout(model, scenario):
        return art.Trajectory(reward=math.nan if scenario else 0.0)

    with pytest.raises(ValueError, match="Scenario 1 has a reward that is not a finite number"):
        await evaluate("m", None, rollout, [0, 1], runs=1)
