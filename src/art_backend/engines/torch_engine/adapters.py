"""LoRA adapters: read from PEFT directories, several at once in one batch.

``y = W x + s · B A x`` where rows of a batch may use different (A, B), or none. The scale ``s`` is ``alpha / r``, or
``alpha / sqrt(r)`` with rsLoRA (Kalajdzievski, 2023, arXiv:2312.03732), and is folded into ``B`` once.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, addmm, nn

from art_backend.store.checkpoints import ADAPTER_CONFIG, ADAPTER_WEIGHTS

_PREFIX = "base_model.model."

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "modules_to_save": ([], None),
    "fan_in_fan_out": (False, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False, None),
}
"""Settings of an adapter that change its arithmetic, with the values under which they do not."""


class AdapterError(ValueError):
    """The adapter cannot be served; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """One version of the policy."""

    id: int
    """Never used again for other weights: the KV cache is keyed by it."""
    name: str
    path: Path
    weights: dict[str, tuple[Tensor, Tensor]]
    """By module path: ``A^T [in, r]`` and ``s · B^T [r, out]``."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """One module's adapter as saved."""

    a: Tensor
    """``A [r, in]``"""
    b: Tensor
    """``B [out, r]``"""
    scale: float

    def prepare(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """``A^T`` and ``s · B^T``, on the device and in the type of ``like``."""
        return self.a.T.to(like).contiguous(), (self.b.float().T * self.scale).to(like).contiguous()


def read_adapter(path: Path, *, max_rank: int) -> dict[str, Matrices]:
    """Read a PEFT LoRA directory, by module path. Nothing is computed (see ``model_thread``).

    Raises:
        AdapterError: Not a readable LoRA, or one with features that are not served.
    """
    try:
        config = json.loads((path / ADAPTER_CONFIG).read_text())
        tensors = load_file(path / ADAPTER_WEIGHTS)
    except OSError as error:
        raise AdapterError(f"lora_path {str(path)!r} is not a readable PEFT adapter: {error}") from None
    except (SafetensorError, json.JSONDecodeError) as error:
        raise AdapterError(f"lora_path {str(path)!r} is damaged: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(f"{path / ADAPTER_CONFIG}: only adapters with peft_type LORA are served.")
    for field, harmless in _UNSUPPORTED.items():
        if field in config and config[field] not in harmless:
            raise AdapterError(f"{path / ADAPTER_CONFIG}: {field}={config[field]!r} is not supported by this engine.")
    alpha_pattern: dict[str, float] = config.get("alpha_pattern") or {}
    weights: dict[str, Matrices] = {}
    for key in sorted(tensors):
        match = re.fullmatch(re.escape(_PREFIX) + r"(.+)\.lora_(A|B)\.weight", key)
        if match is None:
            raise AdapterError(f"{path / ADAPTER_WEIGHTS}: tensor {key!r} is not a LoRA matrix of a linear layer.")
        if match[2] == "B":
            continue
        module = match[1]
        a = tensors[key]
        b = tensors.get(f"{_PREFIX}{module}.lora_B.weight")
        if b is None:
            raise AdapterError(f"{path / ADAPTER_WEIGHTS}: {module} has lora_A but no lora_B.")
        rank = a.shape[0]
        if rank > max_rank:
            raise AdapterError(f"Rank {rank} of {module} exceeds this engine's --max-lora-rank {max_rank}.")
        alpha = next(
            (value for pattern, value in alpha_pattern.items() if re.fullmatch(rf"(.*\.)?({pattern})", module)),
            config["lora_alpha"],
        )
        weights[module] = Matrices(a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
    if not weights:
        raise AdapterError(f"{path / ADAPTER_WEIGHTS} holds no LoRA matrices.")
    return weights


Segment = tuple[Adapter, Tensor | None]
"""An adapter and the rows of the batch that use it; ``None`` is all of them."""


class AdapterBank:
    """Lets the linear layers of one model apply adapters.

    ``segments`` is set before each forward pass; layers read it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.segments: list[Segment] = []

    def prepare(self, weights: dict[str, Matrices]) -> dict[str, tuple[Tensor, Tensor]]:
        """Check ``weights`` against the model, and bring them into the form of ``Adapter.weights``.

        Raises:
            AdapterError: A module is missing, is not linear, or has another shape.
        """
        ready: dict[str, tuple[Tensor, Tensor]] = {}
        for path, own in weights.items():
            linear = self._linear(path)
            if (own.a.shape[1], own.b.shape[0]) != (linear.in_features, linear.out_features):
                raise AdapterError(
                    f"{path} is {linear.in_features} → {linear.out_features} in the base model, but the adapter's "
                    f"matrices are {own.a.shape[1]} → {own.b.shape[0]}. Was it trained on another base model?"
                )
            ready[path] = own.prepare(linear.weight)
        return ready

    def wrap(self, paths: list[str]) -> None:
        """Make sure that the modules at ``paths`` apply adapters."""
        for path in paths:
            parent_path, _, name = path.rpartition(".")
            parent = self._model.get_submodule(parent_path)
            module = parent.get_submodule(name)
            if isinstance(module, nn.Linear):
                setattr(parent, name, AdapterLinear(module, path, self))

    def _linear(self, path: str) -> nn.Linear:
        try:
            module = self._model.get_submodule(path)
        except AttributeError:
            raise AdapterError(f"The base model has no module {path!r}, which the adapter targets.") from None
        if isinstance(module, AdapterLinear):
            return module.base
        if not isinstance(module, nn.Linear):
            raise AdapterError(f"{path} is a {type(module).__name__}; only linear layers can have an adapter.")
        return module


class AdapterLinear(nn.Module):
    """A linear layer plus the adapters of the current batch."""

    def __init__(self, base: nn.Linear, path: str, bank: AdapterBank) -> None:
        super().__init__()
        self.base = base
        self._path = path
        self._bank = bank

    def forward(self, x: Tensor) -> Tensor:
        """``[1, N, in]`` → ``[1, N, out]``"""
        y = F.linear(x, self.base.weight, self.base.bias)
        rows_in, rows_out = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        for adapter, rows in self._bank.segments:
            if self._path not in adapter.weights:
                continue
            a, b = adapter.weights[self._path]
            # the adapter's part is added before the sum is rounded, as the trainer does it
            if rows is None:
                rows_out.addmm_(rows_in @ a, b)
            else:
                rows_out[rows] = addmm(rows_out[rows], rows_in[rows] @ a, b)
        return y
