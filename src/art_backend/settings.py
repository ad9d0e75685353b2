"""Settings of one service. Few, and each with the default that we would use."""

import ipaddress
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from art_backend.devices import Placement
from art_backend.errors import BadRequestError
from art_backend.gateway.limits import MAX_CALLS, MAX_QUEUE

EngineKind = Literal["auto", "torch", "vllm"]


@dataclass(frozen=True)
class Settings:
    """What ``python -m art_backend serve`` was asked for.

    Raises:
        BadRequestError: The combination is not safe or not possible.
    """

    path: Path
    """Directory of everything the service stores: database, checkpoints, logs."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free port."""
    listener: int | None = None
    """File descriptor of a bound socket to listen on, instead of ``host`` and ``port``."""
    api_key: str = ""
    """The service's key. Empty makes a random one, which only a loopback service may do."""
    engine: EngineKind = "auto"
    """``torch`` is the embedded engine; ``auto`` is vLLM where it and a CUDA device are found, else the embedded one."""
    vllm_python: str | None = None
    """Interpreter of the environment that has vLLM; ``None`` looks in the service's own."""
    engine_arguments: tuple[str, ...] = ()
    """More command-line arguments for vLLM; they go before those that are derived from the model."""
    hold_timeout_s: float = 900.0
    """How long a model call waits for a policy update before it is told to come back later."""
    engine_start_timeout_s: float = 1800.0
    """How long an engine's start-up may go without a new word in its log; its death is noticed at once in any case."""
    max_sequence_length: int = 4096
    """Upper limit for models that do not ask for less."""
    max_concurrent_sequences: int = 64
    """Completions that the engine samples at the same time; more wait their turn."""
    max_project_calls: int = MAX_CALLS
    """Model calls of one project that are answered at the same time; more wait their turn."""
    max_project_queue: int = MAX_QUEUE
    """Model calls of one project that may wait; further ones are told to come back later."""
    threads: int | None = None
    """CPU threads of the engines together, and of the trainer; ``None``: one per core."""
    keep_versions: int = 2
    """Policy versions that stay loaded in the engine beside those in use."""
    capture_retention_days: float = 30.0
    """Captured rollouts that nobody has used for longer are deleted, and their space given back."""
    cache: Path | None = None
    """Where prepared base models are kept; ``None`` takes the default cache."""
    user_code: Path | None = None
    """Directory whose Python modules may define advantages and losses, for the trainer to run; ``None``: none are run."""
    placement: Placement = field(default_factory=Placement)
    """Which devices engines and trainer have, and how many engines there are."""
    ready_file: Path | None = None
    """Written once the service listens: JSON with ``url``, ``api_key`` and ``pid``."""
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
        raise BadRequestError(f"{path} does not lie inside {root}.")
    return path


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
