"""``model.train``, and the keywords of ``backend.train`` by older names: those that mean something here become ours.

One that has no effect says so once. One that would change what is learned in a way that the service cannot do is an error.
"""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel
    from art.trajectories import TrajectoryGroup
    from art.types import TrainConfig

_NO_EFFECT: dict[str, Any] = {
    "logprob_calculation_chunk_size": 1024,
    "plot_tensors": False,
    "precalculate_logprobs": False,
    "save_checkpoint": True,
}
"""Keywords that change nothing that is learned, and their defaults."""
_MISSING: dict[str, tuple[Any, str]] = {
    "advantage_balance": (0.0, "Weight advantages in your own function: advantage=…, see docs/algorithms.md."),
    "drop_zero_advantage_trajectories": (True, "A group with equal rewards is never trained."),
    "kimi_k2_tau": (0.0, "Write your own loss: loss=…, see docs/algorithms.md; or set kl_coef."),
    "kl_ref_adapter_path": (None, "The reference is a version of this model. Set kl_reference_step."),
    "loss_fn_config": ({}, "Set epsilon and epsilon_high: ratios are clipped to 1 - epsilon … 1 + epsilon_high."),
    "mask_prob_ratio": (False, "Write your own loss: loss=…, see docs/algorithms.md; or keep the clip."),
    "num_trajectories_learning_rate_multiplier_power": (0.0, "Multiply learning_rate yourself."),
    "scale_learning_rate_by_reward_std_dev": (False, "Multiply learning_rate yourself."),
}
"""Keywords that would change what is learned, and that the service does not have: what changes nothing, what to do instead."""
_RENAMED = {
    "kl_penalty_reference_step": "kl_reference_step",
    "max_negative_advantage_importance_sampling_weight": "negative_advantage_cap",
    "truncated_importance_sampling": "importance_cap",
    "packed_sequence_length": "micro_batch_tokens",
    "normalize_advantages": "scale_rewards",
}
_ALGORITHMS: dict[str, dict[str, str | None]] = {
    "loss_type": {"grpo": "grpo", "bnpo": "dapo", "dapo": "dapo", "dr_grpo": "dr_grpo", "cispo": "cispo"},
    "loss_fn": {"cispo": "cispo", "ppo": None, "grpo": "grpo", "dapo": "dapo"},
    "importance_sampling_level": {"token": None, "sequence": "gspo"},
}
"""Keywords that choose an algorithm, and what their values are here; ``None``: the default does that."""

_warned: set[str] = set()


def translate(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with older keywords replaced. Unknown names stay; new names override old ones.

    Raises:
        ValueError: A value that the service cannot honour.
    """
    given = {name: value for name, value in options.items() if value is not None or name == "importance_cap"}
    old = {name: given.pop(name) for name in list(given) if name in _KNOWN}
    for name, (harmless, remedy) in _MISSING.items():
        if name in old and old[name] != harmless:
            raise ValueError(f"{name}={old[name]!r} is not supported, and would change what is learned. {remedy}")
    for name, default in _NO_EFFECT.items():
        if old.get(name, default) != default:
            _warn(name, old[name])
    for name, ours in _RENAMED.items():
        if name in old:
            given.setdefault(ours, old[name])
    if old.get("kl_penalty_coef"):  # by this name, the distance is taken off the advantages
        given.setdefault("kl_coef", old["kl_penalty_coef"])
        given.setdefault("kl_in", "advantage")
    if "adam_params" in old:
        given.setdefault("adam_betas", _adam_betas(old["adam_params"]))
    _choose_algorithm(given, old)
    return given


_KNOWN = {
    *(_NO_EFFECT | _MISSING | _RENAMED | _ALGORITHMS),
    *("adam_params", "kl_penalty_coef", "max_completion_length", "ppo"),
}


def _choose_algorithm(given: dict[str, Any], old: Mapping[str, Any]) -> None:
    for name, table in _ALGORITHMS.items():
        if name not in old:
            continue
        value = old[name]
        if value not in table:
            raise ValueError(f"{name}={value!r} is not available here; choose one of {', '.join(table)}.")
        algorithm = table[value]
        if algorithm is None:
            continue
        if given.setdefault("algorithm", algorithm) != algorithm and name == "importance_sampling_level":
            raise ValueError(
                f"importance_sampling_level={value!r} is algorithm={algorithm!r} here, which cannot be combined with "
                f"algorithm={str(given['algorithm'])!r}; leave one of them out."
            )
    if old.get("ppo") and given.get("algorithm") == "cispo":
        raise ValueError("ppo=True clips the surrogate, which algorithm='cispo' does not; leave one of them out.")
    if "max_completion_length" in old and given.get("algorithm") == "dr_grpo":
        raise ValueError(
            "max_completion_length is not available here: dr_grpo divides by the model's maximum sequence length. Leave it "
            "out, and multiply learning_rate by the quotient of the two if you mean the other size of step."
        )


def _adam_betas(params: Any) -> tuple[float, float]:
    values = cast(Mapping[str, Any], params if isinstance(params, Mapping) else vars(params))
    return float(values.get("beta1", 0.9)), float(values.get("beta2", 0.99))


def _warn(name: str, value: Any) -> None:
    if name in _warned:
        return
    _warned.add(name)
    why = (
        "every version is served from its checkpoint; delete old ones with model.delete_checkpoints()"
        if name == "save_checkpoint"
        else "the service handles this itself"
    )
    warnings.warn(f"train({name}={value!r}) has no effect: {why}.", UserWarning, stacklevel=4)


async def train_and_log(
    model: "AnyTrainableModel",
    groups: "list[TrajectoryGroup]",
    config: "TrainConfig | None",
    options: Mapping[str, Any] | None,
    verbose: bool,
) -> None:
    """Take a step on groups, and log them with the step's metrics: ``model.train``."""
    from art.model import check_config
    from art.types import TrainConfig

    warnings.warn(
        "model.train is deprecated: write `result = await backend.train(model, groups, learning_rate=…)` and "
        "`await model.log(groups, split='train', metrics=result.metrics, step=result.step)`.",
        DeprecationWarning,
        stacklevel=3,
    )
    check_config(config, TrainConfig)
    keywords = {**(config or TrainConfig()).model_dump(), **(options or {})}
    result = await model.backend().train(model, groups, verbose=verbose, **keywords)
    await model.log(groups, split="train", metrics=result.metrics, step=result.step)
