"""The command line. Each command imports what it needs when it runs, so that ``art --help`` answers at once."""

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer

from art.cli.delete import delete
from art.cli.demo import demo
from art.cli.doctor import doctor
from art.cli.eval import evaluate_models
from art.cli.preflight import preflight
from art.cli.runs import runs
from art.cli.service import FORWARDED, export, serve
from art.cli.show import show
from art.cli.train import train

app = typer.Typer(
    name="art",
    help="ART trains the agent you already have: your code runs and scores it, ART improves its model.",
    epilog="Start here: art demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(function: Callable[..., None], name: str | None = None, settings: dict[str, Any] | None = None) -> None:
    """Make a function a command. Paragraphs of its docstring are joined, for the terminal to break where its width ends."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, help=text, context_settings=settings)(function)


for _command in (demo, preflight, train):
    _add(_command)
_add(evaluate_models, "eval")
for _command in (runs, show):
    _add(_command)
_add(export, settings=FORWARDED)
_add(delete)
_add(serve, settings=FORWARDED)
_add(doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"art {version('art-trainer')}")
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the ``art`` command."""
    app(prog_name="art")
