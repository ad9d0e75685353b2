"""Checks of a model's device settings. They are applied when a service starts, not when a model is built."""

from art.dev.model import InternalModelConfig


def is_dedicated_mode(config: InternalModelConfig) -> bool:
    """Whether training and inference have devices of their own.

    >>> is_dedicated_mode({"trainer_gpu_ids": [0], "inference_gpu_ids": [1]})
    True
    """
    return "trainer_gpu_ids" in config and "inference_gpu_ids" in config


def validate_dedicated_config(config: InternalModelConfig) -> None:
    """Check ``trainer_gpu_ids`` and ``inference_gpu_ids``.

    Raises:
        ValueError: Naming the setting that is wrong and what it must be.

    >>> validate_dedicated_config({"trainer_gpu_ids": [0], "inference_gpu_ids": [0]})
    Traceback (most recent call last):
    ValueError: trainer_gpu_ids and inference_gpu_ids must not share devices; both name [0].
    """
    has_trainer, has_inference = "trainer_gpu_ids" in config, "inference_gpu_ids" in config
    if not has_trainer and not has_inference:
        return
    if has_trainer != has_inference:
        missing = "inference_gpu_ids" if has_trainer else "trainer_gpu_ids"
        raise ValueError(f"trainer_gpu_ids and inference_gpu_ids belong together: {missing} is missing.")
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
    if config.get("init_args", {}).get("fast_inference"):
        raise ValueError("init_args.fast_inference must be off when training and inference have their own devices.")
    if config.get("engine_args", {}).get("enable_sleep_mode"):
        raise ValueError(
            "engine_args.enable_sleep_mode must be off when training and inference have their own devices."
        )
