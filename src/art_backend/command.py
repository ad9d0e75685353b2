"""``serve`` starts the service, ``export`` writes a model as a folder: ``python -m art_backend`` and ``art`` have both."""

import asyncio
import gc
import inspect
import json
import logging
import os
import socket
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer
import uvicorn
import uvloop
from filelock import FileLock, Timeout

from art_backend.app import build_app
from art_backend.devices import Placement, PlacementKind, parse_device_list
from art_backend.engines.process import Launcher
from art_backend.errors import ConflictError, ServiceError
from art_backend.models.compute import Dtype
from art_backend.service import Service
from art_backend.settings import Settings
from art_backend.store.database import explain_damage
from art_backend.store.private import private_directory, private_file
from art_backend.web.connections import Connections, count_allowed_connections, guarded, watch

KEEP_ALIVE_S = 120
"""Clients drop idle connections after 4 to 15 s. The service keeps them longer, or a call may meet a closing one."""

CLAIM_WAIT_S = 15.0
"""A service that is ending takes seconds to end its children."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

_log = logging.getLogger(__name__)

cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cli.callback()
def main() -> None:
    """The ART backend: inference and training behind one HTTP port."""


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``Settings``, which it gets as ``**given``."""
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if one.default is MISSING else one.default,
            annotation=one.type,
        )
        for one in fields(Settings)
        if get_origin(one.type) is Annotated
    ]
    vars(command)["__signature__"] = inspect.Signature([*options, *own])
    return command


