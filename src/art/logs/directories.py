"""Where things lie on disk: ``{base_path}/{project}/models/{name}/…``. Paths are strings, as callers compare them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.model import Model


def get_repo_root_path() -> str:
    """The nearest directory upwards that holds ``.git``, else ``"."``."""
    here = Path.cwd()
    return next((str(directory) for directory in (here, *here.parents) if (directory / ".git").exists()), ".")


def get_default_art_path() -> str:
    """``.art`` in the root of the repository, or in the working directory outside of one."""
    return os.path.join(get_repo_root_path(), ".art")  # noqa: PTH118


def get_models_dir(project_name: str, art_path: str | None = None) -> str:
    """Where a project's models are logged: ``{art_path}/{project}/models``."""
    return os.path.join(art_path or get_default_art_path(), project_name, "models")  # noqa: PTH118


def get_output_dir_from_model_properties(project: str, name: str, art_path: str | None = None) -> str:
    """A model's directory: ``{art_path}/{project}/models/{name}``.

    >>> get_output_dir_from_model_properties("games", "player", ".art")
    '.art/games/models/player'
    """
    return os.path.join(get_models_dir(project, art_path), name)  # noqa: PTH118


def get_model_dir(model: "Model[Any, Any]", art_path: str | None = None) -> str:
    """The directory of a model."""
    return get_output_dir_from_model_properties(model.project, model.name, art_path)


def get_step_checkpoint_dir(model_output_dir: str, step: int) -> str:
    """The directory of a step's checkpoint, below that of the model."""
    return os.path.join(model_output_dir, "checkpoints", f"{step:04d}")  # noqa: PTH118


def get_trajectories_dir(model_output_dir: str) -> str:
    """The directory of the logged trajectories, below that of the model."""
    return os.path.join(model_output_dir, "trajectories")  # noqa: PTH118


def get_trajectories_split_dir(model_output_dir: str, split: str) -> str:
    """The directory of one split's trajectories."""
    return os.path.join(get_trajectories_dir(model_output_dir), split)  # noqa: PTH118


def get_model_step(model: "Model[Any, Any]", art_path: str | None = None) -> int:
    """The highest numbered directory under a model's ``checkpoints`` on this machine, which is its latest step; else 0."""
    checkpoints = Path(get_model_dir(model, art_path or model.base_path)) / "checkpoints"
    if not checkpoints.is_dir():
        return 0
    return max(
        (int(entry.name) for entry in checkpoints.iterdir() if entry.is_dir() and entry.name.isdigit()), default=0
    )
