"""The models that an agent talks to, and the one that is trained."""

import asyncio
import json
import sys
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import Token
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from pydantic import BaseModel, ConfigDict, PrivateAttr
from typing_extensions import TypeVar

from art import log_rows, step_log
from art.backend import Backend, MetricSink, RolloutSource
from art.errors import ConflictError
from art.history import best_step, read_history
from art.loggers import Logger, check_names, open_logger, wanted
from art.metrics import MetricsBuilder
from art.metrics_taxonomy import TRAIN_GRADIENT_STEPS_KEY, average_metric_samples
from art.renamed import renamed
from art.rollout import Rollout, read_conversations, record_rollout
from art.state import deep_merge, dump_json, held_alone, locked, read_json, write_json, writing
from art.terminal import say
from art.trajectories import History, Trajectory, TrajectoryGroup
from art.types import TrainConfig, TrainSFTConfig
from art.utils.output_dirs import get_output_dir_from_model_properties

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from art import dev
    from art.costs import CostCalculator
    from art.loggers.wandb import WandbLogger

ModelConfig = TypeVar("ModelConfig", bound=BaseModel | None, default=Any)
StateType = TypeVar("StateType", bound=Mapping[str, Any], default=dict[str, Any])


class Model(BaseModel, Generic[ModelConfig, StateType]):
    """A model under a name, within a project.

    This class is for models that are only used, such as a prompted baseline: give ``inference_base_url``,
    ``inference_api_key`` and ``inference_model_name``. A model that learns is a ``TrainableModel``.

    >>> prompted = art.Model(name="baseline", project="games", inference_model_name="gpt-4.1")
    >>> await prompted.log([art.Trajectory(reward=1.0), art.Trajectory(reward=0.0)], split="val")
    """

    model_config = ConfigDict(protected_namespaces=())

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    config: ModelConfig = cast(ModelConfig, None)
    """Free for the caller, stored with the model."""
    trainable: bool = False
    inference_api_key: str | None = None
    inference_base_url: str | None = None
    inference_model_name: str | None = None
    base_path: str = ".art"
    """Where everything that is logged lies: ``{base_path}/{project}/models/{name}``."""
    report_metrics: list[str] | None = None
    """Loggers beside ``history.jsonl``: ``"mlflow"``, ``"tensorboard"``, ``"trackio"``, ``"wandb"``. ``None``: W&B if
    ``WANDB_API_KEY`` is set; ``[]``: none."""

    _backend: Backend | None = PrivateAttr(default=None)
    _step: int | None = PrivateAttr(default=None)
    """The policy version that it is pinned to; ``None``: the latest."""
    _client: "tuple[tuple[Any, ...], AsyncOpenAI] | None" = PrivateAttr(default=None)
    _builder: MetricsBuilder | None = PrivateAttr(default=None)
    _loggers: dict[str, Logger] = PrivateAttr(default_factory=dict[str, Logger])
    _created: float = PrivateAttr(default=0.0)
    _last_train_log: float = PrivateAttr(default=0.0)
    _last_train_step: int | None = PrivateAttr(default=None)

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)
        check_names(self.report_metrics)
        self._created = time.time()
        self._last_train_log = time.monotonic()

    # Serving

    def backend(self) -> Backend:
        """The registered backend.

        Raises:
            ValueError: There is none.
        """
        if self._backend is None:
            raise ValueError(f"Model {self.name!r} is not registered: `await model.register(backend)` first.")
        return self._backend

    async def register(self, backend: Backend) -> None:
        """Make the model known to a backend. Doing it again is harmless.

        Raises:
            ValueError: ``config`` is not JSON-serialisable.
            TypeError: ``backend`` is ``None``.
        """
        if backend is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise TypeError(
                f"Model {self.name!r} is registered with a backend, such as art.LocalBackend(), not with None."
            )
        if self.config is not None:
            try:
                json.dumps(self.config.model_dump(mode="json"))
            except Exception as error:
                raise ValueError(f"The config of model {self.name!r} is not JSON-serialisable: {error}") from error
        self._backend = backend
        await backend.register(self)

    def openai_client(self) -> "AsyncOpenAI":
        """A client of the model's endpoint.

        Raises:
            ValueError: The endpoint is not known.
        """
        if self.inference_api_key is None or self.inference_base_url is None:
            if self.trainable:
                raise ValueError(f"The endpoint of {self.name!r} is not known: `await model.register(backend)` first.")
            raise ValueError(f"Give model {self.name!r} an inference_api_key and an inference_base_url.")
        # A client's connections belong to the event loop that opened them.
        key = (self.inference_base_url, self.inference_api_key, _running_loop())
        if self._client is None or self._client[0] != key:
            from art.openai_http import make_client

            self._client = (key, make_client(self.inference_base_url, self.inference_api_key))
        return self._client[1]

    def get_inference_name(self, step: int | None = None) -> str:
        """The name that requests use for the model, or for its version ``step``."""
        step = self._step if step is None else step
        if self._backend is not None and callable(ask := getattr(self._backend, "_model_inference_name", None)):
            return cast(str, ask(self, step=step))
        base = self.inference_model_name or self.name
        return base if step is None else f"{base}@{step}"

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Arguments for ``litellm.acompletion``."""
        name = self.get_inference_name(step)
        return {
            "model": f"hosted_vllm/{name}" if self.trainable else name,
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    @asynccontextmanager
    async def rollout(self, step: int | None = None) -> AsyncGenerator[Rollout]:
        """One run of the agent at the model's endpoint, so that a rollout function of a model that learns runs here too.

        Nothing is captured at the endpoint. Clients of the rollout record, as ``art.capture`` says; ``fill`` tells what they did.

        Raises:
            ValueError: A ``step`` was given: the model has no versions. Or the endpoint is not known.
        """
        if step is not None:
            raise ValueError(f"Model {self.name!r} is not trained, so it has no version {step}; leave step out.")
        async with record_rollout(self.openai_client()) as run:
            yield run

    async def get_step(self) -> int:
        """The latest policy version, or the one that the model is pinned to; 0 for a model that is not trained."""
        if self._step is not None:
            return self._step
        return await self.backend()._get_step(cast(Any, self)) if self.trainable else 0  # pyright: ignore[reportPrivateUsage]

    def safe_model_dump(self) -> dict[str, Any]:
        """``model_dump`` without the config, which may hold anything."""
        return {**self.model_dump(exclude={"config"}), "config": None}

    # State

    def overwrite_state(self, state: StateType) -> None:
        """Replace ``state.json``."""
        path = self._path("state.json")
        with locked(path):
            write_json(path, state)

    def read_state(self) -> StateType | None:
        """What ``state.json`` holds; ``None`` if there is none."""
        return cast(StateType | None, read_json(self._path("state.json")))

    def merge_state(self, state: StateType) -> StateType:
        """Merge into ``state.json``, nested dicts too, and return the result."""
        path = self._path("state.json")
        with locked(path):
            dump_json(path, state)  # what cannot be stored is told before anything is merged
            merged = deep_merge(read_json(path) or {}, state)
            write_json(path, merged)
        return cast(StateType, merged)

    @contextmanager
    def trained_alone(self) -> Generator[None]:
        """Hold the model's training against other loops that log to the same directory.

        Raises:
            ConflictError: Another one holds it.
        """
        refusal = ConflictError(
            f"Model {self.name!r} of project {self.project!r} is being trained already, by another call or process that "
            f"logs to {self._path()}. Wait for its end or stop it, or train a model of another name.",
            409,
        )
        with held_alone(self._path("train"), refusal):
            yield

    def write_state(self, state: StateType) -> None:
        """Deprecated: ``overwrite_state`` or ``merge_state``."""
        warnings.warn(
            "write_state is deprecated: write overwrite_state or merge_state.", DeprecationWarning, stacklevel=2
        )
        self.overwrite_state(state)

    # Metrics

    def metrics_builder(self, cost_context: str | None = None) -> MetricsBuilder:
        """The builder of a context; ``None``: of ``"train"``. Totals go on from ``state.json``."""
        if self._builder is None:
            self._builder = MetricsBuilder("train")
            if (stored := (self.read_state() or cast(StateType, {})).get(step_log.TOTALS)) is not None:
                self._builder.load_state_dict(stored)
        return self._builder if cost_context is None else self._builder.for_cost_context(cost_context)

    def activate_metrics_context(self, cost_context: str) -> "Token[MetricsBuilder | None]":
        """Book costs in ``cost_context`` from now on. Undo with ``token.var.reset(token)``."""
        return self.metrics_builder(cost_context).activate()

    async def log(
        self,
        trajectories: Iterable[TrajectoryGroup] | Iterable[Trajectory | BaseException] | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Write trajectories to ``trajectories/{split}/{step}.parquet`` and one row of metrics to ``history.jsonl``.

        Args:
            trajectories: Groups, or loose trajectories and exceptions.
            split: What they are for: ``"train"``, ``"val"``, ``"test"`` or a name of your own.
            metrics: Further metrics of the row; they win over averages of the same name.
            step: The policy version; ``None`` asks the backend.

        Raises:
            TypeError: Groups and trajectories are mixed, or something has a wrong type, such as a reward that is no number; the
                message names it.
            ValueError: ``split`` or a metric has a name that cannot be used.
            OSError: The files could not be written. Nothing was counted, so that the same call may be made again.
        """
        if trajectories is None and metrics is None:
            return
        groups = None if trajectories is None else log_rows.as_groups(trajectories)
        given = dict(metrics or {})
        log_rows.check_content(groups or [], given)
        if step is None:
            step = await self.get_step() if self.trainable else 0
        step = step_log.check_place(split, step)
        builder = self.metrics_builder("eval" if split in ("val", "test") else split)
        last = self._last_train_log, self._last_train_step
        try:
            with builder.kept_on_failure(), writing(f"Logging step {step} of model {self.name!r}", self._path()):
                given = {**self._automatic_metrics(split, step, given), **given}
                built = await step_log.build_row(builder, groups, split, given)
                row = log_rows.prefix(built, split)
                if groups is not None:
                    step_log.write_trajectories(self._path(), groups, split, step)
                written = row if row or groups is not None else None
                step_log.write_row(self._path(), written, builder, step, self._stamps(step))
        except BaseException:
            self._last_train_log, self._last_train_step = last
            raise
        if written is not None:
            self._report_row(row, step)
        await self._send_to_backend(row, split, step)

    def _automatic_metrics(self, split: str, step: int, given: Mapping[str, float]) -> dict[str, float]:
        """Wall time since the last training step was logged, and what the devices cost in it."""
        supports = getattr(self._backend, "supports_automatic_train_step_metrics", None)
        if split != "train" or not callable(supports) or not supports() or step == self._last_train_step:
            return {}
        now = time.monotonic()
        wall_s = now - self._last_train_log
        self._last_train_log, self._last_train_step = now, step
        found = {"time/step_wall_s": wall_s}
        rate = getattr(self._backend, "automatic_gpu_cost_per_hour_usd", None)
        if callable(rate) and (hourly := rate(self)) is not None:
            found["costs/gpu"] = wall_s * float(cast(Any, hourly)) / 3600
        return {key: value for key, value in found.items() if key not in given}

    def _report_row(self, row: Mapping[str, float], step: int) -> None:
        for kind in wanted(self.report_metrics):
            self._logger(kind).log({**row, **self._stamps(step)}, step)

    def _stamps(self, step: int) -> dict[str, float]:
        return {"training_step": float(step), "time/wall_clock_sec": max(0.0, time.time() - self._created)}

    def update_wandb_config(self, update: dict[str, Any]) -> None:
        """Merge into the config of the model's W&B run. Values may be repeated, not changed.

        Raises:
            TypeError: Not a dict.
            ValueError: A value would change; the message names its path.
        """
        self._wandb_logger().update_config(update)

    def _get_wandb_run(self) -> Any:
        """The model's W&B run; ``None`` without ``WANDB_API_KEY`` unless W&B is offline."""
        return self._wandb_logger().run()

    def _wandb_logger(self) -> "WandbLogger":
        return cast("WandbLogger", self._logger("wandb"))

    def _logger(self, kind: str) -> Logger:
        if kind not in self._loggers:
            self._loggers[kind] = open_logger(kind, self.project, self.name, self._path())
        return self._loggers[kind]

    async def _send_to_backend(self, row: Mapping[str, float], split: str, step: int) -> None:
        if row and isinstance(self._backend, MetricSink):
            await self._backend.record_metrics(self, log_rows.finite(row), split=split, step=step)

    def _path(self, *parts: str) -> Path:
        return Path(get_output_dir_from_model_properties(self.project, self.name, self.base_path), *parts)


