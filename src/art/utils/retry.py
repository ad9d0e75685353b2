"""Trying again."""

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, sync or async, to be called again when it raises.

    Args:
        max_attempts: Calls in all; the last one's exception propagates.
        delay: Seconds before the second call.
        backoff_factor: What the delay is multiplied by after each call.
        exceptions: Types to try again for; others propagate at once.
        on_retry: Called with the exception and the number of the failed call, from 1; ``None`` logs a warning.

    >>> @retry(max_attempts=3, delay=0.01, exceptions=(TimeoutError,))
    ... async def ask():
    ...     return "answer"
    >>> await ask()
    'answer'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        def failed(error: Exception, attempt: int) -> None:
            if on_retry is not None:
                on_retry(error, attempt)
            else:
                name = getattr(function, "__name__", repr(function))
                _log.warning("%s failed (attempt %d of %d): %s", name, attempt, max_attempts, error)

        def pauses() -> Generator[tuple[int, float]]:
            for attempt in range(1, max_attempts):
                yield attempt, delay * backoff_factor ** (attempt - 1)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                for attempt, pause in pauses():
                    try:
                        return await cast(Any, function)(*args, **kwargs)
                    except exceptions as error:
                        failed(error, attempt)
                        await asyncio.sleep(pause)
                return await cast(Any, function)(*args, **kwargs)

            return cast(Callable[P, R], call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for attempt, pause in pauses():
                try:
                    return function(*args, **kwargs)
                except exceptions as error:
                    failed(error, attempt)
                    time.sleep(pause)
            return function(*args, **kwargs)

        return call

    return decorate
