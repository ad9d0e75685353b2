"""Weights & Biases: needs ``WANDB_API_KEY``, or ``WANDB_MODE=offline`` to write files that are sent later."""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from art.errors import MissingExtraError
from art.logs.files import deep_merge

_SECTIONS = ("reward", "loss", "throughput", "costs", "time", "data", "train", "val", "test", "discarded")
_STEP = "training_step"


class WandbLogger:
    """The W&B run of one model: started when first needed, resumed after a restart.

    >>> WandbLogger("games", "player").run() is None  # without WANDB_API_KEY
    True
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
        try:
            wandb: Any = import_module("wandb")
        except ModuleNotFoundError as error:
            raise MissingExtraError("W&B", "wandb") from error
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
        for section in _SECTIONS:
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
