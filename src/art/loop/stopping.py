"""Ctrl-C as a request instead of an interruption."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Generator

from art.terminal import say


@contextlib.contextmanager
def stop_on_signals(request_stop: Callable[[], None]) -> Generator[None]:
    """Let the first SIGINT or SIGTERM call ``request_stop``; the next one acts as usual.

    Signals reach the main thread only; in an event loop of another thread nothing is installed.
    """
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        say("stopping; a training step in progress is finished first. Once more to stop at once")
        request_stop()
        for number in numbers:
            loop.remove_signal_handler(number)

    try:
        for number in numbers:
            loop.add_signal_handler(number, stop)
    except (ValueError, RuntimeError, NotImplementedError):  # not the main thread, or a platform without this
        yield
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
