"""A plan in words: whether it fits, and if not, what would. ``check_training`` asks before each step."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from art.wire import LoraSpec, Optimizer, SftOptions, TrainerKind, TrainOptions
from art_backend.devices import Device
from art_backend.errors import BadRequestError
from art_backend.planning.architecture import parse_config
from art_backend.planning.memory import GIB, MemoryPlan, Placement, Wanted, plan

_log = logging.getLogger(__name__)

_LARGEST_BYTES = 4096 * GIB


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change after which the plan fits."""

    text: str
    plan: MemoryPlan


def gb(size: float) -> str:
    """Bytes as GB of 2^30, as devices are sold."""
    return f"{size / GIB:.1f} GB"


def describe(found: MemoryPlan) -> str:
    """One or two sentences."""
    wanted = found.wanted
    name, device = wanted.architecture.name, gb(wanted.device_bytes)
    if found.fits:
        sequences = found.kv_tokens // wanted.context
        room = f"The KV cache holds {found.kv_tokens:,} tokens, {sequences} sequences of full length."
        if found.tight:
            return f"{name} fits into {device}, but only just: training takes {gb(found.training)}. {room}"
        return f"{name} fits into {device}. {room}"
    problems = list[str]()
    if found.kv_tokens < wanted.context:
        problems.append(
            f"beside the engine's weights there is room for {found.kv_tokens:,} tokens of KV cache, and one sequence "
            f"needs {wanted.context:,}"
        )
    elif not found.rollouts_fit:
        problems.append(f"while rollouts run, engine and trainer's process take {gb(found.rollouts)}")
    if not found.training_fits:
        problems.append(f"training takes {gb(found.training)}")
    return f"{name} does not fit into {device}: {'; '.join(problems)}."


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
    """Check that a step can be expected to fit, before the first one runs. Logs what barely fits or is not planned.

    Args:
        device: The trainer's.
        base_path: Directory of the base model.
        context: Longest sequence that is trained, in tokens.

    Raises:
        BadRequestError: It does not fit; the message says what would.
    """
    if isinstance(options, TrainOptions) and options.trainer is TrainerKind.TRL:
        _log.info("ART cannot plan the memory of TRL's trainer.")
        return
    try:
        architecture = parse_config(json.loads((base_path / "config.json").read_text()), base_model)
    except BadRequestError as error:
        _log.info("No memory plan for training %s: %s", base_model, error.message)
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


def find_remedy(found: MemoryPlan) -> Remedy | None:
    """The mildest change after which the plan fits without being tight; ``None`` if it does so already."""
    if found.fits_well:
        return None
    for text, changed in _changes(found.wanted):
        candidate = plan(changed)
        if candidate.fits_well:
            return Remedy(text, candidate)
    lean = leanest(found.wanted)
    needed = smallest_device(lean)
    return Remedy(
        f"Use a device with {needed // GIB} GB or more (with gradient_checkpointing=True and "
        f"micro_batch_tokens={found.wanted.context}), or a smaller model.",
        plan(replace(lean, device_bytes=needed)),
    )


def smallest_device(wanted: Wanted) -> int:
    """The smallest device, in whole GiB, into which a plan fits without being tight."""
    low, high = 1, _LARGEST_BYTES // GIB
    while low < high:
        middle = (low + high) // 2
        candidate = plan(replace(wanted, device_bytes=middle * GIB))
        if candidate.fits_well:
            high = middle
        else:
            low = middle + 1
    return low * GIB


def leanest(wanted: Wanted) -> Wanted:
    """The same training in as little memory as possible."""
    return replace(wanted, gradient_checkpointing=True, batch_tokens=wanted.context)


def _changes(wanted: Wanted) -> Iterator[tuple[str, Wanted]]:
    """Changes that the user can make, the mildest first. Each builds on the one before."""
    if wanted.pass_tokens > 2 * wanted.context:
        wanted = replace(wanted, batch_tokens=2 * wanted.context)
        yield f"Train with micro_batch_tokens={wanted.batch_tokens}: more, smaller passes.", wanted
    if not wanted.gradient_checkpointing:
        wanted = replace(wanted, gradient_checkpointing=True)
        passes = f" and micro_batch_tokens={wanted.batch_tokens}" if wanted.batch_tokens else ""
        yield f"Train with gradient_checkpointing=True{passes}: activations are recomputed.", wanted
    if wanted.pass_tokens > wanted.context:
        wanted = replace(wanted, batch_tokens=wanted.context)
        yield f"Train with gradient_checkpointing=True and micro_batch_tokens={wanted.context}.", wanted
    settings = f"gradient_checkpointing=True, micro_batch_tokens={wanted.pass_tokens}"
    if wanted.full:
        if wanted.optimizer is Optimizer.ADAMW:
            yield (
                f'Train with {settings} and optimizer="paged_adamw_8bit".',
                replace(wanted, optimizer=Optimizer.PAGED_ADAMW_8BIT),
            )
        adapter = replace(wanted, full=False)
        yield f"Train an adapter instead of all weights (LoRA of rank {wanted.lora_rank}), with {settings}.", adapter
        return
    for context in (8192, 4096, 2048):
        if context < wanted.context:
            shorter = replace(wanted, context=context, batch_tokens=context)
            yield (
                f"Serve shorter sequences: --max-sequence-length {context}, with gradient_checkpointing=True and "
                f"micro_batch_tokens={context}.",
                shorter,
            )
    if wanted.placement == "colocated":
        yield (
            f"Give engine and trainer one device each (--engine-devices 0 --trainer-devices 1), with {settings}.",
            replace(wanted, placement="dedicated"),
        )
