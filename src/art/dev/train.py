"""Settings of one training step, beyond the learning rate."""

from collections.abc import Callable
from typing import Any, Literal, TypedDict


class TrainConfig(TypedDict, total=False):
    """Options of ``backend.train``; see docs/algorithms.md for what each does, and for names that other trainers use.

    >>> options: TrainConfig = {"algorithm": "gspo", "kl_coef": 0.01}
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


class TrainSFTConfig(TypedDict, total=False):
    """Options of supervised fine-tuning, beyond ``art.TrainSFTConfig``.

    >>> lesson = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    >>> options: TrainSFTConfig = {"train_on": "all"}
    >>> await model.train_sft([art.Trajectory(messages_and_choices=lesson)], _config=options)
    """

    train_on: Literal["assistant", "all"]
    """Which tokens are learned: what the assistant says (the default), or everything."""
    max_grad_norm: float
    adam_betas: tuple[float, float]
    weight_decay: float
    overlong: str
    micro_batch_tokens: int | None
