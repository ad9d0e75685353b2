"""Where a model is computed, and in which type: one answer for the engine, the trainer and reward models."""

import os
from typing import Literal

import torch
from torch import nn

from art_backend.errors import BadRequestError

DTYPE_VARIABLE = "ART_COMPUTE_DTYPE"
"""Environment variable that replaces what ``auto`` would choose: ``bfloat16`` or ``float32``."""

Dtype = Literal["auto", "bfloat16", "float16", "float32"]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def choose_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type of the computation.

    Args:
        name: A key of ``DTYPES``, or ``auto``: what ``ART_COMPUTE_DTYPE`` says; without it, bfloat16 where the device
            multiplies it natively, else float32.

    Raises:
        BadRequestError: ``ART_COMPUTE_DTYPE`` names another type.
    """
    if name != "auto":
        return DTYPES[name]
    forced = os.environ.get(DTYPE_VARIABLE, "")
    if forced not in ("", "bfloat16", "float32"):
        raise BadRequestError(
            f"{DTYPE_VARIABLE}={forced!r} is not a compute type. Set it to bfloat16 or float32, or unset it.",
            param=DTYPE_VARIABLE,
        )
    if forced:
        return DTYPES[forced]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    cpu = torch.cpu.get_capabilities()
    native = cpu.get("avx512_bf16", False) or cpu.get("amx_bf16", False)
    return torch.bfloat16 if native else torch.float32


def own_memory(model: nn.Module) -> None:
    """Copy weights that are views of a mapped file into memory of the process.

    A file that is read without a change of type is mapped, not copied: rewriting the file would change the weights in
    use, and shortening it would end the process.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.untyped_storage().resizable():
            tensor.data = tensor.data.clone()
