"""The plots of one run and of several."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from art.demo.records import Results
from art.demo.statistics import Estimate
from art.errors import MissingExtraError

BLUE, GREEN, RED, GREY = "#2563eb", "#16a34a", "#dc2626", "#6b7280"


def plot_run(results: Results, path: Path) -> None:
    """Write a PNG: the reward of each step with its interval, the evaluations before and after, wins and illegal games.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    plot_runs([results], path)


def plot_runs(runs: Sequence[Results], path: Path) -> None:
    """Write a PNG of one or more runs; several are drawn thin, with their mean.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = new_figure()
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [3, 2]})
    alone = len(runs) == 1
    last = max(run.after.step for run in runs)

    for run in runs:
        steps = [record.step for record in run.steps]
        rewards = [record.score.reward for record in run.steps]
        _draw_curve(left, steps, rewards, BLUE, alone=alone, label="training games" if alone else None)
        for name, colour in (("wins", GREEN), ("illegal", RED)):
            shares = [getattr(record.score, name) for record in run.steps]
            _draw_curve(right, steps, shares, colour, alone=alone, label=name if alone else None)
    if not alone:
        _draw_mean(left, runs, "reward", BLUE, f"training games, mean of {len(runs)} seeds")
        _draw_mean(right, runs, "wins", GREEN, "wins")
        _draw_mean(right, runs, "illegal", RED, "illegal")

    for i, run in enumerate(runs):
        nudge = 0.0 if alone else (i - (len(runs) - 1) / 2) * 0.2
        label = f"held-out, {run.before.score.games} games, 95 % interval" if i == 0 else None
        _draw_evaluation(left, 0 + nudge, run.before.score.reward, "black", label)
        _draw_evaluation(left, run.after.step + 1 + nudge, run.after.score.reward, "black", None)
        for name, colour in (("wins", GREEN), ("illegal", RED)):
            _draw_evaluation(right, 0 + nudge, getattr(run.before.score, name), colour, None)
            _draw_evaluation(right, run.after.step + 1 + nudge, getattr(run.after.score, name), colour, None)

    player = runs[0].random_player
    left.axhline(player.reward.value, color=GREY, linestyle="--", linewidth=1, label="random legal moves")
    right.axhline(player.wins.value, color=GREY, linestyle="--", linewidth=1, label="wins of random legal moves")
    left.set(xlabel="training step", ylabel="reward per game", ylim=(-0.6, 1.05))
    right.set(xlabel="training step", ylabel="share of games", ylim=(-0.02, 1.02))
    right.yaxis.set_major_formatter("{x:.0%}")
    for axes in (left, right):
        axes.set_xticks(range(last + 2), ["before", *map(str, range(1, last + 1)), "after"])
        axes.tick_params(axis="x", labelsize=8)
        if last > 15:
            axes.set_xticks([0, *range(5, last, 5), last + 1], ["before", *map(str, range(5, last, 5)), "after"])
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="best")
    base = runs[0].config.base_model.rstrip("/").split("/")[-1]
    figure.suptitle(f"{base} learns tic-tac-toe with ART", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=144)


def new_figure() -> Any:
    """An empty matplotlib figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    # The figure is made without pyplot: no window system is touched, and no global state is left behind.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib, which draws the plot,", "plot") from error
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_curve(
    axes: Any, steps: list[int], values: list[Estimate], colour: str, *, alone: bool, label: str | None
) -> None:
    means = [value.value for value in values]
    if not alone:
        axes.plot(steps, means, color=colour, linewidth=0.9, alpha=0.35)
        return
    axes.plot(steps, means, color=colour, marker="o", markersize=4, label=label)
    axes.fill_between(
        steps, [value.low for value in values], [value.high for value in values], color=colour, alpha=0.15
    )


def _draw_mean(axes: Any, runs: Sequence[Results], name: str, colour: str, label: str) -> None:
    by_step: dict[int, list[float]] = {}
    for run in runs:
        for record in run.steps:
            by_step.setdefault(record.step, []).append(getattr(record.score, name).value)
    steps = sorted(by_step)
    means = [statistics.fmean(by_step[step]) for step in steps]
    axes.plot(steps, means, color=colour, linewidth=2, marker="o", markersize=4, label=label)


def _draw_evaluation(axes: Any, x: float, value: Estimate, colour: str, label: str | None) -> None:
    below, above = value.value - value.low, value.high - value.value
    axes.errorbar(
        [x],
        [value.value],
        yerr=[[below], [above]],
        color=colour,
        marker="D",
        markersize=5,
        capsize=3,
        linestyle="none",
        label=label,
    )
