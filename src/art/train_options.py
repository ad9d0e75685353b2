"""The keywords of ``backend.train``: which option of the service each one sets, and which have no meaning here.

Keywords that scripts of other trainers pass are accepted. One that has no effect says so, once, when it is set to
something else than its default. One that would change the mathematics in a way the service cannot do is an error.
"""

import warnings
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Literal, TypedDict, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ValidationError

from art.types import TrainSFTConfig
from art.wire import Algorithm, SftOptions, TrainOptions

Options = TypeVar("Options", bound=BaseModel)


class TrainKeywords(TypedDict, total=False):
    """Options of ``backend.train``; see docs/algorithms.md for what each does, and for names that other trainers use.

    >>> options: art.dev.TrainConfig = {"algorithm": "gspo", "kl_coef": 0.01}
    >>> result = await backend.train(model, groups, learning_rate=1e-5, **options)
    """

    advantage: Callable[..., Any] | str
    """A function of one's own, or its name ``module:function``; see docs/algorithms.md."""
    advantage_balance: float
    algorithm: str
    allow_training_without_logprobs: bool
    """Train also trajectories in which nothing was captured, such as those of another model or from a file."""
    entropy_coef: float
    epochs: int
    epsilon: float | None
    epsilon_high: float | None
    gradient_checkpointing: bool
    importance_cap: float | None
    importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"]
    """``"sequence"`` is ``algorithm="gspo"``; the last two are errors."""
    kimi_k2_tau: float | None
    kl_coef: float
    kl_in: Literal["loss", "advantage"]
    kl_penalty_coef: float
    kl_penalty_reference_step: int | None
    kl_reference_step: int
    kl_ref_adapter_path: str | None
    logprob_calculation_chunk_size: int
    loss: Callable[..., Any] | str
    loss_type: str | None
    mask_prob_ratio: bool
    max_completion_length: int
    max_grad_norm: float
    max_negative_advantage_importance_sampling_weight: float | None
    micro_batch_tokens: int | None
    minibatches: int
    negative_advantage_cap: float | None
    num_trajectories_learning_rate_multiplier_power: float
    optimizer: Literal["adamw", "paged_adamw_8bit"]
    overlong: str
    packed_sequence_length: int | None
    plot_tensors: bool
    ppo: bool
    precalculate_logprobs: bool
    scale_learning_rate_by_reward_std_dev: bool
    scale_rewards: bool
    schedule: Literal["constant", "linear", "cosine"]
    total_steps: int | None
    trainer: Literal["art", "trl"]
    truncated_importance_sampling: float | None
    warmup_steps: int
    weight_decay: float
    adam_betas: tuple[float, float]
    adam_params: Any
    drop_zero_advantage_trajectories: bool
    loss_fn: str | None
    loss_fn_config: dict[str, Any] | None
    normalize_advantages: bool
    save_checkpoint: bool


class SftKeywords(TypedDict, total=False):
    """Options of supervised fine-tuning, beyond ``art.TrainSFTConfig``.

    >>> lesson = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    >>> options: art.dev.TrainSFTConfig = {"train_on": "all"}
    >>> await model.train_sft([art.Trajectory(messages_and_choices=lesson)], _config=options)
    """

    train_on: Literal["assistant", "all"]
    """Which tokens are learned: what the assistant says (the default), or everything."""
    max_grad_norm: float
    adam_betas: tuple[float, float]
    weight_decay: float
    overlong: str
    micro_batch_tokens: int | None


AUTO_BATCH_SIZE = 2
"""What ``batch_size="auto"`` means in supervised fine-tuning."""

