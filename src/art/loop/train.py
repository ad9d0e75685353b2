"""``art.train``: the loop that most users need."""

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from art.backend import AnyTrainableModel, Backend, EngineWatch
from art.loop.display import LoopDisplay
from art.loop.groups import Counts, GroupsInFlight, OnStale, ScenarioCursor
from art.loop.rollouts import GroupRunner, HoldClock, RolloutFn, roll_out_each
from art.loop.training import Batch, Evaluated, TrainingLoop

ScenarioT = TypeVar("ScenarioT")

EvalFn: TypeAlias = Callable[[AnyTrainableModel, int], Awaitable[Evaluated | Mapping[str, Evaluated]]]
"""(model, step) → trajectories or groups of split ``val``, or of each split by name."""


@dataclass(frozen=True)
class TrainingRun:
    """How a run ended.

    >>> run = await art.train(model, rollout, ["a"], steps=1, groups_per_step=1, group_size=2, show_progress=False)
    >>> run.stopped
    False
    """

    step: int
    """The policy version that is served."""
    stopped: bool
    """Whether it was stopped early; the same call resumes it."""


async def train(
    model: AnyTrainableModel,
    rollout: RolloutFn[ScenarioT],
    scenarios: Iterable[ScenarioT] | AsyncIterable[ScenarioT],
    *,
    groups_per_step: int,
    group_size: int,
    max_staleness: int = 0,
    on_stale: OnStale = "requeue",
    steps: int | None = None,
    eval: EvalFn | None = None,  # noqa: A002
    eval_every: int = 10,
    eval_scenarios: Sequence[ScenarioT] | None = None,
    rollout_timeout_s: float | None = None,
    max_concurrent_rollouts: int | None = None,
    handle_signals: bool = True,
    show_progress: bool = True,
    **train_options: Any,
) -> TrainingRun:
    """Roll out groups and train on them, step after step. The same call resumes a run that was stopped or killed.

    It is the explicit form, repeated: gather groups, ``backend.train(model, groups)``, ``model.log(groups)``. With
    ``max_staleness`` above 0, ``groups_per_step * (1 + max_staleness)`` groups are in flight and a few more, as many as
    keep the engine busy, and a step takes the first ones that are ready: neither the accelerator nor the environments
    wait for the slowest rollout.

    Args:
        model: Registered with a backend.
        rollout: Runs the agent once on a scenario; returns the ``Trajectory`` with its reward, or both as a pair. A
            rollout that raises is left out of its group.
        scenarios: What to roll out, in order. A sequence is repeated until ``steps`` are taken. To be resumable, it must
            come in the same order again.
        groups_per_step: Groups that a step trains on. The last step may have fewer.
        group_size: Rollouts per scenario, compared with each other.
        max_staleness: How many policy versions behind a group may be when it is trained; 0 is strictly on-policy, and gives
            the same batches as the explicit form.
        on_stale: Roll out the scenario of a group that fell further behind again, or drop it. Both are counted.
        steps: The step of the model after which training ends, so that the same call resumes; ``None``: when the
            scenarios end.
        eval: Evaluates the model: before the first step, then every ``eval_every`` steps, and after the last. ``None`` rolls
            out each of ``eval_scenarios`` once.
        eval_scenarios: Scenarios to evaluate and never train on. ``None`` holds out the last tenth of ``scenarios``, at most 64
            and no more than a step has rollouts, where they are a sequence of at least 50; ``[]`` holds none out.
        rollout_timeout_s: Maximum seconds per rollout: set-up, agent and scoring together. Time in which its model
            calls are held for a training step, or an engine starts, does not count.
        max_concurrent_rollouts: Maximum concurrent rollouts; ``None`` sets no limit.
        handle_signals: Let the first Ctrl-C end the run cleanly: rollouts are cancelled, a training step is finished.
        show_progress: Show a line per step, and on a terminal what happens now.
        train_options: Keywords of ``backend.train``, such as ``learning_rate``.

    Raises:
        ValueError: A size is not positive, or a limit is negative.
        ConflictError: The model is being trained by another call.
        TrainerFailedError: The trainer failed three times on the same groups.
        BackendError, openai.APIError: The service failed.
        EveryRolloutFailedError: The rollout function failed on twenty scenarios in a row.

    >>> last = await model.get_step() + 1
    >>> run = await art.train(model, rollout, ["a"], steps=last, groups_per_step=1, group_size=2, show_progress=False)
    >>> run.step == last
    True
    """
    _check_sizes(
        groups_per_step=groups_per_step,
        group_size=group_size,
        rollout_timeout_s=rollout_timeout_s,
        max_concurrent_rollouts=max_concurrent_rollouts,
        steps=steps,
    )
    if eval is not None and eval_scenarios is not None:
        raise ValueError("Give either eval or eval_scenarios: eval chooses its own scenarios.")
    if max_staleness < 0 or eval_every < 0:
        raise ValueError(f"max_staleness ({max_staleness}) and eval_every ({eval_every}) must not be negative.")
    held_out: Sequence[ScenarioT] = () if eval_scenarios is None else list(eval_scenarios)
    if eval is None and eval_scenarios is None:
        scenarios, held_out = hold_out(scenarios, groups_per_step * group_size)
    if steps is not None and isinstance(scenarios, Sequence) and scenarios:
        scenarios = itertools.cycle(scenarios)
    clock, cursor = HoldClock(), ScenarioCursor(scenarios)
    runner = GroupRunner(
        model,
        rollout,
        size=group_size,
        timeout_s=rollout_timeout_s,
        max_concurrent=max_concurrent_rollouts,
        clock=clock,
    )
    depth = Depth(groups_per_step, max_staleness)
    groups = GroupsInFlight(
        model,
        runner.run,
        cursor,
        workers=depth.groups,
        capacity=depth.groups,
        max_staleness=max_staleness,
        on_stale=on_stale,
    )

    async def collect() -> Batch:
        """The first groups that are ready, in the order of their scenarios."""
        batch = Batch([])
        while len(batch.groups) < groups_per_step and not batch.ended:
            group = await groups.next()
            if group is None:
                batch.ended = True
            else:
                batch.groups.append(group)
        batch.groups.sort(key=lambda group: groups.numbers([group]))
        return batch

    def count(batch: Batch, counts: Counts, metrics: Mapping[str, float]) -> dict[str, float]:
        groups.resize(depth.adapt(metrics.get("throughput/engine_idle_share"), groups.ready.qsize()))
        timeouts, runner.timeouts = runner.timeouts, 0
        return {"pipeline/rollouts_running": float(runner.running), "pipeline/rollout_timeouts": float(timeouts)}

    evaluator = GroupRunner(
        model, rollout, size=1, timeout_s=rollout_timeout_s, max_concurrent=max_concurrent_rollouts, clock=clock
    )

    async def evaluate(step: int) -> Evaluated | Mapping[str, Evaluated]:
        return await (eval(model, step) if eval is not None else roll_out_each(evaluator, held_out))

    with LoopDisplay(model, groups, runner, per_step=groups_per_step, steps=steps, shown=show_progress) as display:
        loop = TrainingLoop(
            model,
            model.backend(),
            groups,
            cursor,
            collect=collect,
            clock=clock,
            train_options=train_options,
            evaluate=evaluate if eval is not None or held_out else None,
            eval_every=eval_every,
            state_key="_train",
            observer=display,
            step_metrics=count,
        )
        await loop.restore(resume=True)
        loop.last_step = steps
        display.begin(loop.step, None if eval is not None or eval_scenarios is not None else len(held_out))
        try:
            async with _engine_watched(model.backend(), clock if rollout_timeout_s is not None else None, groups):
                await loop.run(handle_signals=handle_signals, eval_first=True, eval_last=True)
        finally:
            await asyncio.gather(runner.leave(), evaluator.leave())
        stopped = loop.was_stopped and not loop.is_complete
        display.end(loop.step, stopped=stopped)
    return TrainingRun(loop.step, stopped)


