"""Which trajectory records the model calls that are made now."""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art.trajectories import Trajectory

__all__ = ["active_trajectory", "no_capture"]

active_trajectory: "ContextVar[Trajectory | None]" = ContextVar("art_active_trajectory", default=None)
"""The innermost open trajectory; each task starts with that of the task that made it."""


@contextlib.contextmanager
def recording(trajectory: "Trajectory | None") -> Generator[None]:
    """Record the model calls made inside in ``trajectory``."""
    token = active_trajectory.set(trajectory)
    try:
        yield
    finally:
        active_trajectory.reset(token)


@contextlib.contextmanager
def no_capture() -> Generator[None]:
    """Record nothing inside, for calls that are not the agent's own, such as a judge's.

    Trajectories opened inside record all the same.

    >>> with art.Trajectory():
    ...     with no_capture():
    ...         art.current_trajectory() is None
    True
    """
    with recording(None):
        yield
