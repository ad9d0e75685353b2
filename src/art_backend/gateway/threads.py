"""Work beside the event loop: of each caller one piece at a time, so that no caller's second goes before another's first."""

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class FairThreads:
    """A few threads for which callers queue.

    Args:
        threads: How many pieces of work run at the same time.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._callers: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def run(self, caller: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` when the caller's earlier work is done and a thread is free; return its result."""
        lock = self._callers.setdefault(caller, asyncio.Lock())
        async with lock:
            return await asyncio.wrap_future(self._threads.submit(work, *args, **kwargs))
