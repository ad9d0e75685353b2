"""Running the rollouts of a group: each within its deadline, not too many at once, failures kept apart from results."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast

from art.backend import AnyTrainableModel, EngineWatch
from art.rollouts.failures import GatherContext, gather_or_cancel, set_gather_context
from art.trajectories import Trajectory, TrajectoryGroup

ScenarioT = TypeVar("ScenarioT")

RolloutFn: TypeAlias = Callable[[AnyTrainableModel, ScenarioT], Awaitable[Trajectory | tuple[Trajectory, float]]]
"""(model, scenario) → the trajectory with its reward, or the trajectory and its reward."""

_TICK_S = 0.05
"""How exactly deadlines are kept."""
_WATCH_S = 0.5
"""How often is asked whether an engine is being started."""
_LEAVE_S = 5.0
"""How long rollouts that were given up may take to clean up before the run ends without them."""


class RolloutTimeoutError(TimeoutError):
    """A rollout took longer than it may, set-up and scoring included."""


class EveryRolloutFailedError(RuntimeError):
    """A group has no trajectory at all. The cause is the failure of its first member.

    Attributes:
        group: The failures.
    """

    def __init__(self, group: TrajectoryGroup, first: Exception) -> None:
        super().__init__(f"all {len(group.exceptions)} rollouts failed, the first with {first!r}")
        self.group = group


class HoldClock:
    """Seconds in which model calls could be answered: it stands still while a training step or a starting engine holds
    them."""

    def __init__(self) -> None:
        self._held_s = 0.0
        self._held_since = 0.0
        self._holds = 0

    def now(self) -> float:
        return (self._held_since if self._holds else time.monotonic()) - self._held_s

    @contextlib.contextmanager
    def hold(self) -> Generator[None]:
        """Let it stand still; holds may overlap."""
        if not self._holds:
            self._held_since = time.monotonic()
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._held_s += time.monotonic() - self._held_since

    async def watch(self, engine: EngineWatch) -> None:
        """Stand still while an engine starts, until this is cancelled.

        Raises:
            BackendError: The service is broken or gone.
        """
        with contextlib.ExitStack() as held:
            while True:
                starting = await engine.engine_is_starting()
                held.close()
                if starting:
                    held.enter_context(self.hold())
                await asyncio.sleep(_WATCH_S)


class GroupRunner(Generic[ScenarioT]):
    """Runs ``rollout`` several times on a scenario.

    Args:
        size: Rollouts per group.
        timeout_s: Seconds for one rollout, by ``clock``: set-up, agent and scoring. ``None``: no deadline.
        max_concurrent: Rollouts that run at the same time, over all groups; ``None``: all that are begun.
    """

    def __init__(
        self,
        model: AnyTrainableModel,
        rollout: RolloutFn[ScenarioT],
        *,
        size: int,
        timeout_s: float | None,
        max_concurrent: int | None,
        clock: HoldClock,
    ) -> None:
        self._model, self._rollout, self._size = model, rollout, size
        self._timeout_s, self._clock = timeout_s, clock
        self._slots = asyncio.Semaphore(max_concurrent) if max_concurrent is not None else contextlib.nullcontext()
        self._given_up: set[asyncio.Task[Any]] = set()
        self.running = 0
        """Rollouts that run now."""
        self.timeouts = 0
        """Rollouts that missed their deadline, since the start."""

    async def run(self, scenario: ScenarioT) -> TrajectoryGroup:
        """A group of what succeeded, with the failures beside it.

        Raises:
            EveryRolloutFailedError: Nothing succeeded.
            BackendError, openai.APIError: The service failed, which is no rollout's fault.
        """
        first: list[Exception] = []
        with set_gather_context(GatherContext(max_exceptions=math.inf)):
            group = await TrajectoryGroup(self._member(scenario, first) for _ in range(self._size))
        if not group.trajectories:
            raise EveryRolloutFailedError(group, first[0]) from first[0]
        return group

    async def leave(self) -> None:
        """Let rollouts that were given up clean up; those that do not are left behind."""
        if self._given_up:
            await asyncio.wait(self._given_up, timeout=_LEAVE_S)

    async def _member(self, scenario: ScenarioT, failures: list[Exception]) -> Trajectory:
        async with self._slots:
            self.running += 1
            try:
                return await self._within_deadline(self._scored(scenario))
            except Exception as error:
                failures.append(error)
                raise
            finally:
                self.running -= 1

    async def _scored(self, scenario: ScenarioT) -> Trajectory:
        result = cast(object, await self._rollout(self._model, scenario))
        match result:
            case Trajectory():
                return result
            case (Trajectory() as trajectory, float() | int() as reward):
                trajectory.reward = float(reward)
                return trajectory
            case _:
                pass
        raise TypeError(f"A rollout must return a Trajectory, or a Trajectory and its reward, not {_describe(result)}.")

    async def _within_deadline(self, work: Coroutine[Any, Any, Trajectory]) -> Trajectory:
        """Run ``work`` in a task of its own: one that does not heed its cancellation is left alone, and what it returns late
        goes nowhere."""
        task = asyncio.create_task(work)
        end = math.inf if self._timeout_s is None else self._clock.now() + self._timeout_s
        try:
            while not task.done():
                left = end - self._clock.now()
                if left <= 0:
                    self.timeouts += 1
                    raise RolloutTimeoutError(f"the rollout did not end within {self._timeout_s:g} s")
                await asyncio.wait({task}, timeout=None if left == math.inf else max(left, _TICK_S))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                self._given_up.add(task)
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._given_up.discard(task)
        if not task.cancelled():
            task.exception()  # read, so that it is not reported as lost


def _describe(result: object) -> str:
    if isinstance(result, tuple):
        return f"({', '.join(type(part).__name__ for part in cast('tuple[object, ...]', result))})"
    return type(result).__name__


async def roll_out_each(runner: GroupRunner[Any], scenarios: Sequence[Any]) -> list[TrajectoryGroup]:
    """Run each scenario; a group in which every rollout failed has its failures alone."""

    async def run(scenario: Any) -> TrajectoryGroup:
        try:
            return await runner.run(scenario)
        except EveryRolloutFailedError as error:
            return error.group

    return await gather_or_cancel([asyncio.ensure_future(run(scenario)) for scenario in scenarios])
