"""A model's fields, its state on disk, and its metrics."""

import time
import warnings
from abc import abstractmethod
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import Token
from pathlib import Path
from typing import Any, Generic, cast

from pydantic import BaseModel, ConfigDict, PrivateAttr
from typing_extensions import TypeVar

from art.backend import Backend, MetricSink
from art.errors import ConflictError
from art.logs.directories import get_output_dir_from_model_properties
from art.logs.files import (
    STATE,
    TOTALS,
    check_place,
    deep_merge,
    dump_json,
    finite,
    held_alone,
    locked,
    read_json,
    write_json,
    write_row,
    writing,
)
from art.logs.loggers import Logger, WandbLogger, check_names, open_logger, wanted
from art.logs.parquet import write_trajectory_groups_parquet
from art.logs.rows import as_groups, build_row, check_content, prefix
from art.metrics import MetricsBuilder
from art.trajectories import Trajectory, TrajectoryGroup

ModelConfig = TypeVar("ModelConfig", bound=BaseModel | None, default=Any)
StateType = TypeVar("StateType", bound=Mapping[str, Any], default=dict[str, Any])


class LoggedModel(BaseModel, Generic[ModelConfig, StateType]):
    """The fields of a model, and what it writes to ``{base_path}/{project}/models/{name}`` and to its loggers."""

    model_config = ConfigDict(protected_namespaces=())

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    config: ModelConfig = cast(ModelConfig, None)
    """Free for your use; stored with the model."""
    trainable: bool = False
    inference_api_key: str | None = None
    inference_base_url: str | None = None
    inference_model_name: str | None = None
    base_path: str = ".art"
    """Root of everything logged: ``{base_path}/{project}/models/{name}``."""
    report_metrics: list[str] | None = None
    """Loggers beside ``history.jsonl``: ``"mlflow"``, ``"tensorboard"``, ``"trackio"``, ``"wandb"``. ``None``: W&B if
    ``WANDB_API_KEY`` is set; ``[]``: none."""

    _backend: Backend | None = PrivateAttr(default=None)
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

    @abstractmethod
    async def get_step(self) -> int:
        """The policy version to log rows for."""

    # State

    def overwrite_state(self, state: StateType) -> None:
        """Replace ``state.json``."""
        path = self._path(STATE)
        with locked(path):
            write_json(path, state)

    def read_state(self) -> StateType | None:
        """Read ``state.json``; ``None`` if it does not exist."""
        return cast(StateType | None, read_json(self._path(STATE)))

    def merge_state(self, state: StateType) -> StateType:
        """Merge into ``state.json``, nested dicts too, and return the result."""
        path = self._path(STATE)
        with locked(path):
            dump_json(path, state)  # raises for what cannot be stored, before anything is merged
            merged = deep_merge(read_json(path) or {}, state)
            write_json(path, merged)
        return cast(StateType, merged)

    @contextmanager
    def trained_alone(self) -> Generator[None]:
        """Lock the model's training against other loops that log to the same directory.

        Raises:
            ConflictError: Another one holds it.
        """
        refusal = ConflictError(
            f"Model {self.name!r} of project {self.project!r} is already being trained by another call or process that "
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
        """The builder of a context; ``None``: of ``"train"``. Totals continue from ``state.json``."""
        if self._builder is None:
            self._builder = MetricsBuilder("train")
            if (stored := (self.read_state() or cast(StateType, {})).get(TOTALS)) is not None:
                self._builder.load_state_dict(stored)
        return self._builder if cost_context is None else self._builder.for_cost_context(cost_context)

    def activate_metrics_context(self, cost_context: str) -> "Token[MetricsBuilder | None]":
        """Record costs in ``cost_context`` from now on. Undo with ``token.var.reset(token)``."""
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
            split: Their purpose: ``"train"``, ``"val"``, ``"test"`` or your own name.
            metrics: Further metrics of the row; they override averages of the same name.
            step: The policy version; ``None`` asks the backend.

        Raises:
            TypeError: Groups and trajectories are mixed, or something has a wrong type, such as a reward that is no number; the
                message names it.
            ValueError: ``split`` or a metric has a name that cannot be used.
            OSError: The files could not be written. Nothing was counted, so you can repeat the call.
        """
        if trajectories is None and metrics is None:
            return
        groups = None if trajectories is None else as_groups(trajectories)
        given = dict(metrics or {})
        check_content(groups or [], given)
        if step is None:
            step = await self.get_step() if self.trainable else 0
        step = check_place(split, step)
        builder = self.metrics_builder("eval" if split in ("val", "test") else split)
        last = self._last_train_log, self._last_train_step
        try:
            with builder.kept_on_failure(), writing(f"Logging step {step} of model {self.name!r}", self._path()):
                given = {**self._automatic_metrics(split, step, given), **given}
                built = await build_row(builder, groups, split, given)
                row = prefix(built, split)
                if groups is not None:
                    path = self._path("trajectories", split, f"{step:04d}.parquet")
                    write_trajectory_groups_parquet(groups, path)
                written = row if row or groups is not None else None
                write_row(self._path(), written, builder.state_dict(), step, self._stamps(step))
        except BaseException:
            self._last_train_log, self._last_train_step = last
            raise
        if written is not None:
            for kind in wanted(self.report_metrics):
                self._logger(kind).log({**row, **self._stamps(step)}, step)
        if row and isinstance(self._backend, MetricSink):
            await self._backend.record_metrics(cast(Any, self), finite(row), split=split, step=step)

    def _automatic_metrics(self, split: str, step: int, given: Mapping[str, float]) -> dict[str, float]:
        """Wall time since the last training step was logged, and what the devices cost in it."""
        backend = self._backend
        if split != "train" or not isinstance(backend, MetricSink) or step == self._last_train_step:
            return {}
        now = time.monotonic()
        wall_s = now - self._last_train_log
        self._last_train_log, self._last_train_step = now, step
        found = {"time/step_wall_s": wall_s}
        if (hourly := backend.automatic_gpu_cost_per_hour_usd(cast(Any, self))) is not None:
            found["costs/gpu"] = wall_s * hourly / 3600
        return {key: value for key, value in found.items() if key not in given}

    def _stamps(self, step: int) -> dict[str, float]:
        return {"training_step": float(step), "time/wall_clock_sec": max(0.0, time.time() - self._created)}

    def update_wandb_config(self, update: dict[str, Any]) -> None:
        """Merge into the config of the model's W&B run. Values can be repeated, but not changed.

        Raises:
            TypeError: Not a dict.
            ValueError: A value would change; the message names its path.
        """
        self._wandb_logger().update_config(update)

    def _get_wandb_run(self) -> Any:
        """The model's W&B run; ``None`` without ``WANDB_API_KEY`` unless W&B is offline."""
        return self._wandb_logger().run()

    def _wandb_logger(self) -> WandbLogger:
        return cast(WandbLogger, self._logger("wandb"))

    def _logger(self, kind: str) -> Logger:
        if kind not in self._loggers:
            self._loggers[kind] = open_logger(kind, self.project, self.name, self._path())
        return self._loggers[kind]

    def _path(self, *parts: str) -> Path:
        return Path(get_output_dir_from_model_properties(self.project, self.name, self.base_path), *parts)
