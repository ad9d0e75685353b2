"""The trainer's part of a checkpoint: optimiser, random state, and where training stands.

Files beside the adapter: ``optimizer.safetensors`` (AdamW's moments, flat like the weights, and the random state) and
``trainer.json``. Together they are all that a step depends on.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
import torch
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
    content = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    (directory / OPTIMIZER).write_bytes(content)


def read_tensors(directory: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(directory / OPTIMIZER)


def fingerprint_base(base_path: Path) -> str:
    """Identity of a base model: its configuration, and the names and sizes of its weight files."""
    digest = hashlib.sha256((base_path / "config.json").read_bytes())
    for file in sorted(base_path.glob("*.safetensors")):
        digest.update(f"{file.name}:{file.stat().st_size}".encode())
    return digest.hexdigest()[:32]


class FlatAdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) on one flat float32 tensor, by ``torch.optim``.

    Args:
        weights: [P]; updated in place.
    """

    def __init__(self, weights: Tensor) -> None:
        self._weights = torch.nn.Parameter(weights)  # shares the storage
        self._optimizer = torch.optim.AdamW([self._weights], lr=1.0, fused=True)

    def step(self, gradient: Tensor, *, learning_rate: float, betas: tuple[float, float], weight_decay: float) -> None:
        group = self._optimizer.param_groups[0]
        group["lr"], group["betas"], group["weight_decay"] = learning_rate, betas, weight_decay
        self._weights.grad = gradient
        self._optimizer.step()
        self._weights.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state; empty before the first update."""
        return dict(self._optimizer.state[self._weights])

    def load(self, tensors: dict[str, Tensor]) -> None:
        state = {0: {name: tensor.clone() for name, tensor in tensors.items()}} if tensors else {}
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})
