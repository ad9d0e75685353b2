"""Rewards of training and of held-out episodes, as a picture."""

from collections.abc import Sequence
from pathlib import Path

from art.demo.plot import BLUE, GREY, new_figure
from art.experiment.results import Results

_STYLES = ("--", ":", "-.")


def plot(runs: Sequence[Results], path: Path) -> None:
    """Write a PNG of one or more runs of the same example: thin lines are training episodes, marks are held-out ones.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = new_figure()
    axes = figure.subplots()
    last = max(run.step for run in runs)
    for i, run in enumerate(runs):
        label = "training episodes, mean of each step" if i == 0 else None
        # The episodes of a step were played by the version before it.
        axes.plot(
            [one.step - 1 for one in run.steps], [one.reward for one in run.steps], color=BLUE, alpha=0.5, label=label
        )
        nudge = 0.12 * (i - (len(runs) - 1) / 2)
        for player in run.players:
            if player.step is None:
                continue
            axes.errorbar(
                [player.step + nudge],
                [player.reward.value],
                yerr=[[player.reward.value - player.reward.low], [player.reward.high - player.reward.value]],
                color="black",
                marker="D",
                markersize=5,
                capsize=3,
                linestyle="none",
                label=f"{player.episodes} held-out episodes, 95 % interval" if i == 0 and player.step == 0 else None,
            )
    scripted = [player for player in runs[0].players if player.step is None]
    for player, style in zip(scripted, _STYLES, strict=False):
        axes.axhline(player.reward.value, color=GREY, linestyle=style, linewidth=1, label=player.name)
    axes.set(xlabel="policy version", ylabel="reward per episode", xlim=(-0.5, last + 0.5))
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="best")
    seeds = ", ".join(str(run.seed) for run in runs)
    base = runs[0].base_model.rstrip("/").rsplit("/", 1)[-1]
    figure.suptitle(f"{runs[0].title}: {base}, seed {seeds}", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
