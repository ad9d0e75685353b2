"""The engine as a child process: started on its own socket with its own key, watched, ended by id.

The socket is in a directory that only this user can enter, so no other user can ever listen there or connect.

How an engine is started is a ``Launcher``'s business: the embedded engine's is here, others' stand beside it.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from art_backend.devices import visible
from art_backend.engines.client import EngineClient, EngineError, EngineUnreachableError
from art_backend.engines.contract import Member
from art_backend.engines.key_check.art_key_check import KEY_VARIABLE
from art_backend.models.compute import Dtype
from art_backend.process import BRIEF_WAITING, EQUAL_ROWS, ChildProcess, DeadlineExceededError, ProcessDiedError

T = TypeVar("T")

LONGEST_SOCKET_PATH = 100
"""Bytes. Systems take 103 to 107."""

_POLL_S = 0.1
_DEATH_GRACE_S = 1.0
_HEALTH_DEADLINE_S = 10.0

CPU_ENVIRONMENT = {
    **BRIEF_WAITING,
    **EQUAL_ROWS,
    # freed buffers stay with the process: asking the system for fresh pages costs more than the arithmetic on them
    "MALLOC_MMAP_THRESHOLD_": str(256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20),
}
"""Defaults for processes that compute on a CPU; what the user has set wins."""


@dataclass(frozen=True)
class EngineSettings:
    """What to serve, and how much of it."""

    model_path: Path
    served_name: str
    """Name of the base model in requests."""
    log_path: Path
    max_model_len: int | None = None
    """Longest prompt plus completion, in tokens; ``None`` takes the model's own limit."""
    max_num_seqs: int = 64
    """Most sequences computed at the same time; more wait."""
    max_loras: int = 8
    """Most adapter versions loaded at the same time; 0: none, for a model whose own weights are replaced."""
    max_lora_rank: int = 64
    dtype: Dtype = "auto"
    threads: int | None = None
    """CPU threads; ``None`` takes one per core."""
    kv_cache_mib: int = 1024
    """Size of the KV cache. On a CPU it is an upper limit: memory is used as it fills."""
    devices: tuple[int, ...] = ()
    """CUDA devices that it sees, as this process counts them; empty: all."""
    sleeps: bool = True
    """Whether it is to give its memory away while the trainer works."""
    start_timeout_s: float = 1800.0
    """How long the start-up may go without a new word in the log; the engine's death ends the wait at once."""


@dataclass(frozen=True)
class Launch:
    """How to start one engine."""

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)
    """Variables that what the user has set goes before."""
    client: Callable[[str, str], EngineClient] = EngineClient
    """Makes its client, of address and key."""
    death_signal: signal.Signals = signal.SIGKILL
    """What it gets when the service dies."""


Launcher = Callable[[EngineSettings, Path, str], Launch]
"""Takes settings, the Unix socket to listen on, and the key."""


def torch_engine(settings: EngineSettings, socket: Path, api_key: str) -> Launch:
    """Launch the embedded engine."""
    argv = [sys.executable, "-m", "art_backend.engines.torch_engine"]
    argv += ["--model", str(settings.model_path), "--served-model-name", settings.served_name, "--uds", str(socket)]
    argv += ["--max-num-seqs", str(settings.max_num_seqs), "--dtype", settings.dtype]
    argv += ["--max-loras", str(settings.max_loras), "--max-lora-rank", str(settings.max_lora_rank)]
    argv += ["--kv-cache-mib", str(settings.kv_cache_mib)]
    if settings.max_model_len is not None:
        argv += ["--max-model-len", str(settings.max_model_len)]
    if settings.threads is not None:
        argv += ["--threads", str(settings.threads)]
    return Launch(name="engine", argv=argv, env={KEY_VARIABLE: api_key}, defaults=CPU_ENVIRONMENT)


