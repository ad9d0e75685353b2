"""Evaluate models on an agent's task, with 95 % intervals, and compare them.

Runs of one scenario resemble each other, so what is averaged are the scenarios' means, and what is compared are the
scenarios that both models were run on (Miller 2024, *Adding Error Bars to Evals*, arXiv:2411.00640).
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from art.logs.statistics import Interval, interval, mean
from art.loop.rollouts import EveryRolloutFailedError, GroupRunner, HoldClock, RolloutFn
from art.rollouts.failures import gather_or_cancel, is_service_failure
from art.trajectories import Trajectory

__all__ = ["Evaluation", "Interval", "evaluate", "interval"]


@dataclass(frozen=True)
class Evaluation:
    """The rewards of one model."""

    name: str
    rewards: list[list[float]]
    """Of each scenario, in order, the rewards of the runs that ended."""
    failed: int
    """Runs that raised."""
    first_failure: str | None = None

    @property
    def runs(self) -> int:
        return sum(map(len, self.rewards))

    @property
    def reward(self) -> Interval | None:
        """Mean over scenarios of their mean reward; ``None`` if no run ended."""
        return interval([mean(found) for found in self.rewards if found])

    def minus(self, other: "Evaluation") -> Interval | None:
        """Difference in reward to ``other``, over the scenarios that both have runs of."""
        pairs = zip(self.rewards, other.rewards, strict=True)
        return interval([mean(ours) - mean(theirs) for ours, theirs in pairs if ours and theirs])

    def to_json(self, first: "Evaluation") -> dict[str, Any]:
        """A row of the comparison table."""
        difference = None if first is self else self.minus(first)
        return {
            "model": self.name,
            "scenarios": sum(map(bool, self.rewards)),
            "runs": self.runs,
            "failed": self.failed,
            "first_failure": self.first_failure,
            "reward": _finite(self.reward),
            "difference_to_first": _finite(difference),
            "rewards": self.rewards,
        }


async def evaluate(
    name: str,
    model: Any,
    rollout: RolloutFn[Any],
    scenarios: Sequence[Any],
    *,
    runs: int,
    timeout_s: float | None = None,
    max_concurrent: int | None = None,
    on_scenario: Callable[[Sequence[Trajectory]], object] = lambda trajectories: None,
) -> Evaluation:
    """Run an agent ``runs`` times on each scenario.

    Args:
        model: The model passed to ``rollout``: any ``art.Model``.
        on_scenario: Called after each scenario, with its completed runs.

    Raises:
        BackendError, openai.APIError: The service failed, as opposed to a single run.

    >>> found = await evaluate("learner", model, rollout, ["Hi.", "Ho."], runs=2)
    >>> found.runs, found.failed
    (4, 0)
    """
    runner = GroupRunner(
        model, rollout, size=runs, timeout_s=timeout_s, max_concurrent=max_concurrent, clock=HoldClock()
    )
    failures: list[str] = []

    async def run(scenario: Any) -> list[float]:
        try:
            group = await runner.run(scenario)
        except EveryRolloutFailedError as error:
            if error.__cause__ is not None and is_service_failure(error.__cause__):
                raise error.__cause__ from None
            failures.extend([str(error)] * runs)
            on_scenario(())
            return []
        on_scenario(group.trajectories)
        failures.extend(f"{failed.type}: {failed.message}" for failed in group.exceptions)
        return [trajectory.reward for trajectory in group]

    rewards = await gather_or_cancel([asyncio.create_task(run(scenario)) for scenario in scenarios])
    await runner.leave()
    if not_finite := [i for i, row in enumerate(rewards) if not all(map(math.isfinite, row))]:
        raise ValueError(f"Scenario {not_finite[0]} has a reward that is not a finite number.")
    return Evaluation(name, rewards, len(failures), failures[0] if failures else None)


def _finite(found: Interval | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    bounds = {"low": found.low, "high": found.high}
    return {"value": found.value, **{name: b if math.isfinite(b) else None for name, b in bounds.items()}}
