"""Whether a step fits, asked before the first one: an error then costs less than a device that runs full at the third."""

import json
import logging
from importlib.util import find_spec
from pathlib import Path

from art.wire import LoraSpec, Optimizer, SftOptions, TrainerKind, TrainOptions
from art_backend.errors import BadRequestError
from art_backend.planning.architecture import parse_config
from art_backend.planning.memory import Placement, Wanted, plan
from art_backend.planning.verdict import describe, find_remedy
from art_backend.serving.devices import Device

_log = logging.getLogger(__name__)


def check_training(
    device: Device,
    base_model: str,
    base_path: Path,
    options: TrainOptions | SftOptions,
    *,
    lora: LoraSpec,
    full: bool,
    context: int,
    placement: Placement,
) -> None:
    """Return if the step can be expected to fit; what is only just so, or not planned, is logged.

    Args:
        device: The trainer's.
        base_path: Directory of the base model.
        context: Longest sequence that is trained, in tokens.

    Raises:
        BadRequestError: It does not fit; the message says by how much, and what would.
    """
    if isinstance(options, TrainOptions) and options.trainer is TrainerKind.TRL:
        _log.info("The memory of TRL's trainer is not planned.")
        return
    try:
        architecture = parse_config(json.loads((base_path / "config.json").read_text()), base_model)
    except BadRequestError as error:
        _log.info("Training %s is not planned: %s", base_model, error.message)
        return
    by_unsloth = not full and find_spec("unsloth") is not None  # which trains one row at a time
    reinforced = isinstance(options, TrainOptions)
    found = plan(
        Wanted(
            architecture,
            device.memory_bytes,
            context=context,
            lora_rank=lora.rank,
            target_modules=None if lora.target_modules is None else tuple(lora.target_modules),
            batch_tokens=context if by_unsloth else options.micro_batch_tokens,
            full=full,
            optimizer=options.optimizer if reinforced else Optimizer.ADAMW,
            gradient_checkpointing=reinforced and options.gradient_checkpointing,
            placement=placement,
        )
    )
    if found.training_fits:
        if found.tight:
            _log.warning("%s (%s)", describe(found), device.name)
        return
    remedy = find_remedy(found)
    raise BadRequestError(
        f"options: {describe(found)} {remedy.text if remedy else ''} "
        f"See every part: art doctor --model {base_model} --context {context}".replace("  ", " "),
        param="options.micro_batch_tokens",
    )
