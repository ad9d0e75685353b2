"""Trajectories that record what happens while they are open.

with art.Trajectory(metadata={"task": 7}) as t:
    t.reward = await agent()
"""

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast, overload

from art.rollouts.failures import gather_or_cancel
from art.trajectories import MetadataValue, PydanticException, Trajectory, TrajectoryGroup, active_trajectory


@overload
def current_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def current_trajectory(*, require: Literal[True]) -> Trajectory: ...


@overload
def current_trajectory(*, required: bool = False, require: bool = False) -> Trajectory | None: ...


def current_trajectory(*, required: bool = False, require: bool = False) -> Trajectory | None:
    """Return the innermost open trajectory.

    Args:
        required: Raise if there is none. ``require`` is the same.

    Raises:
        RuntimeError: None is open, and one is required.

    >>> with art.Trajectory() as t:
    ...     current_trajectory(required=True) is t
    True
    """
    found = active_trajectory.get()
    if found is None and (required or require):
        raise RuntimeError("No trajectory is open: use `with art.Trajectory() as t:` or `await art.trajectory(…)`.")
    return found


async def trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Run a coroutine and return the trajectory of its model calls; see ``art.capture`` for which are recorded.

    Inside, ``art.current_trajectory()`` is the trajectory, to set its reward. If nothing at all was recorded, a warning
    says so once, and what to do.

    Raises:
        TypeError: Not a coroutine: a task or future would run outside of the trajectory.

    >>> async def agent():
    ...     await model.openai_client().chat.completions.create(
    ...         model=model.get_inference_name(), messages=[{"role": "user", "content": "Hi."}], max_tokens=4
    ...     )
    ...     current_trajectory(required=True).reward = 1.0
    >>> t = await art.trajectory(agent())
    >>> t.messages()[0], t.reward
    ({'role': 'user', 'content': 'Hi.'}, 1.0)
    """
    if not inspect.iscoroutine(coroutine):
        raise TypeError(
            f"art.trajectory takes a coroutine (the result of calling an async function), not {type(coroutine).__name__}."
        )
    with Trajectory() as opened:
        await coroutine
    return opened


async def trajectory_group(
    items: Iterable[Trajectory | BaseException | Awaitable[Trajectory]],
    *,
    exceptions: Iterable[BaseException | PydanticException] = (),
    metadata: Mapping[str, MetadataValue] | None = None,
    metrics: Mapping[str, float | int | bool] | None = None,
    logs: Iterable[str] | None = None,
    return_exceptions: bool = False,
) -> TrajectoryGroup:
    """Run rollouts concurrently and group them, in order. An enclosing open trajectory records nothing of them.

    Args:
        items: Trajectories, exceptions, or awaitables of a trajectory.
        return_exceptions: Keep failures in the group; otherwise the first one cancels the rest and is raised.

    Raises:
        TypeError: An item is, or gives, something else.

    >>> async def play(reward):
    ...     return art.Trajectory(reward=reward)
    >>> group = await art.trajectory_group([play(0.0), play(1.0)], metadata={"scenario_id": "a"})
    >>> [t.reward for t in group]
    [0.0, 1.0]
    """
    with no_capture():
        tasks = [asyncio.ensure_future(_member(item, return_exceptions)) for item in items]
    members = await gather_or_cancel(tasks)
    return TrajectoryGroup(members, exceptions=exceptions, metadata=metadata, metrics=metrics, logs=logs)


async def _member(item: Any, return_exceptions: bool) -> Trajectory | BaseException:
    try:
        found: Any = await cast(Awaitable[Any], item) if isinstance(item, Awaitable) else item
    except Exception as error:
        if not return_exceptions:
            raise
        return error
    if not isinstance(found, (Trajectory, BaseException)):
        raise TypeError(f"A member of a trajectory group must be a Trajectory, not {type(found).__name__}.")
    return found


@contextmanager
def recording(trajectory: Trajectory | None) -> Generator[None]:
    """Record the model calls made inside in ``trajectory``."""
    token = active_trajectory.set(trajectory)
    try:
        yield
    finally:
        active_trajectory.reset(token)


@contextmanager
def no_capture() -> Generator[None]:
    """Record nothing inside: for calls that are not the agent's own, such as a judge's.

    Trajectories opened inside still record.

    >>> with art.Trajectory():
    ...     with no_capture():
    ...         art.current_trajectory() is None
    True
    """
    with recording(None):
        yield
