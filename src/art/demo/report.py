"""``python -m art.demo.report DIR…``: several finished runs as one Markdown table and one plot."""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from art.demo.run import RANDOM_PLAYER, SHARES, show_mean, show_share
from art.errors import ARTError
from art.experiment.report import plot
from art.experiment.results import Player, Results
from art.terminal import say_error

MAX_ILLEGAL = 0.05
MIN_WINS = 0.5
MAX_LOGPROB_GAP = 0.03


def render_table(runs: Sequence[Results]) -> str:
    """One row per run, then the mean over runs and the player who only knows the rules.

    Raises:
        ValueError: There are no runs.
    """
    if not runs:
        raise ValueError("Give at least one run.")
    lines = [
        "| seed | reward before | after | wins before | after | illegal games before | after | training | peak memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    pairs = [_before_and_after(run) for run in runs]
    for run, pair in sorted(zip(runs, pairs, strict=True), key=lambda one: one[0].seed):
        memory = f"{run.peak_memory_bytes / 1e9:.1f} GB" if run.peak_memory_bytes else "–"
        cells = [
            str(run.seed),
            *(show_mean(player.reward) for player in pair),
            *(show_share(player.metrics[name]) for name in SHARES for player in pair),
            f"{len(run.steps)} steps, {run.training_s:.0f} s",
            memory,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if len(runs) > 1:
        means = [f"{statistics.fmean(pair[i].reward.value for pair in pairs):+.2f}" for i in (0, 1)]
        means += [
            f"{100 * statistics.fmean(pair[i].metrics[name].value for pair in pairs):.0f} %"
            for name in SHARES
            for i in (0, 1)
        ]
        seconds = statistics.fmean(run.training_s for run in runs)
        lines.append(f"| **mean** | {' | '.join(means)} | {seconds:.0f} s | |")
    player = runs[0].player(RANDOM_PLAYER)
    lines.append(
        f"| random legal moves | | {show_mean(player.reward)} | | {show_share(player.metrics['win'])} | | 0 % | | |"
    )
    games = sorted({run.player("trained").episodes for run in runs})
    lines += ["", f"{' or '.join(map(str, games))} held-out games before and after; 95 % intervals in brackets."]
    return "\n".join(lines)


def shortfalls(run: Results) -> list[str]:
    """The reasons why a run does not count as learned; empty if it learned."""
    found: list[str] = []
    before, after = _before_and_after(run)
    illegal, wins = after.metrics["illegal"].value, after.metrics["win"].value
    if illegal >= MAX_ILLEGAL:
        found.append(f"{illegal:.1%} illegal games, not below {MAX_ILLEGAL:.0%}")
    if wins <= MIN_WINS:
        found.append(f"{wins:.1%} wins, not above {MIN_WINS:.0%}")
    pairs = {
        "reward": (before.reward, after.reward),
        "wins": (before.metrics["win"], after.metrics["win"]),
        "illegal games": (before.metrics["illegal"], after.metrics["illegal"]),
    }
    found += [f"the intervals of {name} before and after touch" for name, (b, a) in pairs.items() if b.touches(a)]
    if run.max_logprob_gap is not None and run.max_logprob_gap >= MAX_LOGPROB_GAP:
        found.append(f"log-probability gap {run.max_logprob_gap:.4f}, not below {MAX_LOGPROB_GAP}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m art.demo.report", description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="output directories of `art demo`")
    parser.add_argument("--plot", type=Path, help="write a plot of all runs to this PNG")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every run learned to play")
    arguments = parser.parse_args()
    try:
        runs = [_read(directory) for directory in arguments.directories]
        print(render_table(runs))
        if arguments.plot is not None:
            plot(runs, arguments.plot, SHARES)
    except ARTError as error:
        say_error(str(error))
        raise SystemExit(1) from None
    failures = [f"seed {run.seed}: {lack}" for run in runs for lack in shortfalls(run)]
    if arguments.check and failures:
        for failure in failures:
            say_error(failure)
        raise SystemExit(1)


def _read(directory: Path) -> Results:
    path = directory / "results.json"
    if not path.exists():
        raise ARTError(
            f"{directory} holds no finished run: {path} is missing. Run `art demo --output {directory}`.", 404
        )
    return Results.read(path)


def _before_and_after(run: Results) -> tuple[Player, Player]:
    return run.player("base model"), run.player("trained")


if __name__ == "__main__":
    main()
