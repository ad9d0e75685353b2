"""The process that computes a reward model's scores, and its client. The frontend itself has no torch."""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TypeVar

from art.backend.machine import require
from art.errors import BackendDiedError, BadRequestError
from art.wire.base import Wire
from art.wire.rewards import RewardFailure

W = TypeVar("W", bound=Wire)

_PACKAGES = ("art_backend", "torch", "transformers", "trl")
_LOG_TAIL_LINES = 20
_LINE_BYTES = 256 * 2**20


class RewardWorker:
    """One ``python -m art_backend.rewards``. It ends with this process, and when it is closed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._log = Path(tempfile.mkdtemp(prefix="art-reward-"), "worker.log")
        self._turn = asyncio.Lock()

    async def ask(self, request: Wire, answer: type[W]) -> W:
        """Send a request and wait for its answer, for as long as the worker lives.

        Raises:
            MissingExtraError: The worker's packages are not installed.
            BadRequestError: The worker could not do it; the message says why.
            BackendDiedError: The worker ended; the message shows the tail of its log.
        """
        async with self._turn:
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(request.model_dump_json().encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            except (ConnectionError, asyncio.CancelledError) as error:
                await self._end()  # or the next call would read this answer
                if isinstance(error, asyncio.CancelledError):
                    raise
                line = b""
            if not line:
                code = await process.wait()
                self._process = None
                raise BackendDiedError(
                    f"The reward model's process ended with code {code}. The end of its log, {self._log}:\n{self._log_tail()}",
                    503,
                )
        if b'"error"' in line[:16]:
            raise BadRequestError(RewardFailure.model_validate_json(line).error, 400)
        return answer.model_validate_json(line)

    async def close(self) -> None:
        """End the process, and remove its log. Asking again starts another one."""
        async with self._turn:
            await self._end()
            shutil.rmtree(self._log.parent, ignore_errors=True)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            require("A reward model", _PACKAGES, "backend,trl")
            self._log.parent.mkdir(exist_ok=True)
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "art_backend.rewards"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env={"GOMP_SPINCOUNT": "10000", **os.environ},
                    limit=_LINE_BYTES,
                )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
