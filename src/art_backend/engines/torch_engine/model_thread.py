"""The one thread of the engine that computes.

OpenMP keeps a pool of workers for every thread that computes in parallel. Once all pools together are larger than the number
of cores, waiting workers no longer spin but sleep at once, and to wake them takes longer than most operations of a small
model: an engine that loads its weights in one thread and serves them in another stays a third slower.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class ModelThread:
    """Carries out one function after the other. It does not keep the process alive."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="model", daemon=True).start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` after those submitted before it; the future has its result, or the error that it raised."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001  it is raised where the result is asked for
                future.set_exception(error)

        self._work.put(work)
        return future

    def _run(self) -> None:
        while True:
            self._work.get()()
