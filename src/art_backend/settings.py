"""Settings of one service. Those with an option are set by ``python -m art_backend serve``."""

import ipaddress
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer

from art_backend.devices import Placement
from art_backend.errors import BadRequestError
from art_backend.gateway.limits import MAX_CALLS, MAX_QUEUE

EngineKind = Literal["auto", "torch", "vllm"]


@dataclass(frozen=True)
class Settings:
    """How to serve. The command line is made of these fields, so each option is stated here alone.

    Raises:
        BadRequestError: The combination is not safe or not possible.
    """

    path: Annotated[
        Path,
        typer.Option(
            resolve_path=True, help="Directory of everything the service stores: database, checkpoints, logs."
        ),
    ] = Path(".art")
    host: Annotated[str, typer.Option(help="Address to listen on. Any address but loopback needs a key.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000
    listener: Annotated[
        int | None,
        typer.Option(
            hidden=True,
            metavar="FD",
            help="File descriptor of a bound socket to listen on, instead of --host and --port.",
        ),
    ] = None
    api_key: Annotated[
        str,
        typer.Option(
            envvar="ART_API_KEY",
            show_default=False,
            help="The service's API key. Default: a random one, on loopback only.",
        ),
    ] = ""
    engine: Annotated[
        EngineKind,
        typer.Option(
            help="Inference engine: torch (the embedded one), vllm, or auto: vLLM if it and a CUDA device are found, otherwise torch."
        ),
    ] = "auto"
    vllm_python: Annotated[
        str | None,
        typer.Option(envvar="ART_VLLM_PYTHON", help="Python of the environment that has vLLM. Default: this one."),
    ] = None
    engine_arguments: Annotated[
        list[str],
        typer.Option(
            "--engine-argument",
            metavar="ARGUMENT",
            help="Argument for vLLM, such as --max-loras=4; may be repeated.",
        ),
    ] = field(default_factory=list[str])
    max_sequence_length: Annotated[
        int, typer.Option(min=16, help="Maximum prompt plus completion, in tokens; a model may set less.")
    ] = 4096
    max_concurrent_sequences: Annotated[int, typer.Option(min=1, help="Maximum concurrent completions; more wait.")] = (
        64
    )
    max_project_calls: Annotated[
        int, typer.Option(min=1, help="Maximum concurrent model calls per project; more wait.")
    ] = MAX_CALLS
    max_project_queue: Annotated[
        int, typer.Option(min=0, help="Maximum queued model calls per project; more get a 429.")
    ] = MAX_QUEUE
    capture_retention_days: Annotated[
        float, typer.Option(min=0, help="Days to keep captured rollouts after their last call.")
    ] = 30.0
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads for all engines together, and for the trainer. Default: one per core."),
    ] = None
    cache: Annotated[Path | None, typer.Option(envvar="ART_CACHE", help="Directory for prepared base models.")] = None
    user_code: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="Directory whose Python modules may define advantages and losses. Anyone with the service's key can run them.",
        ),
    ] = None
    ready_file: Annotated[
        Path | None,
        typer.Option(
            hidden=True, help="File to write url, api_key and pid to, as JSON, once the service is listening."
        ),
    ] = None
    placement: Placement = field(default_factory=Placement)
    """Which devices engines and trainer have, and how many engines there are."""
    hold_timeout_s: float = 900.0
    """How long a model call waits for a policy update before it is refused."""
    engine_start_timeout_s: float = 1800.0
    """How long an engine's start-up may go without a new word in its log; its death is noticed at once in any case."""
    keep_versions: int = 2
    """Policy versions that stay loaded in the engine beside those in use."""
    generated_key: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.api_key:
            return
        if not is_loopback(self.host):
            raise BadRequestError(
                f"Refusing to listen on {self.host} without a key: anyone on that network could use and train your "
                "models. Set ART_API_KEY or pass --api-key, or listen on 127.0.0.1.",
                param="api_key",
            )
        object.__setattr__(self, "api_key", f"art-{secrets.token_urlsafe(24)}")
        object.__setattr__(self, "generated_key", True)

    @property
    def database_path(self) -> Path:
        return self.path / "art.db"

    @property
    def log_dir(self) -> Path:
        return self.path / "logs"

    def model_dir(self, project: str, name: str) -> Path:
        """Directory of one model, laid out as the frontend's own: ``{path}/{project}/models/{name}``.

        Raises:
            BadRequestError: It would not lie inside the service's directory, or among the service's own files.
        """
        if project.lower() in OWN_FILES:
            raise BadRequestError(
                f"project: the service's directory has a file named {project!r}. Choose another name.", param="project"
            )
        return contained(self.path / project / "models" / name, self.path)

    def checkpoints_dir(self, project: str, name: str) -> Path:
        return self.model_dir(project, name) / "checkpoints"


OWN_FILES = frozenset({"art.db", "art.db-wal", "art.db-shm", "secret", "secret.partial", "service.lock", "service.pid"})
"""Files in the service's directory, beside the projects."""


def contained(path: Path, root: Path) -> Path:
    """Return ``path``, which must lie below ``root``. Symbolic links count as what they are named.

    Raises:
        BadRequestError: It does not.
    """
    if root.absolute() not in Path(os.path.abspath(path)).parents:  # noqa: PTH100  resolves '..', keeps links
        raise BadRequestError(f"{path} is outside {root}.")
    return path


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
