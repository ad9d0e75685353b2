"""Unsloth's loader and kernels beneath our own trainer, where the package is installed and the device is CUDA.

Its kernels know causal attention over one sequence and no other. So each row is a pack of its own, and what packing saves on
shared prefixes is lost: a choice for rows that share little, made by installing the extra ``unsloth``.
"""

import functools
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from art.wire import LoraSpec

LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Every linear layer but the head, in the families that Unsloth accelerates."""

_log = logging.getLogger(__name__)


@functools.cache
def is_usable() -> bool:
    """Whether models are loaded by Unsloth here; says so once. Importing it without an accelerator raises, so this does not."""
    installed, cuda = find_spec("unsloth") is not None, torch.cuda.is_available()
    if installed and cuda:
        _log.info("Unsloth loads the model; rows are trained one at a time, without shared prefixes.")
    else:
        missing = "unsloth is not installed" if cuda else "there is no CUDA device"
        _log.info("Plain transformers and PEFT load the model: %s.", missing)
    return installed and cuda


def load(path: Path, lora: LoraSpec, dtype: torch.dtype, max_length: int) -> PeftModel:
    """Load a base model with a fresh adapter."""
    from unsloth import FastLanguageModel  # pyright: ignore[reportMissingImports]

    model, _ = FastLanguageModel.from_pretrained(**load_arguments(path, dtype, max_length))
    model = FastLanguageModel.get_peft_model(model, **adapter_arguments(lora))
    return FastLanguageModel.for_training(model, **TRAINING_ARGUMENTS)


def load_arguments(path: Path, dtype: torch.dtype, max_length: int) -> dict[str, Any]:
    """Arguments of ``FastLanguageModel.from_pretrained``: the weights as they are, no quantisation."""
    return {
        "model_name": str(path),
        "max_seq_length": max_length,
        "dtype": dtype,
        "load_in_4bit": False,
        "fast_inference": False,
        "use_gradient_checkpointing": False,
    }


def adapter_arguments(lora: LoraSpec) -> dict[str, Any]:
    """Arguments of ``FastLanguageModel.get_peft_model``, after the model."""
    return {
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": lora.target_modules or LINEAR_LAYERS,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_gradient_checkpointing": False,
        "random_state": lora.seed,
    }


TRAINING_ARGUMENTS: dict[str, Any] = {"use_gradient_checkpointing": False}
"""Arguments of ``FastLanguageModel.for_training``, after the model."""
