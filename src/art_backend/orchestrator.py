"""One training step, start to end.

The order, on one device (it must hold; each line is undone by the ``finally`` below it when something fails):

1. The gate closes: new model calls wait. Requests in flight freeze in the engine (``pause``), then its memory is freed
   (``sleep``).
2. The trainer takes the step and writes the checkpoint: the step exists from that atomic rename on. Then it leaves the device
   (``rest``).
3. The engine wakes (``weights``), loads the new version under its new name, and wakes (``kv_cache``).
4. ``resume``: frozen requests go on with the version that they started with.
5. The new version is proven: it is listed, and its log-probabilities are the trainer's (``prove``).
6. ``name`` is now an alias of the new version, and the gate opens.

Proving comes after ``resume`` because a paused engine answers nothing; the gate keeps new requests out until it is done.

With devices of their own (``dedicated``) the trainer takes the step first, while the engine goes on answering. Then the gate
closes, and the engine is paused for as long as loading the new version takes; nothing sleeps or leaves a device.
"""

import asyncio
import logging
import math
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from art.wire import TrainProgress, TrainResult
from art_backend.engines.client import EngineError, EngineUnreachableError
from art_backend.engines.contract import EngineVerbs, SleepTag
from art_backend.errors import EngineFailedError, TrainerFailedError
from art_backend.process import DeadlineExceededError, ProcessDiedError
from art_backend.serving.meter import age_metrics, token_ages
from art_backend.serving.policies import MAX_RESTARTS, ServedPolicy
from art_backend.training.process import TrainerProcess
from art_backend.training.types import AnyInput, Canary, StepInput, StepOutput

T = TypeVar("T")

CANARY_TOLERANCE = 0.15
"""Largest mean difference, in nats, between the trainer's and the engine's log-probabilities of the canaries' greedy tokens.

The mean tells wrong weights from other kernels, a single token does not. Seen with SmolLM2-135M in bf16 and vLLM's CPU build,
whose kernels are the most unlike the trainer's: for the same weights single tokens differ by up to 0.15, 0.02 on average; for the
weights of the step before, the canaries differ by 0.3 and more, since they are the tokens that the step moved most."""

ENGINE_DEADLINE_S = 300.0
"""For one control call to the engine: moving weights of a large model between memories takes tens of seconds."""

_ENGINE_LOST = (EngineUnreachableError, ProcessDiedError, DeadlineExceededError)

_log = logging.getLogger(__name__)


