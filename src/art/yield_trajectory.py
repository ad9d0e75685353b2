"""Handing a trajectory out of the middle of a function."""

from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from art.trajectories import Trajectory


@dataclass
class _Slot:
    trajectory: Trajectory | None = None


_slot: ContextVar[_Slot | None] = ContextVar("art_yielded_trajectory", default=None)


def yield_trajectory(trajectory: Trajectory) -> None:
    """Make ``trajectory`` the result of the enclosing ``capture_yielded_trajectory``. The last one counts.

    >>> async def agent():
    ...     yield_trajectory(art.Trajectory(reward=1.0))
    >>> (await capture_yielded_trajectory(agent())).reward
    1.0
    """
    slot = _slot.get()
    if slot is not None:
        slot.trajectory = trajectory


async def capture_yielded_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Run a coroutine and return the trajectory that it yields. May be nested.

    Raises:
        RuntimeError: It yielded none.

    >>> async def agent():
    ...     yield_trajectory(art.Trajectory(reward=1.0))
    >>> (await capture_yielded_trajectory(agent())).reward
    1.0
    """
    slot = _Slot()
    token = _slot.set(slot)
    try:
        await coroutine
    finally:
        _slot.reset(token)
    if slot.trajectory is None:
        raise RuntimeError("No trajectory yielded")
    return slot.trajectory
