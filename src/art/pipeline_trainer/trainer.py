"""The pipeline: rollout workers → queue → training → log, with evaluation in between."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, Generic, cast

from art.backend import AnyTrainableModel, Backend
from art.failures import is_service_failure
from art.metrics_taxonomy import is_trainable
from art.pipeline_trainer.cursor import ScenarioCursor
from art.pipeline_trainer.status import StatusReporter
from art.pipeline_trainer.types import EvalFn, RolloutFn, ScenarioT
from art.trajectories import TrajectoryGroup

_STATE_KEY = "_pipeline_trainer"
MAX_FAILURES_IN_A_ROW = 20
"""Rollout functions that fail this often, with no success between, are taken to be broken."""


class PipelineTrainer(Generic[ScenarioT]):
    """Trains on groups as they are finished, while others are still being rolled out.

    Args:
        rollout_fn: Runs a group of rollouts of one scenario.
        scenarios: What to roll out, in order.
        config: Handed to ``rollout_fn`` and ``eval_fn``.
        eval_fn: Evaluates the model, before training and every ``eval_every_n_steps`` steps.
        min_batch_size: Groups that a step waits for.
        max_batch_size: Groups that a step takes at most; ``None``: ten times the minimum.
        max_steps_off_policy: Groups that were begun more steps ago than this are discarded.
        queue_maxsize: Finished groups that wait at most; then workers pause. ``None``: ``max_batch_size``.
        discard_queue_multiplier: When this many times ``min_batch_size`` groups without a learning signal have come in
            between two steps, the run ends: the policy has collapsed, or the scenarios are too easy or too hard.
        max_steps: Steps to take at most; ``None``: until the scenarios end.
        resume: Skip the scenarios that an earlier run of this model settled.

    Raises:
        ValueError: A size that is not positive, a negative limit, or a maximum below its minimum.
    """

    def __init__(
        self,
        model: AnyTrainableModel,
        backend: Backend,
        rollout_fn: RolloutFn,
        scenarios: Iterable[ScenarioT] | AsyncIterable[ScenarioT],
        config: Any,
        eval_fn: EvalFn | None = None,
        *,
        num_rollout_workers: int = 16,
        min_batch_size: int = 4,
        max_batch_size: int | None = None,
        max_steps_off_policy: int = 4,
        queue_maxsize: int | None = None,
        learning_rate: float = 1e-5,
        loss_fn: str = "cispo",
        loss_fn_config: dict[str, Any] | None = None,
        normalize_advantages: bool = True,
        adam_params: Any = None,
        max_steps: int | None = None,
        discard_queue_multiplier: int = 100,
        log_interval_seconds: float = 60.0,
        status_ewa_alpha: float = 0.2,
        total_scenarios: int | None = None,
        eval_every_n_steps: int = 20,
        eval_step_0: bool = True,
        save_checkpoint: bool = True,
        resume: bool = True,
    ) -> None:
        max_batch_size = 10 * min_batch_size if max_batch_size is None else max_batch_size
        queue_maxsize = max_batch_size if queue_maxsize is None else queue_maxsize
        _check(
            positive={
                "num_rollout_workers": num_rollout_workers,
                "min_batch_size": min_batch_size,
                "max_batch_size": max_batch_size,
                "queue_maxsize": queue_maxsize,
                "discard_queue_multiplier": discard_queue_multiplier,
                "log_interval_seconds": log_interval_seconds,
            },
            not_negative={
                "max_steps_off_policy": max_steps_off_policy,
                "max_steps": max_steps or 0,
                "eval_every_n_steps": eval_every_n_steps,
                "total_scenarios": total_scenarios or 0,
            },
        )
        if max_batch_size < min_batch_size:
            raise ValueError(f"max_batch_size ({max_batch_size}) must not be below min_batch_size ({min_batch_size}).")
        self.model = model
        self.backend = backend
        self.rollout_fn = rollout_fn
        self.eval_fn = eval_fn
        self.config = config
        self._workers = num_rollout_workers
        self._min_batch, self._max_batch = min_batch_size, max_batch_size
        self._max_off_policy = max_steps_off_policy
        self._train_options: dict[str, Any] = {
            "learning_rate": learning_rate,
            "loss_fn": loss_fn,
            "loss_fn_config": loss_fn_config,
            "normalize_advantages": normalize_advantages,
            "save_checkpoint": save_checkpoint,
            "adam_params": adam_params,
        }
        self._max_steps = max_steps
        self._collapse_at = discard_queue_multiplier * min_batch_size
        self._eval_every, self._eval_step_0, self._resume = eval_every_n_steps, eval_step_0, resume
        self._cursor = ScenarioCursor(scenarios)
        self._taking = asyncio.Lock()
        self._output_queue: asyncio.Queue[TrajectoryGroup | None] = asyncio.Queue(queue_maxsize)
        self._origins: dict[int, int] = {}
        """The number of the scenario that a group, by its ``id``, is of."""
        self._without_signal: list[TrajectoryGroup] = []
        self._stale = 0
        self._step = 0
        self._last_eval_step: int | None = None
        self._stopping = asyncio.Event()
        self._failures_in_a_row = 0
        self._status = StatusReporter(log_interval_seconds, status_ewa_alpha, total_scenarios)

    def request_stop(self) -> None:
        """End after the current step. Scenarios that are not trained by then come again when the run is resumed."""
        self._stopping.set()

    async def train(self, *, handle_signals: bool = True) -> None:
        """Run until the scenarios end, ``max_steps`` are taken, or a stop is requested.

        Args:
            handle_signals: Let the first Ctrl-C or SIGTERM request a stop.
        """
        self._step = await self.model.get_step()
        if self._resume:
            self._restore()
        with _stop_on_signals(self) if handle_signals else contextlib.nullcontext():
            if self.eval_fn is not None and self._eval_step_0 and self._last_eval_step is None:
                await self._run_eval(self._step)
            rollouts = asyncio.create_task(self._rollout_stage())
            training = asyncio.create_task(self._training_stage())
            stopping = asyncio.create_task(self._stop_when_asked(rollouts))
            try:
                await asyncio.wait({rollouts, training}, return_when=asyncio.FIRST_EXCEPTION)
                for task in (rollouts, training):
                    if task.done() and not task.cancelled():
                        task.result()
                await training
            finally:
                for task in (rollouts, training, stopping):
                    task.cancel()
                await asyncio.gather(rollouts, training, stopping, return_exceptions=True)

    async def _rollout_stage(self) -> None:
        async with asyncio.TaskGroup() as workers:
            for worker_id in range(self._workers):
                workers.create_task(self._rollout_worker(worker_id))
        await self._output_queue.put(None)

    async def _stop_when_asked(self, rollouts: "asyncio.Task[None]") -> None:
        await self._stopping.wait()
        rollouts.cancel()
        await asyncio.gather(rollouts, return_exceptions=True)
        # The queue may be full, and what is in it is not needed: those scenarios come again.
        while not self._output_queue.empty():
            self._output_queue.get_nowait()
        await self._output_queue.put(None)

    async def _rollout_worker(self, worker_id: int) -> None:
        """Roll out scenarios until they end; a failed one is told and settled."""
        token = self.model.activate_metrics_context("train")
        try:
            while not self._stopping.is_set():
                async with self._taking:
                    taken = await self._cursor.take()
                if taken is None:
                    return
                number, scenario = taken
                group = await self._roll_out(worker_id, number, scenario)
                if group is not None:
                    await self._output_queue.put(group)
        finally:
            token.var.reset(token)

    async def _roll_out(self, worker_id: int, number: int, scenario: ScenarioT) -> TrajectoryGroup | None:
        begun_at, started = self._step, time.monotonic()
        try:
            group = await self.rollout_fn(self.model, scenario, self.config)
        except Exception as error:
            self._failures_in_a_row += 1
            if is_service_failure(error) or self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                raise
            print(f"warning: worker {worker_id}: scenario {number} failed: {error!r}", file=sys.stderr)
            self._cursor.settle(number)
            return None
        self._failures_in_a_row = 0
        self._status.note(rollout_s=time.monotonic() - started)
        for trajectory in group.trajectories:
            if trajectory.initial_policy_version is None:
                trajectory.initial_policy_version = begun_at
            if trajectory.final_policy_version is None:
                trajectory.final_policy_version = self._step
        group.metadata.update(_scenario_metadata(scenario))
        self._origins[id(group)] = number
        self.model.metrics_builder("train").add_user_timing(step_actor_s=time.monotonic() - started)
        return group

    async def _training_stage(self) -> None:
        """Take steps until the queue ends."""
        taken, ended = 0, False
        while not ended and not self._stopping.is_set() and (self._max_steps is None or taken < self._max_steps):
            waiting_since = time.monotonic()
            batch, ended = await self._collect_batch()
            if not batch or self._stopping.is_set():
                break
            await self._train_on(batch, idle_s=time.monotonic() - waiting_since)
            taken += 1
            if self.eval_fn is not None and self._eval_every and self._step % self._eval_every == 0:
                await self._run_eval(self._step)
        self._save()
        self.request_stop()

    async def _collect_batch(self) -> tuple[list[TrajectoryGroup], bool]:
        """At least the minimum of useful groups, then what is ready up to the maximum; and whether the queue ended."""
        batch: list[TrajectoryGroup] = []
        while len(batch) < self._min_batch or (len(batch) < self._max_batch and not self._output_queue.empty()):
            group = await self._output_queue.get()
            if group is None:
                return batch, True
            if self._is_useful(group):
                batch.append(group)
            elif len(self._without_signal) >= self._collapse_at:
                print(
                    f"warning: {len(self._without_signal)} groups in a row had equal rewards in each, so there is nothing to "
                    "learn: the policy may have collapsed (lower learning_rate), or the scenarios are too easy or too hard.",
                    file=sys.stderr,
                )
                self.request_stop()
                return batch, True
        return batch, False

    def _is_useful(self, group: TrajectoryGroup) -> bool:
        if not group.trajectories and group.exceptions:
            raise RuntimeError(f"Every rollout of a group failed. The first one: {group.exceptions[0].traceback}")
        versions = [t.initial_policy_version for t in group.trajectories if t.initial_policy_version is not None]
        if versions and min(versions) < self._step - self._max_off_policy:
            self._stale += 1
            self._settle(group)
            return False
        if self._group_zero_variance(group):
            self._without_signal.append(group)
            return False
        return True

    async def _train_on(self, batch: list[TrajectoryGroup], *, idle_s: float) -> None:
        started = time.monotonic()
        result = await self.backend.train(self.model, batch, **self._train_options)
        trainer_s = time.monotonic() - started
        versions = [
            t.initial_policy_version for g in batch for t in g.trajectories if t.initial_policy_version is not None
        ]
        lags = [self._step - version for version in versions]
        metrics = {
            "discarded_stale_groups": float(self._stale),
            "steps_off_policy": sum(lags) / len(lags) if lags else 0.0,
            "time/step_wall_s": idle_s + trainer_s,
            "time/step_trainer_s": trainer_s,
            "throughput/step_trainer_idle_s": idle_s,
            **result.metrics,
        }
        self._step, self._stale = result.step, 0
        self._status.note(step_s=trainer_s, idle_s=idle_s)
        await self.model.log(batch, split="train", metrics=metrics, step=result.step)
        if self._without_signal:
            await self.model.log(self._without_signal, split="discarded", step=result.step)
        for group in (*batch, *self._without_signal):
            self._settle(group)
        self._without_signal = []
        self._save()
        self._status.maybe_print(step=self._step, settled=self._cursor.settled, queued=self._output_queue.qsize())

    async def _run_eval(self, step: int) -> None:
        """Evaluate and log each split; what fails is told, and training goes on."""
        if self.eval_fn is None:
            return
        token, started = self.model.activate_metrics_context("eval"), time.monotonic()
        try:
            found = await self.eval_fn(self.model, step, self.config)
            splits: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {"val": found}
            timing = {"time/step_eval_s": time.monotonic() - started}
            for split, items in splits.items():
                await self.model.log(items, split=split, metrics=timing, step=step)
                timing = {}
        except Exception as error:
            if is_service_failure(error):
                raise
            print(f"warning: the evaluation of step {step} failed: {error!r}", file=sys.stderr)
        finally:
            token.var.reset(token)
        self._last_eval_step = step
        self._save()

    @staticmethod
    def _group_zero_variance(group: TrajectoryGroup) -> bool:
        return not is_trainable(group)

    def _settle(self, group: TrajectoryGroup) -> None:
        if (number := self._origins.pop(id(group), None)) is not None:
            self._cursor.settle(number)

    def _save(self) -> None:
        state = {**self._cursor.state(), "training_step": self._step, "last_eval_step": self._last_eval_step}
        self.model.merge_state({_STATE_KEY: state})

    def _restore(self) -> None:
        stored = cast(dict[str, Any], self.model.read_state() or {})
        state: dict[str, Any] | None = stored.get(_STATE_KEY)
        if state is not None:
            self._cursor.restore(state)
            self._last_eval_step = state.get("last_eval_step")


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


def _check(positive: Mapping[str, float], not_negative: Mapping[str, float]) -> None:
    for name, value in positive.items():
        if value <= 0:
            raise ValueError(f"{name} must be positive, not {value}.")
    for name, value in not_negative.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative, but is {value}.")


@contextlib.contextmanager
def _stop_on_signals(trainer: "PipelineTrainer[Any]") -> Any:
    """Let the first SIGINT or SIGTERM request a stop; the next one acts as usual."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        print("stopping after this step; once more to stop at once", file=sys.stderr)
        trainer.request_stop()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
