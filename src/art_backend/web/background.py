"""Work beside the requests: what fails is logged, and what repeats goes on."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)


class Background:
    """Tasks that run until ``close``."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Awaitable[None]], *, what: str) -> None:
        """Run ``work`` once.

        Args:
            what: Names it in the log.
        """
        task = asyncio.create_task(_logged(work, f"{what} failed"), name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def repeat(self, work: Callable[[], Awaitable[None]], *, every_s: float, what: str) -> None:
        """Run ``work`` now and every ``every_s`` seconds, whatever it raises: a full disk, say, is not full for ever."""

        async def go_on() -> None:
            while True:
                await _logged(work, f"{what} failed; trying again in {every_s:g} s")
                await asyncio.sleep(every_s)

        self.start(go_on, what=what)

    async def close(self) -> None:
        """Cancel what runs."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _logged(work: Callable[[], Awaitable[None]], message: str) -> None:
    try:
        await work()
    except Exception:  # noqa: BLE001 — nobody awaits the task, so the log is where its failure shows
        _log.exception("%s", message)
