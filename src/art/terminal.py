"""Output for a person at a terminal: messages, broken between words and without control characters, and training's progress."""

import contextlib
import io
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

if TYPE_CHECKING:  # the command line prints its help without loading pydantic
    from rich.console import Console

    from art.wire import JobEvent

_BARS = "▁▂▃▄▅▆▇█"


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line to standard error, or to ``stream``. A terminal gets it broken between words, a file as it is.

    Paths and other long words stay whole, so that they can be copied. A progress bar on that terminal moves below the line.
    """
    out = sys.stderr if stream is None else stream
    if out is None:  # a program without a console
        return
    if not out.isatty():
        print(text, file=out, flush=True)
        return
    from tqdm import tqdm

    tqdm.write(break_lines(text, terminal_width()), file=out)
    out.flush()


def say_error(message: str) -> None:
    """Print an error to standard error."""
    say(f"Error: {message}")


def terminal_width() -> int:
    """Columns of the terminal; 80 without one."""
    return shutil.get_terminal_size().columns


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` cells, broken between words where there are any."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=width)
    lines: list[str] = []
    for paragraph in visible(text).splitlines():
        broken = Text(paragraph).wrap(console, width, overflow="fold")
        lines += [line.plain.rstrip() for line in broken] if paragraph.strip() else [""]
    return lines or [""]


def break_lines(text: str, width: int) -> str:
    """The text with its long lines broken between words. Words that are longer than a line stay whole."""
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    return "\n".join(map(wrapper.fill, visible(text).split("\n")))


def indent(text: str, width: int, margin: str = "  ") -> list[str]:
    """The lines of ``wrap``, each behind a margin."""
    return [f"{margin}{line}".rstrip() for line in wrap(text, max(width - len(margin), 1))]


def visible(text: str) -> str:
    """The same text, with control characters spelled as escapes."""
    kept = text.replace("\r\n", "\n")
    shown = "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in kept)
    return shown.expandtabs(4)


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """One bar per value, on the scale from ``low`` to ``high``."""
    top = len(_BARS) - 1
    return "".join(_BARS[max(0, min(top, round((value - low) / (high - low) * top)))] for value in values)


def clock(seconds: float) -> str:
    """Such as ``4:05``, or ``1:04:05`` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def art_command() -> str:
    """The word to type to run this installation's ``art``: a path where the shell would not find it, or would find another."""
    running, found = Path(sys.argv[0]), shutil.which("art")
    if running.name != "art" or (found is not None and running.resolve() == Path(found).resolve()):
        return "art"
    return shlex.quote(str(running))


def path_option(directory: Path) -> str:
    """The option with which ``art runs`` and ``art show`` find the models in ``directory``; empty for the default one."""
    return "" if directory.resolve() == Path(".art").resolve() else f" --path {shlex.quote(str(directory))}"


Show: TypeAlias = "Callable[[JobEvent], None]"

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

    from art.wire import TrainProgress

    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task(f"{name} queued", total=None)
        phase = ""

        def show(event: "JobEvent") -> None:
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

    def __call__(self, event: "JobEvent") -> None:
        from art.wire import TrainProgress

        if event.type == "progress":
            step = TrainProgress.model_validate(event.data)
            if step.phase != self._phase:
                self._phase = step.phase
                say(f"{self._name}: {step.message or _LABELS[step.phase]}")
        else:
            _print_warning(event)


def _print_warning(event: "JobEvent") -> None:
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
