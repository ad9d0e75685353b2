"""Running many rollouts at once: a progress bar, a budget of exceptions, and order kept.

A failed rollout is counted against the budget. A failure of the service itself (a dead engine, an unreachable gateway)
is no rollout's fault: it always raises.
"""

import asyncio
import contextlib
import io
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from art.rollouts.failures import is_context_overflow, is_service_failure

if TYPE_CHECKING:
    from tqdm import tqdm

    from art.trajectories import Trajectory, TrajectoryGroup

__all__ = [
    "GatherContext",
    "gather_trajectories",
    "gather_trajectory_groups",
    "get_gather_context",
    "record_metrics",
    "set_gather_context",
    "wrap_group_awaitable",
    "wrap_trajectories_awaitable",
]


T = TypeVar("T")


@runtime_checkable
class SizedAwaitable(Protocol):
    """An awaitable of a group that knows how many trajectories it will run, and counts each by itself."""

    _num_trajectories: int

    def __await__(self) -> "Generator[Any, None, TrajectoryGroup]": ...


AfterEach = Callable[["TrajectoryGroup"], "Awaitable[TrajectoryGroup | list[TrajectoryGroup] | None]"]
"""Called with each finished group: a group keeps it, a list takes its place, ``None`` drops it."""


@dataclass
class GatherContext:
    """The state of one gathering: its bar, its running means, and how many failures it bears."""

    pbar: "tqdm[Any] | None" = None
    metric_sums: dict[str, float] = field(default_factory=dict[str, float])
    """Sum of each metric; under ``"exceptions"``, the number of failures."""
    metric_divisors: dict[str, int] = field(default_factory=dict[str, int])
    max_metrics: int | None = None
    """Most metrics that the bar shows; ``None`` shows all."""
    max_exceptions: int | float = 0
    """How many failures to tolerate: a count, or, below 1, a fraction of the bar's total."""
    increment_pbar: bool = True
    recorded: int = 0
    """Trajectories recorded through this very object."""

    def update_pbar(self, n: int) -> None:
        """Show the means, and move the bar by ``n`` unless moving it is someone else's business."""
        if self.pbar is None:
            return
        shown = dict(list(self._means().items())[: self.max_metrics])
        shown |= {name: self.metric_sums[name] for name in ("exceptions", "truncated") if self.metric_sums.get(name)}
        self.pbar.set_postfix(shown)  # pyright: ignore[reportUnknownMemberType]
        if self.increment_pbar:
            self.pbar.update(n)

    def record_failure(self, error: BaseException) -> None:
        """Count a failed rollout. One that outgrew the context is counted apart, and not against the budget.

        Raises:
            BaseException: ``error`` itself, if it is a failure of the service.
        """
        if is_service_failure(error):
            raise error
        name = "truncated" if is_context_overflow(error) else "exceptions"
        self.metric_sums[name] = self.metric_sums.get(name, 0) + 1
        self.update_pbar(0)

    def too_many_exceptions(self) -> bool:
        failures = self.metric_sums.get("exceptions", 0)
        total = self.pbar.total if self.pbar is not None else None
        if 0 < self.max_exceptions < 1 and total and failures / total <= self.max_exceptions:
            return False
        return failures > self.max_exceptions

    def reset(self) -> None:
        """Forget bar, means, failures and limits."""
        self.pbar = None
        self.metric_sums = {}
        self.metric_divisors = {}
        self.max_metrics = None
        self.max_exceptions = 0
        self.increment_pbar = True

    def _means(self) -> dict[str, float]:
        return {name: self.metric_sums[name] / count for name, count in self.metric_divisors.items() if count}


_context: ContextVar[GatherContext | None] = ContextVar("art_gather_context", default=None)


@contextlib.contextmanager
def set_gather_context(context: GatherContext) -> Generator[GatherContext]:
    """Make ``context`` the current one inside the ``with`` block."""
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def get_gather_context() -> GatherContext:
    """The current context; outside of any gathering, a fresh one that bears no failure."""
    return _context.get() or GatherContext()


