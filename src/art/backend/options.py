"""The keywords of ``backend.train`` and ``backend.train_sft``, and the service's options that they become."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Literal, TypedDict, TypeVar

from pydantic import BaseModel, ValidationError

import art
from art.types import TrainSFTConfig
from art.wire import SftOptions, TrainOptions

Options = TypeVar("Options", bound=BaseModel)

AUTO_BATCH_SIZE = 2
"""The meaning of ``batch_size="auto"`` in supervised fine-tuning."""
_FUNCTIONS = ("advantage", "loss")
"""Options that take a function, or its name."""


class TrainKeywords(TypedDict, total=False):
    """Options of ``backend.train``; see docs/algorithms.md for what each does. ``None`` takes the default.

    >>> options: art.dev.TrainConfig = {"algorithm": "gspo", "kl_coef": 0.01}
    >>> result = await backend.train(model, groups, learning_rate=1e-5, **options)
    """

    adam_betas: tuple[float, float]
    advantage: Callable[..., Any] | str
    """Your own function, or its name ``module:function``; see docs/algorithms.md."""
    algorithm: str
    allow_training_without_logprobs: bool
    """Also train trajectories that were not captured, such as those of another model or from a file."""
    entropy_coef: float
    epochs: int
    epsilon: float | None
    epsilon_high: float | None
    gradient_checkpointing: bool
    importance_cap: float | None
    kl_coef: float
    kl_in: Literal["loss", "advantage"]
    kl_reference_step: int
    loss: Callable[..., Any] | str
    max_grad_norm: float
    micro_batch_tokens: int | None
    minibatches: int
    negative_advantage_cap: float | None
    optimizer: Literal["adamw", "paged_adamw_8bit"]
    overlong: str
    scale_rewards: bool
    schedule: Literal["constant", "linear", "cosine"]
    total_steps: int | None
    trainer: Literal["art", "trl"]
    warmup_steps: int
    weight_decay: float


class SftKeywords(TypedDict, total=False):
    """Options of supervised fine-tuning, beyond ``art.TrainSFTConfig``.

    >>> lesson = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    >>> options: art.dev.TrainSFTConfig = {"train_on": "all"}
    >>> await model.train_sft([art.Trajectory(messages_and_choices=lesson)], _config=options)
    """

    train_on: Literal["assistant", "all"]
    """Which tokens are trained: the assistant's (the default), or all."""
    max_grad_norm: float
    adam_betas: tuple[float, float]
    weight_decay: float
    overlong: str
    micro_batch_tokens: int | None


def build_options(learning_rate: float, options: Mapping[str, Any]) -> TrainOptions:
    """Turn keywords into the service's options.

    Raises:
        TypeError: An unknown keyword.
        ValueError: A value that the service cannot honour.
    """
    known = TrainKeywords.__annotations__
    if not options.keys() <= known.keys():  # perhaps an older name
        options = art.compat.translate(options)
    _check_known("train()", options, known)
    wire: dict[str, Any] = {
        name: name_function(name, value) if name in _FUNCTIONS and not isinstance(value, str) else value
        for name, value in options.items()
        if name != "allow_training_without_logprobs" and (value is not None or name == "importance_cap")
    }
    return validate(TrainOptions, {"learning_rate": learning_rate, **wire}, "train() cannot use these options")


def build_sft_options(config: TrainSFTConfig, options: Mapping[str, Any]) -> SftOptions:
    """Turn the settings of supervised fine-tuning into the service's options; ``None`` means the default.

    Raises:
        TypeError: An unknown keyword.
        ValueError: A value that the service cannot honour.
    """
    _check_known("train_sft()", options, SftKeywords.__annotations__)
    rates = config.learning_rate
    wire = {name: value for name, value in options.items() if value is not None}
    wire["learning_rates"] = rates if isinstance(rates, list) else [rates]
    wire["batch_size"] = AUTO_BATCH_SIZE if config.batch_size == "auto" else config.batch_size
    return validate(SftOptions, wire, "train_sft() cannot use these options")


def _check_known(call: str, options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    if unknown := sorted(options.keys() - known.keys()):
        raise TypeError(f"{call} got unknown options: {', '.join(unknown)}. Known options: {', '.join(sorted(known))}.")


def validate(kind: type[Options], wire: dict[str, Any], complaint: str) -> Options:
    """Raises ValueError: The complaint, and each field with what is wrong with it."""
    try:
        return kind.model_validate(wire)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError(f"{complaint}: {problems}") from error


def name_function(option: str, function: Any) -> str:
    """``module:function``, the name under which the service finds a function.

    Raises:
        ValueError: It has no such name: it is no function of a module, or of a module without a file.
    """
    if not isinstance(function, FunctionType) or not function.__qualname__.isidentifier():
        raise ValueError(
            f"{option}={function!r} cannot be named to the service: pass a function defined at the top of a module, "
            'or its name, "module:function".'
        )
    if function.__module__ == "__main__":
        raise ValueError(
            f"{option}: {function.__qualname__} is defined in the program itself, which the trainer cannot import without "
            "running it. Put it into a module beside the program."
        )
    return f"{function.__module__}:{function.__qualname__}"
