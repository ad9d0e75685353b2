"""Child processes: started, watched, and ended by id, with all that they started.

Every wait for a child goes through ``ChildProcess.guard``: it has a deadline, and the child's death ends it at once
with the tail of the child's log.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")

LOG_TAIL_LINES = 30
_PR_SET_PDEATHSIG = 1

BRIEF_WAITING = {"GOMP_SPINCOUNT": "10000"}
"""For children that compute: waiting threads spin for about a tenth of a millisecond, then sleep. By default they spin for so
long that any other busy process on the machine (an agent's environment, say) slows matrix products by an order of
magnitude; without any spinning, short products wait for threads to wake up for a third of their time."""


class ProcessDiedError(RuntimeError):
    """The child ended while it was needed. The message holds the tail of its log."""


class DeadlineExceededError(RuntimeError):
    """The child lives but did not answer in time. The message holds the tail of its log."""


def read_tail(log_path: Path, lines: int) -> str:
    """The last lines of a log; empty where there is none."""
    with contextlib.suppress(FileNotFoundError), log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
        return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    return ""


def _die_with_parent() -> Callable[[], None] | None:
    """Return a hook that makes the kernel end the child when its parent dies, where the kernel can (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def hook() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the request was in place
            os._exit(1)

    return hook


class ChildProcess:
    """One child process in its own process group.

    Use ``await ChildProcess.start(...)``. ``process.stdin`` and ``process.stdout`` are pipes when ``pipes`` is set;
    otherwise all output goes to the log.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.name = name
        self.process = process
        self.log_path = log_path
        self._died = asyncio.ensure_future(process.wait())

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        name: str,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
        pipes: bool = False,
    ) -> "ChildProcess":
        """Start ``argv``; its standard error (and output, without ``pipes``) is appended to ``log_path``.

        Args:
            env: Variables added to this process's environment.
            defaults: Variables added where this process's environment does not have them: what the user set wins.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log: IO[bytes]
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE if pipes else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if pipes else log,
                stderr=log,
                env={**(defaults or {}), **os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent(),
                limit=64 * 2**20,
            )
        return cls(name, process, log_path)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def log_tail(self) -> str:
        """The last lines of the child's log."""
        return read_tail(self.log_path, LOG_TAIL_LINES)

    def describe_death(self) -> str:
        code = self.process.returncode
        how = (
            f"was ended by signal {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"exited with code {code}"
        )
        return f"The {self.name} (process {self.pid}) {how}. End of its log, {self.log_path}:\n{self.log_tail()}"

    async def wait(self) -> int:
        """Wait until the child ends; return its exit code."""
        return await asyncio.shield(self._died)

    async def guard(self, awaitable: Awaitable[T], *, deadline_s: float | None, doing: str) -> T:
        """Await something that this child must answer.

        Args:
            deadline_s: Seconds after which waiting ends; ``None`` waits as long as the child lives.
            doing: What is awaited, for the error message.

        Raises:
            ProcessDiedError: The child ended first.
            DeadlineExceededError: The deadline passed.
        """
        task = asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait({task, self._died}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return await task
            if self._died.done():
                raise ProcessDiedError(self.describe_death())
            raise DeadlineExceededError(
                f"The {self.name} (process {self.pid}) did not finish {doing} within {deadline_s:g} s. "
                f"End of its log, {self.log_path}:\n{self.log_tail()}"
            )
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def stop(self, grace_s: float = 5.0) -> None:
        """End the child and everything in its process group: politely, then by force."""
        if self.alive:
            self._signal_group(signal.SIGTERM)
            await asyncio.wait({self._died}, timeout=grace_s)
        self._signal_group(signal.SIGKILL)
        await self._died

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
