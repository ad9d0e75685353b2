"""``art preflight``."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer


def preflight(
    rollout: Annotated[str, typer.Argument(metavar="MODULE:ROLLOUT", help="The function that runs the agent once.")],
    scenarios: Annotated[
        str, typer.Option(metavar="MODULE:NAME", help="What to run it on, or a function that returns it.")
    ],
    base_model: Annotated[
        str, typer.Option(help="A local directory or a hub id.")
    ] = "HuggingFaceTB/SmolLM2-135M-Instruct",
    groups: Annotated[int, typer.Option(min=1, help="Scenarios to try.")] = 4,
    group_size: Annotated[int, typer.Option(min=2, help="Rollouts of each.")] = 8,
    groups_per_step: Annotated[int, typer.Option(min=1, help="Groups in a step of the planned run.")] = 8,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the planned run.")] = None,
    success_reward: Annotated[float, typer.Option(help="Reward from which a rollout counts as a success.")] = 0.5,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds that one rollout may take.")] = None,
    path: Annotated[Path, typer.Option(help="Directory of the local backend.")] = Path(".art"),
    backend: Annotated[
        str | None, typer.Option(metavar="URL", help="Use the backend at this address instead of a local one.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="ART_API_KEY", help="Key of that backend.", show_envvar=True)
    ] = None,
) -> None:
    """Run a few rollouts without training, and tell whether reinforcement learning can help.

    The function takes a model and a scenario, and returns a Trajectory with its reward. Exits with 2 if training as it is
    would not help.
    """
    import asyncio

    from openai import APIError

    import art
    from art.demo.display import error_line
    from art.errors import ARTError

    sys.path.insert(0, str(Path.cwd()))
    run, found = _find(rollout, "MODULE:ROLLOUT"), _find(scenarios, "--scenarios")
    chosen: Any = found() if callable(found) else found

    async def check() -> art.Preflight:
        model = art.TrainableModel(name="preflight", project="preflight", base_model=base_model, base_path=str(path))
        service = art.LocalBackend(path=str(path)) if backend is None else art.RemoteBackend(backend, api_key)
        async with service:
            await model.register(service)
            return await art.preflight(
                model,
                run,
                chosen,
                groups=groups,
                group_size=group_size,
                groups_per_step=groups_per_step,
                steps=steps,
                success_reward=success_reward,
                rollout_timeout_s=timeout,
            )

    try:
        result = asyncio.run(check())
    except (ARTError, APIError, OSError, ValueError) as error:
        error_line(str(error))
        raise typer.Exit(1) from None
    typer.echo(str(result))
    raise typer.Exit(0 if result.can_learn else 2)


def _find(target: str, parameter: str) -> Any:
    """The object that ``module:name`` names, from the working directory or the installed packages."""
    module, colon, name = target.partition(":")
    if not colon or not name:
        raise typer.BadParameter(f"write MODULE:NAME, such as my_agent:rollout, not {target!r}.", param_hint=parameter)
    try:
        return vars(import_module(module))[name]
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"there is no module {error.name!r} here.", param_hint=parameter) from None
    except KeyError:
        raise typer.BadParameter(f"{module} has no {name!r}.", param_hint=parameter) from None