@contextlib.asynccontextmanager
async def _engine_watched(
    backend: Backend, clock: HoldClock | None, groups: GroupsInFlight[Any]
) -> AsyncGenerator[None]:
    """Let deadlines not run while an engine starts; what breaks the service meanwhile ends the loop."""
    if clock is None or not isinstance(backend, EngineWatch):
        yield
        return

    def tell(watch: "asyncio.Task[None]") -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            groups.fail(error)

    watch = asyncio.create_task(clock.watch(backend))
    watch.add_done_callback(tell)
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait({watch})


def _check_sizes(**sizes: float | None) -> None:
    for name, value in sizes.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name} must be positive, not {value}.")


FEWEST = 50
"""A sequence of fewer scenarios is trained on as a whole, unless other ones are given for evaluation."""
SHARE, MOST_HELD_OUT = 0.1, 64


def hold_out(
    scenarios: Iterable[ScenarioT] | AsyncIterable[ScenarioT], step_rollouts: int
) -> tuple[Iterable[ScenarioT] | AsyncIterable[ScenarioT], Sequence[ScenarioT]]:
    """Divide scenarios into those to train on and those to evaluate: of a long sequence, its last tenth.

    Args:
        step_rollouts: Rollouts of a training step; an evaluation takes no more.
    """
    if not isinstance(scenarios, Sequence) or len(scenarios) < FEWEST:
        return scenarios, ()
    count = max(min(int(SHARE * len(scenarios)), step_rollouts, MOST_HELD_OUT), 1)
    return scenarios[:-count], scenarios[-count:]


AIM = 0.05
"""Share of the time for which the engine may wait for environments."""
GAIN = 3.0
"""Steps' worth of groups that are added for each unit of the share above ``AIM``, and taken away for each below it."""
MOST = 1.5
"""The largest surplus, in steps' worth of groups."""


class Depth:
    """Decides, step after step, how many groups are in flight.

    ``(1 + max_staleness)`` steps' worth are what could be trained if all ended in time. Slow environments hold groups up,
    so that the engine idles; a surplus of groups keeps it busy, of which those that end too late are begun again. The
    surplus follows the engine's idle share. Without staleness there is no surplus: a step waits for its own groups.

    Args:
        per_step: Groups that a step trains on.
        max_staleness: How many policy versions behind a group may be.
    """

    def __init__(self, per_step: int, max_staleness: int) -> None:
        self._per_step, self._max_staleness = per_step, max_staleness
        self._surplus = 0

    @property
    def groups(self) -> int:
        """Groups that should be in flight now."""
        return self._per_step * (1 + self._max_staleness) + self._surplus

    def adapt(self, idle_share: float | None, ready: int) -> int:
        """Learn from a step, and return ``groups``.

        Args:
            idle_share: Share of the step for which the engine idled; ``None``: it is not known.
            ready: Groups that were ready when it ended. With a whole step's worth, more would not be trained sooner.
        """
        if self._max_staleness and idle_share is not None:
            idle_share = idle_share if ready < self._per_step else 0.0
            surplus = self._surplus + round(GAIN * self._per_step * (idle_share - AIM))
            self._surplus = min(max(surplus, 0), math.ceil(MOST * self._per_step))
        return self.groups
