"""Scenarios that are evaluated and never trained on: they show whether a rising training reward is learning."""

import asyncio
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Any, TypeVar

from art.loop.rollouts import EveryRolloutFailedError, GroupRunner
from art.rollouts.failures import gather_or_cancel
from art.trajectories import TrajectoryGroup

ScenarioT = TypeVar("ScenarioT")

FEWEST = 50
"""A sequence of fewer scenarios is trained on as a whole, unless other ones are given for evaluation."""
SHARE, MOST = 0.1, 64


def hold_out(
    scenarios: Iterable[ScenarioT] | AsyncIterable[ScenarioT], step_rollouts: int
) -> tuple[Iterable[ScenarioT] | AsyncIterable[ScenarioT], Sequence[ScenarioT]]:
    """Divide scenarios into those to train on and those to evaluate: of a long sequence, its last tenth.

    Args:
        step_rollouts: Rollouts of a training step; an evaluation takes no more.
    """
    if not isinstance(scenarios, Sequence) or len(scenarios) < FEWEST:
        return scenarios, ()
    count = max(min(int(SHARE * len(scenarios)), step_rollouts, MOST), 1)
    return scenarios[:-count], scenarios[-count:]


async def roll_out_each(runner: GroupRunner[Any], scenarios: Sequence[Any]) -> list[TrajectoryGroup]:
    """Run each scenario; a group in which every rollout failed has its failures alone."""

    async def run(scenario: Any) -> TrajectoryGroup:
        try:
            return await runner.run(scenario)
        except EveryRolloutFailedError as error:
            return error.group

    return await gather_or_cancel([asyncio.ensure_future(run(scenario)) for scenario in scenarios])
