"""``python -m art.demo.report DIR…``: several finished runs as one Markdown table and one plot."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from art.demo.display import mean_interval, percent_interval
from art.demo.plot import plot_runs
from art.demo.records import Results, RunDirectory
from art.demo.statistics import Estimate, estimate_mean
from art.errors import ARTError
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
        raise ValueError("There is no table of no runs.")
    lines = [
        "| seed | reward before | after | wins before | after | illegal games before | after | training | peak memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda one: one.config.seed):
        before, after = run.before.score, run.after.score
        memory = f"{run.peak_memory_bytes / 1e9:.1f} GB" if run.peak_memory_bytes else "–"
        cells = [
            str(run.config.seed),
            *(mean_interval(score.reward) for score in (before, after)),
            *(percent_interval(share) for share in (before.wins, after.wins, before.illegal, after.illegal)),
            f"{len(run.steps)} steps, {run.training_s:.0f} s",
            memory,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if len(runs) > 1:
        means = [
            f"{_mean(run.before.score.reward for run in runs):+.2f}",
            f"{_mean(run.after.score.reward for run in runs):+.2f}",
            f"{_mean(run.before.score.wins for run in runs):.0%}",
            f"{_mean(run.after.score.wins for run in runs):.0%}",
            f"{_mean(run.before.score.illegal for run in runs):.0%}",
            f"{_mean(run.after.score.illegal for run in runs):.0%}",
        ]
        seconds = estimate_mean([run.training_s for run in runs]).value
        lines.append(f"| **mean** | {' | '.join(means).replace('%', ' %')} | {seconds:.0f} s | |")
    player = runs[0].random_player
    lines.append(
        f"| random legal moves | | {mean_interval(player.reward)} | | {percent_interval(player.wins)} | | 0 % | | |"
    )
    games = sorted({run.after.score.games for run in runs})
    lines += ["", f"{' or '.join(map(str, games))} held-out games before and after; 95 % intervals in brackets."]
    return "\n".join(lines)


def shortfalls(run: Results) -> list[str]:
    """What a run lacks to count as learned; empty when it did."""
    found: list[str] = []
    before, after = run.before.score, run.after.score
    if after.illegal.value >= MAX_ILLEGAL:
        found.append(f"{after.illegal.value:.1%} illegal games, not below {MAX_ILLEGAL:.0%}")
    if after.wins.value <= MIN_WINS:
        found.append(f"{after.wins.value:.1%} wins, not above {MIN_WINS:.0%}")
    pairs = {
        "reward": (before.reward, after.reward),
        "wins": (before.wins, after.wins),
        "illegal games": (before.illegal, after.illegal),
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
            plot_runs(runs, arguments.plot)
    except ARTError as error:
        say_error(str(error))
        raise SystemExit(1) from None
    failures = [f"seed {run.config.seed}: {lack}" for run in runs for lack in shortfalls(run)]
    if arguments.check and failures:
        for failure in failures:
            say_error(failure)
        raise SystemExit(1)


def _read(directory: Path) -> Results:
    results = RunDirectory(directory).read_results()
    if results is None:
        raise ARTError(
            f"{directory} holds no finished run: there is no results.json. Run `art demo --output {directory}`.", 404
        )
    return results


def _mean(estimates: Iterable[Estimate]) -> float:
    return estimate_mean([estimate.value for estimate in estimates]).value


if __name__ == "__main__":
    main()
