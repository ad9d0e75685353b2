"""Steps on the groups that are ready: the core of ``art.train`` and of ``PipelineTrainer``."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from art.backend import AnyTrainableModel, Backend
from art.errors import ConflictError, TrainerFailedError
from art.logs.directories import get_model_dir
from art.logs.files import read_history
from art.loop.groups import Counts, GroupsInFlight, ScenarioCursor, age_of
from art.loop.rollouts import HoldClock
from art.loop.signs import Signs
from art.rollouts.failures import is_service_failure
from art.terminal import say
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainResult

T = TypeVar("T")

MAX_TRAINER_FAILURES = 3
"""How often in a row the trainer may fail on the same groups."""

Evaluated: TypeAlias = Sequence[Trajectory] | Sequence[TrajectoryGroup]
Evaluate: TypeAlias = Callable[[int], Awaitable[Evaluated | Mapping[str, Evaluated]]]
"""(step) → trajectories or groups of split ``val``, or of each split by name."""


@dataclass
class Batch:
    """The groups of one step."""

    groups: list[TrajectoryGroup]
    set_aside: list[TrajectoryGroup] = field(default_factory=list[TrajectoryGroup])
    """Groups that were taken, but are not trained."""
    ended: bool = False
    """Whether no group will come after these."""


StepMetrics: TypeAlias = Callable[[Batch, Counts, Mapping[str, float]], dict[str, float]]
"""(batch, counts, metrics of the backend) → further metrics of the step."""


@dataclass(frozen=True)
class StepReport:
    """An account of a finished step."""

    step: int
    batch: Batch
    metrics: dict[str, float]
    wall_s: float
    """Since the last step was finished."""


class Observer(Protocol):
    """Receives the loop's events."""

    def training(self, step: int, groups: int) -> None:
        """A step on so many groups begins."""

    def trained(self, report: StepReport) -> None:
        """The step is finished and logged."""

    def evaluated(self, step: int, splits: Mapping[str, Evaluated]) -> None:
        """An evaluation is finished and logged."""


