"""Settings of one training step, beyond the learning rate."""

from typing import Any, Literal, TypedDict


class TrainConfig(TypedDict, total=False):
    """Options of ``backend.train``; see the backend for what each does."""

    advantage_balance: float
    algorithm: str
    allow_training_without_logprobs: bool
    epsilon: float | None
    epsilon_high: float | None
    importance_cap: float | None
    importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"]
    kimi_k2_tau: float | None
    kl_coef: float
    kl_penalty_coef: float
    kl_penalty_reference_step: int | None
    kl_ref_adapter_path: str | None
    logprob_calculation_chunk_size: int
    loss_type: str | None
    mask_prob_ratio: bool
    max_completion_length: int
    max_grad_norm: float
    max_negative_advantage_importance_sampling_weight: float | None
    micro_batch_tokens: int | None
    minibatches: int
    num_trajectories_learning_rate_multiplier_power: float
    overlong: str
    packed_sequence_length: int | None
    plot_tensors: bool
    ppo: bool
    precalculate_logprobs: bool
    scale_learning_rate_by_reward_std_dev: bool
    scale_rewards: bool
    truncated_importance_sampling: float | None
    weight_decay: float
    adam_betas: tuple[float, float]
    adam_params: Any
    drop_zero_advantage_trajectories: bool
    loss_fn: str | None
    loss_fn_config: dict[str, Any] | None
    normalize_advantages: bool
    save_checkpoint: bool


class TrainSFTConfig(TypedDict, total=False):
    """Options of supervised fine-tuning, beyond ``art.TrainSFTConfig``."""
