"""Reports what a service does until its models can answer: preparing a base model or starting an engine can take minutes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from art.errors import BackendError
from art.terminal import say
from art.wire import Health

_ASK_S = 0.5
_SAY_AGAIN_S = 15.0
"""Seconds without a change after which the last line is repeated."""


class StartReport:
    """Say on standard error what the service is doing, until everything has started.

    Args:
        ask: Asks the service for its health.
    """

    def __init__(self, ask: Callable[[], Awaitable[Health]]) -> None:
        self._ask = ask
        self._since: dict[str, float] = {}
        """When each thing that is starting began to."""
        self._said: dict[str, tuple[str, float]] = {}
        """The last line about each thing, and when it was printed."""

    async def until(self, registering: "asyncio.Future[Any]") -> None:
        """Report while a model is being registered and an engine starts. Stop silently if the service is gone."""
        while True:
            try:
                health = await self._ask()
            except BackendError:  # the caller that needs the service gets the error
                return
            doing = {f"base model {name}": line for name, line in health.preparing.items()}
            # The lines of an engine's log are for those who look for a fault.
            doing |= {process.name: "starting" for process in health.processes if process.state == "starting"}
            now = time.monotonic()
            for name, what in doing.items():
                self._report(name, what, now)
            for name in set(self._since) - set(doing):
                say(f"{name}: ready after {now - self._since.pop(name):.0f} s")
            if registering.done() and not doing:
                return
            await asyncio.sleep(_ASK_S)

    def _report(self, name: str, what: str, now: float) -> None:
        begun = self._since.setdefault(name, now)
        said, at = self._said.get(name, ("", now))
        if what != said or now - at > _SAY_AGAIN_S:
            self._said[name] = (what, now)
            say(f"{name}: {what}" + (f" ({now - begun:.0f} s)" if what == said else ""))
