"""A backend on another machine. ``LocalBackend`` derives from it and starts the service itself."""

import asyncio
import contextlib
import os
import time
import uuid
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack, cast

from art.backend import AnyModel, AnyTrainableModel
from art.backend.control import ControlClient, path_of
from art.backend.options import SftKeywords, TrainKeywords, build_options, build_sft_options
from art.backend.registration import build_registration
from art.backend.service import ServiceCalls
from art.backend.starting import StartReport
from art.errors import BackendError, JobInterruptedError, NotFoundError, from_api_error
from art.logs.rows import (
    TRAIN_GRADIENT_STEPS_KEY,
    count_groups,
)
from art.rollouts.failures import remember_service
from art.rollouts.references import build_examples, build_train_groups, check_kind
from art.terminal import say, show_training
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainResult, TrainSFTConfig
from art.wire import (
    API_PREFIX,
    CheckpointList,
    Health,
    Job,
    JobState,
    ModelInfo,
    TrainRequest,
    TrainSftRequest,
)
from art.wire import TrainResult as WireTrainResult

if TYPE_CHECKING:
    from art.model import TrainableModel

REGISTER_TIMEOUT_S = 3600.0
"""Registering loads the base model, which for a big one takes long; a dead backend is noticed at once all the same."""
SUBMIT_TIMEOUT_S = 600.0
"""Submitting resolves every reference to its tokens, and must not be given up while the service does that."""
RESUBMISSIONS = 2


