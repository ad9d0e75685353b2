"""``art demo``."""

import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from art.cli.targets import BASE_MODEL, BackendOption, BaseModelOption, KeyOption, check_address


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Total training steps.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed for opponents and adapter.")] = 1,
    groups: Annotated[int, typer.Option(min=1, help="Opponents per step.")] = 16,
    group_size: Annotated[int, typer.Option(min=2, help="Games against each opponent.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the adapter.")] = 6e-4,
    episodes: Annotated[int, typer.Option(min=2, help="Held-out games, before and after training.")] = 200,
    max_staleness: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many policy versions behind a game may be; above 0, games continue while the trainer works.",
        ),
    ] = 0,
    base_model: BaseModelOption = BASE_MODEL,
    output: Annotated[
        Path | None, typer.Option(help="Directory of the run; reuse it to resume. [default: .art/demo/seed-SEED]")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Move an earlier run in that directory aside and start over.")
    ] = False,
    engine: Annotated[
        Literal["auto", "torch", "vllm"], typer.Option(help="Inference engine of the local backend.")
    ] = "auto",
    backend: BackendOption = None,
    api_key: KeyOption = None,
) -> None:
    """Train a small model to play tic-tac-toe, and show how much it improved.

    It plays against a random opponent, learns from the results, and is tested before and after on opponents it has
    never met. Ctrl-C stops it; the same command resumes it.
    """
    import asyncio

    from openai import APIError
    from rich.console import Console

    from art.demo.run import run_demo, say
    from art.errors import ARTError, BadRequestError, ModelNotAvailableError
    from art.experiment.run import INTERRUPTED, Run, Settings
    from art.terminal import say_error

    if not 0 < learning_rate < math.inf:
        raise typer.BadParameter("must be a finite number above 0.", param_hint="--learning-rate")
    check_address(backend)
    run = Run(
        example="tic-tac-toe",
        form="demo",
        seed=seed,
        settings=Settings(
            base_model=base_model,
            steps=steps,
            groups_per_step=groups,
            group_size=group_size,
            learning_rate=learning_rate,
            max_staleness=max_staleness,
            episodes=episodes,
        ),
        directory=(output or Path(".art", "demo", f"seed-{seed}")).resolve(),
        backend_url=backend,
        api_key=api_key,
        engine=engine,
        project="demo",
        shares_backend=True,
    )
    console = Console(highlight=False)
    try:
        if fresh and (old := run.set_aside()) is not None:
            say(console, f"The earlier run is now in {old}.")
        asyncio.run(run_demo(run, console))
    except KeyboardInterrupt:
        say(console, f"\nStopped. Progress is saved in {run.directory}. To resume:\n  {_same_command()}")
        raise typer.Exit(INTERRUPTED) from None
    except (BadRequestError, ModelNotAvailableError) as error:  # running it again would fail the same way
        say_error(str(error))
        raise typer.Exit(1) from None
    except (ARTError, APIError, OSError) as error:
        say_error(str(error))
        say(console, f"Progress is saved in {run.directory}. To resume:\n  {_same_command()}")
        raise typer.Exit(1) from None


def _same_command() -> str:
    """This command, without what would start it over; a key given on the command line is not repeated."""
    words: list[str] = []
    hide_next = False
    for word in sys.argv[1:]:
        if hide_next:
            words.append("…")
            hide_next = False
        elif word.startswith("--api-key="):
            words.append("--api-key=…")
        elif word != "--fresh":
            words.append(word)
            hide_next = word == "--api-key"
    return shlex.join(["art", *words]).replace("'…'", "…")
