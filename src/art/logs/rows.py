"""From trajectories and metrics to the row of ``history.jsonl``. Pure functions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat, cast

from pydantic import BaseModel

from art.metrics import MetricsBuilder, is_builder_managed_metric
from art.trajectories import Trajectory, TrajectoryGroup

__all__ = [
    "TRAIN_GRADIENT_STEPS_KEY",
    "TrajectoryBatchSummary",
    "build_data_metrics_from_summary",
    "build_training_summary_metrics",
    "summarize_trajectory_groups",
]

SECTIONS = ("reward", "loss", "offpolicy", "pipeline", "throughput", "costs", "time", "data")
SPLITS = ("train", "val", "test")


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


def is_trainable(group: TrajectoryGroup) -> bool:
    """Whether the group has a learning signal: more than one trajectory and more than one reward."""
    rewards = [trajectory.reward for trajectory in group.trajectories]
    return len(rewards) > 1 and max(rewards) - min(rewards) > _SAME_REWARD


def scenario_id_of(group: TrajectoryGroup) -> str | None:
    """The ``scenario_id`` in the metadata of the group, else of its first trajectory that has one."""
    for metadata in (group.metadata, *(trajectory.metadata for trajectory in group.trajectories)):
        if (found := metadata.get("scenario_id")) is not None:
            return str(found)
    return None


def summarize_trajectory_groups(groups: Iterable[TrajectoryGroup]) -> TrajectoryBatchSummary:
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


def as_groups(items: Iterable[TrajectoryGroup] | Iterable[Trajectory | BaseException]) -> list[TrajectoryGroup]:
    """Groups as they are; loose trajectories and exceptions as one group.

    Raises:
        TypeError: The items are mixed, or something else.
    """
    found = cast(list[Any], list(items))
    if all(isinstance(item, TrajectoryGroup) for item in found):
        return found
    if all(isinstance(item, (Trajectory, BaseException)) for item in found):
        return [TrajectoryGroup(cast(list[Trajectory | BaseException], found))]
    kinds = sorted({type(item).__name__ for item in found})
    raise TypeError(f"log() takes either groups or trajectories and exceptions, not a mix of {', '.join(kinds)}.")


def check_content(groups: Sequence[TrajectoryGroup], given: Mapping[str, Any]) -> None:
    """Raises TypeError: A reward, a metric, a line or a message has the wrong type; the error names it."""
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group.trajectories):
            where = f"group {g}, trajectory {t}"
            as_number(trajectory.reward, f"the reward of {where}")
            _check_metrics(trajectory.metrics, f" of {where}")
            _check_each(trajectory.logs, str, f"log line {{}} of {where}", "text")
            for history in (trajectory, *trajectory.additional_histories):
                kinds = (Mapping, BaseModel)
                _check_each(
                    history.messages_and_choices, kinds, f"message {{}} of {where}", "a message dict or a Choice"
                )
        _check_metrics(group.metrics, f" of group {g}")
        _check_each(group.logs, str, f"log line {{}} of group {g}", "text")
    _check_metrics(given, "")


def _check_metrics(metrics: Mapping[Any, Any], where: str) -> None:
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TypeError(f"The metric {name!r}{where} must be named by text, not {type(name).__name__}.")
        as_number(value, f"the metric {name!r}{where}")


def _check_each(items: Sequence[Any], kinds: Any, what: str, wanted: str) -> None:
    for i, item in enumerate(items):
        if not isinstance(item, kinds):
            raise TypeError(
                f"{what[0].upper()}{what[1:].format(i)} is {item!r} ({type(item).__name__}); it must be {wanted}."
            )


def as_number(value: Any, what: str) -> float:
    """The value as a float. Raises TypeError: It is not a number."""
    if isinstance(value, SupportsFloat):
        return float(value)
    raise TypeError(f"{what[0].upper()}{what[1:]} is {value!r} ({type(value).__name__}); it must be a number.")


def average_groups(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Means over trajectories and over groups, without the metrics that are summed."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    failures = sum(len(group.exceptions) for group in groups)
    row: dict[str, float] = {}
    if trajectories:
        row["reward"] = _mean([trajectory.reward for trajectory in trajectories])
    if total := len(trajectories) + failures:
        row["exception_rate"] = failures / total
    row |= _means(trajectory.metrics for trajectory in trajectories)
    group_means = _means(group.metrics for group in groups if group.trajectories)
    row |= {f"group_{name}": value for name, value in group_means.items()}
    spreads = [_std([t.reward for t in group.trajectories]) for group in groups if len(group.trajectories) > 1]
    row["reward_std_dev"] = _mean(spreads) if spreads else 0.0
    return row


def sum_managed(builder: MetricsBuilder, metrics: Mapping[str, float]) -> dict[str, float]:
    """Hand the metrics that are summed to ``builder``; return the others.

    Raises:
        ValueError: A key of the abandoned form ``costs_…``.
    """
    others: dict[str, float] = {}
    for key, value in metrics.items():
        if key.startswith("costs_"):
            raise ValueError(f"Write the metric {key!r} as 'costs/{key.removeprefix('costs_')}'.")
        if is_builder_managed_metric(key):
            builder.add_metric(key, value)
        else:
            others[key] = value
    return others


def default_data_metrics(summary: TrajectoryBatchSummary, split: str, given: Mapping[str, float]) -> dict[str, float]:
    """The counts of what is logged, for the usual splits, where they are not given."""
    if split not in SPLITS:
        return {}
    counts = build_data_metrics_from_summary(summary, include_trainable_groups=split == "train")
    return {key: value for key, value in counts.items() if key not in given}


def prefix(metrics: Mapping[str, float], split: str) -> dict[str, float]:
    """Full names: a key that begins with a section or a split stays, any other gets the split in front."""
    known = {*SECTIONS, *SPLITS} if split in SPLITS else set[str]()
    return {
        key if "/" in key and key.split("/")[0] in known else f"{split}/{key}": value for key, value in metrics.items()
    }


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """As floats, without NaN and infinities."""
    return {key: float(value) for key, value in metrics.items() if math.isfinite(value)}


def _means(samples: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.items():
            if not is_builder_managed_metric(name):
                values.setdefault(name, []).append(value)
    return {name: _mean(found) for name, found in values.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values))
