"""The latest step of a model, by its checkpoints on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.utils.output_dirs import get_model_dir

if TYPE_CHECKING:
    from art.model import Model


def get_model_step(model: "Model[Any, Any]", art_path: str | None = None) -> int:
    """The highest numbered directory under the model's ``checkpoints``; 0 if there is none.

    >>> get_model_step(art.Model(name="new", project="p"))
    0
    """
    checkpoints = Path(get_model_dir(model, art_path or model.base_path)) / "checkpoints"
    if not checkpoints.is_dir():
        return 0
    return max(
        (int(entry.name) for entry in checkpoints.iterdir() if entry.is_dir() and entry.name.isdigit()), default=0
    )
