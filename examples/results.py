"""``python -m examples.results runs/examples/*``: keep the results of finished runs, and write RESULTS.md and the plots from all that are kept."""

import argparse
import itertools
from pathlib import Path

from art.experiment.report import plot, table_of_players, table_of_runs
from art.experiment.results import Results

HERE = Path(__file__).parent
KEPT = HERE / "results"

INTRODUCTION = """\
# Results

Written by `python -m examples.results runs/examples/*` from what `evaluate` measured; not edited by hand. Rewards are means over held-out
episodes, with 95 % intervals (Student's for means, Wilson's for shares). *learned*: the interval after reinforcement learning lies
above the one before it. Steps include the warm-up, which is one. Times are minutes and seconds, of the machine that the runs were made
on.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.results", description=__doc__)
    parser.add_argument(
        "directories", nargs="*", type=Path, help="runs that were evaluated; none: write anew from what is kept"
    )
    parser.add_argument("--kept", type=Path, default=KEPT, help="where results are kept (%(default)s)")
    parser.add_argument("--page", type=Path, default=HERE / "RESULTS.md", help="the page to write (%(default)s)")
    options = parser.parse_args()
    for directory in options.directories:
        results = Results.read(directory / "results.json")
        results.write(options.kept / f"{results.name}.json")
    found = sorted((Results.read(path) for path in options.kept.glob("*.json")), key=lambda one: one.name)
    sections = [INTRODUCTION, (table_of_runs(found) if found else "Nothing is measured yet.") + "\n"]
    for (title, form), runs in itertools.groupby(found, key=lambda one: (one.title, one.form)):
        same = list(runs)
        picture = options.kept / f"{same[0].family}.png"
        plot(same, picture)
        sections.append(f"## {title}, {form}\n\n![Rewards of {title}]({picture.relative_to(options.page.parent)})\n")
        sections += [f"Seed {run.seed}:\n\n{table_of_players(run)}\n" for run in same]
    options.page.write_text("\n".join(sections), encoding="utf-8")
    print(f"{len(found)} runs in {options.page}")


if __name__ == "__main__":
    main()
