"""Loggers for metrics, beside ``history.jsonl``: one run per model, resumed after a restart.

``Model(report_metrics=["tensorboard", "mlflow"])`` names them. Each is a small class with one method. Their packages are imported
when a logger is opened.
"""

import atexit
import contextvars
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from art.errors import load_extra
from art.logs.files import deep_merge, finite

__all__ = ["LOGGERS", "Logger", "MlflowLogger", "TensorboardLogger", "TrackioLogger", "WandbLogger", "open_logger"]


class Logger(Protocol):
    """Sends rows to the run of one model.

    >>> class Printer:
    ...     def log(self, row, step):
    ...         print(step, row)
    >>> logger: Logger = Printer()
    >>> logger.log({"train/reward": 0.5}, 3)
    3 {'train/reward': 0.5}
    """

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Send a row of prefixed metrics, which may hold NaN, and ``training_step``."""
        ...


_MLFLOW_TAG = "art.model"
_MLFLOW_BATCH = 1000
"""Metrics that MLflow's protocol takes at once."""


class MlflowLogger:
    """MLflow: an experiment per project, a run per model, found again by a tag.

    Rows go to ``MLFLOW_TRACKING_URI``, or else to ``mlflow.db`` beside the project's models:
    ``mlflow ui --backend-store-uri sqlite:///.art/PROJECT/mlflow.db`` shows them.

    Args:
        directory: The model's directory, ``{base_path}/{project}/models/{name}``.

    Raises:
        MissingExtraError: MLflow is not installed.
    """

    def __init__(self, project: str, name: str, directory: Path) -> None:
        mlflow = load_extra("mlflow", "MLflow", "mlflow")
        self._entities = load_extra("mlflow.entities", "MLflow", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            store = directory.parent.parent.absolute() / "mlflow.db"
            store.parent.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{store}"
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        self._run_id = self._find_or_create(project, name)

    def log(self, row: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in finite(row).items()]
        for start in range(0, len(metrics), _MLFLOW_BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _MLFLOW_BATCH])

    def _find_or_create(self, project: str, name: str) -> str:
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(project)
        quoted = name.replace("'", "\\'")
        runs = self._client.search_runs(
            [experiment_id], filter_string=f"tags.`{_MLFLOW_TAG}` = '{quoted}'", max_results=1
        )
        if runs:
            return runs[0].info.run_id
        return self._client.create_run(experiment_id, run_name=name, tags={_MLFLOW_TAG: name}).info.run_id


class TensorboardLogger:
    """TensorBoard: event files in the model's directory. ``tensorboard --logdir .art`` shows all models.

    Args:
        directory: The model's directory, to which a restarted process adds another file.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, directory: Path) -> None:
        package = load_extra("tensorboard.summary", "TensorBoard", "tensorboard")
        self._writer: Any = package.Writer(str(directory / "tensorboard"))

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in finite(row).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class TrackioLogger:
    """Trackio: a project per project, a run per model. ``trackio show`` shows them; ``TRACKIO_DIR`` sets where they are stored.

    Raises:
        MissingExtraError: Trackio is not installed.
    """

    def __init__(self, project: str, name: str) -> None:
        trackio = load_extra("trackio", "Trackio", "trackio")
        # Trackio ends the current run when another starts; in separate contexts, each model's run continues.
        begin = contextvars.Context().run
        self._run: Any = begin(
            trackio.init, project, name=name, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
        atexit.register(self._run.finish)

    def log(self, row: Mapping[str, float], step: int) -> None:
        self._run.log(finite(row), step=step)


_WANDB_SECTIONS = ("reward", "loss", "throughput", "costs", "time", "data", "train", "val", "test", "discarded")
_STEP = "training_step"


class WandbLogger:
    """Weights & Biases: one run per model, started when first needed, resumed after a restart.

    It needs ``WANDB_API_KEY``, or ``WANDB_MODE=offline`` to write files that are sent later.
    """

    def __init__(self, project: str, name: str) -> None:
        self._project = project
        self._name = name
        self._run: Any = None
        self._config: dict[str, Any] = {}
        self._cost_keys: set[str] = set()

    def run(self) -> Any:
        """The run; ``None`` if W&B has no key and is not offline.

        Raises:
            MissingExtraError: There is a key, but W&B is not installed.
        """
        if not os.environ.get("WANDB_API_KEY") and os.environ.get("WANDB_MODE") != "offline":
            return None
        if self._run is None or self._run._is_finished:
            self._run = self._start()
        return self._run

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Send a row of prefixed metrics; its ``training_step`` is the axis, not W&B's own count."""
        run = self.run()
        if run is None:
            return
        for key in row:
            if key.startswith("costs/") and key not in self._cost_keys:
                self._cost_keys.add(key)
                run.define_metric(key, step_metric=_STEP)
        run.log(dict(row))

    def update_config(self, update: Mapping[str, Any]) -> None:
        """Merge into the run's config.

        Raises:
            TypeError: Not a dict.
            ValueError: A value would change.
        """
        if not isinstance(update, dict):
            raise TypeError(f"The update of a W&B config must be a dict, not {type(update).__name__}.")
        _refuse_changes(self._config, update, ())
        self._config = deep_merge(self._config, update)
        if (run := self.run()) is not None:
            run.config.update(self._config)

    def _start(self) -> Any:
        wandb = load_extra("wandb", "W&B", "wandb")
        run = wandb.init(
            project=self._project,
            name=self._name,
            id=self._name,
            config=self._config or None,
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        run.define_metric(_STEP)
        run.define_metric("time/wall_clock_sec")
        for section in _WANDB_SECTIONS:
            run.define_metric(f"{section}/*", step_metric=_STEP)
        self._cost_keys = set()
        if self._config:
            run.config.update(self._config)
        return run


def _refuse_changes(stored: Mapping[str, Any], update: Mapping[str, Any], path: tuple[str, ...]) -> None:
    for key, value in update.items():
        if key not in stored:
            continue
        old, here = stored[key], (*path, key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            _refuse_changes(cast(Mapping[str, Any], old), cast(Mapping[str, Any], value), here)
        elif old != value:
            raise ValueError(f"Conflicting value for '{'.'.join(here)}': it is {old!r} and cannot become {value!r}.")


LOGGERS: dict[str, Callable[[str, str, Path], Logger]] = {
    "mlflow": MlflowLogger,
    "tensorboard": lambda project, name, directory: TensorboardLogger(directory),
    "trackio": lambda project, name, directory: TrackioLogger(project, name),
    "wandb": lambda project, name, directory: WandbLogger(project, name),
}
"""By the name that ``report_metrics`` uses, which is also that of the extra: from project, name and directory of a model."""


def open_logger(kind: str, project: str, name: str, directory: Path) -> Logger:
    """The logger ``kind`` of one model.

    Args:
        directory: The model's own, for loggers that write files.

    Raises:
        MissingExtraError: Its package is not installed.
    """
    return LOGGERS[kind](project, name, directory)


def check_names(names: Sequence[str] | None) -> None:
    """Refuse loggers that do not exist.

    Raises:
        ValueError: Naming them and the known ones.
    """
    if unknown := [name for name in names or () if name not in LOGGERS]:
        raise ValueError(f"report_metrics names unknown loggers: {', '.join(unknown)}. Known: {', '.join(LOGGERS)}.")


def wanted(names: Sequence[str] | None) -> Sequence[str]:
    """The loggers to use: those named; by default W&B, if its key is set."""
    if names is None:
        return ["wandb"] if os.environ.get("WANDB_API_KEY") else []
    return names
