"""What a training step shows while it runs."""

import contextlib
import io
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from art.terminal import break_lines, say
from art.wire import JobEvent, TrainProgress

if TYPE_CHECKING:
    from rich.console import Console

Show = Callable[[JobEvent], None]

_LABELS = {
    "holding": "waiting for model calls to finish",
    "preparing": "preparing rows",
    "training": "training",
    "saving": "saving the checkpoint",
    "publishing": "publishing the new version",
    "resuming": "resuming model calls",
}


@contextlib.contextmanager
def show_training(name: str, *, verbose: bool) -> Generator[Show]:
    """Show a job's events: a bar on a terminal, lines with ``verbose`` elsewhere, nothing otherwise.

    Args:
        name: What is trained, such as ``model@4``.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        with _bar(name) as show:
            yield show
    elif verbose:
        yield _Lines(name)
    else:
        yield _print_warning


@contextlib.contextmanager
def _bar(name: str) -> Generator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task(f"{name} queued", total=None)
        phase = ""

        def show(event: JobEvent) -> None:
            nonlocal task, phase
            if event.type == "progress":
                step = TrainProgress.model_validate(event.data)
                unit = f" {step.done:,}/{step.total:,} tokens" if step.phase == "training" and step.total else ""
                text = step.message or _LABELS[step.phase] + unit
                if step.phase != phase:  # a bar that has a total cannot lose it again
                    phase = step.phase
                    progress.remove_task(task)
                    task = progress.add_task("", total=None)
                progress.update(task, description=f"{name} {text}", completed=step.done, total=step.total or None)
            elif event.type == "warning":
                progress.console.print(f"warning: {event.data['message']}", markup=False, style="yellow")

        yield show


class _Lines:
    """One line per phase."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._phase = ""

    def __call__(self, event: JobEvent) -> None:
        if event.type == "progress":
            step = TrainProgress.model_validate(event.data)
            if step.phase != self._phase:
                self._phase = step.phase
                say(f"{self._name}: {step.message or _LABELS[step.phase]}")
        else:
            _print_warning(event)


def _print_warning(event: JobEvent) -> None:
    if event.type == "warning":
        say(f"warning: {event.data['message']}")


class MessageStream(io.TextIOBase):
    """A text stream that is no terminal; each whole line appears above the live bar."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._console.print(break_lines(line, self._console.width), markup=False, soft_wrap=True)
        return len(text)