_DEAD_DEFAULTS: dict[str, Any] = {
    "logprob_calculation_chunk_size": 1024,
    "plot_tensors": False,
    "precalculate_logprobs": False,
    "save_checkpoint": True,
}
"""Options that change nothing that is learned, and their defaults."""
_MISSING: dict[str, tuple[Any, str]] = {
    "advantage_balance": (0.0, "Weigh advantages in a function of your own: advantage=…, see docs/algorithms.md."),
    "drop_zero_advantage_trajectories": (True, "A group in which all did equally well is never trained."),
    "kimi_k2_tau": (0.0, "Write it as a loss of your own: loss=…, see docs/algorithms.md; or set kl_coef."),
    "loss_fn_config": ({}, "Set epsilon and epsilon_high: ratios are clipped to 1 - epsilon … 1 + epsilon_high."),
    "mask_prob_ratio": (False, "Write it as a loss of your own: loss=…, see docs/algorithms.md; or keep the clip."),
    "num_trajectories_learning_rate_multiplier_power": (0.0, "Multiply learning_rate yourself."),
    "scale_learning_rate_by_reward_std_dev": (False, "Multiply learning_rate yourself."),
}
"""Options that would change what is learned, and that the service does not have: what changes nothing, what to do instead."""
_DIRECT = (
    "trainer",
    "algorithm",
    "schedule",
    "warmup_steps",
    "total_steps",
    "negative_advantage_cap",
    "kl_in",
    "kl_reference_step",
    "entropy_coef",
    "optimizer",
    "epochs",
    "gradient_checkpointing",
    "kl_coef",
    "scale_rewards",
    "epsilon",
    "epsilon_high",
    "importance_cap",
    "max_grad_norm",
    "adam_betas",
    "weight_decay",
    "overlong",
    "micro_batch_tokens",
    "minibatches",
)
"""Options that the service knows by the same name."""
_RENAMED = {
    "kl_penalty_reference_step": "kl_reference_step",
    "max_negative_advantage_importance_sampling_weight": "negative_advantage_cap",
    "truncated_importance_sampling": "importance_cap",
    "packed_sequence_length": "micro_batch_tokens",
    "normalize_advantages": "scale_rewards",
}
_FUNCTIONS = ("advantage", "loss")
"""Options that take a function, or its name."""
_LOSS_TYPES = {
    "grpo": Algorithm.GRPO,
    "bnpo": Algorithm.DAPO,
    "dapo": Algorithm.DAPO,
    "dr_grpo": Algorithm.DR_GRPO,
    "cispo": Algorithm.CISPO,
}
_LOSS_FNS = {"cispo": Algorithm.CISPO, "ppo": None, "grpo": Algorithm.GRPO, "dapo": Algorithm.DAPO}
"""Names of losses by other trainers; ``None``: the service's default stands in, a clipped token-level surrogate."""

_LEVELS = {"token": None, "sequence": Algorithm.GSPO}
"""Importance ratios by what they are taken over; ``None``: every algorithm but one does that."""

