"""The command lines of ``train.py`` and ``evaluate.py``."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from art.errors import ARTError
from art.experiment.report import plot, table_of_players
from art.experiment.results import Results
from art.experiment.run import INTERRUPTED, Example, Run, Settings
from art.terminal import say, say_error

__all__ = ["evaluation_command", "training_command"]


def training_command(
    example: Example, train: Callable[[Run], Awaitable[object]], arguments: Sequence[str] | None = None
) -> None:
    """Parse the options and train. The same command goes on where it was stopped.

    Args:
        train: Trains to the run's last step; called again, it goes on. Its docstring is what ``--help`` says.
        arguments: Instead of those of the program.

    >>> async def train(run):
    ...     print(run.name, run.settings.steps)
    >>> example = Example(name="guess", small=Settings(), full=Settings())
    >>> options = ["--small", "--steps", "2", "--output", "run"]
    >>> await asyncio.to_thread(training_command, example, train, options)  # in a script: training_command(example, train)
    guess-small-seed-1 2
    """
    run = _parse(example, train.__doc__, arguments)

    async def work() -> None:
        run.open()
        with run.timed():
            await train(run)

    _run_or_explain(work(), f"Stopped. What was done is in {run.directory}; the same command goes on from there.")


def evaluation_command(
    example: Example, evaluate: Callable[[Run], Awaitable[Results]], arguments: Sequence[str] | None = None
) -> None:
    """Parse the options, compare the players, and write ``results.json`` and ``reward.png`` into the run's directory.

    Args:
        evaluate: Compares the players of a run. Its docstring is what ``--help`` says.
        arguments: Instead of those of the program.
    """
    run = _parse(example, evaluate.__doc__, arguments)

    async def work() -> None:
        results = await evaluate(run)
        results.write(run.directory / "results.json")
        plot([results], run.directory / "reward.png")
        print(table_of_players(results))
        print(f"\n{run.name}: {results.verdict}. Results and plot are in {run.directory}.")

    _run_or_explain(work(), "Stopped. Nothing was written.")


def _parse(example: Example, description: str | None, arguments: Sequence[str] | None) -> Run:
    parser = argparse.ArgumentParser(description=description)
    forms = parser.add_mutually_exclusive_group(required=True)
    for form, settings, where in (("small", example.small, "two CPU cores"), ("full", example.full, "a GPU")):
        forms.add_argument(
            f"--{form}", dest="form", action="store_const", const=form, help=f"on {where}: {_summary(settings)}"
        )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the model's adapter and the training episodes (%(default)s)"
    )
    if example.variants:
        parser.add_argument(
            example.variant_option,
            dest="variant",
            choices=example.variants,
            default=example.variants[0],
            help="(%(default)s)",
        )
    parser.add_argument("--output", type=Path, help="directory of the run; the same one goes on (runs/examples/NAME)")
    parser.add_argument("--steps", type=int, help="steps of reinforcement learning in all")
    if example.small.warm_up or example.full.warm_up:
        parser.add_argument("--warm-up", type=int, help="scripted episodes that the model is shown first")
    parser.add_argument("--episodes", type=int, help="held-out episodes of each player")
    parser.add_argument("--base-model", help="a local directory or a hub id")
    parser.add_argument("--backend", metavar="URL", help="address of `art serve`, instead of a backend on this machine")
    parser.add_argument("--api-key", help="its key; else ART_API_KEY of the environment")
    options = parser.parse_args(arguments)

    settings = example.small if options.form == "small" else example.full
    changed = {name: vars(options).get(name) for name in ("steps", "warm_up", "episodes", "base_model")}
    run = Run(
        example=example.name,
        form=options.form,
        seed=options.seed,
        settings=replace(settings, **{name: value for name, value in changed.items() if value is not None}),
        directory=Path(),
        variant=options.variant if example.variants else None,
        backend_url=options.backend,
        api_key=options.api_key,
    )
    return replace(run, directory=(options.output or Path("runs", "examples", run.name)).resolve())


def _summary(settings: Settings) -> str:
    return (
        f"{settings.base_model.rsplit('/', 1)[-1]}, {settings.steps} steps of {settings.groups_per_step} × "
        f"{settings.group_size} episodes"
    )


def _run_or_explain(work: Coroutine[Any, Any, None], stopped: str) -> None:
    from openai import APIError

    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        say(stopped)
        raise SystemExit(INTERRUPTED) from None
    except (ARTError, APIError, OSError) as error:
        say_error(str(error))
        raise SystemExit(1) from None
