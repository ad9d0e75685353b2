"""``art runs``: what was trained here, from the metric histories on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.targets import JsonOption, fail, print_json, split_model
from art.logs.files import read_history
from art.terminal import sparkline

_HISTORY = "history.jsonl"
SearchedPath = Annotated[Path, typer.Option(help="Directory to search.")]


@dataclass(frozen=True)
class History:
    """One model's logged rows, in order."""

    directory: Path
    rows: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """``project/name``."""
        return f"{self.directory.parent.parent.name}/{self.directory.name}"

    @property
    def steps(self) -> int:
        return max((int(row["step"]) for row in self.rows), default=0)

    def series(self, metric: str) -> dict[int, float]:
        """The last value logged at each step, by step."""
        found = {int(row["step"]): row[metric] for row in self.rows if isinstance(row.get(metric), (int, float))}
        return dict(sorted(found.items()))

    def metrics(self) -> list[str]:
        bookkeeping = {"step", "training_step", "recorded_at", "time/wall_clock_sec"}
        return sorted({name for row in self.rows for name in row} - bookkeeping)


def find_histories(path: Path) -> list[History]:
    """Every model below ``path`` that something was logged of. A last line that was cut off is left out."""
    return [History(file.parent, read_history(file)) for file in sorted(path.glob(f"**/models/*/{_HISTORY}"))]


def runs(path: SearchedPath = Path(".art"), json: JsonOption = False) -> None:
    """List the models that were trained here."""
    from rich.console import Console
    from rich.table import Table

    histories = find_histories(path)
    if json:
        print_json(
            [
                {
                    "model": history.title,
                    "steps": history.steps,
                    "reward": next(reversed(history.series("train/reward").values()), None),
                    "directory": str(history.directory),
                }
                for history in histories
            ]
        )
        return
    if not histories:
        typer.echo(f"There is no trained model in {path}. Train one with `art demo`, or name another --path.")
        return
    table = Table(box=None, header_style="bold")
    for column in ("model", "steps", "reward", ""):
        table.add_column(column, justify="right" if column in ("steps", "reward") else "left")
    for history in histories:
        rewards = list(history.series("train/reward").values())
        last = f"{rewards[-1]:+.3f}" if rewards else "–"
        table.add_row(history.title, str(history.steps), last, sparkline_of(rewards[-30:]))
    Console(highlight=False).print(table)


def find_history(model: str, path: Path, remedy: str = "") -> History:
    """The model of this name, with or without its project. Fails with the ``remedy`` unless exactly one matches."""
    histories = find_histories(path)
    found = [history for history in histories if model in (history.title, history.directory.name)]
    if len(found) != 1:
        known = ", ".join(history.title for history in histories) or "none"
        fail(
            f"{'Several models are' if found else 'No model is'} named {model!r} in {path}. Models there: {known}.{remedy}"
        )
    return found[0]


def find_model(target: str, path: Path, parameter: str, *, local: bool) -> tuple[str, str, int | None]:
    """``PROJECT/NAME`` or ``PROJECT/NAME@STEP``; without its project, the one model of this name that was logged in ``path``.

    Args:
        local: The backend is that of ``path``. Fails if the model was logged deeper, in the directory of another one.
    """
    name, at, step = target.partition("@")
    if "/" not in name:
        found = find_history(
            name, path, f" Write {parameter} as PROJECT/NAME, which works without logs in this directory."
        )
        if local and (home := found.directory.parents[2]) != path:
            fail(f"{found.title} belongs to another directory: pass --path {home}.")
        target = f"{found.title}{at}{step}"
    return split_model(target, parameter)


def sparkline_of(values: list[float]) -> str:
    """One bar per value, from their lowest to their highest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    return sparkline(values, low, high if high > low else low + 1.0)
