"""The service as a whole: stores, engines, trainers and jobs, and how they are found by model."""

import asyncio
import hashlib
import logging
import shutil
import time
from functools import partial
from pathlib import Path

from art.wire import (
    CheckpointList,
    Health,
    Job,
    JobKind,
    ModelInfo,
    RegisterModel,
    SftOptions,
    TrainOptions,
    TrainRequest,
    TrainSftRequest,
)
from art_backend.auth import Keyring
from art_backend.devices import Device, find_usable_devices
from art_backend.engines.process import Launcher
from art_backend.errors import BadRequestError, ConflictError, NotFoundError, ServiceError
from art_backend.examples import ExampleFinder
from art_backend.gateway.limits import ProjectLimits
from art_backend.jobs import Background, JobBoard
from art_backend.models.base import find_base_model
from art_backend.models.origins import begin, withdraw
from art_backend.orchestrator import StepRunner
from art_backend.planning.architecture import check_proven
from art_backend.planning.verdict import check_training
from art_backend.serving.engines import Engines
from art_backend.serving.model_directory import ServedModels
from art_backend.serving.policies import EngineHost, ServedPolicy, WholePolicy
from art_backend.serving.trainer_pool import TrainerPool
from art_backend.settings import Settings
from art_backend.store.captures import CaptureStore
from art_backend.store.checkpoints import CheckpointStore
from art_backend.store.database import open_database, write_back
from art_backend.store.runs import RunStore
from art_backend.tokens.render import ChatRenderer
from art_backend.training.types import AnyInput, SftInput, StepInput

RETENTION_CHECK_S = 3600.0
"""Seconds between two searches for old captures."""
WRITE_BACK_S = 1.0
"""Seconds between two moves of the write-ahead log into the database."""


_log = logging.getLogger(__name__)


