"""``art eval``."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli.runs import find_model
from art.cli.targets import (
    BackendOption,
    JsonOption,
    KeyOption,
    PathOption,
    RolloutArgument,
    ScenariosOption,
    TimeoutOption,
    fail,
    find_object,
    open_backend,
    print_json,
    read_scenarios,
    run_or_explain,
)

if TYPE_CHECKING:
    from art.backend.remote import RemoteBackend
    from art.evaluation import Evaluation
    from art.logs.statistics import Interval
    from art.model import Model


def evaluate_models(
    rollout: RolloutArgument,
    scenarios: ScenariosOption,
    model: Annotated[
        list[str],
        typer.Option(
            metavar="MODEL",
            help="NAME or PROJECT/NAME (add @STEP for one version), or URL#NAME of any OpenAI endpoint. Repeat to compare.",
        ),
    ],
    runs: Annotated[int, typer.Option(min=1, help="Rollouts of each scenario.")] = 4,
    timeout: TimeoutOption = None,
    concurrent: Annotated[int, typer.Option(min=1, help="Maximum concurrent rollouts.")] = 32,
    endpoint_key: Annotated[
        str, typer.Option(envvar="OPENAI_API_KEY", show_envvar=True, help="API key for endpoints given as URL#NAME.")
    ] = "none",
    path: PathOption = Path(".art"),
    backend: BackendOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Compare models on your agent's task, with 95 % intervals.

    The function takes a model and a scenario, and returns a Trajectory with its reward. Each further model is compared
    with the first, scenario by scenario.
    """
    run, found = find_object(rollout, "MODULE:ROLLOUT"), read_scenarios(scenarios, "--scenarios")
    if not found:
        fail(f"{scenarios} contains no scenarios.")

    async def main() -> "list[Evaluation]":
        from art.evaluation import evaluate
        from art.gather import progress_bar

        done: list[Evaluation] = []
        async with AsyncExitStack() as stack:
            service: RemoteBackend | None = None
            for target in model:
                if "#" not in target and service is None:
                    service = await stack.enter_async_context(open_backend(backend, api_key, path))
                opened = await _open(target, service, endpoint_key, path)
                with progress_bar(target, len(found)) as bar:
                    done.append(
                        await evaluate(
                            target,
                            opened,
                            run,
                            found,
                            runs=runs,
                            timeout_s=timeout,
                            max_concurrent=concurrent,
                            on_scenario=lambda _, bar=bar: bar.update(1),
                        )
                    )
        return done

    evaluations: list[Evaluation] = run_or_explain(main)
    if json:
        print_json([one.to_json(evaluations[0]) for one in evaluations])
    else:
        _print_table(evaluations)
    if not all(one.runs for one in evaluations):
        raise typer.Exit(1)


async def _open(target: str, service: "RemoteBackend | None", endpoint_key: str, path: Path) -> "Model[Any, Any]":
    """The model that the rollout function gets for a ``--model``."""
    import art

    url, hash_mark, name = target.partition("#")
    if hash_mark:
        if not url.startswith(("http://", "https://")) or not name:
            raise typer.BadParameter(f"write URL#NAME, not {target!r}.", param_hint="--model")
        return art.Model(
            name=name.replace("/", "--"),
            project="eval",
            inference_base_url=url,
            inference_api_key=endpoint_key,
            inference_model_name=name,
            report_metrics=[],
        )
    assert service is not None
    project, name, step = find_model(target, path, "--model", local=isinstance(service, art.LocalBackend))
    return await service.open_model(project, name, step)


def _print_table(evaluations: "list[Evaluation]") -> None:
    from rich.console import Console
    from rich.table import Table

    first = evaluations[0]
    table = Table(box=None, header_style="bold")
    table.add_column("model", overflow="fold", min_width=12)
    for column in ("scenarios", "runs", "failed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("reward, 95 % interval", no_wrap=True)
    for one in evaluations:
        table.add_row(one.name, str(sum(map(bool, one.rewards))), str(one.runs), str(one.failed), _cell(one.reward))
    console = Console(highlight=False)
    console.print(table)
    for one in evaluations[1:]:
        console.print(f"{one.name} against {first.name}: {_cell(one.minus(first))}", markup=False)
    for one in evaluations:
        if one.first_failure:
            console.print(f"{one.name}: a rollout failed: {one.first_failure}", markup=False)


def _cell(found: "Interval | None") -> str:
    return "–" if found is None else f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
