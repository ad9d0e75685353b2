"""Which earlier request a retry repeats.

A client whose connection broke sends the same body again and says so in a header. The answer that it missed was sampled and
stored already; sampling again would leave a turn in the tree that no agent ever saw. The header is evidence, not proof: a
request that we refused ourselves is also retried, and then there is nothing to repeat.
"""

import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

A = TypeVar("A")

WINDOW_S = 900.0
"""How long an answer can be asked for again; the longest wait of known clients is 600 s."""

MAX_REQUESTS = 20_000

MAX_BYTES = 256 * 2**20
"""Bodies of the requests whose answers are remembered; an answer keeps some of its request."""


@dataclass(slots=True)
class _Seen(Generic[A]):
    at: float
    size: int = 0
    answers: deque[A] = field(default_factory=deque[A])
    refused: int = 0


class RetryWindow(Generic[A]):
    """Remembers answers, finished or still growing, by the digest of their request."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, _Seen[A]] = OrderedDict()
        self._size = 0

    def find(self, digest: bytes) -> A | None:
        """The answer that a retry of this request missed; ``None`` if it is the retry of a refused one, or unknown."""
        self._forget()
        seen = self._seen.get(digest)
        if seen is None:
            return None
        if seen.refused:
            seen.refused -= 1
            return None
        return seen.answers[-1] if seen.answers else None

    def add(self, digest: bytes, answer: A, size: int = 0) -> None:
        """Remember an answer; its request had ``size`` bytes."""
        self._forget()
        seen = self._touch(digest)
        seen.answers.append(answer)
        seen.size += size
        self._size += size

    def remove(self, digest: bytes, answer: A) -> None:
        """Forget an answer that did not come about."""
        seen = self._seen.get(digest)
        if seen is not None and answer in seen.answers:
            seen.answers.remove(answer)

    def refuse(self, digest: bytes) -> None:
        """Note that this request was answered with an error that invites a retry."""
        self._touch(digest).refused += 1

    def _touch(self, digest: bytes) -> _Seen[A]:
        seen = self._seen.setdefault(digest, _Seen(0.0))
        seen.at = time.monotonic()
        self._seen.move_to_end(digest)
        return seen

    def _forget(self) -> None:
        oldest_kept = time.monotonic() - WINDOW_S
        while self._seen:
            digest, seen = next(iter(self._seen.items()))
            if len(self._seen) <= MAX_REQUESTS and self._size <= MAX_BYTES and seen.at >= oldest_kept:
                return
            del self._seen[digest]
            self._size -= seen.size
