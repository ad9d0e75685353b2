"""Choose the replica that answers a call: for a rollout always the same one, whose cache holds its history; otherwise the least busy."""

import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

FORGET_AFTER_S = 1800.0
"""A rollout that has not called for so long has ended, or its cache is gone; its next call may go elsewhere."""


class Busy(Hashable, Protocol):
    """A place for calls."""

    calls: int
    """Calls that it answers now."""


P = TypeVar("P", bound=Busy)


class Homes(Generic[P]):
    """Remembers each rollout's home replica.

    A rollout without a home gets the place with the fewest calls; among equals the one that is home to the fewest rollouts, and
    among those any. A home that is not among the given places is forgotten.

    Args:
        now: Monotonic seconds.
        choose: Picks one of several equals.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, choose: Callable[[Sequence[P]], P] = random.choice
    ) -> None:
        self._now = now
        self._choose = choose
        self._homes: OrderedDict[str, tuple[P, float]] = OrderedDict()
        """By rollout, with the time of its last call; the latest call last."""
        self._guests: Counter[P] = Counter()

    def find(self, rollout: str | None, places: Sequence[P]) -> P:
        """Where a call goes, among at least one place. ``None``: it belongs to no rollout."""
        self._forget()
        place = self._homes[rollout][0] if rollout in self._homes else None
        if place is None or place not in places:
            fewest = min((p.calls, self._guests[p]) for p in places)
            place = self._choose([p for p in places if (p.calls, self._guests[p]) == fewest])
        if rollout is not None:
            self._settle(rollout, place)
        return place

    def guests(self, place: P) -> int:
        """How many rollouts are at home there."""
        self._forget()
        return self._guests[place]

    def _settle(self, rollout: str, place: P) -> None:
        if rollout in self._homes:
            self._guests[self._homes.pop(rollout)[0]] -= 1
        self._homes[rollout] = (place, self._now())
        self._guests[place] += 1

    def _forget(self) -> None:
        while self._homes and self._now() - next(iter(self._homes.values()))[1] > FORGET_AFTER_S:
            self._guests[self._homes.popitem(last=False)[1][0]] -= 1
