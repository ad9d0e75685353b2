"""Settings of a model: its adapter, its engine, its devices."""

from typing import Any, TypedDict


class InitArgs(TypedDict, total=False):
    """How the base model is loaded.

    >>> settings: InternalModelConfig = {"init_args": InitArgs(max_seq_length=2048)}
    """

    model_name: str
    max_seq_length: int
    """Longest prompt plus completion, in tokens."""
    dtype: str | None
    load_in_4bit: bool
    load_in_8bit: bool
    load_in_16bit: bool
    full_finetuning: bool
    """Train all weights instead of an adapter."""
    token: str | None
    device_map: str
    rope_scaling: dict[str, Any] | None
    trust_remote_code: bool
    use_gradient_checkpointing: bool | str
    fast_inference: bool
    gpu_memory_utilization: float
    float8_kv_cache: bool
    random_state: int
    max_lora_rank: int
    disable_log_stats: bool
    enable_prefix_caching: bool


class EngineArgs(TypedDict, total=False):
    """How the inference engine is started.

    >>> settings: InternalModelConfig = {"engine_args": EngineArgs(gpu_memory_utilization=0.8)}
    """

    model: str
    served_model_name: str | list[str]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_logprobs: int
    max_loras: int
    max_lora_rank: int
    gpu_memory_utilization: float
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enforce_eager: bool
    enable_prefix_caching: bool
    enable_sleep_mode: bool
    enable_lora: bool
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    seed: int
    swap_space: float
    trust_remote_code: bool
    generation_config: str
    disable_log_requests: bool


class PeftArgs(TypedDict, total=False):
    """The adapter (Hu et al. 2021, arXiv:2106.09685).

    >>> settings: InternalModelConfig = {"peft_args": PeftArgs(r=8, lora_alpha=16)}
    """

    r: int
    """Rank."""
    lora_alpha: float
    """The update is scaled by ``lora_alpha / r``."""
    target_modules: list[str]
    """Names of the linear layers that get an adapter."""
    random_state: int
    """Seed of the adapter's initial weights."""
    lora_dropout: float
    bias: str
    layers_to_transform: list[int] | None
    layers_pattern: str | None
    use_gradient_checkpointing: bool | str
    max_seq_length: int
    use_rslora: bool
    modules_to_save: list[str] | None
    init_lora_weights: bool | str
    loftq_config: dict[str, Any]


class TrainerArgs(TypedDict, total=False):
    """Settings of a TRL trainer.

    >>> settings: InternalModelConfig = {"trainer_args": TrainerArgs(seed=3)}
    """

    adam_beta1: float
    adam_beta2: float
    bf16: bool
    fp16: bool
    gradient_accumulation_steps: int
    learning_rate: float
    logging_steps: int
    lr_scheduler_type: str
    max_grad_norm: float
    max_steps: int
    num_generations: int
    num_train_epochs: float
    optim: str
    output_dir: str
    per_device_train_batch_size: int
    report_to: str | list[str]
    seed: int
    weight_decay: float


class TinkerTrainingClientArgs(TypedDict, total=False):
    """Accepted for scripts of another service; has no effect here.

    >>> settings: InternalModelConfig = {"tinker_args": {"training_client_args": TinkerTrainingClientArgs(rank=8)}}
    """

    rank: int
    seed: int
    train_mlp: bool
    train_attn: bool
    train_unembed: bool


class TinkerArgs(TypedDict, total=False):
    """Accepted for scripts of another service; has no effect here.

    >>> settings: InternalModelConfig = {"tinker_args": TinkerArgs(renderer_name="qwen3")}
    """

    renderer_name: str
    training_client_args: TinkerTrainingClientArgs


class TinkerNativeArgs(TypedDict, total=False):
    """Accepted for scripts of another service; has no effect here.

    >>> settings: InternalModelConfig = {"tinker_native_args": TinkerNativeArgs(save_every=5)}
    """

    renderer_name: str
    training_client_args: TinkerTrainingClientArgs
    save_every: int


class InternalModelConfig(TypedDict, total=False):
    """Everything about a model that is not its name.

    >>> settings: InternalModelConfig = {"peft_args": {"r": 8, "lora_alpha": 16}}
    >>> model = art.TrainableModel(name="m", project="p", base_model="b", _internal_config=settings)
    """

    init_adapter: str | None
    """Where a model without checkpoints begins: a PEFT adapter's directory on the backend's machine, or ``project/name@step``
    (or ``@latest``) of another model."""
    init_args: InitArgs
    engine_args: EngineArgs
    peft_args: PeftArgs
    trainer_args: TrainerArgs
    tinker_args: TinkerArgs | None
    tinker_native_args: TinkerNativeArgs | None
    trainer_gpu_ids: list[int]
    """Devices that train; given together with ``inference_gpu_ids`` or not at all."""
    inference_gpu_ids: list[int]
    """Devices that serve."""
