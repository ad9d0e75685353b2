"""Aggregating values by group, as group-relative advantages need it."""

import math
from collections.abc import Hashable, Sequence
from typing import Literal

Reduction = Literal["mean", "sum", "var", "std", "count", "min", "max"]


def group_aggregate(
    values: Sequence[float],
    *,
    by: Sequence[Hashable],
    reduce: Reduction = "mean",
    eps: float = 1e-8,
    broadcast: bool = True,
) -> list[float]:
    """Reduce ``values`` within each group.

    Args:
        values: N numbers.
        by: The group of each value.
        reduce: ``var`` and ``std`` are those of the population; ``std`` is the root of the variance plus ``eps``.
        broadcast: Give N results, each value's group's; else one per group, in order of appearance.

    Raises:
        ValueError: The lengths differ, or the reduction is unknown.

    >>> group_aggregate([1.0, 3.0, 10.0], by=["a", "a", "b"])
    [2.0, 2.0, 10.0]
    """
    groups: dict[Hashable, list[float]] = {}
    for value, key in zip(values, by, strict=True):
        groups.setdefault(key, []).append(value)
    reduced = {key: _reduce(members, reduce, eps) for key, members in groups.items()}
    return [reduced[key] for key in by] if broadcast else list(reduced.values())


def _reduce(members: list[float], how: str, eps: float) -> float:
    mean = sum(members) / len(members)
    variance = sum((value - mean) ** 2 for value in members) / len(members)
    results = {
        "mean": mean,
        "sum": sum(members),
        "var": variance,
        "std": math.sqrt(variance + eps),
        "count": float(len(members)),
        "min": min(members),
        "max": max(members),
    }
    if how not in results:
        raise ValueError(f"reduce must be one of {', '.join(results)}, not {how!r}.")
    return results[how]
