"""ART trains the agent you already have: your code runs it and scores it, ART makes its model better."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art import dev
    from art.backend import Backend
    from art.batches import trajectory_group_batches
    from art.gather import gather_trajectories, gather_trajectory_groups
    from art.local import LocalBackend
    from art.model import Model, Rollout, TrainableModel
    from art.remote import RemoteBackend
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.types import (
        LocalTrainResult,
        Messages,
        MessagesAndChoices,
        ServerlessTrainResult,
        Tools,
        TrainConfig,
        TrainResult,
        TrainSFTConfig,
    )

_HOME = {
    "Backend": "art.backend",
    "LocalBackend": "art.local",
    "LocalTrainResult": "art.types",
    "Messages": "art.types",
    "MessagesAndChoices": "art.types",
    "Model": "art.model",
    "RemoteBackend": "art.remote",
    "Rollout": "art.model",
    "ServerlessTrainResult": "art.types",
    "Tools": "art.types",
    "TrainConfig": "art.types",
    "TrainResult": "art.types",
    "TrainSFTConfig": "art.types",
    "TrainableModel": "art.model",
    "Trajectory": "art.trajectories",
    "TrajectoryGroup": "art.trajectories",
    "gather_trajectories": "art.gather",
    "gather_trajectory_groups": "art.gather",
    "trajectory_group_batches": "art.batches",
}
"""Where each public name lives. A module is imported when one of its names is first asked for."""

__all__ = [
    "Backend",
    "LocalBackend",
    "LocalTrainResult",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "RemoteBackend",
    "Rollout",
    "ServerlessTrainResult",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "dev",
    "gather_trajectories",
    "gather_trajectory_groups",
    "trajectory_group_batches",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOME:
        value: object = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    if name == "dev":
        return import_module("art.dev")
    raise AttributeError(f"module 'art' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
