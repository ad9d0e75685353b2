"""``python -m art_backend.planning``: what ``art doctor --model`` prints: a plan as a table, or as JSON."""

import json
import re
import sys
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from art.wire import Optimizer
from art_backend.devices import find_devices
from art_backend.errors import BadRequestError, ServiceError
from art_backend.planning.architecture import read_architecture
from art_backend.planning.memory import GIB, MemoryPlan, Wanted, plan
from art_backend.planning.verdict import describe, find_remedy, gb

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:G|GB|GiB)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """``24GB`` in bytes. Devices are sold in GB of 2^30.

    Raises:
        BadRequestError: It is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise BadRequestError(f"gpu_memory: {text!r} is not a size. Write, for example, 24GB.", param="gpu_memory")
    return int(float(match[1]) * GIB)


def main(
    model: Annotated[str, typer.Option(help="A local directory or a hub id.")],
    gpu_memory: Annotated[str | None, typer.Option(help="Memory of one device, such as 24GB.")] = None,
    context: Annotated[int, typer.Option(min=16, help="Longest prompt plus completion, in tokens.")] = 4096,
    lora_rank: Annotated[int, typer.Option(min=1, max=512, help="Rank of the adapter.")] = 16,
    batch_tokens: Annotated[int | None, typer.Option(min=16, help="Packed tokens per pass.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Train all weights.")] = False,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Compute activations again.")
    ] = False,
    optimizer: Annotated[Optimizer, typer.Option(help="Optimiser.")] = Optimizer.ADAMW,
    placement: Annotated[Literal["colocated", "dedicated"], typer.Option(help="One device or two.")] = "colocated",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what training a model takes, and whether it fits. Exits with 1 if it does not."""
    try:
        found = plan(
            Wanted(
                read_architecture(model),
                parse_size(gpu_memory) if gpu_memory is not None else _smallest_device_here(),
                context=context,
                lora_rank=lora_rank,
                batch_tokens=batch_tokens,
                full=full,
                optimizer=optimizer,
                gradient_checkpointing=gradient_checkpointing,
                placement=placement,
            )
        )
    except ServiceError as error:
        sys.exit(f"Error: {error.message}")
    if as_json:
        print(json.dumps(to_json(found), indent=2))
    else:
        console = Console(highlight=False)
        console.print(build_table(found))
        for line in build_lines(found):
            console.print(line, markup=False)
    sys.exit(0 if found.fits else 1)


def _smallest_device_here() -> int:
    if not (devices := find_devices()):
        raise BadRequestError(
            "gpu_memory: this machine has no NVIDIA device to ask. Give --gpu-memory 24GB.", param="gpu_memory"
        )
    return min(device.memory_bytes for device in devices)


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
    """The sentences below the table."""
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
        "parts": [asdict(part) for part in found.parts],
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
    typer.run(main)
