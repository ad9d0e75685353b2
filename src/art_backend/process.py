"""Child processes: started, watched, and ended by id, with all that they started.

Every wait for a child goes through ``ChildProcess.guard``: it has a deadline, and the child's death ends it at once
with the tail of the child's log.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

import psutil

from art_backend.store.private import private_file

T = TypeVar("T")

LOG_TAIL_LINES = 30

PULSE_S = 2.0
"""Seconds between two looks at a child that should show life."""
SILENT_PULSES = 5
"""Checks without activity after which it is ended."""
LEAST_WORK_S = 0.02
"""CPU seconds within ``PULSE_S`` that count as activity."""

_TIE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[2]))  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):  # the parent died before the request was in place
    sys.exit(1)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def _read_cpuinfo() -> str:
    """Linux's description of the CPU; empty elsewhere."""
    with contextlib.suppress(OSError):
        return Path("/proc/cpuinfo").read_text()
    return ""


BRIEF_WAITING = {"GOMP_SPINCOUNT": "1000"}
"""For children that compute: waiting threads spin for about a hundredth of a millisecond, then sleep. By default they spin for so
long that any other busy process on the machine (an agent's environment, say) slows matrix products by an order of
magnitude. On two cores beside one busy process, training takes 1.6 times as long as alone; with ten times the spinning, 2.5 times,
and alone nothing is gained in training, and a seventh in passes over 16 tokens."""

EQUAL_ROWS = {"MKL_CBWR": "AUTO,STRICT"} if "GenuineIntel" in _read_cpuinfo() else {}
"""For children that compute: in float32, no row of a product depends on how many rows there are, or on the number of threads.
It is as fast as MKL's default from 8 rows on; on fewer it is faster with AVX2, and half as fast with AVX-512. Intel offers this mode
for its own CPUs alone."""


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


def _tied_to_this_process(argv: Sequence[str], death_signal: signal.Signals) -> list[str]:
    """Return a command that asks the kernel for ``death_signal`` when this process dies, where the kernel can, and becomes ``argv``.

    Asking after the fork would run Python in a copy of a process with threads, which may deadlock.
    """
    if sys.platform != "linux":
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), str(int(death_signal)), *argv]


class Pulse:
    """Detects a process that hangs: unlike a busy one, it is silent and computes nothing, or is stopped.

    Args:
        pid: The process; what it started counts too.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu_s = 0.0
        self._silent = 0

    def hangs(self, *, heard: bool) -> bool:
        """Take note of another ``PULSE_S`` seconds; return whether it was without life for ``SILENT_PULSES`` of them.

        Args:
            heard: Whether it said something meanwhile.
        """
        try:
            cpu_s, stopped = self._look()
        except (psutil.Error, OSError):  # it has just ended, or this process has no descriptors left: nothing is known
            return False
        worked = cpu_s - self._cpu_s >= LEAST_WORK_S
        self._cpu_s = cpu_s
        self._silent = 0 if (heard or worked) and not stopped else self._silent + 1
        return self._silent >= SILENT_PULSES

    def _look(self) -> tuple[float, bool]:
        """Return the family's processor seconds, and whether one of it is stopped."""
        cpu_s, stopped = 0.0, False
        process = psutil.Process(self._pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                cpu_s += times.user + times.system
                stopped = stopped or one.status() == psutil.STATUS_STOPPED
        return cpu_s, stopped


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
        self._hung = False

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
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> "ChildProcess":
        """Start ``argv``; its standard error (and output, without ``pipes``) is appended to ``log_path``.

        Args:
            env: Variables added to this process's environment.
            defaults: Variables added where this process's environment does not have them: what the user set wins.
            death_signal: Sent to the child when this process dies. A stopped child hears only ``SIGKILL``; a child that must end
                children of its own needs ``SIGTERM``.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        private_file(log_path)
        log: IO[bytes]
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *_tied_to_this_process(argv, death_signal),
                stdin=asyncio.subprocess.PIPE if pipes else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if pipes else log,
                stderr=log,
                env={**(defaults or {}), **os.environ, **(env or {})},
                start_new_session=True,
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
            f"answered nothing and computed nothing for {PULSE_S * SILENT_PULSES:g} s, so it was ended"
            if self._hung
            else f"was ended by signal {signal.Signals(-code).name}"
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

    async def watch(self, listen: Callable[[], Awaitable[bool]]) -> None:
        """End the child by force once it hangs; return when it has ended.

        Args:
            listen: Returns whether the child shows life, as soon as it is known.
        """
        pulse, loop = Pulse(self.pid), asyncio.get_running_loop()
        while self.alive:
            end = loop.time() + PULSE_S
            try:
                async with asyncio.timeout_at(end):
                    heard = await listen()
            except TimeoutError:
                heard = False
            await asyncio.wait({self._died}, timeout=max(0.0, end - loop.time()))
            if await asyncio.to_thread(pulse.hangs, heard=heard) and self.alive:
                self._hung = True
                self._signal_group(signal.SIGKILL)
                await asyncio.wait({self._died})

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
