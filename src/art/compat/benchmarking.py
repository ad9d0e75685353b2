"""Logged trajectories of many models as one data frame, and charts of it. Needs the extras ``polars`` and ``plot``."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.errors import load_extra
from art.logs.directories import get_default_art_path, get_models_dir
from art.logs.parquet import read_trajectory_groups_parquet
from art.trajectories import Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class BenchmarkModelKey:
    """One line of a chart."""

    name: str
    display_name: str | None = None
    """The name in charts; ``None``: its own."""
    split: str | None = None
    """``None`` becomes ``"val"``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", self.split or "val")

    @property
    def label(self) -> str:
        return self.display_name or self.name


def as_key(model: "str | BenchmarkModelKey") -> BenchmarkModelKey:
    """A key as it is; a name as the key of its ``val`` split."""
    return BenchmarkModelKey(model) if isinstance(model, str) else model


_FIXED = {"model": "String", "split": "String", "step": "Int64", "reward": "Float64", "group_number": "Int64"}


async def load_trajectories(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> Any:
    """One row per trajectory of every ``{split}/{step}.parquet`` of a project's models.

    Args:
        models: Names of the models to read; ``None`` reads all.
        debug: Say which files are read.
        art_path: Where models are logged; ``None``: ``.art`` in the repository.

    Returns:
        A ``polars.DataFrame`` with the columns ``model, split, step, reward, group_number`` (from 1, each group of each file
        its own), ``messages`` (JSON), ``logs``, floats ``metric_…`` and ``group_metric_…``, strings ``metadata_…`` and
        ``group_metadata_…``. Empty if nothing was found. Files that cannot be read are left out, with a warning.

    >>> await art.Model(name="player", project="games").log([art.Trajectory(reward=0.5)], step=0)
    >>> (await load_trajectories("games", art_path=".art"))["reward"].to_list()
    [0.5]
    """
    polars = load_polars()
    directory = Path(get_models_dir(project_name, art_path or get_default_art_path()))
    rows = await asyncio.to_thread(lambda: list(_rows(directory, models, debug)))
    if not rows:
        return polars.DataFrame()
    schema: dict[str, Any] = {name: getattr(polars, kind) for name, kind in _FIXED.items()}
    schema |= {"messages": polars.String, "logs": polars.List(polars.String)}
    for row in rows:
        for name in row:
            if name not in schema:
                schema[name] = polars.Float64 if name.startswith(("metric_", "group_metric_")) else polars.String
    return polars.DataFrame(rows, schema=schema)


def load_polars() -> Any:
    """``polars``, loaded when first needed."""
    return load_extra("polars", "polars, which data frames need,", "polars")


def _rows(directory: Path, models: list[str] | None, debug: bool) -> Iterator[dict[str, Any]]:
    number = 0
    for file in sorted(directory.glob("*/trajectories/*/*.parquet")):
        model = file.parents[2].name
        if not file.stem.isdigit() or (models is not None and model not in models):
            continue
        if debug:
            print(f"reading {file}", file=sys.stderr)
        try:
            groups = read_trajectory_groups_parquet(file)
        except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
            print(f"warning: {file} cannot be read and was left out: {error}", file=sys.stderr)
            continue
        for group in groups:
            number += 1
            for trajectory in group.trajectories:
                where = {"model": model, "split": file.parent.name, "step": int(file.stem), "group_number": number}
                yield {**where, **_content(trajectory, group)}


def _content(trajectory: Trajectory, group: TrajectoryGroup) -> dict[str, Any]:
    return {
        "reward": trajectory.reward,
        "messages": json.dumps(trajectory.messages(), ensure_ascii=False),
        "logs": trajectory.logs,
        **{f"metric_{name}": float(value) for name, value in trajectory.metrics.items()},
        **{f"group_metric_{name}": float(value) for name, value in group.metrics.items()},
        **{f"metadata_{name}": _text(value) for name, value in trajectory.metadata.items()},
        **{f"group_metadata_{name}": _text(value) for name, value in group.metadata.items()},
    }


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


_KEYS = ["model", "split", "step"]


async def load_aggregated_trajectories(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> Any:
    """Means of ``reward`` and all ``metric_…`` columns per model, split and step, with ``n_trajectories``; a ``polars.DataFrame``."""
    polars = load_polars()
    frame = await load_trajectories(project_name, models, debug, art_path)
    if frame.is_empty():
        return frame
    means = [name for name in frame.columns if name == "reward" or name.startswith(("metric_", "group_metric_"))]
    found = frame.group_by(_KEYS).agg(
        *(polars.col(name).mean() for name in means), polars.len().alias("n_trajectories")
    )
    return found.sort(_KEYS)


async def load_latest_metrics(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> Any:
    """Of ``load_aggregated_trajectories``, the row of the latest step of each model and split."""
    frame = await load_aggregated_trajectories(project_name, models, debug, art_path)
    if frame.is_empty():
        return frame
    return frame.group_by(["model", "split"], maintain_order=True).last().sort(["model", "split"])


def filter_rename_model_split(df: Any, models: Sequence[str | BenchmarkModelKey]) -> Any:
    """The rows of the given models and splits, with the models' labels as ``model``, in the order given."""
    polars = load_polars()
    parts = [
        df.filter((polars.col("model") == key.name) & (polars.col("split") == key.split)).with_columns(
            polars.lit(key.label).alias("model")
        )
        for key in map(as_key, models)
    ]
    return polars.concat(parts) if parts else df.clear()


def training_progress_chart(
    df: Any,
    metric_name: str,
    models: Sequence[str | BenchmarkModelKey] | None = None,
    title: str | None = None,
    x_label: str | None = None,
    y_label: str | None = None,
    perfect_score: float | None = None,
    legend_loc: str = "lower right",
) -> Any:
    """The mean of a metric over the steps, a line per model; a model with a single step is a horizontal line.

    Args:
        df: A frame of ``load_trajectories``.
        metric_name: A column, with or without its ``metric_``.
        perfect_score: Drawn as a dashed line.

    Raises:
        ValueError: There is no such metric.

    >>> import polars
    >>> frame = polars.DataFrame({"model": ["m", "m"], "split": ["val", "val"], "step": [0, 1], "reward": [0.1, 0.9]})
    >>> training_progress_chart(frame, "reward", title="Progress").savefig("progress.png")
    """
    polars = load_polars()
    column = _column(df, metric_name)
    figure, axes = _figure(title)
    for label, frame in _by_model(df, models):
        means = frame.group_by("step").agg(polars.col(column).mean()).drop_nulls().sort("step")
        steps, values = means["step"].to_list(), means[column].to_list()
        if len(steps) == 1:
            axes.axhline(values[0], label=label, linestyle=":")
        else:
            axes.plot(steps, values, marker="o", label=label)
    if perfect_score is not None:
        axes.axhline(perfect_score, color="grey", linestyle="--", label="perfect")
    axes.set_xlabel(x_label or "step")
    axes.set_ylabel(y_label or metric_name)
    axes.legend(loc=legend_loc)
    return figure


def percentage_comparison_bar_chart(
    df: Any,
    metric_name: str,
    models: Sequence[str | BenchmarkModelKey] | None = None,
    title: str | None = None,
    y_label: str | None = None,
    perfect_score: float | None = None,
    num_decimals: int = 0,
) -> Any:
    """The mean of a metric at each model's latest step, as a bar labelled in percent of ``perfect_score`` (1 by default)."""
    polars = load_polars()
    column = _column(df, metric_name)
    figure, axes = _figure(title)
    for label, frame in _by_model(df, models):
        latest = frame.filter(polars.col("step") == polars.col("step").max())[column].mean()
        if latest is None:
            continue
        percent = 100 * latest / (perfect_score or 1.0)
        (bar,) = axes.bar(label, percent)
        axes.bar_label(axes.containers[-1], labels=[f"{percent:.{num_decimals}f} %"])
        bar.set_label(label)
    axes.set_ylim(0, 100)
    axes.set_ylabel(y_label or metric_name)
    return figure


def _column(df: Any, metric: str) -> str:
    for name in (metric, f"metric_{metric}", f"group_metric_{metric}"):
        if name in df.columns:
            return name
    raise ValueError(f"There is no metric {metric!r}. Columns: {', '.join(df.columns)}.")


def _by_model(df: Any, models: Sequence[str | BenchmarkModelKey] | None) -> list[tuple[str, Any]]:
    keys = [
        as_key(model) for model in (df["model"].unique(maintain_order=True).to_list() if models is None else models)
    ]
    frames = [(key.label, filter_rename_model_split(df, [key])) for key in keys]
    return [(label, frame) for label, frame in frames if not frame.is_empty()]


def _figure(title: str | None) -> tuple[Any, Any]:
    package = load_extra("matplotlib.figure", "matplotlib, which charts need,", "plot")
    figure: Any = package.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    if title:
        axes.set_title(title)
    return figure, axes
