"""Run coroutines from code that cannot await, such as a plain function in a notebook."""

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result, also where an event loop is running already, as in a notebook.

    There it runs in a thread with a loop of its own, in a copy of the caller's context. A cell of a notebook can ``await`` by
    itself; this is for functions that are not async. Ctrl-C cancels the coroutine and waits for its end.

    >>> def best_of(scenario):
    ...     group = art.TrajectoryGroup(rollout(model, scenario) for _ in range(2))
    ...     return max(trajectory.reward for trajectory in art.run_sync(gather(group)))
    >>> async def gather(group):
    ...     return await group
    >>> best_of("Hi.") >= 0
    True
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
    ended: Future[T] = Future()

    async def main() -> T:
        task = asyncio.ensure_future(coroutine)
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    def work() -> None:
        try:
            ended.set_result(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001  it is raised where it was called
            ended.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="art.run_sync")
    thread.start()
    try:
        return ended.result()
    except KeyboardInterrupt:
        loop, task = started.result()
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join()
