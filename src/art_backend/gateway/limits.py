"""How many model calls of one project are answered at the same time; more wait in a bounded queue, first come, first served.

One project's burst then neither starves the others in the engine's queue nor grows without end.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from art_backend.errors import BusyError

MAX_CALLS = 256
MAX_QUEUE = 8192


@dataclass(slots=True)
class _Project:
    running: int = 0
    waiting: "deque[asyncio.Future[None]]" = field(default_factory=deque)


class ProjectLimits:
    """Counts the calls of each project.

    Args:
        calls: Most calls of one project that are answered at the same time.
        queue: Most calls of one project that wait beside them; further ones are told to come back.
        timeout_s: How long one call waits before it is told to come back.
    """

    def __init__(self, calls: int = MAX_CALLS, queue: int = MAX_QUEUE, timeout_s: float = 900.0) -> None:
        self._calls = calls
        self._queue = queue
        self._timeout_s = timeout_s
        self._projects: dict[str, _Project] = {}

    def waiting(self, project: str) -> int:
        """Calls that wait."""
        return len(self._projects[project].waiting) if project in self._projects else 0

    @asynccontextmanager
    async def enter(self, project: str) -> AsyncGenerator[None]:
        """Hold one of the project's places; wait for it if need be. A call that is cancelled leaves the queue.

        Raises:
            BusyError: The queue is full, or its front was not reached in time.
        """
        state = self._projects.setdefault(project, _Project())
        if state.running < self._calls:
            state.running += 1
        else:
            await self._wait(project, state)
        try:
            yield
        finally:
            self._leave(project, state)

    async def _wait(self, project: str, state: _Project) -> None:
        if len(state.waiting) >= self._queue:
            raise BusyError(
                f"{state.running} model calls of project {project!r} are being answered and {len(state.waiting)} wait, as many as "
                "may. Run fewer rollouts at the same time, or start the service with a larger --max-project-queue.",
                retry_after_s=5,
            )
        turn = asyncio.get_running_loop().create_future()
        state.waiting.append(turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn
        except TimeoutError:
            raise BusyError(
                f"Other model calls of project {project!r} have kept this one waiting for {self._timeout_s:g} s. Try again.",
                retry_after_s=5,
            ) from None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came while it left
                self._leave(project, state)
            raise
        finally:
            if turn in state.waiting:
                state.waiting.remove(turn)

    def _leave(self, project: str, state: _Project) -> None:
        """Give the place to the first who still waits."""
        while state.waiting:
            turn = state.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        state.running -= 1
        if not state.running:
            self._projects.pop(project, None)
