"""From a model of the frontend to what is registered with a service."""

import warnings
from typing import Any

from art.backend import AnyTrainableModel
from art.dev.model import InternalModelConfig
from art.dev.validate import validate_dedicated_config
from art.wire import LoraSpec, RegisterModel

_PEFT_NAMES = {"r": "rank", "lora_alpha": "alpha", "target_modules": "target_modules", "random_state": "seed"}
_warned: set[str] = set()


def build_registration(model: AnyTrainableModel) -> RegisterModel:
    """What the service needs to know about a model.

    Raises:
        ValueError: A name or a setting that the service would refuse; the message says why.
    """
    settings: InternalModelConfig = model._internal_config or {}  # pyright: ignore[reportPrivateUsage]
    validate_dedicated_config(settings)
    peft = dict(settings.get("peft_args", {}))
    lora: dict[str, Any] = {_PEFT_NAMES[name]: value for name, value in peft.items() if name in _PEFT_NAMES}
    init: dict[str, Any] = dict(settings.get("init_args", {}))
    unused = [
        *(f"peft_args.{name}" for name in peft if name not in _PEFT_NAMES),
        *(f"init_args.{name}" for name in init if name not in ("max_seq_length", "full_finetuning")),
        *(name for name in settings if name not in ("peft_args", "init_args", "init_adapter")),
    ]
    for name in unused:
        _warn_unused(name)
    return RegisterModel(
        project=model.project,
        name=model.name,
        base_model=model.base_model,
        lora=LoraSpec(**lora),
        full_finetune=bool(init.get("full_finetuning")),
        init_adapter=settings.get("init_adapter"),
        max_sequence_length=init.get("max_seq_length"),
    )


def _warn_unused(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"_internal_config: {name} has no effect on this backend.", stacklevel=6)
