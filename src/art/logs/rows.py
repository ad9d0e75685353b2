"""From trajectories and metrics to the row of ``history.jsonl``. Pure functions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat, cast

from pydantic import BaseModel

from art.metrics import MetricsBuilder, is_builder_managed_metric
from art.trajectories import Trajectory, TrajectoryGroup

SECTIONS = ("reward", "loss", "offpolicy", "pipeline", "throughput", "costs", "time", "data")
SPLITS = ("train", "val", "test")


TRAIN_GRADIENT_STEPS_KEY = "data/step_num_gradient_steps"
"""Optimiser steps of a training call. A count, not a mean: all samples of one call must agree on it."""

_SAME_REWARD = 1e-12


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


def count_groups(groups: Sequence[TrajectoryGroup], *, trainable: bool) -> dict[str, float]:
    """How much a batch holds, by the logged names.

    Args:
        trainable: Count the groups with a learning signal, too.
    """
    counts = {
        "data/step_num_scenarios": len(groups),
        "data/step_num_trajectories": sum(len(group.trajectories) + len(group.exceptions) for group in groups),
        "data/step_num_groups_submitted": len(groups),
    }
    if trainable:
        counts["data/step_num_groups_trainable"] = sum(map(is_trainable, groups))
    return {name: float(count) for name, count in counts.items()}


async def build_row(
    builder: MetricsBuilder, groups: Sequence[TrajectoryGroup] | None, split: str, given: Mapping[str, float]
) -> dict[str, float]:
    """The row of a step: averages of trajectories and groups, the metrics that are given, and what was summed.

    Raises:
        ValueError: A metric's name cannot be used.
    """
    row: dict[str, float] = {}
    if groups is not None:
        if split in SPLITS:
            given = {**count_groups(groups, trainable=split == "train"), **given}
            if ids := [found for group in groups if (found := scenario_id_of(group)) is not None]:
                builder.add_data(scenario_ids=ids)
        for group in groups:
            _sum_managed(builder, group.metrics)
            for trajectory in group.trajectories:
                _sum_managed(builder, trajectory.metrics)
        row = _average_groups(groups)
    row |= _sum_managed(builder, given)
    return row | await builder.flush()


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
            raise TypeError(f"The metric {name!r}{where} must have a string as its name, not {type(name).__name__}.")
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


def _average_groups(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Means over trajectories and over groups, without the metrics that are summed."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    failures = sum(len(group.exceptions) for group in groups)
    row: dict[str, float] = {}
    if trajectories:
        row["reward"] = _mean([trajectory.reward for trajectory in trajectories])
    if total := len(trajectories) + failures:
        row["exception_rate"] = failures / total
    row |= _means(map(_averaged, (trajectory.metrics for trajectory in trajectories)))
    group_means = _means(map(_averaged, (group.metrics for group in groups if group.trajectories)))
    row |= {f"group_{name}": value for name, value in group_means.items()}
    spreads = [_std([t.reward for t in group.trajectories]) for group in groups if len(group.trajectories) > 1]
    row["reward_std_dev"] = _mean(spreads) if spreads else 0.0
    return row


def _sum_managed(builder: MetricsBuilder, metrics: Mapping[str, float]) -> dict[str, float]:
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


def prefix(metrics: Mapping[str, float], split: str) -> dict[str, float]:
    """Full names: a key that begins with a section or a split stays, any other gets the split in front."""
    known = {*SECTIONS, *SPLITS} if split in SPLITS else set[str]()
    return {
        key if "/" in key and key.split("/")[0] in known else f"{split}/{key}": value for key, value in metrics.items()
    }


def _averaged(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are not summed."""
    return {name: value for name, value in metrics.items() if not is_builder_managed_metric(name)}


def _means(samples: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.items():
            values.setdefault(name, []).append(value)
    return {name: _mean(found) for name, found in values.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values))
