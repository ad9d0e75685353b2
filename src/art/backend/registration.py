"""A model's settings, ``_internal_config``, and what is registered of them with a service."""

import re
import warnings
from collections.abc import Collection
from typing import Any, TypedDict

from art.backend import AnyTrainableModel
from art.backend.options import validate
from art.wire import RegisterModel

_PEFT_NAMES = {"r": "rank", "lora_alpha": "alpha", "target_modules": "target_modules", "random_state": "seed"}
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_warned: set[str] = set()


class InitArgs(TypedDict, total=False):
    """How the base model is loaded."""

    max_seq_length: int
    """Longest prompt plus completion, in tokens."""
    full_finetuning: bool
    """Train all weights instead of an adapter."""


class PeftArgs(TypedDict, total=False):
    """The adapter (Hu et al. 2021, arXiv:2106.09685)."""

    r: int
    """Rank."""
    lora_alpha: float
    """The update is scaled by ``lora_alpha / r``."""
    target_modules: list[str]
    """Names of the linear layers that get an adapter."""
    random_state: int
    """Seed of the adapter's initial weights."""


class InternalModelConfig(TypedDict, total=False):
    """Settings of a model. Unknown keys have no effect and cause a warning.

    >>> settings: InternalModelConfig = {"peft_args": {"r": 8, "lora_alpha": 16}}
    >>> model = art.TrainableModel(name="m", project="p", base_model="b", _internal_config=settings)
    """

    init_adapter: str | None
    """Where a model without checkpoints starts: a PEFT adapter's directory on the backend's machine, or ``project/name@step``
    (or ``@latest``) of another model."""
    init_args: InitArgs
    peft_args: PeftArgs
    trainer_gpu_ids: list[int]
    """Devices that train; requires ``inference_gpu_ids``."""
    inference_gpu_ids: list[int]
    """Devices that serve."""


def build_registration(model: AnyTrainableModel, *, honoured: Collection[str] = ()) -> RegisterModel:
    """Return what the service needs to know about a model.

    Args:
        honoured: Settings that the backend handles itself. Other unknown settings get a warning.

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


def is_dedicated_mode(config: InternalModelConfig) -> bool:
    """Whether training and inference have devices of their own."""
    return "trainer_gpu_ids" in config and "inference_gpu_ids" in config


def validate_dedicated_config(config: InternalModelConfig) -> None:
    """Check ``trainer_gpu_ids`` and ``inference_gpu_ids``.

    Raises:
        ValueError: Naming the setting that is wrong and what it must be.
    """
    has_trainer, has_inference = "trainer_gpu_ids" in config, "inference_gpu_ids" in config
    if not has_trainer and not has_inference:
        return
    if has_trainer != has_inference:
        missing = "inference_gpu_ids" if has_trainer else "trainer_gpu_ids"
        raise ValueError(f"trainer_gpu_ids and inference_gpu_ids must be given together; {missing} is missing.")
    trainer, inference = config.get("trainer_gpu_ids", []), config.get("inference_gpu_ids", [])
    for name, ids in (("trainer_gpu_ids", trainer), ("inference_gpu_ids", inference)):
        if not ids:
            raise ValueError(f"{name} must not be empty.")
    if shared := sorted(set(trainer) & set(inference)):
        raise ValueError(f"trainer_gpu_ids and inference_gpu_ids must not share devices; both name {shared}.")
    if len(inference) > 1:
        raise ValueError(f"inference_gpu_ids must name one device, not {len(inference)}.")
    if sorted(trainer) != list(range(len(trainer))):
        raise ValueError(f"trainer_gpu_ids must be exactly 0 to n-1, not {trainer}.")


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
