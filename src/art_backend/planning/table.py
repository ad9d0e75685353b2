"""A plan as a table, as JSON, and as the page of documentation."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rich.table import Table

from art_backend.planning.architecture import KNOWN
from art_backend.planning.memory import GIB, MemoryPlan, Wanted, plan
from art_backend.planning.verdict import describe, find_remedy, gb

DOCUMENTED_MODELS = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B")
DOCUMENTED_DEVICES_GB = (16, 24, 48, 80, 141)


def build_table(found: MemoryPlan) -> Table:
    """Parts in rows; the device during rollouts, during training, and the CPU's memory in columns."""
    wanted = found.wanted
    dedicated = wanted.placement == "dedicated"
    table = Table(title=_title(wanted), title_justify="left", box=None, pad_edge=False)
    table.add_column("GB")
    for heading in ("engine's device", "trainer's device") if dedicated else ("rollouts", "training", "CPU memory"):
        table.add_column(heading, justify="right")
    for part in found.parts:
        cells = (part.rollouts, part.training) if dedicated else (part.rollouts, part.training, part.host)
        table.add_row(part.name, *map(_cell, cells))
    sums = (found.rollouts, found.training) if dedicated else (found.rollouts, found.training, found.host)
    table.add_section()
    table.add_row("in all", *map(_cell, sums), style="bold")
    return table


def build_lines(found: MemoryPlan) -> list[str]:
    """What stands below the table."""
    lines = [describe(found)]
    if found.saving:
        engine = "weights and KV cache are" if found.wanted.full else "weights are, and no KV cache is kept"
        lines.append(
            f"Taking turns saves {gb(found.saving)} of the device: while rollouts run the trainer is in CPU memory, while it trains "
            f"the engine's {engine}. CPU memory needed: {gb(found.host)}."
        )
    if (remedy := find_remedy(found)) is not None:
        lines.append(f"{remedy.text} Training then takes {gb(remedy.plan.training)}.")
    return lines


def to_json(found: MemoryPlan) -> dict[str, Any]:
    """Sizes in bytes."""
    wanted, remedy = found.wanted, find_remedy(found)
    return {
        "model": wanted.architecture.name,
        "parameters": wanted.architecture.parameters(),
        "device_bytes": wanted.device_bytes,
        "placement": wanted.placement,
        "context": wanted.context,
        "batch_tokens": wanted.pass_tokens,
        "parts": [
            {"name": part.name, "rollouts": part.rollouts, "training": part.training, "host": part.host}
            for part in found.parts
        ],
        "rollouts_bytes": found.rollouts,
        "training_bytes": found.training,
        "host_bytes": found.host,
        "saving_bytes": found.saving,
        "kv_cache_tokens": found.kv_tokens,
        "fits": found.fits,
        "tight": found.tight,
        "verdict": describe(found),
        "remedy": None if remedy is None else remedy.text,
    }


def documented_table(models: Iterable[str] = DOCUMENTED_MODELS) -> str:
    """Markdown: training's peak for each model on one device of each size, LoRA of rank 16, 4,096 tokens of context."""
    rows = [
        f"| model | {' | '.join(f'{size} GB' for size in DOCUMENTED_DEVICES_GB)} | CPU memory |",
        f"|---|{'---|' * len(DOCUMENTED_DEVICES_GB)}---|",
    ]
    for name in models:
        plans = [plan(Wanted(KNOWN[name], size * GIB)) for size in DOCUMENTED_DEVICES_GB]
        rows.append(f"| {name} | {' | '.join(map(_summarise, plans))} | {gb(plans[0].host)} |")
    return "\n".join(rows)


def _summarise(found: MemoryPlan) -> str:
    """One cell: as it is, with checkpointing in passes of one sequence, or not at all."""
    if found.fits and not found.tight:
        return _size(found)
    wanted = found.wanted
    small = plan(replace(wanted, gradient_checkpointing=True, batch_tokens=wanted.context))
    if small.fits and not small.tight:
        return f"{_size(small)} ¹"
    return "–"


def _size(found: MemoryPlan) -> str:
    return f"{found.training / GIB:.0f} GB, {found.kv_tokens // found.wanted.context}×"


def _title(wanted: Wanted) -> str:
    kind = "all weights" if wanted.full else f"LoRA of rank {wanted.lora_rank}"
    again = ", gradient checkpointing" if wanted.gradient_checkpointing else ""
    where = "one device" if wanted.placement == "colocated" else "a device each"
    return (
        f"{wanted.architecture.name} ({wanted.architecture.parameters() / 1e9:.2f} B parameters), {kind}, {wanted.context:,} tokens of "
        f"context, {wanted.pass_tokens:,} in a pass{again}, {where} of {gb(wanted.device_bytes)}"
    )


def _cell(size: int) -> str:
    return f"{size / GIB:.2f}" if size else "–"


if __name__ == "__main__":
    print(documented_table())
