"""TensorBoard: event files in the model's own directory. ``tensorboard --logdir .art`` shows all models."""

import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from art.errors import MissingExtraError


class TensorboardLogger:
    """The TensorBoard run of one model: a directory, to which a restarted process adds another file.

    Args:
        directory: The model's directory.

    Raises:
        MissingExtraError: TensorBoard is not installed.

    >>> learner = art.Model(name="player", project="games", report_metrics=["tensorboard"])
    >>> await learner.log(metrics={"reward": 0.5}, split="train", step=3)
    >>> len(list(Path(".art/games/models/player/tensorboard").iterdir()))
    1
    """

    def __init__(self, directory: Path) -> None:
        try:
            package: Any = import_module("tensorboard.summary")
        except ModuleNotFoundError as error:
            raise MissingExtraError("TensorBoard", "tensorboard") from error
        self._writer: Any = package.Writer(str(directory / "tensorboard"))

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, float(value), step)
        self._writer.flush()
