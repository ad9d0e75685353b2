"""``art delete``."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli.runs import find_model
from art.cli.targets import BackendOption, KeyOption, PathOption, fail, open_backend, run_or_explain

if TYPE_CHECKING:
    from art.backend.remote import RemoteBackend


def delete(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="NAME or PROJECT/NAME.")],
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Delete only old checkpoints; keep the latest and the best.")
    ] = False,
    best: Annotated[
        str, typer.Option(metavar="METRIC", help="Metric that decides which checkpoint is the best.")
    ] = "val/reward",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    path: PathOption = Path(".art"),
    backend: BackendOption = None,
    api_key: KeyOption = None,
) -> None:
    """Delete a model: checkpoints, captured rollouts, metrics, logged trajectories."""
    project, name, step = find_model(model, path, "MODEL", local=backend is None)
    if step is not None:
        raise typer.BadParameter(
            "cannot delete a single step; use --checkpoints to delete old ones.", param_hint="MODEL"
        )
    model = f"{project}/{name}"
    directory = path / project / "models" / name
    what = "old checkpoints of" if checkpoints else "everything of"
    if not yes and not typer.confirm(f"Delete {what} {model} ({backend or directory})?"):
        raise typer.Exit(1)

    async def main() -> str:
        async with open_backend(backend, api_key, path) as service:
            return await (_prune(service) if checkpoints else _delete(service))

    async def _prune(service: "RemoteBackend") -> str:
        pupil = await service.open_model(project, name)
        if backend is not None:
            pupil.base_path = str(path)
        before = await service.list_checkpoints(pupil)
        await pupil.delete_checkpoints(best)
        kept = [checkpoint.step for checkpoint in await service.list_checkpoints(pupil)]
        return f"Deleted {len(before) - len(kept)} checkpoints of {model}; kept: {', '.join(map(str, kept)) or 'none'}."

    async def _delete(service: "RemoteBackend") -> str:
        from art.errors import NotFoundError

        try:
            gone = await service.delete_model(project, name)
        except NotFoundError:
            if backend is not None or not directory.is_dir():
                raise
            shutil.rmtree(directory)  # only logged here, such as a prompted model
            return f"Deleted the logs of {model}."
        return f"Deleted {model} with its {gone.step} steps."

    if backend is None and not path.is_dir():
        fail(f"There is no directory {path}.")
    typer.echo(run_or_explain(main))