class StepRunner:
    """Runs the training steps of one model.

    Args:
        policy: The model as it is served.
        trainer: Returns the model's live trainer process, starting it if need be.
        device: Held for the whole step: the engines and trainers of one machine take turns.
        dedicated: Whether engine and trainer have devices of their own, so that only trainers take turns.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        trainer: Callable[[], Awaitable[TrainerProcess]],
        device: asyncio.Lock,
        *,
        dedicated: bool = False,
    ) -> None:
        self._policy = policy
        self._host = policy.host
        self._trainer = trainer
        self._device = device
        self._dedicated = dedicated
        self._asleep: list[SleepTag] = []
        """What of the engine's memory is away."""

    async def run(
        self, given: AnyInput, on_start: Callable[[int], None], report: Callable[[TrainProgress], None]
    ) -> TrainResult:
        """Take one step and serve the result.

        Args:
            given: What to train on; its step is the next one at the time when the device is free.
            on_start: Called with the step's number once the device is free.

        Raises:
            BadRequestError: The trainer refused a row; the message names it. Nothing changed.
            TrainerFailedError: The trainer died or raised. The last version is served as before.
            EngineFailedError: The engine serves other weights than the trainer saved, or cannot be started.
        """
        async with self._device:
            step = self._policy.checkpoints.latest_step() + 1
            if step - 1 > self._policy.step:
                raise EngineFailedError(
                    f"Step {step - 1} of {self._policy.name!r} is trained and saved, but not served: the engine's log says why. "
                    "Restart the service to serve it, then train on."
                )
            given = replace(given, step=step)
            on_start(step)
            clock = _Stopwatch()

            async def train() -> StepOutput:
                output = await self._train(given, report)
                clock.lap("time/step_trainer_s")
                return output

            output = await train() if self._dedicated else None
            report(TrainProgress(phase="holding"))
            self._host.gate.close()
            try:
                await self._suspend()
                clock.lap("time/step_hold_s")
                try:
                    output = output or await train()
                    report(TrainProgress(phase="publishing"))
                    difference = await self._publish(output)
                except BaseException:
                    await self._restore()
                    raise
                clock.lap("time/step_publish_s")
                report(TrainProgress(phase="resuming"))
            finally:
                self._host.gate.open()
            spent = self._policy.account()
        groups, warnings = (given.groups, given.warnings) if isinstance(given, StepInput) else ([], [])
        ages = token_ages(groups, step - 1)
        self._policy.ages.update(ages)
        return TrainResult(
            step=output.step,
            trained=output.trained,
            reason=output.reason,
            warnings=warnings + output.warnings,
            checkpoint=str(output.checkpoint),
            metrics={
                **output.metrics,
                **clock.laps,
                **spent.metrics(),
                **age_metrics(ages),
                "offpolicy/canary_gap": difference,
            },
        )

    async def _train(self, step: AnyInput, report: Callable[[TrainProgress], None]) -> StepOutput:
        report(TrainProgress(phase="preparing"))
        trainer = None
        try:
            trainer = await self._trainer()
            return await trainer.train(
                step, lambda done, total: report(TrainProgress(phase="training", done=done, total=total))
            )
        except (ProcessDiedError, DeadlineExceededError) as error:
            checkpoints = self._policy.checkpoints
            if step.step not in checkpoints.steps():
                raise TrainerFailedError(
                    f"{error}\nThe last checkpoint is intact and still served; train again to continue."
                ) from error
            _log.error("The trainer died after it saved step %d: %s", step.step, error)
            return StepOutput(
                step=step.step,
                trained=True,
                reason=None,
                metrics={},
                warnings=[
                    "The trainer died after this step was saved; its metrics were lost, and with them the check that it is served."
                ],
                checkpoint=checkpoints.path(step.step),
            )
        finally:
            if trainer is not None:
                await self._leave_device(trainer)

    async def _leave_device(self, trainer: TrainerProcess) -> None:
        """Make the trainer give its device's memory back. One that dies of it has given it back, too."""
        if self._dedicated or not trainer.alive:
            return
        try:
            await trainer.rest()
        except (ProcessDiedError, DeadlineExceededError):
            _log.exception("The trainer died while it left the device; it will restart when needed.")

    async def _suspend(self) -> None:
        try:
            process = await self._host.running()
            await process.guard(self._policy.drain(), deadline_s=None, doing="finishing completions")
            await self._call(process.client.pause("keep"), "pausing")
            if not self._dedicated:
                await self._call(process.client.sleep(), "going to sleep")
                self._asleep = ["weights", "kv_cache"]
        except _ENGINE_LOST:
            _log.exception("The engine died while it was paused; it will restart when needed.")
        except EngineFailedError:
            if not self._dedicated:
                raise
            _log.exception(
                "The engine could not start before the pause; publishing will try again."
            )  # the step is saved

    async def _restore(self) -> None:
        """Let the engine go on as before the step."""
        try:
            client = (await self._host.running()).client
            if self._asleep:  # these and no others: vLLM wakes nothing when a tag is awake already
                await self._call(client.wake_up(self._asleep), "waking up")
            await self._call(client.resume(), "resuming")
        except (*_ENGINE_LOST, EngineFailedError):
            _log.exception("The engine died while it slept; it will restart when needed.")

    async def _publish(self, output: StepOutput) -> float:
        """Serve the new version and prove it; return the canaries' mean difference in nats.

        The step exists from here on, so it is published by the next engine where one is lost.

        Raises:
            EngineFailedError: No engine serves it. Nobody trains on top of it before the service is restarted.
        """
        for attempt in range(MAX_RESTARTS + 1):
            try:
                client = await self._wake_and_load(output.step)
                difference = await self._prove(client, output)
            except (*_ENGINE_LOST, EngineError, EngineFailedError) as error:
                failure = await self._explain(error)
                if failure.permanent or attempt == MAX_RESTARTS:
                    raise EngineFailedError(
                        f"Step {output.step} is trained and saved, but not served. Do not train it again; restart the service "
                        f"to serve it. {failure.message}"
                    ) from error
                _log.error("Publishing step %d with the next engine: %s", output.step, failure.message)
            else:
                self._policy.step = output.step
                return difference
        raise AssertionError("the last attempt returns or raises")

    async def _explain(self, error: Exception) -> EngineFailedError:
        match error:
            case EngineFailedError():
                return error
            case EngineError():  # what it refuses once it refuses again
                return EngineFailedError(str(error), permanent=True)
            case _:
                return await self._host.explain_failure(error)

    async def _wake_and_load(self, step: int) -> EngineVerbs:
        client = (await self._host.running()).client
        await self._wake_up(client, "weights")
        client = await self._policy.load(step)
        await self._wake_up(client, "kv_cache")
        await self._call(client.resume(), "resuming")
        return client

    async def _wake_up(self, client: EngineVerbs, tag: SleepTag) -> None:
        if not self._dedicated:
            await self._call(client.wake_up([tag]), f"waking up its {tag}")
            self._asleep = [other for other in self._asleep if other != tag]

    async def _prove(self, client: EngineVerbs, output: StepOutput) -> float:
        """Ask the engine what it serves.

        Raises:
            EngineFailedError: The version is not listed, or answers with other log-probabilities than the trainer's.
        """
        name = self._policy.engine_name(output.step)
        listed = await self._call(client.models(), "listing its models")
        if name not in listed:
            raise EngineFailedError(
                f"The engine does not list {name!r} after loading it. It lists: {sorted(listed)}.", permanent=True
            )
        if not output.canaries:
            return 0.0
        differences = await asyncio.gather(*(self._ask(client, name, canary) for canary in output.canaries))
        difference = statistics.fmean(differences)
        if not difference <= CANARY_TOLERANCE:  # neither is it when it is not a number
            moved = statistics.fmean(abs(canary.logprob - canary.previous_logprob) for canary in output.canaries)
            raise EngineFailedError(
                f"The engine does not serve the weights of step {output.step}: the log-probabilities of {len(differences)} greedy "
                f"tokens differ from the trainer's by {difference:.3f} nats on average (tolerance {CANARY_TOLERANCE}; the step "
                f"itself moved them by {moved:.3f}). Version {self._policy.step} is served as before.",
                permanent=True,
            )
        return difference

    async def _ask(self, client: EngineVerbs, name: str, canary: Canary) -> float:
        """The canary's difference in nats, from what answers furthest from it."""
        answers = await self._call(client.greedy_logprobs(name, canary.token_ids), "answering a canary")
        return max((abs(logprob - canary.logprob) for logprob in answers), key=lambda x: (math.isnan(x), x))

    async def _call(self, awaitable: Awaitable[T], doing: str) -> T:
        process = await self._host.running()
        return await process.guard(awaitable, deadline_s=ENGINE_DEADLINE_S, doing=doing)


class _Stopwatch:
    """Seconds between laps, by metric name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self._last
        self._last = now
