"""Text for a terminal: broken between words, without control characters that it would obey."""

import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TextIO


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


def art_command() -> str:
    """What to type to run this installation's ``art``: a path where the shell would not find it, or would find another."""
    running, found = Path(sys.argv[0]), shutil.which("art")
    if running.name != "art" or (found is not None and running.resolve() == Path(found).resolve()):
        return "art"
    return shlex.quote(str(running))


def path_option(directory: Path) -> str:
    """The option with which ``art runs`` and ``art show`` find the models in ``directory``; empty for the default one."""
    return "" if directory.resolve() == Path(".art").resolve() else f" --path {shlex.quote(str(directory))}"
