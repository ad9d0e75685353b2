"""Full fine-tuning: every weight of the model is trained."""

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from art_backend.errors import ModelNotAvailableError
from art_backend.models.compute import choose_device, choose_dtype
from art_backend.training.policy.attention import Kind
from art_backend.training.policy.base import Policy, choose_attention, load_base
from art_backend.training.state import save_tensors
from art_backend.training.types import Precision

WEIGHTS = "model.safetensors"

_COMPANIONS = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "vocab*",
    "merges.txt",
)
"""Files of the base model that make a checkpoint a whole Hugging Face folder."""


class FullPolicy(Policy):
    """A model all of whose weights are trained. A checkpoint of it is a Hugging Face folder that loads anywhere.

    Args:
        base_path: Directory with the base model's Hugging Face files.
        precision: Type of the computation; the weights that are trained and saved are float32 in any case.
    """

    def __init__(self, base_path: Path, *, precision: Precision = "auto", attention: Kind | None = None) -> None:
        device = choose_device()
        kind = choose_attention(attention, device)
        base = load_base(base_path, torch.float32, kind, device).requires_grad_(True)
        self._base_path = base_path
        super().__init__(base, dict(base.named_parameters()), kind)
        dtype = choose_dtype(precision, device)
        for parameter in base.parameters():  # not the buffers: rotary frequencies stay float32, as in the engine
            parameter.data = parameter.data.to(dtype)

    def as_reference(self, directory: Path | None) -> AbstractContextManager[None]:
        return self._computing_with(directory or self._base_path)

    def save(self, directory: Path) -> None:
        """``config.json``, ``model.safetensors``, tokenizer."""
        save_tensors(directory / WEIGHTS, self._views)
        # engines that read every *.safetensors file of a folder look here which ones are the model's
        index = {"metadata": {}, "weight_map": dict.fromkeys(self._views, WEIGHTS)}
        (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
        config = json.loads((self._base_path / "config.json").read_text())
        config.pop("torch_dtype", None)
        (directory / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2))
        for pattern in _COMPANIONS:
            for file in self._base_path.glob(pattern):
                if file.is_file():
                    shutil.copyfile(file, directory / file.name)

    def _read(self, directory: Path, targets: Mapping[str, Tensor]) -> None:
        wrong = set(targets)
        for file in sorted(directory.glob("model*.safetensors")):
            with safe_open(file, framework="pt") as content:
                for name in set(content.keys()) & targets.keys():
                    tensor = content.get_tensor(name)
                    if tensor.shape == targets[name].shape:
                        targets[name].copy_(tensor)
                        wrong.discard(name)
        if wrong:
            raise ModelNotAvailableError(
                f"The weights in {directory} do not fit this model; the first of {len(wrong)} that differ is {min(wrong)!r}."
                " Register the model with the base model that they were trained on, or under a new name.",
                param="base_model",
            )
