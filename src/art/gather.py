"""Run many rollouts concurrently, in order, with a progress bar and a budget of exceptions.

A failed rollout counts against the budget. A failure of the service itself (a dead engine, an unreachable gateway)
is no rollout's fault: it always raises.
"""

import asyncio
import contextlib
import io
import itertools
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Generator, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from art.rollouts.failures import GatherContext, gather_or_cancel, get_gather_context, set_gather_context
from art.trajectories import PendingGroup, Trajectory, TrajectoryGroup, record_metrics

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = [
    "GatherContext",
    "gather_trajectories",
    "gather_trajectory_groups",
    "get_gather_context",
    "record_metrics",
    "set_gather_context",
    "trajectory_group_batches",
    "wrap_group_awaitable",
    "wrap_trajectories_awaitable",
]


AfterEach = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | list[TrajectoryGroup] | None]]
"""Called with each finished group. Returns the group to keep, a list to replace it, or ``None`` to drop it."""


async def gather_trajectory_groups(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """Run groups of rollouts concurrently.

    Args:
        groups: ``TrajectoryGroup(...)`` of awaitables, or any awaitables of a group.
        pbar_desc: The progress bar's label.
        max_exceptions: How many failed rollouts to tolerate: a count, or, below 1, a fraction of all. The failure after
            that raises, as the first one does by default.
        max_metrics: Maximum number of metrics on the bar.
        after_each: Called with each finished group, for instance to judge it. Its exceptions propagate.

    Returns:
        The groups, in the order given.

    >>> async def play(scenario, n):
    ...     return art.Trajectory(reward=float(n), metadata={"scenario_id": scenario})
    >>> groups = await art.gather_trajectory_groups(
    ...     art.TrajectoryGroup(play(scenario, n) for n in range(4)) for scenario in ("a", "b")
    ... )
    >>> [len(group) for group in groups]
    [4, 4]
    """
    warn_completion_tokens(pbar_total_completion_tokens)
    pending = _awaitables(groups, "groups")
    total = sum(size_of(group) for group in pending)
    with progress_bar(pbar_desc, total) as bar:
        context = GatherContext(pbar=bar, max_exceptions=max_exceptions, max_metrics=max_metrics)
        with set_gather_context(context):
            finished = await _run_all([wrap_group_awaitable(group, after_each) for group in pending], pending)
    return [group for groups_or_none in finished for group in groups_or_none]


def _awaitables(items: Iterable[Any], what: str) -> list[Any]:
    """Raises TypeError: Something else is among the items; nothing was run."""
    pending = list(items)
    for i, item in enumerate(pending):
        if not isinstance(item, Awaitable):
            for other in pending:
                close_unstarted(other)
            raise TypeError(f"{what}: item {i} is a {type(item).__name__}, which cannot be awaited. Nothing was run.")
    return pending


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory | Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> list[Trajectory | list[Trajectory] | BaseException]:
    """Run rollouts concurrently.

    Args:
        trajectories: Awaitables that each give a trajectory, or several.
        max_exceptions: As for ``gather_trajectory_groups``.

    Returns:
        One entry per awaitable, in order: its trajectory, the list of its trajectories, or the exception it raised.

    >>> async def play(reward):
    ...     return art.Trajectory(reward=reward)
    >>> [t.reward for t in await art.gather_trajectories([play(0.0), play(1.0)])]
    [0.0, 1.0]
    """
    warn_completion_tokens(pbar_total_completion_tokens)
    pending = _awaitables(trajectories, "trajectories")
    with progress_bar(pbar_desc, len(pending)) as bar:
        context = GatherContext(pbar=bar, max_exceptions=max_exceptions)
        with set_gather_context(context):
            return await _run_all([wrap_trajectories_awaitable(one) for one in pending], pending)


@dataclass
class _BatchContext(GatherContext):
    """A gathering with a new budget of failures for every batch."""

    batch_total: int = 0
    """Rollouts of a full batch."""

    def too_many_exceptions(self) -> bool:
        failures = self.metric_sums.get("exceptions", 0)
        if 0 < self.max_exceptions < 1 and self.batch_total:
            return failures / self.batch_total > self.max_exceptions
        return failures > self.max_exceptions

    def start_batch(self) -> None:
        self.metric_sums["exceptions"] = 0


async def trajectory_group_batches(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    batch_size: int,
    max_batch_exceptions: int | float = 0,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    pbar_desc: str | None = "batches",
    pbar_total_completion_tokens: bool = False,
) -> AsyncIterator[list[TrajectoryGroup]]:
    """Run groups ahead of their use and yield them in batches, in order of completion.

    Args:
        groups: As for ``gather_trajectory_groups``; a generator is read only as far ahead as needed.
        batch_size: Groups per batch; the last batch may be shorter.
        max_batch_exceptions: Failed rollouts that each batch tolerates: a count, or, below 1, a fraction of its rollouts.
        max_concurrent_batches: How many batches' worth of groups run at the same time.
        skip_batches: Batches to skip at the start, for resuming.

    Raises:
        ValueError: A size is not positive.

    >>> async def play(n):
    ...     return art.Trajectory(reward=float(n))
    >>> groups = (art.TrajectoryGroup([play(n), play(n + 1)]) for n in range(5))
    >>> [len(batch) async for batch in art.trajectory_group_batches(groups, batch_size=2)]
    [2, 2, 1]
    """
    warn_completion_tokens(pbar_total_completion_tokens)
    if batch_size < 1 or max_concurrent_batches < 1 or skip_batches < 0:
        raise ValueError("batch_size and max_concurrent_batches must be at least 1, skip_batches at least 0.")
    source = iter(groups)
    for skipped in itertools.islice(source, batch_size * skip_batches):
        close_unstarted(skipped)
    running: dict[asyncio.Task[list[TrajectoryGroup]], Any] = {}
    with progress_bar(pbar_desc, 0) as bar:
        context = _BatchContext(pbar=bar, max_exceptions=max_batch_exceptions)

        def refill() -> None:
            for group in itertools.islice(source, batch_size * max_concurrent_batches - len(running)):
                size = size_of(group)
                bar.total = (bar.total or 0) + size
                context.batch_total = max(context.batch_total, size * batch_size)
                with set_gather_context(context):
                    running[asyncio.ensure_future(wrap_group_awaitable(group))] = group

        ready: list[TrajectoryGroup] = []
        try:
            refill()
            while running:
                finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(finished, key=list(running).index):
                    del running[task]
                    ready.extend(task.result())
                refill()
                while len(ready) >= batch_size:
                    batch, ready = ready[:batch_size], ready[batch_size:]
                    yield batch
                    context.start_batch()
            if ready:
                yield ready
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            unread = source if isinstance(groups, Collection) else ()  # a generator has not made them
            for group in (*running.values(), *unread):
                close_unstarted(group)


async def wrap_group_awaitable(
    awaitable: Awaitable[TrajectoryGroup], after_each: AfterEach | None = None
) -> list[TrajectoryGroup]:
    """Await one group within the current context.

    Returns:
        What is to stand in its place: nothing if it failed within the budget or ``after_each`` dropped it.
    """
    context = get_gather_context()
    if isinstance(awaitable, PendingGroup):  # its members count themselves, successes and failures alike
        group = await awaitable
    else:
        # Members that the awaitable runs share means and failures, but the bar counts the awaitable as one.
        inner = replace(context, increment_pbar=False, recorded=0)
        try:
            with set_gather_context(inner):
                group = await awaitable
        except Exception as error:
            context.record_failure(error)
            if context.too_many_exceptions():
                raise
            return []
        if not isinstance(cast(Any, group), TrajectoryGroup):
            raise TypeError(f"An awaitable of a group returned {type(group).__name__}, not a TrajectoryGroup.")
        if not inner.recorded:
            for trajectory in group:
                record_metrics(context, trajectory)
        context.update_pbar(1)
    if after_each is None:
        return [group]
    kept = await after_each(group)
    if kept is None:
        return []
    return kept if isinstance(kept, list) else [kept]


async def wrap_trajectories_awaitable(
    awaitable: Awaitable[Trajectory | Iterable[Trajectory]],
) -> Trajectory | list[Trajectory] | BaseException:
    """Await one rollout within the current context; a failure within the budget is returned."""
    context = get_gather_context()
    try:
        result = await awaitable
    except Exception as error:
        context.record_failure(error)
        if context.too_many_exceptions():
            raise
        return error
    members = _members(result)
    for member in members:
        record_metrics(context, member)
    context.update_pbar(1)
    return result if isinstance(result, Trajectory) else members


def _members(result: Any) -> list[Trajectory]:
    """The trajectory or trajectories that a rollout gave. Raises TypeError: It gave something else."""
    if isinstance(result, Trajectory):
        return [result]
    members = list(cast(Iterable[Any], result)) if isinstance(result, Iterable) else [result]
    for member in members:
        if not isinstance(member, Trajectory):
            raise TypeError(f"A rollout returned {type(member).__name__}, not a Trajectory or a list of them.")
    return members


async def _run_all(coroutines: list[Coroutine[Any, Any, Any]], sources: list[Any]) -> list[Any]:
    """Run all; on the first exception cancel the rest, wait for them, and close what was never started."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await gather_or_cancel(tasks)
    except BaseException:
        for source in sources:
            close_unstarted(source)
        raise


def close_unstarted(source: Any) -> None:
    """Close an awaitable that will not be awaited any more."""
    if isinstance(source, (Coroutine, Generator, PendingGroup)):
        cast(Any, source).close()
    elif isinstance(source, asyncio.Future):
        cast("asyncio.Future[Any]", source).cancel()


def size_of(group: Any) -> int:
    """How many trajectories an awaitable of a group will run, as far as it says; else 1."""
    return group._num_trajectories if isinstance(group, PendingGroup) else 1  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def progress_bar(description: str | None, total: int) -> "Generator[tqdm[Any]]":
    """A bar on a terminal; elsewhere one that counts without being drawn."""
    from tqdm import tqdm

    # A disabled bar does not count, and the exception budget needs the count's total: off a terminal, it draws nowhere.
    out = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else io.StringIO()
    with tqdm(desc=description, total=total, file=out, dynamic_ncols=out is sys.stderr) as bar:
        yield bar


def warn_completion_tokens(asked: bool) -> None:
    """Say that ``pbar_total_completion_tokens`` has no effect, if it was asked for."""
    if asked:
        warnings.warn(
            "pbar_total_completion_tokens is deprecated and has no effect; the bar shows the mean completion_tokens.",
            DeprecationWarning,
            stacklevel=3,
        )