class EngineProcess:
    """A running engine and its client. Use ``await EngineProcess.start(settings)``."""

    def __init__(self, settings: EngineSettings, child: ChildProcess, client: EngineClient, place: Path) -> None:
        self.settings = settings
        self.client = client
        self._child = child
        self._place = place
        """Directory of its socket."""
        self._started = False
        self._watching = asyncio.create_task(child.watch(self._shows_life))

    @classmethod
    async def start(cls, settings: EngineSettings, launcher: Launcher = torch_engine) -> "EngineProcess":
        """Start an engine; return once it answers with our key.

        Raises:
            ProcessDiedError: It ended before it was ready; the message holds the tail of its log.
            DeadlineExceededError: It lives, but made no progress for ``settings.start_timeout_s``.
        """
        place, api_key = _private_directory(), secrets.token_urlsafe(24)
        launch = launcher(settings, place / "socket", api_key)
        child = await ChildProcess.start(
            launch.argv,
            name=launch.name,
            log_path=settings.log_path,
            env={**launch.env, **visible(settings.devices)},
            defaults=launch.defaults,
            death_signal=launch.death_signal,
        )
        client = launch.client(f"unix:{place / 'socket'}", api_key)
        engine = cls(settings, child, client, place)
        try:
            await child.guard(_ready(client, child, settings.start_timeout_s), deadline_s=None, doing="its start-up")
            engine._started = True
        finally:
            if not engine._started:
                await engine.stop()
        return engine

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    def members(self) -> list[Member]:
        """Itself."""
        detail = None if self.alive else self.describe_death()
        return [Member(label="", pid=self.pid, state="ready" if self.alive else "failed", detail=detail)]

    def describe_death(self) -> str:
        """How it ended, with the tail of its log."""
        return self._child.describe_death()

    async def wait(self) -> int:
        """Wait until it ends; return its exit code."""
        return await self._child.wait()

    async def guard(self, awaitable: Awaitable[T], *, deadline_s: float | None, doing: str) -> T:
        """Await a call to ``client``.

        Raises:
            ProcessDiedError: The engine ended, before or during the call.
            DeadlineExceededError: It lives but did not answer within ``deadline_s``.
        """
        try:
            return await self._child.guard(awaitable, deadline_s=deadline_s, doing=doing)
        except EngineUnreachableError as error:
            await self.settle()
            if not self.alive:
                raise ProcessDiedError(self.describe_death()) from error
            raise

    async def settle(self) -> None:
        """Find out what became of an engine that did not answer; one that can no longer answer is ended.

        Its connections close a moment before its death is noticed; and a server may outlive its compute process.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._child.wait(), _DEATH_GRACE_S)
        if not self.alive:
            return
        try:
            await asyncio.wait_for(self.client.health(), _HEALTH_DEADLINE_S)
        except (EngineError, EngineUnreachableError, TimeoutError):
            await self._child.stop(grace_s=_DEATH_GRACE_S)

    async def stop(self) -> None:
        """End the engine and everything it started."""
        self._watching.cancel()
        await self._child.stop()
        await self.client.close()
        shutil.rmtree(self._place, ignore_errors=True)

    async def _shows_life(self) -> bool:
        """Whether it says that it can compute. While it starts it need not: a cold disk may hold it up for long."""
        if not self._started:
            return True
        try:
            await self.client.health()
        except (EngineError, EngineUnreachableError):
            return False
        return True


async def _ready(client: EngineClient, child: ChildProcess, patience_s: float) -> None:
    """Return when the engine accepts our key.

    Raises:
        DeadlineExceededError: Its log has not grown for ``patience_s``.
    """
    size, since = -1, time.monotonic()
    while True:
        try:
            await client.health()
            return
        except (EngineUnreachableError, EngineError):
            await asyncio.sleep(_POLL_S)
        now, before = child.log_path.stat().st_size, size
        if now != before:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > patience_s:
            raise DeadlineExceededError(
                f"The {child.name} (process {child.pid}) is not ready and has written nothing to its log for "
                f"{patience_s:g} s. End of its log, {child.log_path}:\n{child.log_tail()}"
            )


def _private_directory() -> Path:
    """Make a directory that only this user can enter, with a path short enough for a socket in it."""
    place = Path(tempfile.mkdtemp(prefix="art-engine-"))
    if len(os.fsencode(place / "socket")) <= LONGEST_SOCKET_PATH:
        return place
    place.rmdir()
    return Path(tempfile.mkdtemp(prefix="art-engine-", dir="/tmp"))
