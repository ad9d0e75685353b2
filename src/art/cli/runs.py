"""``art runs`` and ``art show``: what was trained here, from the metric histories on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.targets import JsonOption, print_json
from art.history import read_history

_HISTORY = "history.jsonl"
_PATH_OPTION = typer.Option(help="Directory to search.")


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


def runs(path: Annotated[Path, _PATH_OPTION] = Path(".art"), json: JsonOption = False) -> None:
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
        table.add_row(history.title, str(history.steps), last, _sparkline(rewards[-30:]))
    Console(highlight=False).print(table)


def show(
    model: Annotated[str, typer.Argument(help="The model's name, with or without its project.")],
    metric: Annotated[list[str] | None, typer.Option(help="Metrics to show; may be repeated.")] = None,
    path: Annotated[Path, _PATH_OPTION] = Path(".art"),
    json: JsonOption = False,
) -> None:
    """Show how a model's metrics went."""
    from rich.console import Console
    from rich.table import Table

    histories = find_histories(path)
    found = [history for history in histories if model in (history.title, history.directory.name)]
    if len(found) != 1:
        known = ", ".join(history.title for history in histories) or "none"
        problem = "There are several models" if found else "There is no model"
        typer.echo(f"Error: {problem} {model!r} in {path}. Models there: {known}.", err=True)
        raise typer.Exit(1)
    history = found[0]
    names = metric or [name for name in history.metrics() if name.startswith(("train/reward", "val/reward", "loss/"))]
    if unknown := [name for name in names if not history.series(name)]:
        typer.echo(f"Error: {', '.join(unknown)} was not logged. Logged: {', '.join(history.metrics())}.", err=True)
        raise typer.Exit(1)
    if json:
        series = {name: [list(point) for point in history.series(name).items()] for name in metric or history.metrics()}
        print_json({"model": history.title, "directory": str(history.directory), "metrics": series})
        return
    table = Table(box=None, header_style="bold", title=f"{history.title}, {history.steps} steps", title_justify="left")
    for column in ("metric", "first", "last", "best", ""):
        table.add_column(column, justify="left" if column in ("metric", "") else "right", no_wrap=True)
    for name in names:
        values = list(history.series(name).values())
        best = f"{max(values):.4g}" if "reward" in name else ""
        table.add_row(name, f"{values[0]:.4g}", f"{values[-1]:.4g}", best, _sparkline(values[-24:]))
    console = Console(highlight=False)
    console.print(table)
    console.print(str(history.directory), soft_wrap=True, markup=False)


def _sparkline(values: list[float]) -> str:
    from art.demo.display import sparkline

    if not values:
        return ""
    low, high = min(values), max(values)
    return sparkline(values, low, high if high > low else low + 1.0)
