"""The trainer's part of a checkpoint: optimiser, random state, and where training stands.

Files beside the adapter: ``optimizer.safetensors`` (AdamW's moments, flat like the weights, and the random state) and
``trainer.json``. Together they are all that a step depends on.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from art_backend.errors import StorageFailedError

OPTIMIZER = "optimizer.safetensors"
STATE = "trainer.json"
FORMAT = 1


@dataclass(slots=True)
class TrainerState:
    """Where training stands after a step."""

    step: int
    """The policy version, which is also the data cursor: batches 1 to ``step`` have been trained."""
    base_model: str
    """Fingerprint of the base model's configuration."""
    optimizer_steps: int = 0
    """Updates that were applied."""
    nonfinite_in_a_row: int = 0
    """Updates skipped for a non-finite gradient since the last one that was applied."""
    format: int = FORMAT


def write_state(directory: Path, state: TrainerState) -> None:
    """Write ``trainer.json``, in place of one that is there."""
    (directory / STATE).unlink(missing_ok=True)  # it may be a hard link into another checkpoint
    (directory / STATE).write_text(json.dumps(asdict(state), indent=1))


def read_state(directory: Path) -> TrainerState:
    """Raises StorageFailedError for a file that this version does not understand."""
    try:
        state = TrainerState(**json.loads((directory / STATE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise StorageFailedError(
            f"{directory / STATE} is not a trainer state of this version: {error}. Train with the version that wrote it, "
            "or start from its adapter under a new model name."
        ) from error
    if state.format != FORMAT:
        raise StorageFailedError(f"{directory / STATE} has format {state.format}; this version reads format {FORMAT}.")
    return state


def write_tensors(directory: Path, tensors: dict[str, Tensor]) -> None:
    save_tensors(directory / OPTIMIZER, tensors)


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Empty for a checkpoint that began as an adapter from elsewhere."""
    file = directory / OPTIMIZER
    return safetensors.torch.load_file(file) if file.exists() else {}


def save_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write ``tensors`` as safetensors, without a second copy of them in memory.

    Raises:
        OSError: They cannot be written, for instance because the disk is full.
    """
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        safetensors.torch.save_file(content, file, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"writing {file}: {error}") from error


def fingerprint_base(base_path: Path) -> str:
    """Identity of a base model: its configuration, and the names and sizes of its weight files."""
    digest = hashlib.sha256((base_path / "config.json").read_bytes())
    for file in sorted(base_path.glob("*.safetensors")):
        digest.update(f"{file.name}:{file.stat().st_size}".encode())
    return digest.hexdigest()[:32]
