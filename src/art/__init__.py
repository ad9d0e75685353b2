"""ART trains the agent you already have: your code runs it and scores it, ART makes its model better."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art import compat, dev
    from art.auto_trajectory import auto_trajectory, capture_auto_trajectory
    from art.backend import Backend
    from art.backend.remote import RemoteBackend
    from art.capture.scopes import current_trajectory, no_capture, trajectory, trajectory_group
    from art.gather import gather_trajectories, gather_trajectory_groups
    from art.local import LocalBackend
    from art.loop import Preflight, TrainingRun, preflight, train
    from art.model import Model, TrainableModel
    from art.rollouts.batches import trajectory_group_batches
    from art.rollouts.rollout import Rollout
    from art.run_sync import run_sync
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.types import (
        LocalTrainResult,
        Messages,
        MessagesAndChoices,
        Tools,
        TrainConfig,
        TrainResult,
        TrainSFTConfig,
        TrajectoryExchanges,
    )
    from art.utils.retry import retry
    from art.yield_trajectory import capture_yielded_trajectory, yield_trajectory

_HOME = {
    "Backend": "art.backend",
    "LocalBackend": "art.local",
    "LocalTrainResult": "art.types",
    "Messages": "art.types",
    "MessagesAndChoices": "art.types",
    "Model": "art.model",
    "Preflight": "art.loop",
    "RemoteBackend": "art.backend.remote",
    "Rollout": "art.rollouts.rollout",
    "Tools": "art.types",
    "TrainConfig": "art.types",
    "TrainResult": "art.types",
    "TrainSFTConfig": "art.types",
    "TrainingRun": "art.loop",
    "TrainableModel": "art.model",
    "Trajectory": "art.trajectories",
    "TrajectoryExchanges": "art.types",
    "TrajectoryGroup": "art.trajectories",
    "auto_trajectory": "art.auto_trajectory",
    "capture_auto_trajectory": "art.auto_trajectory",
    "capture_yielded_trajectory": "art.yield_trajectory",
    "gather_trajectories": "art.gather",
    "no_capture": "art.capture.scopes",
    "gather_trajectory_groups": "art.gather",
    "preflight": "art.loop",
    "retry": "art.utils.retry",
    "run_sync": "art.run_sync",
    "train": "art.loop",
    "current_trajectory": "art.capture.scopes",
    "trajectory": "art.capture.scopes",
    "trajectory_group": "art.capture.scopes",
    "trajectory_group_batches": "art.rollouts.batches",
    "yield_trajectory": "art.yield_trajectory",
}
"""Where each public name lives. A module is imported when one of its names is first asked for."""

_MODULES = (
    *("capture", "compat", "dev", "errors", "gather", "guided_completion", "langgraph", "mcp", "metrics", "rewards"),
    *("trajectories", "types", "utils"),
)
"""Modules that are reached as attributes of the package, without importing them first."""

__all__ = [
    "Backend",
    "LocalBackend",
    "LocalTrainResult",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "Preflight",
    "RemoteBackend",
    "Rollout",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableModel",
    "TrainingRun",
    "Trajectory",
    "TrajectoryExchanges",
    "TrajectoryGroup",
    "auto_trajectory",
    "capture_auto_trajectory",
    "capture_yielded_trajectory",
    "current_trajectory",
    "dev",
    "gather_trajectories",
    "gather_trajectory_groups",
    "no_capture",
    "preflight",
    "retry",
    "run_sync",
    "train",
    "trajectory",
    "trajectory_group",
    "trajectory_group_batches",
    "yield_trajectory",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOME:
        value: object = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"art.{name}")
    raise AttributeError(f"module 'art' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps the names of functions for them, although modules have the same names."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("auto_trajectory", "run_sync", "yield_trajectory") and isinstance(value, ModuleType):
            value = vars(value)[name]
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
