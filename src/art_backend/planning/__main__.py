"""``python -m art_backend.planning``: what ``art doctor --model`` prints."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from art.wire import Optimizer
from art_backend.errors import BadRequestError, ServiceError
from art_backend.planning.architecture import read_architecture
from art_backend.planning.memory import GIB, Wanted, plan
from art_backend.planning.table import build_lines, build_table, to_json
from art_backend.serving.devices import find_devices

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:G|GB|GiB)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """``24GB`` in bytes. Devices are sold in GB of 2^30.

    Raises:
        BadRequestError: It is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise BadRequestError(f"gpu_memory: {text!r} is no size; write one such as 24GB.", param="gpu_memory")
    return int(float(match[1]) * GIB)


def main(
    model: Annotated[str, typer.Option(help="A local directory, or a hub id.")],
    gpu_memory: Annotated[str | None, typer.Option(help="Memory of one device, such as 24GB.")] = None,
    context: Annotated[int, typer.Option(min=16, help="Longest prompt plus completion, in tokens.")] = 4096,
    lora_rank: Annotated[int, typer.Option(min=1, max=512, help="Rank of the adapter.")] = 16,
    batch_tokens: Annotated[int | None, typer.Option(min=16, help="Packed tokens per pass.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Train all weights.")] = False,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Compute activations again.")
    ] = False,
    optimizer: Annotated[Optimizer, typer.Option(help="Optimiser.")] = Optimizer.ADAMW,
    placement: Annotated[Literal["colocated", "dedicated"], typer.Option(help="One device, or two.")] = "colocated",
    cache: Annotated[Path | None, typer.Option(envvar="ART_CACHE", help="Where prepared models are kept.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what training a model takes, and whether it fits. Exits with 1 if it does not."""
    try:
        found = plan(
            Wanted(
                read_architecture(model, cache=cache),
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
        raise BadRequestError("gpu_memory: no NVIDIA device here to ask; say --gpu-memory 24GB.", param="gpu_memory")
    return min(device.memory_bytes for device in devices)


if __name__ == "__main__":
    typer.run(main)