class Service:
    """Everything behind the HTTP port. Make it inside a running event loop; ``await close()`` ends its children.

    Args:
        launcher: How an engine is started; ``None`` starts what the settings ask for.
        devices: Devices that the trainer could use; ``None`` asks the machine.
    """

    def __init__(
        self,
        settings: Settings,
        launcher: Launcher | None = None,
        devices: tuple[Device, ...] | None = None,
    ) -> None:
        self.settings = settings
        self._devices = find_usable_devices() if devices is None else devices
        settings.placement.check(len(self._devices))
        self._started = time.monotonic()
        self._db = open_database(settings.database_path)
        self.runs = RunStore(self._db)
        self.captures = CaptureStore(self._db)
        self._examples = ExampleFinder(self.captures, self.runs)
        self.keyring = Keyring(settings.api_key, settings.path / "secret", self.captures)
        self.limits = ProjectLimits(settings.max_project_calls, settings.max_project_queue, settings.hold_timeout_s)
        self.jobs = JobBoard(self.runs, lambda project, name: CheckpointStore(settings.checkpoints_dir(project, name)))
        self._device = asyncio.Lock()
        self._registering = asyncio.Lock()
        self.engines = Engines(settings, launcher)
        self._policies: dict[tuple[str, str], ServedPolicy] = {}
        self.directory = ServedModels(self._policies)
        self._trainers = TrainerPool(settings, self.runs)
        self._background = Background()
        self._preparing: dict[str, str] = {}
        """Preparations of base models in progress, by name."""

    async def restore(self) -> None:
        """Take up where a stopped service left off: settle its jobs, serve its models."""
        self.jobs.recover()
        self._background.repeat(self._forget_old_captures, every_s=RETENTION_CHECK_S, what="Deleting old captures")
        self._background.repeat(
            self._write_back, every_s=WRITE_BACK_S, what="Checkpointing the database's write-ahead log"
        )
        for spec in self.runs.list_models():
            try:
                self._serve(await self._open_policy(spec))
            except ServiceError:
                _log.exception(
                    "Model %s/%s cannot be served; register it again to see the reason", spec.project, spec.name
                )

    # Models

    async def register(self, spec: RegisterModel) -> ModelInfo:
        """Register a model: find its base model, serve it. Idempotent; one that fails leaves nothing behind."""
        async with self._registering:
            self.settings.model_dir(spec.project, spec.name)  # refuses names that cannot be directories
            is_new = not self.runs.check_model(spec)
            try:
                if spec.init_adapter is not None:
                    await self._give_origin(spec)
                policy = await self._open_policy(spec)
                self.runs.register_model(spec)
            except BaseException:
                if is_new and spec.init_adapter is not None:
                    await asyncio.to_thread(withdraw, spec, self.settings)
                raise
            self._serve(policy)
        return self.describe(spec.project, spec.name)

    async def delete_model(self, project: str, name: str) -> ModelInfo:
        """Forget a model and delete everything of it: checkpoints, captures, metrics, logged files.

        Raises:
            NotFoundError: No such model.
            ConflictError: It is being trained.
        """
        async with self._registering:
            deleted = self.describe(project, name)
            self._check_idle(project, name, "delete it")
            self.captures.delete_model(project, name)
            self.runs.delete_model(project, name)  # from here on it is gone, whatever fails
            policy = self._policies.pop((project, name))
            await self._trainers.end(project, name)
            await policy.withdraw()
            if (directory := self.settings.model_dir(project, name)).exists():  # not before the first step
                await asyncio.to_thread(shutil.rmtree, directory)
        return deleted

    def _check_idle(self, project: str, name: str, what: str) -> None:
        """Raises ConflictError for a model with a job that has not ended."""
        if any((job.project, job.model) == (project, name) for job, _ in self.runs.unfinished_jobs()):
            raise ConflictError(f"Model {name!r} is being trained; {what} when the step is done.", param="model")

    def describe(self, project: str, name: str) -> ModelInfo:
        model_id, spec = self.runs.find_model(project, name)
        policy = self.policy(project, name)
        return ModelInfo(
            id=model_id,
            project=project,
            name=name,
            base_model=spec.base_model,
            lora=spec.lora,
            full_finetune=spec.full_finetune,
            max_sequence_length=policy.max_sequence_length,
            step=policy.step,
            inference_name=name,
            inference_api_key=self.keyring.issue_model_key(project, name),
            warnings=[problem] if (problem := policy.renderer.explain_calls()) else [],
            metadata=spec.metadata,
        )

    def served(self) -> list[ServedPolicy]:
        return list(self._policies.values())

    def policy(self, project: str, name: str) -> ServedPolicy:
        """Raises NotFoundError for a model that is not registered."""
        policy = self._policies.get((project, name))
        if policy is None:
            self.runs.find_model(project, name)
            raise NotFoundError(f"Model {name!r} is known but not served. Register it again.", param="model")
        return policy

    async def _give_origin(self, spec: RegisterModel) -> None:
        """Make sure that the model has the checkpoint that it is to begin with."""
        if not CheckpointStore(self.settings.checkpoints_dir(spec.project, spec.name)).latest_step():
            self._check_idle(spec.project, spec.name, "give it an adapter to begin with")  # the job makes that step
        path = await self._find_base_model(spec.base_model)
        await asyncio.to_thread(begin, spec, path, self.settings, self.runs.list_models())
        served = self._policies.get((spec.project, spec.name))
        if served is not None and served.step == 0:
            served.step = served.checkpoints.latest_step()

    async def _find_base_model(self, name: str) -> Path:
        """Find or prepare a base model that engine and trainer compute alike; ``health`` shows the progress."""

        def report(line: str) -> None:
            self._preparing[name] = line

        try:
            path = await asyncio.to_thread(find_base_model, name, cache=self.settings.cache, on_progress=report)
        finally:
            self._preparing.pop(name, None)
        await asyncio.to_thread(check_proven, path, name)
        return path

    async def _open_policy(self, spec: RegisterModel) -> ServedPolicy:
        """Return the policy that serves a model. A new one stays hidden until ``_serve``."""
        if (served := self._policies.get((spec.project, spec.name))) is not None:
            return served
        path = await self._find_base_model(spec.base_model)
        host = self.engines.host(spec, path, self._rank(spec))
        if spec.lora.rank > host.settings.max_lora_rank:
            async with self._device:
                await host.take_rank(spec.lora.rank)
        max_length = spec.max_sequence_length or self.engines.limit(path)
        if max_length > self.engines.limit(path):
            raise BadRequestError(
                f"max_sequence_length: {max_length} is more than the {self.engines.limit(path)} tokens that {spec.base_model} is "
                "served with here. Ask for less, or start the service with a larger --max-sequence-length.",
                param="max_sequence_length",
            )
        renderer = await asyncio.to_thread(ChatRenderer.load, path, spec.base_model)
        if problem := await asyncio.to_thread(renderer.explain_calls):
            _log.warning("%s: %s", spec.name, problem)
        kind = WholePolicy if spec.full_finetune else ServedPolicy
        return kind(
            project=spec.project,
            name=spec.name,
            host=host,
            checkpoints=CheckpointStore(self.settings.checkpoints_dir(spec.project, spec.name)),
            renderer=renderer,
            max_sequence_length=max_length,
            keep_versions=self.settings.keep_versions,
        )

    def _serve(self, policy: ServedPolicy) -> None:
        """Let a registered model be found, and start its engine ahead of the first request."""
        if (policy.project, policy.name) in self._policies:
            return
        self._policies[policy.project, policy.name] = policy
        self.keyring.issue_model_key(policy.project, policy.name)
        what = f"Starting the engine of {policy.host.settings.served_name}"
        self._background.start(lambda: self._warm_up(policy.host), what=what)

    async def _write_back(self) -> None:
        """Keep the database's log short, beside the event loop."""
        await asyncio.to_thread(write_back, self.settings.database_path)

    async def _forget_old_captures(self) -> None:
        """Delete rollouts unused for longer than the retention time."""
        deleted = self.captures.delete_unused(self.settings.capture_retention_days * 86_400)
        if deleted:
            _log.info("%d captured rollouts were older than --capture-retention-days and were deleted", deleted)

    async def _warm_up(self, host: EngineHost) -> None:
        """Start the engine. Whoever needs it next hears of a failure."""
        try:
            await host.running()
        except ServiceError as error:
            _log.error("%s", error.message)

    def _rank(self, spec: RegisterModel) -> int:
        """The largest rank of the models that share the base model."""
        return max([spec.lora.rank, *(m.lora.rank for m in self.runs.list_models() if m.base_model == spec.base_model)])

    # Training

    async def train(self, request: TrainRequest | TrainSftRequest) -> Job:
        """Check a request to train, resolve its tokens, and start it as a job: ``StepRunner.run`` does the rest.

        Raises:
            BadRequestError: The tokens of a trajectory or example cannot be resolved; the message names it.
            ConflictError: The idempotency key belongs to another request.
            NotFoundError: No such model.
        """
        policy = self.policy(request.project, request.model)
        digest = await asyncio.to_thread(_digest, request)
        if (known := self.jobs.find(policy.project, policy.name, request.idempotency_key, digest)) is not None:
            return known
        given = await self._resolve(policy, request)
        self._check_memory(policy, request.options)
        dedicated = self.settings.placement.dedicated
        runner = StepRunner(policy, lambda: self._trainers.get(policy), self._device, dedicated=dedicated)
        return self.jobs.submit(
            policy.project,
            policy.name,
            request.idempotency_key,
            partial(runner.run, given),
            JobKind.TRAIN if isinstance(request, TrainRequest) else JobKind.SFT,
            digest,
        )

    async def _resolve(self, policy: ServedPolicy, request: TrainRequest | TrainSftRequest) -> AnyInput:
        """Find or render the tokens that a request names."""
        step = policy.step + 1  # unless another job makes it first
        if isinstance(request, TrainRequest):
            groups, warnings = await self._examples.find_groups(policy, request.groups)
            return StepInput(groups, request.options, step, warnings)
        train_on = request.options.train_on
        examples = [
            await self._examples.find_rows_to_imitate(policy, example, f"examples.{i}", train_on)
            for i, example in enumerate(request.examples)
        ]
        return SftInput(examples, request.options, step)

    def _check_memory(self, policy: ServedPolicy, options: TrainOptions | SftOptions) -> None:
        """Raise BadRequestError for a step that the trainer's device cannot hold."""
        if not self._devices:
            return
        _, spec = self.runs.find_model(policy.project, policy.name)
        check_training(
            self._devices[(self.settings.placement.trainer_devices or (0,))[0]],
            spec.base_model,
            policy.host.settings.model_path,
            options,
            lora=spec.lora,
            full=spec.full_finetune,
            context=policy.max_sequence_length,
            placement="dedicated" if self.settings.placement.dedicated else "colocated",
        )

    # Checkpoints

    def checkpoints(self, project: str, name: str) -> CheckpointList:
        store = self.policy(project, name).checkpoints
        return CheckpointList(checkpoints=[store.describe(step) for step in store.steps()])

    def prune_checkpoints(self, project: str, name: str, keep: list[int]) -> CheckpointList:
        policy = self.policy(project, name)
        policy.checkpoints.prune({*keep, policy.step, policy.checkpoints.latest_step(), *policy.leased_steps()})
        return self.checkpoints(project, name)

    # Life

    def health(self) -> Health:
        processes = [*self.engines.health(), *self._trainers.health()]
        degraded = any(process.state == "failed" for process in processes)
        return Health(
            status="degraded" if degraded else "ok",
            uptime_s=time.monotonic() - self._started,
            processes=processes,
            preparing=dict(self._preparing),
        )

    async def close(self) -> None:
        """Interrupt jobs, end the children, close the database."""
        await self.jobs.close()
        await self._background.close()
        await self._trainers.close()
        await asyncio.gather(*(host.stop() for host in self.engines.hosts()), return_exceptions=True)
        self._db.close()


def _digest(request: TrainRequest | TrainSftRequest) -> str:
    """Distinguish requests that carry the same idempotency key."""
    return hashlib.sha256(request.model_dump_json(exclude={"idempotency_key"}).encode()).hexdigest()
