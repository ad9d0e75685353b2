"""What benchmarks share: alternation, medians, the table, the JSON rows, measurements in processes of their own."""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

M = TypeVar("M")

console = Console(stderr=True)


@dataclass(frozen=True)
class Row:
    """One figure, compared with a peer's where there is one."""

    name: str
    ours: float
    peer: float | None
    peer_name: str
    unit: str
    ratio: float | None
    """``ours / peer``."""
    target: str
    ok: bool


def compare(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    *,
    peer_name: str,
    unit: str,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Row:
    """Compare the medians of both sides; the bounds are on their ratio."""
    mine, theirs = statistics.median(ours), statistics.median(peer)
    ratio = mine / theirs
    ok = (at_least is None or ratio >= at_least) and (at_most is None or ratio <= at_most)
    bounds = [f"{sign} {bound:g}×" for sign, bound in (("≥", at_least), ("≤", at_most)) if bound is not None]
    return Row(name, mine, theirs, peer_name, unit, ratio, ", ".join(bounds), ok)


def hold(name: str, value: float, *, unit: str, at_most: float, more_than: tuple[str, float] | None = None) -> Row:
    """Hold a figure against a bound, or its distance from a peer's.

    Args:
        more_than: Name and figure of the peer that ours may exceed by the bound.
    """
    if more_than is None:
        return Row(name, value, None, "", unit, None, f"≤ {at_most:g}", value <= at_most)
    peer_name, peer = more_than
    return Row(name, value, peer, peer_name, unit, value / peer, f"≤ {at_most:g} more", value - peer <= at_most)


def alternate(sides: Mapping[str, Callable[[], M]], rounds: int, describe: Callable[[M], str]) -> dict[str, list[M]]:
    """Measure the sides in turn (A B A B …), so that a change in the machine's load meets all of them."""
    results: dict[str, list[M]] = {side: [] for side in sides}
    for i in range(rounds):
        for side, measure in sides.items():
            results[side].append(measure())
            console.print(f"{side} {i + 1}/{rounds}: {describe(results[side][-1])}")
    return results


def measure_in_child(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run ``python -m module arguments``; return the JSON object in the last line of its output."""
    command = [sys.executable, "-m", module, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-4000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def describe_machine() -> str:
    """Name the processor that figures come from, what it multiplies natively, and the type that every side computes in."""
    from art_backend.models.compute import choose_device, choose_dtype

    device = choose_device()
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    if device.type == "cuda":
        import torch

        return f"{torch.cuda.get_device_name()}, {dtype}"
    info = Path("/proc/cpuinfo")
    fields = dict(re.findall(r"^(model name|flags)\s*: (.*)$", info.read_text(), re.M)) if info.exists() else {}
    flags = fields.get("flags", "").split()
    units = "AMX" if "amx_bf16" in flags else "AVX-512" if "avx512f" in flags else "neither AMX nor AVX-512"
    return f"{fields.get('model name', platform.machine())} ({units}), {os.cpu_count()} cores, {dtype}"


def report(rows: Sequence[Row], json_path: Path | None) -> None:
    """Print the table and the machine that made it; write the rows where asked."""
    machine = describe_machine()
    peers = list(dict.fromkeys(row.peer_name for row in rows if row.peer_name))
    table = Table(box=box.SIMPLE_HEAD, title=f"peer: {peers[0]}" if len(peers) == 1 else None, caption=machine)
    for heading in ("", "ours", "peer", "unit", "ratio", "target", ""):
        table.add_column(heading, justify="right" if heading in {"ours", "peer", "ratio"} else "left")
    for row in rows:
        name = f"{row.name}, beside {row.peer_name}" if row.peer_name and len(peers) > 1 else row.name
        verdict = "" if not row.target else "ok" if row.ok else "missed"
        peer = "" if row.peer is None else _figure(row.peer)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}×"
        table.add_row(name, _figure(row.ours), peer, row.unit, ratio, row.target, verdict)
    Console().print(table)
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) | {"machine": machine} for row in rows], indent=1))


def _figure(value: float) -> str:
    """Four digits of a figure, and all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
