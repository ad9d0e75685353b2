"""Lines for the terminal, each with its kind in front."""

from rich.console import Console
from rich.text import Text

_console = Console(highlight=False)


def _line(mark: str, style: str, message: str) -> None:
    _console.print(Text.assemble((mark, style), " ", message))


def info(message: str) -> None:
    """Something worth knowing.

    >>> info("3 scenarios")
    [INFO] 3 scenarios
    """
    _line("[INFO]", "cyan", message)


def step(message: str) -> None:
    """The beginning of a stage.

    >>> step("training")
    [STEP] training
    """
    _line("[STEP]", "bold blue", message)


def ok(message: str) -> None:
    """Something that succeeded.

    >>> ok("done")
    [OK] done
    """
    _line("[OK]", "green", message)


def warn(message: str) -> None:
    """Something that may be wrong.

    >>> warn("slow")
    [WARN] slow
    """
    _line("[WARN]", "yellow", message)


def err(message: str) -> None:
    """Something that failed.

    >>> err("lost")
    [ERR] lost
    """
    _line("[ERR]", "bold red", message)


def dim(message: str) -> None:
    """A detail, without a mark.

    >>> dim("a detail")
    a detail
    """
    _console.print(Text(message, "dim"))
