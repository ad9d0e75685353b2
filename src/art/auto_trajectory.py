"""A trajectory that fills itself from the model calls made while it is active."""

from collections.abc import Coroutine
from typing import Any, Literal, overload

from art.active import active_trajectory
from art.trajectories import Trajectory


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: bool = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """The trajectory that is being captured.

    Raises:
        RuntimeError: ``required``, and none is.
    """
    trajectory = active_trajectory.get()
    if trajectory is None and required:
        raise RuntimeError("No trajectory is being captured: run this within `art.capture_auto_trajectory(…)`.")
    return trajectory


async def capture_auto_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Run a coroutine and return the trajectory of the model calls made in it.

    Calls are recorded that go through clients of ``model.openai_client()``, or through a client built on
    ``art.capture.async_http_client()``. Inside, ``art.auto_trajectory()`` is the trajectory, to set its reward.
    """
    trajectory = Trajectory()
    token = active_trajectory.set(trajectory)
    try:
        await coroutine
    finally:
        active_trajectory.reset(token)
    return trajectory.finish()
