"""A plan in words: whether it fits, and if not, what would."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from art.wire import Optimizer
from art_backend.planning.memory import GIB, MemoryPlan, Wanted, plan

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


def find_remedy(found: MemoryPlan) -> Remedy | None:
    """The mildest change after which the plan fits without being tight; ``None`` if it does so already."""
    if found.fits and not found.tight:
        return None
    for text, changed in _changes(found.wanted):
        candidate = plan(changed)
        if candidate.fits and not candidate.tight:
            return Remedy(text, candidate)
    needed = smallest_device(_smallest(found.wanted))
    return Remedy(
        f"Take a device of {needed // GIB} GB or more (with gradient_checkpointing=True and "
        f"micro_batch_tokens={found.wanted.context}), or a smaller model.",
        plan(replace(_smallest(found.wanted), device_bytes=needed)),
    )


def smallest_device(wanted: Wanted) -> int:
    """The smallest device, in whole GiB, into which a plan fits without being tight."""
    low, high = 1, _LARGEST_BYTES // GIB
    while low < high:
        middle = (low + high) // 2
        candidate = plan(replace(wanted, device_bytes=middle * GIB))
        if candidate.fits and not candidate.tight:
            high = middle
        else:
            low = middle + 1
    return low * GIB


def _smallest(wanted: Wanted) -> Wanted:
    """The same training in as little memory as possible."""
    return replace(wanted, gradient_checkpointing=True, batch_tokens=wanted.context)


def _changes(wanted: Wanted) -> Iterator[tuple[str, Wanted]]:
    """What the user can change, the mildest first. Each goes on from the one before."""
    if wanted.pass_tokens > 2 * wanted.context:
        wanted = replace(wanted, batch_tokens=2 * wanted.context)
        yield f"Train with micro_batch_tokens={wanted.batch_tokens}: more, smaller passes.", wanted
    if not wanted.gradient_checkpointing:
        wanted = replace(wanted, gradient_checkpointing=True)
        passes = f" and micro_batch_tokens={wanted.batch_tokens}" if wanted.batch_tokens else ""
        yield f"Train with gradient_checkpointing=True{passes}: activations are computed again.", wanted
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
            f"Give engine and trainer a device each (--engine-devices 0 --trainer-devices 1), with {settings}.",
            replace(wanted, placement="dedicated"),
        )
