"""Older ways to open a trajectory, and to hand one out of the middle of a function."""

import warnings
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, overload

from art.capture.scopes import current_trajectory, trajectory
from art.trajectories import Trajectory


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: bool = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """Deprecated: ``art.current_trajectory()``.

    Raises:
        RuntimeError: ``required``, and no trajectory is open.

    >>> auto_trajectory() is None
    True
    """
    warnings.warn("auto_trajectory is deprecated: write art.current_trajectory.", DeprecationWarning, stacklevel=2)
    return current_trajectory(required=required)


async def capture_auto_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Deprecated: ``await art.trajectory(coroutine)``.

    >>> async def agent():
    ...     auto_trajectory(required=True).reward = 1.0
    >>> (await capture_auto_trajectory(agent())).reward
    1.0
    """
    warnings.warn("capture_auto_trajectory is deprecated: write art.trajectory.", DeprecationWarning, stacklevel=2)
    return await trajectory(coroutine)


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
