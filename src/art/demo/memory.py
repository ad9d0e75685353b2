"""The peak memory of this process and all it started, sampled in the background."""

import sys
import threading

from art.errors import MissingExtraError

INTERVAL_S = 1.0


class PeakMemory:
    """Samples between ``start`` and ``stop``.

    On Linux a process counts with its proportional set size, so that pages shared by several processes count once;
    elsewhere with its resident set size.

    Raises:
        MissingExtraError: psutil is not installed; it comes with the backend.
    """

    def __init__(self) -> None:
        try:
            import psutil
        except ImportError as error:
            raise MissingExtraError("psutil", "backend") from error
        self._gone = (psutil.NoSuchProcess, psutil.AccessDenied)
        self._root = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)
        self._peak_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """End sampling and return the peak in bytes; 0 if it was never started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        return self._peak_bytes

    def measure(self) -> int:
        """Bytes in use now, all processes together."""
        total = 0
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss if sys.platform == "linux" else process.memory_info().rss
            except self._gone:  # it ended meanwhile
                continue
        return total

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._peak_bytes = max(self._peak_bytes, self.measure())
