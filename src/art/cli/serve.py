"""``art serve``."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on. Others than this machine's own need a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    path: Annotated[Path, typer.Option(help="Directory of database, checkpoints and logs.")] = Path(".art"),
    api_key: Annotated[
        str, typer.Option(envvar="ART_API_KEY", show_default=False, help="Key of the service; a random one by default.")
    ] = "",
    engine: Annotated[
        Literal["auto", "torch", "vllm"],
        typer.Option(help="Inference engine; auto is vLLM where it and a CUDA device are found, else torch."),
    ] = "auto",
    vllm_python: Annotated[
        str | None,
        typer.Option(envvar="ART_VLLM_PYTHON", metavar="PATH", help="Python of the environment that has vLLM."),
    ] = None,
    engine_argument: Annotated[
        list[str] | None,
        typer.Option(metavar="ARGUMENT", help="An argument for vLLM, such as --max-loras=4; may be repeated."),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Engines of each base model; one per engine device by default.")
    ] = None,
    engine_devices: Annotated[
        str | None, typer.Option(metavar="0,1", help="CUDA devices of the engines, divided among the replicas.")
    ] = None,
    trainer_devices: Annotated[
        str | None, typer.Option(metavar="2", help="CUDA devices that the trainer sees.")
    ] = None,
    placement: Annotated[
        Literal["auto", "colocated", "dedicated"],
        typer.Option(
            help="Engine and trainer: colocated (in turns), dedicated (at the same time); auto: dedicated on devices of their own."
        ),
    ] = "auto",
    user_code: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Directory whose Python modules may define advantages and losses, run for who has the key.",
        ),
    ] = None,
) -> None:
    """Serve models and train them, for programs on this machine or others.

    Point art.RemoteBackend(url, api_key) or any OpenAI client at it. Stop it with Ctrl-C.
    """
    from importlib.util import find_spec

    if any(find_spec(module) is None for module in ("art_backend", "torch", "fastapi")):
        typer.echo("Error: The backend is not installed. Install it: pip install 'art-trainer[backend]'", err=True)
        raise typer.Exit(1)
    arguments = ["--host", host, "--port", str(port), "--path", str(path), "--engine", engine]
    arguments += ["--user-code", str(user_code)] if user_code is not None else []
    given = {
        "--vllm-python": vllm_python,
        "--replicas": replicas,
        "--engine-devices": engine_devices,
        "--trainer-devices": trainer_devices,
        "--placement": placement,
    }
    arguments += [word for option, value in given.items() if value is not None for word in (option, str(value))]
    arguments += [f"--engine-argument={argument}" for argument in engine_argument or ()]
    # The key travels in the environment: arguments can be read by everyone on the machine.
    environment = {**os.environ, "ART_API_KEY": api_key} if api_key else dict(os.environ)
    command = [sys.executable, "-m", "art_backend", "serve", *arguments]
    # The service takes this process's place, so that signals and exit codes are its own.
    os.execve(sys.executable, command, environment)
