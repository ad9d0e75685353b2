"""How an engine's time is spent, as the gateway sees it, and how old the tokens are that training uses.

Every moment belongs to one of three: *paused*, while the gate is closed because weights change; else *busy*, while at least
one call is with the engine; else *idle*: the engine could compute, but the environments have nothing to ask. It needs no
question to the engine and holds for any of them.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, fields

from art_backend.training.types import ScoredTrajectory

MAX_AGE = 8
"""Tokens of this many versions or more are counted together."""


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Totals since the first call."""

    busy_s: float = 0.0
    idle_s: float = 0.0
    paused_s: float = 0.0
    calls_s: float = 0.0
    """Calls with the engine, integrated over the time in which it was not paused."""
    held_s: float = 0.0
    """Calls that waited at the gate, integrated over time."""

    @property
    def wall_s(self) -> float:
        return self.busy_s + self.idle_s + self.paused_s

    def since(self, earlier: "EngineTime") -> "EngineTime":
        return EngineTime(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def metrics(self) -> dict[str, float]:
        """Seconds, shares of the wall time and mean depths of the queues, by their logged names; nothing over no time."""
        if self.wall_s <= 0:
            return {}
        values = {
            "time/step_engine_busy_s": self.busy_s,
            "time/step_engine_idle_s": self.idle_s,
            "time/step_engine_paused_s": self.paused_s,
            "throughput/engine_busy_share": self.busy_s / self.wall_s,
            "throughput/engine_idle_share": self.idle_s / self.wall_s,
            "throughput/engine_paused_share": self.paused_s / self.wall_s,
        }
        if (awake_s := self.busy_s + self.idle_s) > 0:
            values["pipeline/engine_calls_mean"] = self.calls_s / awake_s
        if self.paused_s > 0:
            values["pipeline/held_calls_mean"] = self.held_s / self.paused_s
        return values


class EngineMeter:
    """Told of every change, it adds up the time between them. The clock starts with the first call.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last: float | None = None
        self._totals = dict.fromkeys((f.name for f in fields(EngineTime)), 0.0)
        self.calls = 0
        """Calls with the engine now."""
        self.held = 0
        """Calls that wait at the gate now."""
        self.paused = False

    @contextmanager
    def call(self) -> Generator[None]:
        """A call is with the engine."""
        self._change()
        self.calls += 1
        try:
            yield
        finally:
            self._change()
            self.calls -= 1

    @contextmanager
    def hold(self) -> Generator[None]:
        """A call waits at the gate."""
        self._change()
        self.held += 1
        try:
            yield
        finally:
            self._change()
            self.held -= 1

    def set_paused(self, paused: bool) -> None:
        if self._last is not None:
            self._change()
        self.paused = paused

    def read(self) -> EngineTime:
        if self._last is not None:
            self._change()
        return EngineTime(**self._totals)

    def _change(self) -> None:
        now = self._now()
        seconds = 0.0 if self._last is None else now - self._last
        self._last = now
        state = "paused_s" if self.paused else "busy_s" if self.calls else "idle_s"
        self._totals[state] += seconds
        self._totals["held_s"] += seconds * self.held
        if not self.paused:
            self._totals["calls_s"] += seconds * self.calls


def token_ages(groups: Iterable[Iterable[ScoredTrajectory]], version: int) -> Counter[int]:
    """Sampled tokens by age: policy versions between the one that sampled a token and ``version``, which is trained.

    Tokens that were not captured have none.
    """
    return Counter(
        version - sampled_by
        for group in groups
        for trajectory in group
        for row in trajectory.rows
        for sampled, sampled_by in zip(row.sampled, row.policy_versions, strict=True)
        if sampled and sampled_by >= 0
    )


def age_metrics(ages: Counter[int]) -> dict[str, float]:
    """Mean and maximum, and the share of each age; nothing without a token."""
    tokens = ages.total()
    if not tokens:
        return {}
    shares: Counter[int] = Counter()
    for age, count in ages.items():
        shares[min(age, MAX_AGE)] += count
    return {
        "offpolicy/staleness_mean": sum(age * count for age, count in ages.items()) / tokens,
        "offpolicy/staleness_max": float(max(ages)),
        **{f"offpolicy/staleness_{age}_share": count / tokens for age, count in sorted(shares.items())},
    }
