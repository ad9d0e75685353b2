"""Full fine-tuning: every weight of the model is trained."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from art_backend.compute import choose_device, choose_dtype
from art_backend.errors import ModelNotAvailableError
from art_backend.training.attention import Kind
from art_backend.training.policy import Policy, choose_attention, load_base
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

    @contextlib.contextmanager
    def as_reference(self, directory: Path | None) -> Iterator[None]:
        present = self.weights.clone()
        with torch.no_grad():
            try:
                self.load(directory or self._base_path)
                yield
            finally:
                self.weights.copy_(present)
                self.publish_weights()

    def save(self, directory: Path) -> None:
        """``config.json``, ``model.safetensors``, tokenizer."""
        try:
            save_file({name: view.cpu() for name, view in self._views.items()}, directory / WEIGHTS, {"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"writing {directory / WEIGHTS}: {error}") from error
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

    def load(self, directory: Path) -> None:
        files = sorted(directory.glob("model*.safetensors"))
        wrong = set(self._views)
        with torch.no_grad():
            for file in files:
                with safe_open(file, framework="pt") as content:
                    for name in set(content.keys()) & self._views.keys():
                        tensor = content.get_tensor(name)
                        if tensor.shape == self._views[name].shape:
                            self._views[name].copy_(tensor)
                            wrong.discard(name)
        if wrong:
            raise ModelNotAvailableError(
                f"The weights in {directory} do not fit this model; the first of {len(wrong)} that differ is {min(wrong)!r}."
                " Register the model with the base model that they were trained on, or under a new name.",
                param="base_model",
            )
        self.publish_weights()