class TrainingLoop:
    """Takes groups, trains on them and logs them, until groups or steps end or a stop is requested.

    What is settled is saved with every step, and what a step is about to settle just before it: a run that is killed at
    any moment repeats no scenario whose step was kept.

    Args:
        collect: Takes the groups of a step.
        clock: Stands still while the backend trains.
        last_step: The step after which the loop ends; ``None``: when the groups end.
        eval_every: Steps between evaluations; 0: none between.
        state_key: Under which the model's ``state.json`` keeps the loop's place.
    """

    def __init__(
        self,
        model: AnyTrainableModel,
        backend: Backend,
        groups: GroupsInFlight[Any],
        cursor: ScenarioCursor[Any],
        *,
        collect: Callable[[], Awaitable[Batch]],
        clock: HoldClock,
        train_options: Mapping[str, Any],
        evaluate: Evaluate | None,
        eval_every: int,
        state_key: str,
        observer: Observer,
        step_metrics: StepMetrics = lambda batch, counts, metrics: {},
    ) -> None:
        self.model, self.backend, self.groups = model, backend, groups
        self.last_step: int | None = None
        self.last_eval_step: int | None = None
        self._asked_to_stop = asyncio.Event()
        self._stopping = asyncio.Event()
        """Set at the end of the loop too."""
        self._cursor, self._collect, self._clock = cursor, collect, clock
        self._train_options = dict(train_options)
        self._evaluate, self._eval_every = evaluate, eval_every
        self._state_key, self._observer, self._step_metrics = state_key, observer, step_metrics
        self._finished_at = time.monotonic()
        self._signs = Signs(read_history(Path(get_model_dir(model, model.base_path), "history.jsonl")))

    @property
    def step(self) -> int:
        return self.groups.version

    @property
    def is_complete(self) -> bool:
        """Whether the last step is taken."""
        return self.last_step is not None and self.step >= self.last_step

    @property
    def was_stopped(self) -> bool:
        """Whether a stop was asked for."""
        return self._asked_to_stop.is_set()

    def request_stop(self) -> None:
        """End without waiting for rollouts or an evaluation; a training step in progress is finished."""
        self._asked_to_stop.set()
        self._stopping.set()

    async def run(self, *, handle_signals: bool, eval_first: bool, eval_last: bool) -> None:
        """Run to the end. Call ``restore`` first.

        Raises:
            ConflictError: Another loop trains the model.
            Exception: What broke the service or the rollout function. What was trained is kept.
        """
        signals = stop_on_signals(self.request_stop) if handle_signals else contextlib.nullcontext()
        with self.model.trained_alone(), signals:
            if eval_first and self.last_eval_step is None:
                await self._run_eval(self.step)
            if not self.is_complete and not self.was_stopped:
                self.groups.start()
            stop = asyncio.create_task(self._stop_when_asked())
            try:
                await self._take_steps()
            finally:
                self._stopping.set()
                await stop
            if eval_last and not self.was_stopped and self.last_eval_step != self.step:
                await self._run_eval(self.step)

    async def _take_steps(self) -> None:
        """Take steps until the groups end."""
        self._finished_at = time.monotonic()
        while not self._stopping.is_set() and not self.is_complete:
            waiting_since = time.monotonic()
            batch = await self._collect()
            if self._stopping.is_set() or not batch.groups:
                break
            await self._take_step(batch, idle_s=time.monotonic() - waiting_since)
            if self._eval_every and self.step % self._eval_every == 0:
                await self._run_eval(self.step)
            if batch.ended:
                break
        self._save()

    async def _stop_when_asked(self) -> None:
        await self._stopping.wait()
        await self.groups.stop()

    async def _take_step(self, batch: Batch, *, idle_s: float) -> None:
        everything = [*batch.groups, *batch.set_aside]
        self._observer.training(self.step + 1, len(batch.groups))
        self._save(pending=self.groups.numbers(everything))
        lags = [age_of(group, self.step) for group in batch.groups]
        started = time.monotonic()
        with self._clock.hold():
            result = await self._train(batch.groups)
        finished = time.monotonic()
        wall_s, self._finished_at = finished - self._finished_at, finished
        counts = self.groups.take_counts()
        metrics = {
            "pipeline/stale_groups": float(counts.stale),
            "pipeline/failed_scenarios": float(counts.failed),
            "pipeline/groups_running": float(self.groups.running),
            "pipeline/groups_ready": float(self.groups.ready.qsize()),
            "pipeline/staleness_mean": sum(lags) / len(lags),
            "pipeline/staleness_max": float(max(lags)),
            "time/step_wall_s": wall_s,
            "time/step_trainer_s": finished - started,
            "throughput/step_trainer_idle_s": idle_s,
            **self._step_metrics(batch, counts, result.metrics),
            **self._signs.measure(batch.groups, result.metrics),
            **result.metrics,
        }
        self.groups.settle(everything)
        self.groups.advance(result.step)
        await self.model.log(batch.groups, split="train", metrics=metrics, step=result.step)
        if batch.set_aside:
            await self.model.log(batch.set_aside, split="discarded", step=result.step)
        self._save()
        self._observer.trained(StepReport(result.step, batch, metrics, wall_s))
        for sentence in self._signs.warnings():
            say(f"warning: {sentence}")

    async def _train(self, groups: list[TrajectoryGroup]) -> TrainResult:
        """Train on ``groups``; a trainer that dies has kept nothing, and is given them again.

        Raises:
            TrainerFailedError: It failed ``MAX_TRAINER_FAILURES`` times on the same groups.
            ConflictError: Somebody else trained the model meanwhile.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                result = await self.backend.train(self.model, groups, **self._train_options)
                break
            except TrainerFailedError as error:
                if attempt == MAX_TRAINER_FAILURES:
                    raise
                say(f"warning: step {self.step + 1} runs again because the trainer failed: {error}")
        if result.step > self.step + 1:
            raise ConflictError(
                f"Model {self.model.name!r} is at step {result.step} after the step that followed {self.step}: somebody "
                "else trains it at the same time. Let one of the two train, then run the same command again; nothing "
                "that was trained is lost.",
                409,
            )
        return result

    async def _run_eval(self, step: int) -> None:
        """Evaluate and log each split; a failed evaluation is a warning, and training continues."""
        if self._evaluate is None:
            return
        token, started = self.model.activate_metrics_context("eval"), time.monotonic()
        try:
            found = await self._unless_stopped(self._evaluate(step))
            if found is None:
                return
            splits = dict(found) if isinstance(found, Mapping) else {"val": found}
            timing = {"time/step_eval_s": time.monotonic() - started}
            for split, items in splits.items():
                await self.model.log(items, split=split, metrics=timing, step=step)
                timing = {}
            self._observer.evaluated(step, splits)
        except Exception as error:
            if is_service_failure(error):
                raise
            say(f"warning: the evaluation of step {step} failed: {error!r}")
        finally:
            token.var.reset(token)
        self.last_eval_step = step
        self._save()

    async def _unless_stopped(self, work: Awaitable[T]) -> T | None:
        """The result of ``work``; ``None`` if a stop was asked for first, and it was cancelled."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._asked_to_stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for one in (task, stop):
                one.cancel()
            await asyncio.wait({task, stop})

    async def restore(self, *, resume: bool) -> None:
        """Find out where the model is, and take up an earlier run's place in the scenarios."""
        self.groups.version = await self.model.get_step()
        stored = cast(dict[str, Any], self.model.read_state() or {})
        state: dict[str, Any] | None = stored.get(self._state_key)
        if state is None or not resume:
            return
        self._cursor.restore(state)
        self.last_eval_step = state.get("last_eval_step")
        if self.step > int(state["training_step"]):  # the step was kept, but the run was killed before it was noted
            for number in state.get("pending", ()):
                self._cursor.settle(number)

    def _save(self, pending: Sequence[int] = ()) -> None:
        state = {
            **self._cursor.state(),
            "training_step": self.step,
            "last_eval_step": self.last_eval_step,
            "pending": list(pending),
        }
        self.model.merge_state({self._state_key: state})


@contextlib.contextmanager
def stop_on_signals(request_stop: Callable[[], None]) -> Generator[None]:
    """Let the first SIGINT or SIGTERM call ``request_stop``; the next one acts as usual.

    Signals reach the main thread only; in an event loop of another thread nothing is installed.
    """
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        say("stopping after the training step in progress. Press Ctrl-C again to stop at once")
        request_stop()
        for number in numbers:
            loop.remove_signal_handler(number)

    try:
        for number in numbers:
            loop.add_signal_handler(number, stop)
    except (ValueError, RuntimeError, NotImplementedError):  # not the main thread, or a platform without this
        yield
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
