"""Metrics that every training step has, whatever the backend."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art.trajectories import TrajectoryGroup

__all__ = [
    "TRAIN_GRADIENT_STEPS_KEY",
    "TrajectoryBatchSummary",
    "average_metric_samples",
    "build_data_metrics_from_summary",
    "build_training_summary_metrics",
    "summarize_trajectory_groups",
]

TRAIN_GRADIENT_STEPS_KEY = "data/step_num_gradient_steps"
"""Optimiser steps of a training call. A count, not a mean: all samples of one call must agree on it."""

_SAME_REWARD = 1e-12


@dataclass(frozen=True)
class TrajectoryBatchSummary:
    """What was submitted to one training step.

    >>> group = art.TrajectoryGroup([art.Trajectory(reward=1.0), art.Trajectory(reward=0.0)])
    >>> summarize_trajectory_groups([group]).num_groups_trainable
    1
    """

    num_scenarios: int
    num_trajectories: int
    """Finished and failed ones."""
    num_groups_submitted: int
    num_groups_trainable: int
    """Groups with more than one trajectory and more than one reward."""
    scenario_ids: list[str]
    """Unique, in order of appearance."""


def average_metric_samples(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each metric over the samples that contain it.

    Raises:
        ValueError: The samples disagree on the number of gradient steps.

    >>> average_metric_samples([{"loss": 1.0}, {"loss": 3.0, "kl": 0.5}])
    {'loss': 2.0, 'kl': 0.5}
    """
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.items():
            values.setdefault(name, []).append(value)
    steps = values.get(TRAIN_GRADIENT_STEPS_KEY, [])
    if len(set(steps)) > 1:
        raise ValueError(f"{TRAIN_GRADIENT_STEPS_KEY} must be invariant over the samples of one call, but was {steps}.")
    means = {name: sum(found) / len(found) for name, found in values.items()}
    return means | ({TRAIN_GRADIENT_STEPS_KEY: steps[0]} if steps else {})


def is_trainable(group: "TrajectoryGroup") -> bool:
    """Whether the group has a learning signal: more than one trajectory and more than one reward."""
    rewards = [trajectory.reward for trajectory in group.trajectories]
    return len(rewards) > 1 and max(rewards) - min(rewards) > _SAME_REWARD


def scenario_id_of(group: "TrajectoryGroup") -> str | None:
    """The ``scenario_id`` in the metadata of the group, else of its first trajectory that has one."""
    for metadata in (group.metadata, *(trajectory.metadata for trajectory in group.trajectories)):
        if (found := metadata.get("scenario_id")) is not None:
            return str(found)
    return None


def summarize_trajectory_groups(groups: "Iterable[TrajectoryGroup]") -> TrajectoryBatchSummary:
    """Count what a batch of groups holds.

    >>> group = art.TrajectoryGroup([art.Trajectory()], metadata={"scenario_id": "a"})
    >>> summarize_trajectory_groups([group]).scenario_ids
    ['a']
    """
    batch = list(groups)
    ids = [found for group in batch if (found := scenario_id_of(group)) is not None]
    return TrajectoryBatchSummary(
        num_scenarios=len(batch),
        num_trajectories=sum(len(group.trajectories) + len(group.exceptions) for group in batch),
        num_groups_submitted=len(batch),
        num_groups_trainable=sum(map(is_trainable, batch)),
        scenario_ids=list(dict.fromkeys(ids)),
    )


def build_data_metrics_from_summary(
    summary: TrajectoryBatchSummary, *, include_trainable_groups: bool
) -> dict[str, float]:
    """The counts of a batch, by their logged names.

    >>> summary = summarize_trajectory_groups([art.TrajectoryGroup([art.Trajectory()])])
    >>> build_data_metrics_from_summary(summary, include_trainable_groups=False)["data/step_num_trajectories"]
    1.0
    """
    metrics = {
        "data/step_num_scenarios": float(summary.num_scenarios),
        "data/step_num_trajectories": float(summary.num_trajectories),
        "data/step_num_groups_submitted": float(summary.num_groups_submitted),
    }
    if include_trainable_groups:
        metrics["data/step_num_groups_trainable"] = float(summary.num_groups_trainable)
    return metrics


def build_training_summary_metrics(
    summary: TrajectoryBatchSummary, *, include_trainable_groups: bool = True
) -> dict[str, float]:
    """The same counts, for a training step.

    >>> summary = summarize_trajectory_groups([art.TrajectoryGroup([art.Trajectory()])])
    >>> build_training_summary_metrics(summary)["data/step_num_groups_trainable"]
    0.0
    """
    return build_data_metrics_from_summary(summary, include_trainable_groups=include_trainable_groups)
