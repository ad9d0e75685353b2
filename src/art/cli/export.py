"""``art export``."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    """Types of merged weights."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


def export(
    model: Annotated[str, typer.Argument(help="The model's name, with or without its project.")],
    target: Annotated[Path, typer.Argument(help="New folder to write.")],
    step: Annotated[int | None, typer.Option(min=0, help="Version; the latest by default.")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Add the adapter to its base model's weights.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Type of merged weights; auto: the base model's.")] = Dtype.AUTO,
    path: Annotated[Path, typer.Option(help="Directory of the service that trained it.")] = Path(".art"),
) -> None:
    """Write a trained model as a Hugging Face folder, tokenizer included.

    Without --merged it is an adapter for PEFT; with it, a model that transformers or vLLM load alone. Run this on the
    machine that trained: the weights of a remote backend lie there, in its --path.
    """
    from importlib.util import find_spec

    if any(find_spec(module) is None for module in ("art_backend", "torch")):
        typer.echo("Error: The backend is not installed. Install it: pip install 'art-trainer[backend]'", err=True)
        raise typer.Exit(1)
    arguments = [model, str(target), "--path", str(path), "--dtype", dtype.value]
    arguments += ["--merged"] if merged else []
    arguments += ["--step", str(step)] if step is not None else []
    command = [sys.executable, "-m", "art_backend", "export", *arguments]
    os.execve(sys.executable, command, dict(os.environ))
