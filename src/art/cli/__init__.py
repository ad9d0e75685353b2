"""The command line. Each command imports what it needs when it runs, so that ``art --help`` answers at once."""

from importlib.metadata import version
from typing import Annotated

import typer

from art.cli.delete import delete
from art.cli.demo import demo
from art.cli.doctor import doctor
from art.cli.eval import evaluate_models
from art.cli.export import export
from art.cli.preflight import preflight
from art.cli.runs import runs, show
from art.cli.serve import serve
from art.cli.train import train

app = typer.Typer(
    name="art",
    help="ART trains the agent you already have: your code runs it and scores it, ART makes its model better.",
    epilog="Start here: art demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(preflight)
app.command()(train)
app.command("eval")(evaluate_models)
app.command()(runs)
app.command()(show)
app.command()(export)
app.command()(delete)
app.command()(serve)
app.command()(doctor)


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