def record_metrics(context: GatherContext, trajectory: "Trajectory") -> None:
    """Set ``metrics["completion_tokens"]`` where it can be known, and add everything to the running means."""
    from openai.types.chat.chat_completion import Choice

    lengths = [
        len(item.logprobs.content or item.logprobs.refusal or [])
        for item in trajectory.messages_and_choices
        if isinstance(item, Choice) and item.logprobs is not None
    ]
    if lengths:
        trajectory.metrics["completion_tokens"] = sum(lengths) / len(lengths)
    context.recorded += 1
    for name, value in {"reward": trajectory.reward, **trajectory.metrics}.items():
        context.metric_sums[name] = context.metric_sums.get(name, 0) + value
        context.metric_divisors[name] = context.metric_divisors.get(name, 0) + 1


async def gather_trajectory_groups(
    groups: "Iterable[Awaitable[TrajectoryGroup]]",
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
) -> "list[TrajectoryGroup]":
    """Run groups of rollouts concurrently.

    Args:
        groups: ``TrajectoryGroup(...)`` of awaitables, or any awaitables of a group.
        pbar_desc: The progress bar's label.
        max_exceptions: How many failed rollouts to tolerate: a count, or, below 1, a fraction of all. The failure after
            that raises, as the first one does by default.
        max_metrics: Most metrics shown on the bar.
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
            raise TypeError(f"{what}: item {i} is a {type(item).__name__}, not something to await. Nothing was run.")
    return pending


async def gather_or_cancel(tasks: Sequence[asyncio.Task[T]]) -> list[T]:
    """Results of all tasks, in order. When one fails, or this wait is cancelled, the rest are cancelled and awaited first."""
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def gather_trajectories(
    trajectories: "Iterable[Awaitable[Trajectory | Iterable[Trajectory]]]",
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> "list[Trajectory | list[Trajectory] | BaseException]":
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


async def wrap_group_awaitable(
    awaitable: "Awaitable[TrajectoryGroup]", after_each: AfterEach | None = None
) -> "list[TrajectoryGroup]":
    """Await one group within the current context.

    Returns:
        What is to stand in its place: nothing if it failed within the budget or ``after_each`` dropped it.
    """
    from art.trajectories import TrajectoryGroup

    context = get_gather_context()
    if isinstance(awaitable, SizedAwaitable):  # its members count themselves, successes and failures alike
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
            raise TypeError(f"An awaitable of a group gave {type(group).__name__}, not a TrajectoryGroup.")
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
    awaitable: "Awaitable[Trajectory | Iterable[Trajectory]]",
) -> "Trajectory | list[Trajectory] | BaseException":
    """Await one rollout within the current context; a failure within the budget is returned."""
    from art.trajectories import Trajectory

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


def _members(result: Any) -> "list[Trajectory]":
    """The trajectory or trajectories that a rollout gave. Raises TypeError: It gave something else."""
    from art.trajectories import Trajectory

    if isinstance(result, Trajectory):
        return [result]
    members = list(cast(Iterable[Any], result)) if isinstance(result, Iterable) else [result]
    for member in members:
        if not isinstance(member, Trajectory):
            raise TypeError(f"A rollout gave {type(member).__name__}, not a Trajectory or several.")
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
    from art.trajectories import PendingGroup

    if isinstance(source, (Coroutine, Generator, PendingGroup)):
        cast(Any, source).close()
    elif isinstance(source, asyncio.Future):
        cast("asyncio.Future[Any]", source).cancel()


def size_of(group: Any) -> int:
    """How many trajectories an awaitable of a group will run, as far as it says; else 1."""
    return group._num_trajectories if isinstance(group, SizedAwaitable) else 1  # pyright: ignore[reportPrivateUsage]


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
