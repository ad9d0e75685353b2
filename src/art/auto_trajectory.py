"""Older names of ``art.current_trajectory`` and ``art.trajectory``."""

import warnings
from collections.abc import Coroutine
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
