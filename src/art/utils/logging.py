"""Lines for the terminal, each with its kind in front."""

from rich.console import Console
from rich.text import Text

_console = Console(highlight=False)


def _line(mark: str, style: str, message: str) -> None:
    _console.print(Text.assemble((mark, style), " ", message))


def info(message: str) -> None:
    """Something worth knowing."""
    _line("[INFO]", "cyan", message)


def step(message: str) -> None:
    """The beginning of a stage."""
    _line("[STEP]", "bold blue", message)


def ok(message: str) -> None:
    """Something that succeeded."""
    _line("[OK]", "green", message)


def warn(message: str) -> None:
    """Something that may be wrong."""
    _line("[WARN]", "yellow", message)


def err(message: str) -> None:
    """Something that failed."""
    _line("[ERR]", "bold red", message)


def dim(message: str) -> None:
    """A detail, without a mark."""
    _console.print(Text(message, "dim"))