class TrainableModel(Model[ModelConfig, StateType], Generic[ModelConfig, StateType]):
    """A model that learns.

    >>> model = art.TrainableModel(name="player", project="games", base_model=base_model)
    >>> await model.register(backend)
    >>> model.get_inference_name()
    'player@0'
    """

    base_model: str
    """A local path, a hub id, or another name that the backend can resolve."""
    trainable: Literal[True] = True  # type: ignore[assignment]

    _internal_config: "dev.InternalModelConfig | None" = PrivateAttr(default=None)
    _cost_calculator: "CostCalculator | None" = PrivateAttr(default=None)

    def __init__(self, *, _internal_config: "dev.InternalModelConfig | None" = None, **data: Any) -> None:
        super().__init__(**data)
        self._internal_config = _internal_config

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The fields, and ``_internal_config``."""
        return {**super().model_dump(**options), "_internal_config": self._internal_config}

    async def register(self, backend: Backend, _openai_client_config: "dev.OpenAIServerConfig | None" = None) -> None:
        """Make the model known to a backend, which loads and serves it. Doing it again is harmless."""
        await super().register(backend)
        base_url, api_key = await backend._prepare_backend_for_training(self, _openai_client_config)  # pyright: ignore[reportPrivateUsage]
        self.inference_base_url = base_url
        self.inference_api_key = api_key
        ask = getattr(backend, "_model_inference_name", None)
        served = ask(self) if callable(ask) else None
        self.inference_model_name = served if isinstance(served, str) else self.name

    @asynccontextmanager
    async def rollout(self, step: int | None = None) -> AsyncGenerator[Rollout]:
        """One run of the agent under a key of its own, whatever framework, process or language the agent is in.

            async with model.rollout() as r:
                reward = await run_my_agent(r.base_url, r.api_key)
                return r.trajectory(reward)

        For an agent that builds its clients from ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``:

            async with model.rollout() as r, r.trajectory() as t:
                t.reward = await run_my_agent()
            return t

        Args:
            step: Pin it to this policy version; ``None`` follows the latest.
        """
        step = self._step if step is None else step
        backend = self.backend()
        if not isinstance(backend, RolloutSource):
            raise TypeError(f"{type(backend).__name__} has no rollouts; use LocalBackend or RemoteBackend.")
        rollout_id, base_url, api_key = await backend.create_rollout(self, step)
        client = self.openai_client().with_options(base_url=base_url, api_key=api_key)

        async def read() -> list[History]:
            return read_conversations(await backend.get_rollout(rollout_id))

        yield Rollout(rollout_id, base_url, api_key, client, read)

    @renamed(trajectory_groups="groups")
    async def train(
        self,
        groups: Iterable[TrajectoryGroup],
        config: TrainConfig = TrainConfig(),  # noqa: B008
        _config: "dev.TrainConfig | None" = None,
        verbose: bool = False,
    ) -> None:
        """Deprecated: ``await backend.train(model, groups, learning_rate=…)``, then ``await model.log(…)``."""
        warnings.warn(
            "model.train is deprecated: write `result = await backend.train(model, groups, learning_rate=…)` and "
            "`await model.log(groups, split='train', metrics=result.metrics, step=result.step)`.",
            DeprecationWarning,
            stacklevel=2,
        )
        batch = list(groups)
        _check_config(config, TrainConfig)
        started = time.time()
        stream = self.backend()._train_model(self, batch, config, _config or {}, verbose)  # pyright: ignore[reportPrivateUsage]
        metrics = average_metric_samples([sample async for sample in stream])
        metrics.setdefault("time/step_trainer_s", time.time() - started)
        step = await self.get_step()
        await self.log(batch, split="train", metrics=metrics, step=step)

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: "dev.TrainSFTConfig | None" = None,
        verbose: bool = False,
    ) -> None:
        """Fine-tune on given trajectories, log one row, and say how the loss went. Captured trajectories are learned by their
        exact tokens."""
        config = TrainSFTConfig() if config is None else config
        _check_config(config, TrainSFTConfig)
        started = time.time()
        stream = self.backend()._train_sft(self, trajectories, config, _config or {}, verbose)  # pyright: ignore[reportPrivateUsage]
        samples = [sample async for sample in stream]
        if not samples:
            return
        metrics = average_metric_samples(samples)
        metrics["time/step_trainer_s"] = time.time() - started
        step = await self.get_step()
        await self.log(split="train", metrics=metrics, step=step)
        if "loss/sft_last_batch" in metrics:
            say(
                f"{self.name}: {metrics[TRAIN_GRADIENT_STEPS_KEY]:.0f} updates on examples made step {step}; loss per token "
                f"{metrics['loss/sft_first_batch']:.2f} at first, {metrics['loss/sft_last_batch']:.2f} at last"
            )

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> None:
        """Delete all checkpoints but the latest and the one with the highest mean of a metric in ``history.jsonl``."""
        latest = await self.get_step()
        best = best_step(read_history(self._path("history.jsonl")), best_checkpoint_metric)
        if best is None:
            print(
                f"{self.name}: no {best_checkpoint_metric!r} was logged, so only the latest checkpoint is kept",
                file=sys.stderr,
            )
        keep = [latest] if best is None or best == latest else [best, latest]
        await self.backend()._delete_checkpoint_files(self, keep)  # pyright: ignore[reportPrivateUsage]

    @property
    def cost_calculator(self) -> "CostCalculator":
        """Turns token counts into costs by their logged names; by default into none."""
        return self._cost_calculator or (lambda prompt_tokens, completion_tokens, cost_context: {})

    def set_cost_calculator(self, calculator: "CostCalculator | None") -> None:
        self._cost_calculator = calculator


def _check_config(config: Any, kind: type[Any]) -> None:
    if not isinstance(config, kind):
        raise TypeError(f"config must be an art.{kind.__name__}, not {type(config).__name__}.")


def _running_loop() -> "weakref.ref[asyncio.AbstractEventLoop] | None":
    try:
        return weakref.ref(asyncio.get_running_loop())
    except RuntimeError:
        return None