class RemoteBackend(ServiceCalls):
    """A backend behind a URL.

    Args:
        url: Where ``art serve`` listens, possibly behind a proxy with a path prefix.
        api_key: The service's key; ``None`` reads ``ART_API_KEY`` from the environment.
        gpu_cost_per_hour_usd: Hourly price of the backend's machine, all devices together; logged as ``costs/gpu``.
        reconnect_s: How long to wait for a backend that goes away, for instance during a restart.

    >>> backend = art.RemoteBackend("https://gpu-box.example/art", api_key="key", reconnect_s=60)
    """

    _honoured: tuple[str, ...] = ()
    """Model settings that the backend handles without the service."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        gpu_cost_per_hour_usd: float | None = None,
        reconnect_s: float = 600.0,
    ) -> None:
        key = os.environ.get("ART_API_KEY", "") if api_key is None else api_key
        super().__init__(ControlClient(url, key, reconnect_s=reconnect_s))
        self._gpu_cost_per_hour_usd = gpu_cost_per_hour_usd
        self._report: asyncio.Task[None] | None = None
        """Reports what the service is starting."""
        self._steps: dict[tuple[str, str], int] = {}

    async def close(self) -> None:
        """Do nothing: no connection stays open between calls, and the service keeps running."""
        self._stop_report()

    def _stop_report(self) -> None:
        if self._report is not None:
            self._report.cancel()
            self._report = None

    # Models

    async def register(self, model: AnyModel) -> None:
        """Register the model with the service. Registering again is harmless.

        Raises:
            ConflictError: The name is taken by a model with another base model or adapter shape.
        """
        from art.model import TrainableModel

        if isinstance(model, TrainableModel):
            await self._register(model)

    async def open_model(self, project: str, name: str, step: int | None = None) -> "TrainableModel[Any, Any]":
        """Open a model that the service knows, ready to call and train, without repeating its settings.

        Args:
            step: Pin calls and rollouts to this policy version; ``None`` follows the latest.

        Raises:
            NotFoundError: No such model or version.
        """
        from art.model import TrainableModel

        info = await self.get_model(project, name)
        url = (await self._control()).url
        remember_service(url)
        self._steps[project, name] = info.step
        model: TrainableModel[Any, Any] = TrainableModel(
            name=name,
            project=project,
            base_model=info.base_model,
            inference_base_url=f"{url}/v1",
            inference_api_key=info.inference_api_key,
        )
        model._backend = self  # pyright: ignore[reportPrivateUsage]
        if step is not None:
            versions = [0, *(checkpoint.step for checkpoint in await self.list_checkpoints(model))]
            if step not in versions:
                raise NotFoundError(f"Model {name!r} of project {project!r} has no version {step}: {versions}.", 404)
            model._step = step  # pyright: ignore[reportPrivateUsage]
        model.inference_model_name = model.get_inference_name()
        return model

    async def delete_model(self, project: str, name: str) -> ModelInfo:
        """Delete a model with its checkpoints, captures, metrics and files on the service.

        Returns:
            What it was.

        Raises:
            NotFoundError: No such model.
            ConflictError: It is being trained.
        """
        self._steps.pop((project, name), None)
        return await (await self._control()).delete(path_of(project, name), ModelInfo)

    def automatic_gpu_cost_per_hour_usd(self, model: AnyModel) -> float | None:
        return self._gpu_cost_per_hour_usd

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        if not model.trainable:  # its endpoint knows it by its own name
            name = model.inference_model_name or model.name
            return name if step is None else f"{name}@{step}"
        return f"{model.name}@{self._steps.get((model.project, model.name), 0) if step is None else step}"

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str, str]:
        if config:
            warnings.warn("The OpenAI server configuration is ignored: the service has its own settings.", stacklevel=3)
        info = await self._register(model)
        url = (await self._control()).url
        remember_service(url)
        return f"{url}/v1", info.inference_api_key

    async def _register(self, model: AnyTrainableModel) -> ModelInfo:
        control = await self._control()
        registering = asyncio.ensure_future(
            control.post(
                f"{API_PREFIX}/models",
                build_registration(model, honoured=self._honoured),
                ModelInfo,
                timeout_s=REGISTER_TIMEOUT_S,
            )
        )
        if self._report is None or self._report.done():
            report = StartReport(lambda: control.get(f"{API_PREFIX}/health", Health))
            self._report = asyncio.create_task(report.until(registering))
        info = await registering
        self._steps[model.project, model.name] = info.step
        for warning in info.warnings:
            say(f"warning: {model.name}: {warning}")
        return info

    async def _get_step(self, model: AnyTrainableModel) -> int:
        step = (await self.get_model(model.project, model.name)).step
        self._steps[model.project, model.name] = step
        return step

    # Training

    async def train(
        self,
        model: AnyTrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        *,
        learning_rate: float = 5e-6,
        verbose: bool = False,
        **options: Unpack[TrainKeywords],
    ) -> TrainResult:
        """Take one training step and serve its result. Nothing is logged: pass the result's metrics to ``model.log``.

        Args:
            trajectory_groups: Scored trajectories, grouped by scenario.
            options: See ``TrainKeywords``; ``None`` selects the default.

        Raises:
            TypeError: An unknown option, or arguments that are not a model and groups.
            NoTrainingDataError: A trajectory cannot be trained; nothing was sent.
            EngineFailedError, TrainerFailedError: With the tail of the process's log; the previous version is still served.
            JobInterruptedError: The backend stopped mid-step, repeatedly; the step was not saved.
        """
        from art.model import TrainableModel

        check_kind(model, TrainableModel, "model")
        if not isinstance(cast(Any, trajectory_groups), Iterable):
            raise TypeError(
                f"trajectory_groups must be a list of art.TrajectoryGroup, not {type(trajectory_groups).__name__}. Nothing was sent."
            )
        groups = list(trajectory_groups)
        wire_options = build_options(learning_rate, options)
        train_groups, left_out = build_train_groups(
            groups, allow_uncaptured=bool(options.get("allow_training_without_logprobs"))
        )
        for sentence in left_out:
            say(f"warning: {sentence}")
        request = TrainRequest(
            project=model.project,
            model=model.name,
            groups=train_groups,
            options=wire_options,
            idempotency_key=uuid.uuid4().hex,
        )
        result = await self._finish_job(model, request, verbose)
        result.metrics = {**count_groups(groups, trainable=True), **result.metrics}
        return result

    async def train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        *,
        verbose: bool = False,
        **options: Unpack[SftKeywords],
    ) -> TrainResult | None:
        """Fine-tune on trajectories in the order given, one update per batch, and serve the result as one new version.

        Returns:
            The result of the step; ``None`` without trajectories.

        Raises:
            TypeError: An unknown option.
            NoTrainingDataError: A trajectory has no assistant message; the error names it. Nothing was sent.
        """
        wire_options = build_sft_options(config or TrainSFTConfig(), options)
        examples = build_examples(trajectories)
        if not examples:
            return None
        request = TrainSftRequest(
            project=model.project,
            model=model.name,
            examples=examples,
            options=wire_options,
            idempotency_key=uuid.uuid4().hex,
        )
        return await self._finish_job(model, request, verbose)

    async def _finish_job(
        self, model: AnyTrainableModel, request: TrainRequest | TrainSftRequest, verbose: bool
    ) -> TrainResult:
        """Run a job and point the model to the version it made. Warnings arrive as events."""
        started = time.monotonic()
        result = await self._run_job(request, verbose)
        self._steps[model.project, model.name] = result.step
        model.inference_model_name = self._model_inference_name(model)
        metrics = {"time/step_trainer_s": time.monotonic() - started, **result.metrics}
        if not result.trained:
            say(f"warning: step {result.step} of {model.name} trained nothing: {result.reason or 'no learning signal'}")
            for name in ("data/step_num_groups_trainable", "data/step_trainer_tokens", TRAIN_GRADIENT_STEPS_KEY):
                metrics[name] = 0.0
        return TrainResult(result.step, metrics, result.checkpoint)

    async def _run_job(self, request: TrainRequest | TrainSftRequest, verbose: bool) -> WireTrainResult:
        """Submit and follow to the end; a job that a restart interrupted is sent again under the same key."""
        control = await self._control()
        path = f"{API_PREFIX}/{'train_sft' if isinstance(request, TrainSftRequest) else 'train'}"
        seen = 0
        with show_training(request.model, verbose=verbose) as show:
            for attempt in range(RESUBMISSIONS + 1):
                job = await control.post(path, request, Job, timeout_s=SUBMIT_TIMEOUT_S)
                async with contextlib.aclosing(control.events(job.id, after=seen)) as events:
                    async for event in events:
                        seen = event.seq
                        show(event)
                        if event.type == "state":
                            job = Job.model_validate(event.data)
                if job.state is JobState.SUCCEEDED:
                    return WireTrainResult.model_validate(job.result)
                if job.state is JobState.FAILED:
                    raise from_api_error(job.error, 500) if job.error else BackendError(f"Job {job.id} failed.")
                if attempt < RESUBMISSIONS:
                    say(f"warning: the backend was restarted while it trained {request.model}; sending the step again")
        raise JobInterruptedError(
            f"The backend stopped {RESUBMISSIONS + 1} times while it trained {request.model}. The step was not saved; "
            "look at the backend's log, then call train again.",
            503,
        )

    # Checkpoints

    async def _experimental_fork_checkpoint(
        self,
        model: AnyTrainableModel,
        from_model: str,
        from_project: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
    ) -> None:
        """Start a model without checkpoints as a copy of another model's latest one, optimiser included.

        Repeating the call is harmless, even after the model has been trained.

        Args:
            from_project: ``None`` takes the model's own.
            not_after_step: Take the latest step up to this one.

        Raises:
            ConflictError: The model began with something else.
            ModelNotAvailableError: The other model has another base model or adapter shape.
            NotFoundError: There is no such model or step.
        """
        project = from_project or model.project
        step = "latest"
        if not_after_step is not None:
            path = path_of(project, from_model, "checkpoints")
            found = (await (await self._control()).get(path, CheckpointList)).checkpoints
            steps = [checkpoint.step for checkpoint in found if checkpoint.step <= not_after_step]
            if not steps:
                raise NotFoundError(f"{project}/{from_model} has no checkpoint up to step {not_after_step}.", 404)
            step = str(max(steps))
        spec = build_registration(model, honoured=self._honoured).model_copy(
            update={"init_adapter": f"{project}/{from_model}@{step}"}
        )
        info = await (await self._control()).post(f"{API_PREFIX}/models", spec, ModelInfo, timeout_s=REGISTER_TIMEOUT_S)
        self._steps[model.project, model.name] = info.step
        model.inference_model_name = self._model_inference_name(model)
        if verbose:
            say(f"{model.name} starts from {project}/{from_model} at step {info.step}")
