"""One logged step of a model on disk: its trajectories, its row in ``history.jsonl`` and the totals in ``state.json``."""

import json
import operator
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, SupportsIndex

from art.logs import rows as log_rows
from art.logs.files import append_line, deep_merge, locked, read_json, replacing
from art.logs.rows import summarize_trajectory_groups
from art.metrics import MetricsBuilder
from art.trajectories import TrajectoryGroup
from art.utils.output_dirs import get_trajectories_split_dir

HISTORY, STATE = "history.jsonl", "state.json"
TOTALS = "_metrics_builder_state"
"""Where ``state.json`` keeps what a builder of metrics has summed so far."""


def check_place(split: Any, step: Any) -> int:
    """The step as an ``int``. Raises TypeError, ValueError: ``split`` cannot be part of a path, or ``step`` is no number."""
    if not isinstance(split, str):
        raise TypeError(f"split={split!r} must be a word, such as 'train' or 'val', not {type(split).__name__}.")
    if not split.isprintable() or split in ("", ".", "..") or set(split) & set("/\\"):
        raise ValueError(
            f"split={split!r} cannot name a directory; give a word without slashes, such as 'train' or 'val'."
        )
    if not isinstance(step, SupportsIndex):
        raise TypeError(f"step={step!r} must be a whole number, not {type(step).__name__}.")
    return operator.index(step)


async def build_row(
    builder: MetricsBuilder, groups: Sequence[TrajectoryGroup] | None, split: str, given: Mapping[str, float]
) -> dict[str, float]:
    """The row of a step: averages of trajectories and groups, the metrics that are given, and what was summed.

    Raises:
        ValueError: A metric's name cannot be used.
    """
    row: dict[str, float] = {}
    if groups is not None:
        summary = summarize_trajectory_groups(groups)
        given = {**log_rows.default_data_metrics(summary, split, given), **given}
        if split in log_rows.SPLITS and summary.scenario_ids:
            builder.add_data(scenario_ids=summary.scenario_ids)
        for group in groups:
            log_rows.sum_managed(builder, group.metrics)
            for trajectory in group.trajectories:
                log_rows.sum_managed(builder, trajectory.metrics)
        row = log_rows.average_groups(groups)
    row |= log_rows.sum_managed(builder, given)
    return row | await builder.flush()


def write_trajectories(directory: Path, groups: Sequence[TrajectoryGroup], split: str, step: int) -> None:
    """Write ``trajectories/{split}/{step}.parquet`` as a whole."""
    from art.logs.parquet import write_trajectory_groups_parquet

    path = Path(get_trajectories_split_dir(str(directory), split), f"{step:04d}.parquet")
    write_trajectory_groups_parquet(groups, path)


def write_row(
    directory: Path, row: Mapping[str, float] | None, builder: MetricsBuilder, step: int, stamps: Mapping[str, float]
) -> None:
    """Append a row of full names to ``history.jsonl`` and keep the totals in ``state.json``: both, or neither."""
    state = directory / STATE
    with locked(state):
        merged = deep_merge(read_json(state) or {}, {TOTALS: builder.state_dict()})
        with replacing(state) as partial:  # it takes its place, which needs no space, when the row is written
            partial.write_text(json.dumps(merged, indent=2), encoding="utf-8")
            if row is not None:
                record = {
                    **log_rows.finite(row),
                    **stamps,
                    "step": step,
                    "recorded_at": datetime.now().isoformat(),
                }
                append_line(directory / HISTORY, json.dumps(record))
