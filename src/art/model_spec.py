"""From a model of the frontend to what is registered with a service."""

import re
import warnings
from collections.abc import Collection
from typing import Any

from art.backend import AnyTrainableModel
from art.dev.model import InternalModelConfig
from art.dev.validate import validate_dedicated_config
from art.train_options import validate
from art.wire import RegisterModel

_PEFT_NAMES = {"r": "rank", "lora_alpha": "alpha", "target_modules": "target_modules", "random_state": "seed"}
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_warned: set[str] = set()


def build_registration(model: AnyTrainableModel, *, honoured: Collection[str] = ()) -> RegisterModel:
    """What the service needs to know about a model.

    Args:
        honoured: Settings that the backend takes care of by itself. Others that no service knows get a warning.

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
        *(name for name in settings if name not in ("peft_args", "init_args", "init_adapter", *honoured)),
    ]
    for name in unused:
        _warn_unused(name)
    check_names(model.project, model.name)
    return validate(
        RegisterModel,
        {
            "project": model.project,
            "name": model.name,
            "base_model": model.base_model,
            "lora": lora,
            "full_finetune": bool(init.get("full_finetuning")),
            "init_adapter": settings.get("init_adapter"),
            "max_sequence_length": init.get("max_seq_length"),
        },
        f"Model {model.name!r} cannot be registered",
    )


def check_names(project: str, name: str) -> None:
    """Raises ValueError: The project or the name has characters that paths, URLs and versions are made of."""
    for field, value in (("project", project), ("name", name)):
        if not _NAME.fullmatch(value):
            better = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-") or "my-model"
            raise ValueError(
                f"{field}={value!r}: use letters, digits, '.', '_' and '-' alone, such as {better!r}. It is part of paths, of URLs "
                "and of the names of versions."
            )


def _warn_unused(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"_internal_config: {name} has no effect on this backend.", stacklevel=6)
