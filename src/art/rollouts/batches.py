"""Batches of groups, for loops that keep the engine busy while they train."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from art.gather import (
    GatherContext,
    close_unstarted,
    progress_bar,
    set_gather_context,
    size_of,
    warn_completion_tokens,
    wrap_group_awaitable,
)
from art.trajectories import TrajectoryGroup


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
    """Run groups ahead of their use and yield them in batches, in the order in which they finish.

    Args:
        groups: As for ``gather_trajectory_groups``; a generator is read only as far ahead as needed.
        batch_size: Groups per batch; the last batch may be shorter.
        max_batch_exceptions: Failed rollouts that each batch bears, afresh; below 1, as a share of its rollouts.
        max_concurrent_batches: How many batches' worth of groups run at the same time.
        skip_batches: Batches to leave out at the beginning, for resuming.

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


@dataclass
class _BatchContext(GatherContext):
    """A gathering whose budget of failures begins anew with every batch."""

    batch_total: int = 0
    """Rollouts of a full batch."""

    def too_many_exceptions(self) -> bool:
        failures = self.metric_sums.get("exceptions", 0)
        if 0 < self.max_exceptions < 1 and self.batch_total:
            return failures / self.batch_total > self.max_exceptions
        return failures > self.max_exceptions

    def start_batch(self) -> None:
        self.metric_sums["exceptions"] = 0
