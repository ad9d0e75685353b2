"""What a pipeline is made of: functions that run the agent, and functions that evaluate it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from art.backend import AnyTrainableModel
from art.capture.scopes import trajectory_group
from art.trajectories import Trajectory, TrajectoryGroup

ScenarioT = TypeVar("ScenarioT")

RolloutFn: TypeAlias = Callable[[AnyTrainableModel, Any, Any], Awaitable[TrajectoryGroup]]
"""(model, scenario, config) → a group of rollouts of the scenario."""

SingleRolloutFn: TypeAlias = Callable[[AnyTrainableModel, Any, Any], Awaitable[Trajectory]]

Evaluated: TypeAlias = Sequence[Trajectory] | Sequence[TrajectoryGroup]
EvalFn: TypeAlias = Callable[[AnyTrainableModel, int, Any], Awaitable[Evaluated | Mapping[str, Evaluated]]]
"""(model, step, config) → trajectories or groups of split ``val``, or of each split by name."""


def make_group_rollout_fn(single: SingleRolloutFn, n: int = 4) -> RolloutFn:
    """A function that runs ``single`` ``n`` times per scenario; failed runs stay in the group as exceptions.

    >>> async def single(model, scenario, config):
    ...     return art.Trajectory(reward=1.0)
    >>> len(await make_group_rollout_fn(single, n=3)(model, "a", None))
    3
    """

    async def run(model: AnyTrainableModel, scenario: Any, config: Any) -> TrajectoryGroup:
        return await trajectory_group((single(model, scenario, config) for _ in range(n)), return_exceptions=True)

    return run
