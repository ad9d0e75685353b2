"""Groups in flight: begun in the order of their scenarios, taken in the order in which they are finished.

Invariants:

- A scenario is in exactly one place: not begun, running, ready, taken, or settled.
- A taken group is at most ``max_staleness`` policy versions old: a group is as old as the version at which it was begun.
- A group that grew too old is begun again or dropped, and counted; what its rollouts still return is ignored.
- The first failure of the service, or of too many scenarios in a row, is raised by ``next``.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from art.backend import AnyTrainableModel
from art.rollouts.failures import is_service_failure
from art.terminal import say
from art.trajectories import TrajectoryGroup

ScenarioT = TypeVar("ScenarioT")

MAX_FAILURES_IN_A_ROW = 20
"""Scenarios that fail this often, with no success between, are taken to have a broken rollout function."""
_LEAVE_S = 10.0
"""How long workers may take to end when they are stopped."""

OnStale = Literal["requeue", "drop"]


class ScenarioCursor(Generic[ScenarioT]):
    """Hands out scenarios, and remembers by number those that are settled: trained, discarded or failed for good.

    Rollouts end in any order, so a count does not say which scenarios are done: the cursor keeps the number below which
    all are, and those beyond it.
    """

    def __init__(self, scenarios: Iterable[ScenarioT] | AsyncIterable[ScenarioT]) -> None:
        self._source = _as_async(scenarios)
        self._next = 0
        self._all_below = 0
        self._beyond: set[int] = set()

    async def take(self) -> tuple[int, ScenarioT] | None:
        """The next scenario that is not settled, with its number; ``None`` at the end."""
        async for scenario in self._source:
            number = self._next
            self._next += 1
            if number >= self._all_below and number not in self._beyond:
                return number, scenario
        return None

    def settle(self, number: int) -> None:
        self._beyond.add(number)
        while self._all_below in self._beyond:
            self._beyond.remove(self._all_below)
            self._all_below += 1

    @property
    def settled(self) -> int:
        return self._all_below + len(self._beyond)

    def state(self) -> dict[str, Any]:
        return {
            "scenario_offset": self._all_below,
            "settled_beyond_offset": sorted(self._beyond),
            "total_scenarios_consumed": self.settled,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._all_below = int(state.get("scenario_offset", 0))
        self._beyond = set(state.get("settled_beyond_offset", ()))


async def _as_async(scenarios: Iterable[ScenarioT] | AsyncIterable[ScenarioT]) -> AsyncIterator[ScenarioT]:
    if isinstance(scenarios, AsyncIterable):
        async for scenario in scenarios:
            yield scenario
    else:
        for scenario in scenarios:
            yield scenario


@dataclass(eq=False)
class _Running:
    number: int
    scenario: Any
    version: int
    task: "asyncio.Task[TrajectoryGroup]"
    given_up: bool = False


@dataclass
class Counts:
    """Counts of events since they were last taken."""

    stale: int = 0
    """Groups that grew too old."""
    failed: int = 0
    """Scenarios of which nothing came back."""
    rollout_s: float = 0.0
    """Seconds that finished groups took, summed."""
    finished: int = 0
    """Groups that were finished."""


class GroupsInFlight(Generic[ScenarioT]):
    """Keeps workers busy with groups.

    Args:
        roll_out: Runs one group.
        workers: Groups that run at the same time.
        capacity: Groups that are running, ready or taken and not settled at the same time; then no further one is begun.
        max_staleness: How many versions behind a group may be when it is taken.
        on_stale: Whether the scenario of a group that fell further behind is begun again or dropped.
    """

    def __init__(
        self,
        model: AnyTrainableModel,
        roll_out: Callable[[ScenarioT], Awaitable[TrajectoryGroup]],
        cursor: ScenarioCursor[ScenarioT],
        *,
        workers: int,
        capacity: int,
        max_staleness: int,
        on_stale: OnStale,
    ) -> None:
        self._model, self._roll_out, self._cursor = model, roll_out, cursor
        self._workers, self._capacity, self._room = workers, capacity, asyncio.Semaphore(capacity)
        self._room_owed = 0
        """Places that are given up as soon as they are free, after the capacity was lowered."""
        self._max_staleness, self._on_stale = max_staleness, on_stale
        self.version = 0
        """The policy version that is served."""
        self.ready: asyncio.Queue[TrajectoryGroup | BaseException | None] = asyncio.Queue()
        """Finished groups; ``None``: no worker is left, so look whether this is the end."""
        self.counts = Counts()
        self._taking = asyncio.Lock()
        self._live: set[asyncio.Task[None]] = set()
        self._running: dict[int, _Running] = {}
        self._again: deque[tuple[int, ScenarioT]] = deque()
        self._origins: dict[int, tuple[int, ScenarioT]] = {}
        """Number and scenario of each unsettled finished group, by its ``id``."""
        self._in_room: set[int] = set()
        self._failures_in_a_row = 0

    @property
    def running(self) -> int:
        """Groups that are being rolled out."""
        return len(self._running)

    def start(self) -> None:
        """Let the workers begin."""
        for _ in range(self._workers):
            self._hire()

    def resize(self, capacity: int) -> None:
        """Let ``capacity`` groups be in flight, all of them running if need be; what has begun is not given up."""
        added, self._capacity = capacity - self._capacity, capacity
        self._workers = capacity
        self._room_owed -= added
        while self._room_owed < 0:
            self._room_owed += 1
            self._room.release()
        if self._live:
            while len(self._live) < self._workers:
                self._hire()

    async def stop(self) -> None:
        """Cancel what runs and forget what is ready: those scenarios are not settled, and come again in a resumed run."""
        workers = list(self._live)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=_LEAVE_S)
        while not self.ready.empty():
            self.ready.get_nowait()
        self.ready.put_nowait(None)

    async def next(self) -> TrajectoryGroup | None:
        """The next finished group that is fresh enough; ``None`` when there will be none.

        Raises:
            Exception: What ended a worker.
        """
        while True:
            item = await self.ready.get()
            if isinstance(item, TrajectoryGroup):
                if age_of(item, self.version) <= self._max_staleness:
                    return item
                self.counts.stale += 1
                if (origin := self._origins.pop(id(item), None)) is not None:
                    self._begin_again(*origin)
            elif item is not None:
                raise item
            elif not self._live:
                return None

    def fail(self, error: BaseException) -> None:
        """Let ``next`` raise ``error``."""
        self.ready.put_nowait(error)

    def numbers(self, groups: Iterable[TrajectoryGroup]) -> list[int]:
        """The numbers of the scenarios that these groups are of, where they are known."""
        return [self._origins[id(group)][0] for group in groups if id(group) in self._origins]

    def release_place(self, group: TrajectoryGroup) -> None:
        """Let another group take the place of a group that is not settled yet."""
        for number in self.numbers([group]):
            self._make_room(number)

    def settle(self, groups: Iterable[TrajectoryGroup]) -> None:
        """Mark scenarios as done, and their places as free: these groups are trained or set aside for good."""
        for group in groups:
            if (origin := self._origins.pop(id(group), None)) is not None:
                self._cursor.settle(origin[0])
                self._make_room(origin[0])

    def advance(self, version: int) -> None:
        """Note that ``version`` is served now, and give up running groups that can no longer be trained in time."""
        self.version = version
        for running in list(self._running.values()):
            too_old = version - running.version > self._max_staleness
            if too_old and not running.given_up and running.task.cancel():
                running.given_up = True
                self.counts.stale += 1

    def take_counts(self) -> Counts:
        counts, self.counts = self.counts, Counts()
        return counts

    async def _work(self, worker_id: int) -> None:
        """Roll out scenarios until they end; a failed one is reported, counted and settled."""
        token = self._model.activate_metrics_context("train")
        try:
            while (taken := await self._take()) is not None:
                await self._run(worker_id, *taken)
        finally:
            token.var.reset(token)

    async def _take(self) -> tuple[int, ScenarioT] | None:
        await self._room.acquire()
        taken = self._again.popleft() if self._again else None
        if taken is None:
            async with self._taking:
                taken = await self._cursor.take()
        if taken is None:
            self._free_place()
        else:
            self._in_room.add(taken[0])
        return taken

    async def _run(self, worker_id: int, number: int, scenario: ScenarioT) -> None:
        started = time.monotonic()
        running = _Running(number, scenario, self.version, asyncio.ensure_future(self._roll_out(scenario)))
        self._running[number] = running
        try:
            group = await running.task
        except asyncio.CancelledError:
            if not running.given_up or cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
                raise
            self._begin_again(number, scenario)
            return
        except Exception as error:
            self._failures_in_a_row += 1
            if is_service_failure(error) or self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                raise
            say(f"warning: worker {worker_id}: scenario {number} failed: {error!r}")
            self.counts.failed += 1
            self._cursor.settle(number)
            self._make_room(number)
            return
        finally:
            del self._running[number]
        self._failures_in_a_row = 0
        seconds = time.monotonic() - started
        self.counts.finished += 1
        self.counts.rollout_s += seconds
        self._stamp(group, running)
        self._origins[id(group)] = (number, scenario)
        self._model.metrics_builder("train").add_user_timing(step_actor_s=seconds)
        self.ready.put_nowait(group)

    def _stamp(self, group: TrajectoryGroup, running: _Running) -> None:
        for trajectory in group.trajectories:
            if trajectory.initial_policy_version is None:
                trajectory.initial_policy_version = running.version
            if trajectory.final_policy_version is None:
                trajectory.final_policy_version = self.version
        group.metadata.update(_scenario_metadata(running.scenario))

    def _begin_again(self, number: int, scenario: ScenarioT) -> None:
        if self._on_stale == "drop":
            self._cursor.settle(number)
        else:
            self._again.append((number, scenario))
            if len(self._live) < self._workers:
                self._hire()
        self._make_room(number)

    def _make_room(self, number: int) -> None:
        if number in self._in_room:
            self._in_room.discard(number)
            self._free_place()

    def _free_place(self) -> None:
        if self._room_owed > 0:
            self._room_owed -= 1
        else:
            self._room.release()

    def _hire(self) -> None:
        worker = asyncio.create_task(self._work(len(self._live)))
        self._live.add(worker)
        worker.add_done_callback(self._left)

    def _left(self, worker: "asyncio.Task[None]") -> None:
        self._live.discard(worker)
        if worker.cancelled():
            return
        if (error := worker.exception()) is not None:
            self.ready.put_nowait(error)
        elif not self._live:
            self.ready.put_nowait(None)


def age_of(group: TrajectoryGroup, version: int) -> int:
    """Policy versions between the oldest trajectory of a group and ``version``."""
    begun = [t.initial_policy_version for t in group.trajectories if t.initial_policy_version is not None]
    return version - min(begun) if begun else 0


def _scenario_metadata(scenario: Any) -> dict[str, Any]:
    """The scalars of ``scenario["metadata"]``, under names that say where they come from."""
    found = cast(Mapping[str, Any], scenario).get("metadata") if isinstance(scenario, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    scalars = cast(Mapping[str, Any], found).items()
    return {
        name if name == "scenario_id" else f"scenario_{name}": value
        for name, value in scalars
        if value is None or isinstance(value, (str, int, float, bool))
    }
