"""``art preflight``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.runs import find_model
from art.cli.targets import (
    BASE_MODEL,
    BackendOption,
    BaseModelOption,
    GroupSizeOption,
    GroupsPerStepOption,
    KeyOption,
    PathOption,
    RolloutArgument,
    ScenariosOption,
    TimeoutOption,
    find_object,
    open_backend,
    read_scenarios,
    run_or_explain,
)


def preflight(
    rollout: RolloutArgument,
    scenarios: ScenariosOption,
    base_model: BaseModelOption = BASE_MODEL,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Try this trained model instead of --base-model: NAME or PROJECT/NAME (add @STEP for one version).",
        ),
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="Number of scenarios to try.")] = 4,
    group_size: GroupSizeOption = 8,
    groups_per_step: GroupsPerStepOption = 8,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the planned run, to estimate its time and cost.")
    ] = None,
    success_reward: Annotated[float, typer.Option(help="Minimum reward for a rollout to count as a success.")] = 0.5,
    timeout: TimeoutOption = None,
    path: PathOption = Path(".art"),
    backend: BackendOption = None,
    api_key: KeyOption = None,
) -> None:
    """Run a few rollouts without training, and report whether reinforcement learning can help.

    The function takes a model and a scenario, and returns a Trajectory with its reward. Exits with 2 if training would not
    help.
    """
    chosen_model = None if model is None else find_model(model, path, "--model", local=backend is None)
    run, chosen = find_object(rollout, "MODULE:ROLLOUT"), read_scenarios(scenarios, "--scenarios")

    async def check() -> Any:
        import art

        async with open_backend(backend, api_key, path) as service:
            if chosen_model is not None:
                pupil = await service.open_model(*chosen_model)
                pupil.base_path = str(path)
            else:
                pupil = art.TrainableModel(
                    name="preflight", project="preflight", base_model=base_model, base_path=str(path)
                )
                await pupil.register(service)
            return await art.preflight(
                pupil,
                run,
                chosen,
                groups=groups,
                group_size=group_size,
                groups_per_step=groups_per_step,
                steps=steps,
                success_reward=success_reward,
                rollout_timeout_s=timeout,
            )

    result = run_or_explain(check)
    typer.echo(str(result))
    raise typer.Exit(0 if result.can_learn else 2)
