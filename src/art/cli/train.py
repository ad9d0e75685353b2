"""``art train``."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.targets import (
    BASE_MODEL,
    BackendOption,
    BaseModelOption,
    GroupSizeOption,
    GroupsPerStepOption,
    JsonOption,
    KeyOption,
    PathOption,
    RolloutArgument,
    ScenariosOption,
    TimeoutOption,
    find_object,
    open_backend,
    print_json,
    read_scenarios,
    run_or_explain,
    split_model,
)


def train(
    rollout: RolloutArgument,
    scenarios: ScenariosOption,
    model: Annotated[str, typer.Option(metavar="PROJECT/NAME", help="The model; reuse the name to resume.")],
    steps: Annotated[int, typer.Option(min=1, help="Total training steps.")],
    base_model: BaseModelOption = BASE_MODEL,
    groups_per_step: GroupsPerStepOption = 8,
    group_size: GroupSizeOption = 8,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the adapter.")] = 1e-5,
    max_staleness: Annotated[int, typer.Option(min=0, help="How many policy versions behind a rollout may be.")] = 0,
    timeout: TimeoutOption = None,
    eval_scenarios: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|MODULE:NAME",
            help="Scenarios to evaluate and never train on. Default: the last tenth of --scenarios, if there are 50 or more.",
        ),
    ] = None,
    logger: Annotated[
        list[str] | None, typer.Option(help="mlflow, tensorboard, trackio or wandb; may be repeated.")
    ] = None,
    path: PathOption = Path(".art"),
    backend: BackendOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Train a model on your agent's task. Run the same command again to resume.

    The function takes a model and a scenario, and returns a Trajectory with its reward.
    """
    if not 0 < learning_rate < math.inf:
        raise typer.BadParameter("must be a finite number above 0.", param_hint="--learning-rate")
    run, found = find_object(rollout, "MODULE:ROLLOUT"), read_scenarios(scenarios, "--scenarios")
    held_out = None if eval_scenarios is None else read_scenarios(eval_scenarios, "--eval-scenarios")
    project, name, step = split_model(model, "--model")
    if step is not None:
        raise typer.BadParameter("training continues from the latest step; leave out @STEP.", param_hint="--model")

    async def main() -> Any:
        import art

        pupil: art.TrainableModel[Any, Any] = art.TrainableModel(
            name=name, project=project, base_model=base_model, base_path=os.fspath(path), report_metrics=logger
        )
        async with open_backend(backend, api_key, path) as service:
            await pupil.register(service)
            return await art.train(
                pupil,
                run,
                found,
                groups_per_step=groups_per_step,
                group_size=group_size,
                max_staleness=max_staleness,
                steps=steps,
                rollout_timeout_s=timeout,
                eval_scenarios=held_out,
                show_progress=not json,
                learning_rate=learning_rate,
            )

    result = run_or_explain(main)
    if json:
        print_json({"model": model, "step": result.step, "stopped": result.stopped})
    elif not result.stopped:
        typer.echo(f"{model} is trained to step {result.step}.")
