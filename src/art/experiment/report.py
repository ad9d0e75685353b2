"""Results as Markdown tables and as a picture."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from art.errors import MissingExtraError
from art.experiment.results import Results
from art.logs.statistics import Interval
from art.terminal import clock

_BLUE, _GREEN, _RED, _GREY = "#2563eb", "#16a34a", "#dc2626", "#6b7280"
_STYLES = ("--", ":", "-.")


def show(value: Interval) -> str:
    """Such as ``0.61 [0.55, 0.67]``."""
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def table_of_players(results: Results) -> str:
    """One run as a Markdown table, a row for each player."""
    names = list(dict.fromkeys(name for player in results.players for name in player.metrics))
    lines = [f"| {' | '.join(['player', 'episodes', 'reward', *names])} |", "|---" * (3 + len(names)) + "|"]
    for player in results.players:
        version = "" if player.step is None else f", step {player.step}"
        metrics = [show(player.metrics[name]) if name in player.metrics else "" for name in names]
        cells = [f"{player.name}{version}", str(player.episodes), show(player.reward), *metrics]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\n{name}: {show(value)}" for name, value in results.measured.items()]
    return "\n".join(lines)


def table_of_runs(runs: Iterable[Results]) -> str:
    """Several runs as a Markdown table, a row for each."""
    lines = [
        "| example | seed | base model | after warm-up | trained | scripted | verdict | steps | training | evaluation |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda one: (one.example, one.variant or "", one.form, one.seed)):
        scripted = [f"{player.name} {show(player.reward)}" for player in run.players if player.step is None]
        cells = [
            run.title if run.form == "small" else f"{run.title}, {run.form}",
            str(run.seed),
            show(run.player("base model").reward),
            show(run.start.reward) if run.warm_up else "–",
            show(run.player("trained").reward),
            ", ".join(scripted) or "–",
            run.verdict,
            str(run.step),
            clock(run.training_s),
            clock(run.evaluation_s),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(runs: Sequence[Results], path: Path, shares: Sequence[str] = ()) -> None:
    """Write a PNG of one or more runs of the same example: lines are training episodes, marks are held-out ones.

    Args:
        shares: Metrics from 0 to 1 to draw beside the reward, at most two.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    # The figure is made without pyplot: no window system is touched, and no global state is left behind.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib, which draws the plot,", "plot") from error
    figure: Any = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, *right = figure.subplots(1, 2 if shares else 1, width_ratios=[3, 2] if shares else None, squeeze=False)[0]
    _draw(left, runs, None, _BLUE, "training episodes, mean of each step")
    scripted = [player for player in runs[0].players if player.step is None]
    for player, style in zip(scripted, _STYLES, strict=False):
        left.axhline(player.reward.value, color=_GREY, linestyle=style, linewidth=1, label=player.name)
    left.set(ylabel="reward per episode")
    for axes in right:
        for name, colour in zip(shares, (_GREEN, _RED), strict=False):
            _draw(axes, runs, name, colour, name)
        axes.set(ylabel="share of episodes", ylim=(-0.02, 1.02))
        axes.yaxis.set_major_formatter("{x:.0%}")
    for axes in (left, *right):
        axes.set(xlabel="policy version", xlim=(-0.5, max(run.step for run in runs) + 0.5))
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="best")
    seeds = ", ".join(str(run.seed) for run in runs)
    base = runs[0].base_model.rstrip("/").rsplit("/", 1)[-1]
    figure.suptitle(f"{runs[0].title}: {base}, seed {seeds}", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw(axes: Any, runs: Sequence[Results], metric: str | None, colour: str, label: str) -> None:
    """Draw the reward or a metric: a thin line for each run, their mean where there are several, marks with intervals."""
    by_step: dict[int, list[float]] = {}
    for i, run in enumerate(runs):
        # The episodes of a step were played by the version before it.
        found = {one.step - 1: one.reward if metric is None else one.metrics.get(metric) for one in run.steps}
        points = {step: value for step, value in found.items() if value is not None}
        for step, value in points.items():
            by_step.setdefault(step, []).append(value)
        axes.plot(points.keys(), points.values(), color=colour, alpha=0.5, label=None if len(runs) > 1 else label)
        nudge = 0.12 * (i - (len(runs) - 1) / 2)
        for player in run.players:
            held_out = player.reward if metric is None else player.metrics.get(metric)
            if player.step is None or held_out is None:
                continue
            axes.errorbar(
                [player.step + nudge],
                [held_out.value],
                yerr=[[held_out.value - held_out.low], [held_out.high - held_out.value]],
                color="black" if metric is None else colour,
                marker="D",
                markersize=5,
                capsize=3,
                linestyle="none",
                label=f"{player.episodes} held-out episodes, 95 % interval"
                if i == 0 and player.step == 0 and metric is None
                else None,
            )
    if len(runs) > 1:
        means = [statistics.fmean(by_step[step]) for step in sorted(by_step)]
        axes.plot(sorted(by_step), means, color=colour, linewidth=2, label=f"{label}, mean of {len(runs)} runs")
