"""Trackio: a project per project, a run per model. ``trackio show`` shows them; ``TRACKIO_DIR`` says where they lie."""

import atexit
import contextvars
import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from art.errors import MissingExtraError


class TrackioLogger:
    """The Trackio run of one model.

    Raises:
        MissingExtraError: Trackio is not installed.

    >>> art.Model(name="player", project="games", report_metrics=["trackio"]).report_metrics  # opened at the first log
    ['trackio']
    """

    def __init__(self, project: str, name: str) -> None:
        try:
            trackio: Any = import_module("trackio")
        except ModuleNotFoundError as error:
            raise MissingExtraError("Trackio", "trackio") from error
        # Trackio ends the run that is current when another begins; in a context of its own, each model's goes on.
        begin = contextvars.Context().run
        self._run: Any = begin(
            trackio.init, project, name=name, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
        atexit.register(self._run.finish)

    def log(self, row: Mapping[str, float], step: int) -> None:
        self._run.log({name: float(value) for name, value in row.items() if math.isfinite(value)}, step=step)
