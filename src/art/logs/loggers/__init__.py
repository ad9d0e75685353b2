"""Where rows of metrics go besides ``history.jsonl``: one run per model, taken up again after a restart.

``Model(report_metrics=["tensorboard", "mlflow"])`` names them. Each is a small class with one method.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from art.logs.loggers.wandb import WandbLogger

__all__ = ["LOGGERS", "Logger", "open_logger"]


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


def _mlflow(project: str, name: str, directory: Path) -> Logger:
    from art.logs.loggers.mlflow import MlflowLogger

    return MlflowLogger(project, name, directory)


def _tensorboard(project: str, name: str, directory: Path) -> Logger:
    from art.logs.loggers.tensorboard import TensorboardLogger

    return TensorboardLogger(directory)


def _trackio(project: str, name: str, directory: Path) -> Logger:
    from art.logs.loggers.trackio import TrackioLogger

    return TrackioLogger(project, name)


def _wandb(project: str, name: str, directory: Path) -> "WandbLogger":
    from art.logs.loggers.wandb import WandbLogger

    return WandbLogger(project, name)


LOGGERS: dict[str, Callable[[str, str, Path], Logger]] = {
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "wandb": _wandb,
}
"""By the name that ``report_metrics`` uses, which is also that of the extra: from project, name and directory of a model."""


def open_logger(kind: str, project: str, name: str, directory: Path) -> Logger:
    """The logger ``kind`` of one model.

    Args:
        directory: The model's own, for loggers that write files.

    Raises:
        MissingExtraError: Its package is not installed.

    >>> open_logger("tensorboard", "games", "player", Path("run")).log({"train/reward": 0.5}, 3)
    >>> len(list(Path("run/tensorboard").iterdir()))
    1
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
