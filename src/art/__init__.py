"""ART trains the agent you already have: your code runs and scores it, ART improves its model."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art import compat as compat
    from art import dev
    from art.backend import Backend
    from art.backend.remote import RemoteBackend
    from art.capture.scopes import current_trajectory, no_capture, trajectory, trajectory_group
    from art.compat.helpers import retry
    from art.compat.scopes import (
        auto_trajectory,
        capture_auto_trajectory,
        capture_yielded_trajectory,
        yield_trajectory,
    )
    from art.gather import gather_trajectories, gather_trajectory_groups, trajectory_group_batches
    from art.local import LocalBackend
    from art.loop import Preflight, TrainingRun, preflight, train
    from art.model import Model, TrainableModel
    from art.rollouts.rollout import Rollout
    from art.rollouts.run_sync import run_sync
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

_NAMES = {
    "art.backend": "Backend",
    "art.backend.remote": "RemoteBackend",
    "art.capture.scopes": "current_trajectory no_capture trajectory trajectory_group",
    "art.compat.helpers": "retry",
    "art.compat.scopes": "auto_trajectory capture_auto_trajectory capture_yielded_trajectory yield_trajectory",
    "art.gather": "gather_trajectories gather_trajectory_groups trajectory_group_batches",
    "art.local": "LocalBackend",
    "art.loop": "Preflight TrainingRun preflight train",
    "art.model": "Model TrainableModel",
    "art.rollouts.rollout": "Rollout",
    "art.rollouts.run_sync": "run_sync",
    "art.trajectories": "Trajectory TrajectoryGroup",
    "art.types": "LocalTrainResult Messages MessagesAndChoices Tools TrainConfig TrainResult TrainSFTConfig TrajectoryExchanges",
}
"""The public names of each module; the module is imported on first use of one of them."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

_MODULES = (
    *("capture", "compat", "dev", "errors", "gather", "guided_completion", "langgraph", "mcp", "metrics", "rewards"),
    *("trajectories", "types", "utils"),
)
"""Modules available as attributes of the package without an explicit import."""

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