@cli.command()
@_with_settings
def serve(
    *,
    placement: Annotated[
        PlacementKind,
        typer.Option(
            help="Engine and trainer: colocated (in turns), dedicated (at the same time), or auto: dedicated if they have separate devices."
        ),
    ] = "auto",
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Engines of each base model; one per engine device by default.")
    ] = None,
    engine_devices: Annotated[
        str, typer.Option(metavar="0,1", help="CUDA devices of the engines, divided among the replicas.")
    ] = "",
    trainer_devices: Annotated[str, typer.Option(metavar="2", help="CUDA devices that the trainer sees.")] = "",
    watch_stdin: Annotated[
        bool, typer.Option("--watch-stdin", hidden=True, help="Stop when standard input closes.")
    ] = False,
    **given: Any,
) -> None:
    """Serve models and train them, for programs on this machine or others.

    Point art.RemoteBackend(url, api_key) or any OpenAI client at it. Stop it with Ctrl-C.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        devices = Placement(
            placement,
            engine_devices=parse_device_list(engine_devices) if engine_devices else (),
            trainer_devices=parse_device_list(trainer_devices) if trainer_devices else (),
            replicas=replicas,
        )
        uvloop.run(serve_until_stopped(Settings(**given, placement=devices), watch_stdin=watch_stdin))
    except KeyboardInterrupt:  # before the server listens; later, it ends in its own way
        sys.exit(INTERRUPTED)
    except ServiceError as error:
        sys.exit(f"Error: {error.message}")
    except sqlite3.DatabaseError as error:
        sys.exit(f"Error: {explain_damage(error, given['path']).message}")
    except OSError as error:
        sys.exit(f"Error: {error.strerror}: {error.filename or '{host}:{port}'.format_map(given)}")


@cli.command()
def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="NAME or PROJECT/NAME; add @STEP for one version.")],
    target: Annotated[Path, typer.Argument(help="Folder to create.")],
    path: Annotated[Path, typer.Option(help="Directory of the service that trained the model.")] = Path(".art"),
    step: Annotated[int | None, typer.Option(min=0, help="Version to export. Default: the latest.")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Merge the adapter into its base model's weights.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Data type of merged weights; auto: the base model's.")] = "auto",
    cache: Annotated[Path | None, typer.Option(envvar="ART_CACHE", help="Where prepared base models are kept.")] = None,
) -> None:
    """Write a trained model as a Hugging Face folder, tokenizer included.

    Without --merged it is an adapter for PEFT; with it, a model that transformers or vLLM load alone.

    Run this on the machine that trained: the weights of a remote backend lie there, in its --path.
    """
    from art_backend.models.export import export_model  # loads peft, which the service does without

    name, _, version = model.partition("@")
    if version and (step is not None or not version.isdecimal()):
        raise typer.BadParameter(f"write NAME@STEP without --step, not {model!r}.", param_hint="MODEL")
    step = int(version) if version else step
    try:
        done = export_model(
            Settings(path=path.resolve(), cache=cache), name, target.absolute(), step=step, merged=merged, dtype=dtype
        )
    except ServiceError as error:
        sys.exit(f"Error: {error.message}")
    except sqlite3.DatabaseError as error:
        sys.exit(f"Error: {explain_damage(error, path.resolve()).message}")
    print(f"Version {done.step} of {done.project}/{done.name}, {done.kind}:\n  {done.directory}")
    print(f"Load it:\n  {done.load}")
    print(f"Serve it:\n  {done.serve}")
    print("README.md in that folder has more commands, including llama.cpp and Ollama.", flush=True)


def claim_directory(path: Path, wait_s: float = CLAIM_WAIT_S) -> FileLock:
    """Make this process the only service of a directory; the system lets go of it when the process ends.

    Args:
        wait_s: How long a service that is just ending may take.

    Raises:
        ConflictError: Another service uses the directory.
    """
    private_directory(path)
    lock = FileLock(path / "service.lock")
    holder = path / "service.pid"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        pid = holder.read_text() if holder.exists() else "unknown"
        _log.warning("The ART service of process %s uses %s; waiting up to %g s for its end", pid, path, wait_s)
        try:
            lock.acquire(timeout=wait_s)
        except Timeout:
            raise ConflictError(
                f"Another ART service (process {pid}) uses {path}. Stop it, connect to it with RemoteBackend, or choose "
                "another directory."
            ) from None
    holder.write_text(str(os.getpid()))
    return lock


async def serve_until_stopped(settings: Settings, *, watch_stdin: bool, launcher: Launcher | None = None) -> None:
    """Claim the directory, listen, and serve until stopped."""
    lock = claim_directory(settings.path)
    try:
        await _run(settings, launcher, watch_stdin=watch_stdin)
    finally:
        lock.release()


async def _run(settings: Settings, launcher: Launcher | None, *, watch_stdin: bool) -> None:
    listener = _listen(settings.host, settings.port, settings.listener)
    service = Service(settings, launcher)
    await service.restore()
    url = f"http://{_bracket(settings.host)}:{listener.getsockname()[1]}"
    app = build_app(service, on_start=lambda: _announce(settings, url))
    connections = Connections(count_allowed_connections())
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        http=guarded(connections),
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    if watch_stdin:
        await _stop_at_end_of_stdin(server)
    watching = asyncio.create_task(watch(connections))
    try:
        await server.serve(sockets=[listener])
    finally:
        watching.cancel()


async def _stop_at_end_of_stdin(server: uvicorn.Server) -> None:
    """Stop the server when standard input closes: the parent that held the other end has gone."""

    class Watch(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            server.should_exit = True

    await asyncio.get_running_loop().connect_read_pipe(Watch, sys.stdin)


def _listen(host: str, port: int, bound: int | None = None) -> socket.socket:
    """Listen before anything else starts, so that a port in use is an error at once.

    Args:
        bound: File descriptor of a socket that is bound already.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, fileno=bound)
    listener.set_inheritable(False)  # uvloop closes nothing in children: engines and trainers would have the port too
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if bound is None:
            listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        sys.exit(
            f"Error: cannot listen on {host}:{port}: {error.strerror}. Choose another --port, or 0 for a free one."
        )
    return listener


def _announce(settings: Settings, url: str) -> None:
    # Cycles are rare here, and what was imported stays: looking for garbage as often as by default takes a third of a call.
    gc.set_threshold(50_000)
    gc.freeze()
    if settings.ready_file is not None:
        content = json.dumps({"url": url, "api_key": settings.api_key, "pid": os.getpid()})
        partial = settings.ready_file.with_suffix(".partial")
        private_file(partial)
        partial.write_text(content)
        partial.replace(settings.ready_file)
        return
    print(f"ART is listening on {url}")
    print(f"  API key: {settings.api_key}" if settings.generated_key else "  API key: as given")
    print(f"  data:    {settings.path}")
    print("Stop with Ctrl-C.", flush=True)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
