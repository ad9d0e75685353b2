"""Charts of logged trajectories. Each returns a ``matplotlib`` figure."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from art.errors import MissingExtraError
from art.utils.benchmarking.filter_model_split import filter_rename_model_split
from art.utils.benchmarking.load_trajectories import load_polars
from art.utils.benchmarking.types import BenchmarkModelKey, as_key


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
    """The mean of a metric at each model's latest step, as a bar labelled in percent of ``perfect_score`` (1 by default).

    >>> import polars
    >>> frame = polars.DataFrame({"model": ["a", "b"], "split": ["val", "val"], "step": [0, 0], "reward": [0.1, 0.9]})
    >>> percentage_comparison_bar_chart(frame, "reward").savefig("comparison.png")
    """
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
    try:
        figure: Any = import_module("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib, which charts need,", "plot") from error
    axes = figure.add_subplot()
    if title:
        axes.set_title(title)
    return figure, axes
