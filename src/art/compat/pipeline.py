"""``PipelineTrainer``: rollout workers → queue → training → log, with evaluation in between. A layer over ``art.loop``."""

import sys
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from art.backend import AnyTrainableModel, Backend
from art.capture.scopes import trajectory_group
from art.logs.rows import is_trainable
from art.loop.groups import Counts, GroupsInFlight, ScenarioCursor, age_of
from art.loop.rollouts import HoldClock
from art.loop.training import Batch, Evaluated, StepReport, TrainingLoop
from art.trajectories import Trajectory, TrajectoryGroup

ScenarioT = TypeVar("ScenarioT")

RolloutFn: TypeAlias = Callable[[AnyTrainableModel, Any, Any], Awaitable[TrajectoryGroup]]
"""(model, scenario, config) → a group of rollouts of the scenario."""

SingleRolloutFn: TypeAlias = Callable[[AnyTrainableModel, Any, Any], Awaitable[Trajectory]]

EvalFn: TypeAlias = Callable[[AnyTrainableModel, int, Any], Awaitable[Evaluated | Mapping[str, Evaluated]]]
"""(model, step, config) → trajectories or groups of split ``val``, or of each split by name."""


def make_group_rollout_fn(single: SingleRolloutFn, n: int = 4) -> RolloutFn:
    """A function that runs ``single`` ``n`` times per scenario; failed runs stay in the group as exceptions."""

    async def run(model: AnyTrainableModel, scenario: Any, config: Any) -> TrajectoryGroup:
        return await trajectory_group((single(model, scenario, config) for _ in range(n)), return_exceptions=True)

    return run


class StatusReporter:
    """Prints at most one line per interval, with exponentially weighted means.

    Args:
        interval_s: Seconds between lines.
        alpha: Weight of the newest value in a mean.
        total: Scenarios in all, if that is known.
    """

    def __init__(self, interval_s: float, alpha: float, total: int | None = None) -> None:
        self._interval_s = interval_s
        self._alpha = alpha
        self._total = total
        self._means: dict[str, float] = {}
        self._last_line = time.monotonic()

    def note(self, **values: float) -> None:
        """Take values into the means."""
        for name, value in values.items():
            old = self._means.get(name)
            self._means[name] = value if old is None else (1 - self._alpha) * old + self._alpha * value

    def maybe_print(self, *, step: int, settled: int, queued: int) -> None:
        now = time.monotonic()
        if now - self._last_line < self._interval_s:
            return
        self._last_line = now
        of_total = f"/{self._total}" if self._total is not None else ""
        means = "  ".join(f"{name} {value:.3g}" for name, value in self._means.items())
        print(
            f"step {step}  scenarios {settled}{of_total}  groups ready {queued}  {means}", file=sys.stderr, flush=True
        )


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

    >>> async def play(model, scenario, config):
    ...     return await art.TrajectoryGroup(rollout(model, scenario) for _ in range(2))
    >>> trainer = PipelineTrainer(model, backend, play, ["a"], config=None, min_batch_size=1, max_steps=1)
    >>> await trainer.train()
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
        self._min_batch, self._max_batch = min_batch_size, max_batch_size
        self._max_steps = max_steps
        self._collapse_at = discard_queue_multiplier * min_batch_size
        self._eval_step_0, self._resume = eval_step_0, resume
        self._without_signal: list[TrajectoryGroup] = []
        self._cursor = ScenarioCursor(scenarios)
        self._groups: GroupsInFlight[ScenarioT] = GroupsInFlight(
            model,
            lambda scenario: rollout_fn(model, scenario, config),
            self._cursor,
            workers=num_rollout_workers,
            capacity=num_rollout_workers + queue_maxsize,
            max_staleness=max_steps_off_policy,
            on_stale="drop",
        )
        self._status = StatusReporter(log_interval_seconds, status_ewa_alpha, total_scenarios)
        self._loop = TrainingLoop(
            model,
            backend,
            self._groups,
            self._cursor,
            collect=self._collect_batch,
            clock=HoldClock(),
            train_options={
                "learning_rate": learning_rate,
                "loss_fn": loss_fn,
                "loss_fn_config": loss_fn_config,
                "normalize_advantages": normalize_advantages,
                "save_checkpoint": save_checkpoint,
                "adam_params": adam_params,
            },
            evaluate=None if eval_fn is None else lambda step: eval_fn(model, step, config),
            eval_every=eval_every_n_steps,
            state_key="_pipeline_trainer",
            observer=self,
            step_metrics=self._step_metrics,
        )

    def request_stop(self) -> None:
        """End after the current step. Scenarios that are not trained by then come again when the run is resumed."""
        self._loop.request_stop()

    async def train(self, *, handle_signals: bool = True) -> None:
        """Run until the scenarios end, ``max_steps`` are taken, or a stop is requested.

        Args:
            handle_signals: Let the first Ctrl-C or SIGTERM request a stop.
        """
        await self._loop.restore(resume=self._resume)
        if self._max_steps is not None:
            self._loop.last_step = self._loop.step + self._max_steps
        await self._loop.run(handle_signals=handle_signals, eval_first=self._eval_step_0, eval_last=False)

    # What the loop asks and tells

    async def _collect_batch(self) -> Batch:
        """At least the minimum of useful groups, then what is ready up to the maximum."""
        groups: list[TrajectoryGroup] = []
        self._without_signal = []
        ended = False
        while len(groups) < self._min_batch or (len(groups) < self._max_batch and not self._groups.ready.empty()):
            group = await self._groups.next()
            if group is None:
                ended = True
                break
            self._groups.release_place(group)
            if not group.trajectories and group.exceptions:
                raise RuntimeError(f"Every rollout of a group failed. The first one: {group.exceptions[0].traceback}")
            if is_trainable(group):
                groups.append(group)
                continue
            self._without_signal.append(group)
            if len(self._without_signal) >= self._collapse_at:
                print(
                    f"warning: {len(self._without_signal)} groups in a row had equal rewards in each, so there is nothing to "
                    "learn: the policy may have collapsed (lower learning_rate), or the scenarios are too easy or too hard.",
                    file=sys.stderr,
                )
                self.request_stop()
                ended = True
                break
        return Batch(groups, self._without_signal, ended)

    def _step_metrics(self, batch: Batch, counts: Counts, metrics: Mapping[str, float]) -> dict[str, float]:
        ages = [age_of(group, self._loop.step) for group in batch.groups]
        if counts.finished:
            self._status.note(rollout_s=counts.rollout_s / counts.finished)
        return {
            "discarded_stale_groups": float(counts.stale),
            "steps_off_policy": sum(ages) / len(ages),
        }

    def training(self, step: int, groups: int) -> None:
        """Nothing is shown of it."""

    def trained(self, report: StepReport) -> None:
        self._status.note(
            step_s=report.metrics["time/step_trainer_s"], idle_s=report.metrics["throughput/step_trainer_idle_s"]
        )
        self._status.maybe_print(step=report.step, settled=self._cursor.settled, queued=self._groups.ready.qsize())

    def evaluated(self, step: int, splits: Mapping[str, Evaluated]) -> None:
        """Nothing is shown of it."""


def _check(positive: Mapping[str, float], not_negative: Mapping[str, float]) -> None:
    for name, value in positive.items():
        if value <= 0:
            raise ValueError(f"{name} must be positive, not {value}.")
    for name, value in not_negative.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative, but is {value}.")
