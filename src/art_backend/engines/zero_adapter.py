"""A LoRA adapter that changes nothing.

vLLM's CPU build marks requests without an adapter by the slot number -1, and its kernels read that as the last slot:
beside a loaded adapter the base model would answer with the adapter's weights. There the base model is served as this
adapter instead, so that no request is without one. Its update is B·A with B = 0, so the answers are the base model's own.
"""

import json
import re
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from art_backend.errors import BadRequestError

_PROJECTION = re.compile(r".*\blayers\.0\..*_proj\.weight")


def write_zero_adapter(model_path: Path, directory: Path) -> Path:
    """Write a PEFT adapter of rank 1 for one projection of the model; return its directory.

    Raises:
        BadRequestError: The model has no layer that is known to take an adapter.
    """
    name, (outputs, inputs) = _find_projection(model_path)
    module = f"base_model.model.{name.removesuffix('.weight')}"
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{module}.lora_A.weight": torch.zeros(1, inputs),
        f"{module}.lora_B.weight": torch.zeros(outputs, 1),
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 1,
        "lora_alpha": 1,
        "target_modules": [module.rsplit(".", 1)[1]],
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def _find_projection(model_path: Path) -> tuple[str, tuple[int, int]]:
    """Name and shape of a projection's weight in the first layer."""
    for file in sorted(model_path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in sorted(weights.keys()):
                if _PROJECTION.fullmatch(name):
                    outputs, inputs = weights.get_slice(name).get_shape()
                    return name, (outputs, inputs)
    raise BadRequestError(
        f"base_model: {model_path} has no projection in its first layer that an adapter could be put on, so vLLM's CPU "
        "build cannot serve it beside adapters. Use the embedded engine (--engine torch).",
        param="base_model",
    )
