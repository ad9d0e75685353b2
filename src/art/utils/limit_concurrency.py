"""Bounding how many calls run at the same time."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
R = TypeVar("R")


class _Gate:
    """A semaphore that knows how many use it or wait for it."""

    def __init__(self, n: int) -> None:
        self.semaphore = asyncio.Semaphore(n)
        self.users = 0


def limit_concurrency(
    n: int, derive_key: Callable[..., Hashable] | None = None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Decorate an async function so that at most ``n`` of its calls run at once.

    Args:
        derive_key: Maps a call's arguments to a key; each key has its own ``n``. ``None``: one for all.

    >>> @limit_concurrency(8)
    ... async def ask():
    ...     return "answer"
    >>> await ask()
    'answer'
    """

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Gate]] = WeakKeyDictionary()

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            key = derive_key(*args, **kwargs) if derive_key is not None else None
            mine = gates.setdefault(asyncio.get_running_loop(), {})
            gate = mine.setdefault(key, _Gate(n))
            gate.users += 1
            try:
                async with gate.semaphore:
                    return await function(*args, **kwargs)
            finally:
                gate.users -= 1
                if not gate.users:
                    mine.pop(key, None)

        return limited

    return decorate
