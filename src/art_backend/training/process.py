"""The client of the trainer process."""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from art.wire import ErrorCode
from art_backend.devices import visible
from art_backend.errors import (
    BadRequestError,
    ConflictError,
    ModelNotAvailableError,
    NotFoundError,
    ServiceError,
    StorageFailedError,
    TrainerFailedError,
)
from art_backend.process import BRIEF_WAITING, EQUAL_ROWS, ChildProcess, ProcessDiedError
from art_backend.training.types import AnyInput, ModelSetup, StepOutput
from art_backend.training.worker import OUTPUT, SETUP, STEP

START_DEADLINE_S = 300.0
"""For importing torch and transformers from a cold disk."""

STALL_DEADLINE_S = 1_800.0
"""Longest silence within a step: one pack, or loading the model. A step as a whole has no deadline."""

CPU_ENVIRONMENT = {
    # Activations of one pack are freed and asked for again by the next. By default glibc returns such blocks to the kernel
    # and faults every page in again; these keep them until ``Trainer.release``.
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**30),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    # One arena: threads that free what others allocated would otherwise spread the same buffers over many.
    "MALLOC_ARENA_MAX": "1",
    **BRIEF_WAITING,
    **EQUAL_ROWS,
}
"""Read by glibc, OpenMP and MKL when a process starts; others ignore it."""

_ERRORS: dict[ErrorCode, type[ServiceError]] = {
    error.code: error
    for error in (
        BadRequestError,
        ConflictError,
        ModelNotAvailableError,
        NotFoundError,
        StorageFailedError,
        TrainerFailedError,
    )
}


class TrainerProcess:
    """A running trainer of one model. Use ``await TrainerProcess.start(...)``; calls are taken one at a time."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._turn = asyncio.Lock()
        self._heard = asyncio.Event()
        """Set by every event of the process."""

    @classmethod
    async def start(
        cls, setup: ModelSetup, *, log_path: Path, threads: int | None = None, devices: Sequence[int] = ()
    ) -> "TrainerProcess":
        """Start the process. It loads the model with the first step.

        Args:
            log_path: What the process prints is appended to this file.
            threads: Threads to compute with; ``None`` takes all cores.
            devices: CUDA devices that it sees, as this process counts them; empty: all. It computes on the first.

        Raises:
            ProcessDiedError: It ended at once; the message has the end of its log.
            ServiceError: It refused its setup.
        """
        child = await ChildProcess.start(
            [sys.executable, "-m", "art_backend.training.worker"],
            name="trainer",
            log_path=log_path,
            env={"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", **visible(devices)},
            defaults=CPU_ENVIRONMENT,
            pipes=True,
        )
        trainer = cls(child)
        try:
            await trainer._call(
                {"command": "setup", "setup": SETUP.dump_python(setup, mode="json"), "threads": threads},
                expect="ready",
                deadline_s=START_DEADLINE_S,
                doing="starting",
            )
        except BaseException:
            await child.stop()
            raise
        return trainer

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    def describe_death(self) -> str:
        return self._child.describe_death()

    async def train(
        self, step: AnyInput, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> StepOutput:
        """Take one step. After an error that is not the process's death, the next call works.

        Args:
            on_progress: Called with (packed tokens done, packed tokens in all).

        Raises:
            BadRequestError: The input is wrong; the message names the field.
            ConflictError, ModelNotAvailableError, StorageFailedError, TrainerFailedError: See ``Trainer.train``.
            ProcessDiedError: The process ended.
            DeadlineExceededError: It lives, but makes no progress.
        """
        with tempfile.TemporaryDirectory(prefix="art-batch-") as directory:
            batch = Path(directory) / "batch.json"
            try:
                await asyncio.to_thread(lambda: batch.write_bytes(STEP.dump_json(step)))
            except OSError as error:
                raise StorageFailedError(
                    f"The batch could not be handed to the trainer through {batch}: {error}. Free space there, or set TMPDIR."
                ) from error
            answer = await self._call(
                {"command": "train", "batch": str(batch)},
                expect="result",
                deadline_s=STALL_DEADLINE_S,
                doing=f"step {step.step}",
                on_progress=on_progress,
            )
        return OUTPUT.validate_python(answer)

    async def rest(self) -> None:
        """Make the process give its device's memory back; the next step takes it again."""
        await self._call({"command": "rest"}, expect="rested", deadline_s=STALL_DEADLINE_S, doing="leaving the device")

    async def close(self) -> None:
        """End the process. What it had not saved is lost; checkpoints are whole."""
        await self._child.stop(grace_s=0.5)

    async def _call(
        self,
        command: dict[str, Any],
        *,
        expect: str,
        deadline_s: float,
        doing: str,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> dict[str, Any]:
        """Send a command; pass its progress on; return the fields of the event that answers it.

        A caller that is cancelled leaves the answer unread, so the process is ended. So is one that shows no life.
        """
        async with self._turn, self._watched():
            try:
                await self._child.guard(self._send(command), deadline_s=deadline_s, doing=doing)
                while True:
                    event = await self._child.guard(self._receive(), deadline_s=deadline_s, doing=doing)
                    match event.pop("event"):
                        case "progress":
                            on_progress(event["done"], event["total"])
                        case "error":
                            error = _ERRORS.get(ErrorCode(event["code"]), TrainerFailedError)
                            raise error(event["message"], param=event["param"])
                        case name if name == expect:
                            return event
                        case other:
                            raise TrainerFailedError(f"The trainer answered {other!r} where {expect!r} was expected.")
            except ServiceError:
                raise
            except BaseException:
                await self._child.stop(grace_s=0.5)
                raise

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        async def listen() -> bool:
            self._heard.clear()
            return await self._heard.wait()

        watching = asyncio.create_task(self._child.watch(listen))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _send(self, command: dict[str, Any]) -> None:
        pipe = self._child.process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(command).encode() + b"\n")
            await pipe.drain()
        except (BrokenPipeError, ConnectionResetError):
            await self._lost()

    async def _receive(self) -> dict[str, Any]:
        pipe = self._child.process.stdout
        assert pipe is not None
        while True:
            line = await pipe.readline()
            if not line:
                await self._lost()
            self._heard.set()
            event = json.loads(line)
            if event["event"] != "alive":
                return event

    async def _lost(self) -> None:
        """Raise the death behind a closed pipe."""
        await self._child.wait()
        raise ProcessDiedError(self._child.describe_death())