_warned: set[str] = set()


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse keywords that nobody knows.

    Raises:
        TypeError: Naming the unknown keywords.
    """
    known = {*get_type_hints(TrainKeywords), "learning_rate", "verbose"}
    if unknown := sorted(set(options) - known):
        raise TypeError(f"train() got unknown options: {', '.join(unknown)}. Known are: {', '.join(sorted(known))}.")


def build_options(learning_rate: float, options: Mapping[str, Any]) -> TrainOptions:
    """Translate keywords into the service's options; ``None`` means the default.

    Raises:
        TypeError: An unknown keyword.
        ValueError: A value that the service cannot honour.
    """
    check_names(options)
    wire: dict[str, Any] = {"learning_rate": learning_rate}
    for name, value in options.items():
        if value is None and name != "importance_cap":
            continue
        if name in _DIRECT:
            wire[name] = value
        elif name in _RENAMED:
            wire.setdefault(_RENAMED[name], value)
        elif name in _FUNCTIONS:
            wire[name] = value if isinstance(value, str) else name_function(name, value)
        elif name == "kl_penalty_coef":
            if value:  # where this name comes from, the distance is taken off the advantages
                wire.setdefault("kl_coef", value)
                wire.setdefault("kl_in", "advantage")
        elif name == "kl_ref_adapter_path":
            raise ValueError(
                "kl_ref_adapter_path is not available here: the reference is a version of this model. Set kl_reference_step."
            )
        elif name == "loss_type":
            wire.setdefault("algorithm", _pick(_LOSS_TYPES, name, value))
        elif name == "loss_fn":
            if algorithm := _pick(_LOSS_FNS, name, value):
                wire.setdefault("algorithm", algorithm)
        elif name == "adam_params":
            wire.setdefault("adam_betas", _adam_betas(value))
        elif name in _MISSING:
            _refuse_missing(name, value)
        elif name in _DEAD_DEFAULTS and value != _DEAD_DEFAULTS[name]:
            _warn_dead(name, value)
    _choose_surrogate(wire, options)
    return validate(TrainOptions, wire, "train() cannot use these options")


def build_sft_options(config: TrainSFTConfig, options: Mapping[str, Any]) -> SftOptions:
    """Translate the settings of supervised fine-tuning into the service's options; ``None`` means the default.

    Raises:
        TypeError: An unknown keyword.
        ValueError: A value that the service cannot honour.
    """
    known = get_type_hints(SftKeywords)
    if unknown := sorted(set(options) - set(known)):
        raise TypeError(
            f"train_sft() got unknown options: {', '.join(unknown)}. Known are: {', '.join(sorted(known))}."
        )
    rates = config.learning_rate
    wire = {name: value for name, value in options.items() if value is not None}
    wire["learning_rates"] = rates if isinstance(rates, list) else [rates]
    wire["batch_size"] = AUTO_BATCH_SIZE if config.batch_size == "auto" else config.batch_size
    return validate(SftOptions, wire, "train_sft() cannot use these options")


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


def _pick(table: Mapping[str, Algorithm | None], name: str, value: Any) -> Algorithm | None:
    if value not in table:
        raise ValueError(f"{name}={value!r} is not available here; choose one of {', '.join(table)}.")
    return table[value]


def _choose_surrogate(wire: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Honour what others name beside the algorithm, where the algorithm is open or agrees.

    Raises:
        ValueError: They contradict each other.
    """
    level = options.get("importance_sampling_level")
    algorithm = None if level is None else _pick(_LEVELS, "importance_sampling_level", level)
    if algorithm is not None and wire.setdefault("algorithm", algorithm) != algorithm:
        raise ValueError(
            f"importance_sampling_level={level!r} is algorithm={algorithm.value!r} here, which cannot be combined with "
            f"algorithm={str(wire['algorithm'])!r}; leave one of them out."
        )
    if options.get("ppo") and wire.get("algorithm") == Algorithm.CISPO:
        raise ValueError("ppo=True clips the surrogate, which algorithm='cispo' does not; leave one of them out.")
    if options.get("max_completion_length") is not None and wire.get("algorithm") == Algorithm.DR_GRPO:
        raise ValueError(
            "max_completion_length is not available here: dr_grpo divides by the model's maximum sequence length. Leave it "
            "out, and multiply learning_rate by the quotient of the two if you mean the other size of step."
        )


def _refuse_missing(name: str, value: Any) -> None:
    harmless, remedy = _MISSING[name]
    if value != harmless:
        raise ValueError(f"{name}={value!r} is not available here, and it would change what is learned. {remedy}")


def _adam_betas(params: Any) -> tuple[float, float]:
    values = cast(Mapping[str, Any], params if isinstance(params, Mapping) else vars(params))
    default = TrainOptions().adam_betas
    return float(values.get("beta1", default[0])), float(values.get("beta2", default[1]))


def _warn_dead(name: str, value: Any) -> None:
    if name in _warned:
        return
    _warned.add(name)
    why = (
        "every version is served from its checkpoint; delete old ones with model.delete_checkpoints()"
        if name == "save_checkpoint"
        else "the service does this in its own way"
    )
    warnings.warn(f"train({name}={value!r}) has no effect: {why}.", UserWarning, stacklevel=4)
