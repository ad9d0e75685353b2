"""The command lines of ``train.py`` and ``evaluate.py``."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from art.demo.display import error_line
from art.errors import ARTError
from art.experiment.plot import plot
from art.experiment.results import Results, table_of_players
from art.experiment.run import Run, Settings

INTERRUPTED = 130
"""Exit code of a command that was stopped with Ctrl-C, by the shells' convention."""


def training_command(
    train: Callable[[Run], Awaitable[object]],
    example: str,
    *,
    small: Settings,
    full: Settings,
    variants: Sequence[str] = (),
    variant_option: str = "--variant",
    arguments: Sequence[str] | None = None,
) -> None:
    """Parse the options and train. The same command goes on where it was stopped.

    Args:
        train: Trains to the run's last step; called again, it goes on.
        example: The name of the example.
        variants: What ``variant_option`` may be; the first is the default.
        arguments: Instead of those of the program.
    """
    parser = _parser(train.__doc__, small, full, variants, variant_option)
    run = _run(parser.parse_args(arguments), example, small, full)

    async def work() -> None:
        run.open()
        with run.timed("training"):
            await train(run)

    _run_or_explain(work, f"Stopped. What was done is in {run.directory}; the same command goes on from there.")


def evaluation_command(
    evaluate: Callable[[Run], Awaitable[Results]],
    example: str,
    *,
    small: Settings,
    full: Settings,
    variants: Sequence[str] = (),
    variant_option: str = "--variant",
    arguments: Sequence[str] | None = None,
) -> None:
    """Parse the options, compare the players, and write ``results.json`` and ``reward.png`` into the run's directory.

    Args: As for ``training_command``.
    """
    parser = _parser(evaluate.__doc__, small, full, variants, variant_option)
    run = _run(parser.parse_args(arguments), example, small, full)

    async def work() -> None:
        results = await evaluate(run)
        results.write(run.directory / "results.json")
        plot([results], run.directory / "reward.png")
        print(table_of_players(results))
        print(f"\n{run.name}: {results.verdict}. Results and plot are in {run.directory}.")

    _run_or_explain(work, "Stopped. Nothing was written.")


def _parser(
    description: str | None, small: Settings, full: Settings, variants: Sequence[str], variant_option: str
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    forms = parser.add_mutually_exclusive_group(required=True)
    forms.add_argument(
        "--small", dest="form", action="store_const", const="small", help=f"on two CPU cores: {_summary(small)}"
    )
    forms.add_argument("--full", dest="form", action="store_const", const="full", help=f"on a GPU: {_summary(full)}")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the model's adapter and the training episodes (%(default)s)"
    )
    if variants:
        parser.add_argument(
            variant_option, dest="variant", choices=variants, default=variants[0], help="%(choices)s (%(default)s)"
        )
    parser.add_argument("--output", type=Path, help="directory of the run; the same one goes on (runs/NAME)")
    parser.add_argument("--steps", type=int, help="steps of reinforcement learning in all")
    parser.add_argument("--episodes", type=int, help="held-out episodes of each player")
    parser.add_argument("--base-model", help="a local directory or a hub id")
    parser.add_argument("--backend", metavar="URL", help="address of `art serve`, instead of a backend on this machine")
    parser.add_argument("--api-key", help="its key; else ART_API_KEY of the environment")
    return parser


def _summary(settings: Settings) -> str:
    return (
        f"{settings.base_model.rsplit('/', 1)[-1]}, {settings.steps} steps of {settings.groups_per_step} × "
        f"{settings.group_size} episodes"
    )


def _run(options: argparse.Namespace, example: str, small: Settings, full: Settings) -> Run:
    settings = small if options.form == "small" else full
    given = {name: value for name in ("steps", "episodes", "base_model") if (value := vars(options)[name]) is not None}
    run = Run(
        example=example,
        form=options.form,
        seed=options.seed,
        settings=replace(settings, **given),
        directory=Path(),
        variant=vars(options).get("variant"),
        backend_url=options.backend,
        api_key=options.api_key,
    )
    return replace(run, directory=(options.output or Path("runs", run.name)).resolve())


def _run_or_explain(work: Callable[[], Awaitable[None]], stopped: str) -> None:
    from openai import APIError

    async def main() -> None:
        await work()

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except (ARTError, APIError, OSError) as error:
        error_line(str(error))
        raise SystemExit(1) from None
