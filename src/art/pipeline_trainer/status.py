"""A line now and then about how a pipeline is doing."""

import sys
import time


class StatusReporter:
    """Prints at most one line per interval, with exponentially weighted means.

    Args:
        interval_s: Seconds between lines.
        alpha: Weight of the newest value in a mean.
        total: Scenarios in all, if that is known.

    >>> status = StatusReporter(interval_s=60.0, alpha=0.2, total=100)
    >>> status.note(step_s=1.5)
    >>> status.maybe_print(step=1, settled=4, queued=2)  # nothing before a minute is over
    """

    def __init__(self, interval_s: float, alpha: float, total: int | None = None) -> None:
        self._interval_s = interval_s
        self._alpha = alpha
        self._total = total
        self._means: dict[str, float] = {}
        self._last_line = time.monotonic()

    def note(self, **values: float) -> None:
        """Take values into the means."""
        for name, value in values.items():
            old = self._means.get(name)
            self._means[name] = value if old is None else (1 - self._alpha) * old + self._alpha * value

    def maybe_print(self, *, step: int, settled: int, queued: int) -> None:
        now = time.monotonic()
        if now - self._last_line < self._interval_s:
            return
        self._last_line = now
        of_total = f"/{self._total}" if self._total is not None else ""
        means = "  ".join(f"{name} {value:.3g}" for name, value in self._means.items())
        print(
            f"step {step}  scenarios {settled}{of_total}  groups ready {queued}  {means}", file=sys.stderr, flush=True
        )
