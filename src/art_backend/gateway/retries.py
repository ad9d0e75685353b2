"""Answers that a repeated request gets instead of a new one, so that no turn is left that no agent ever saw.

There are two kinds of evidence that a request was sent before:

- A retry header. It says so, but not which request it repeats: several agents may have sent the same. So a retry gets an answer that
  was made and could not be delivered, each of those once, or else a new one.
- An idempotency key. It names the request, so each request with the same key and body gets the same answer.
"""

import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from art_backend.errors import ConflictError

A = TypeVar("A")

WINDOW_S = 900.0
"""How long an answer can be asked for again; the longest wait of known clients is 600 s."""

MAX_REQUESTS = 20_000

MAX_BYTES = 256 * 2**20
"""Bodies of the requests whose answers are remembered; an answer keeps some of its request."""


@dataclass(slots=True)
class _Kept(Generic[A]):
    at: float
    size: int
    digest: bytes
    answer: A


class RetryWindow(Generic[A]):
    """Remembers answers by digests of their requests' bodies, which are ``size`` bytes, and of their idempotency keys."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, deque[_Kept[A]]] = OrderedDict()
        self._size = 0

    def lose(self, digest: bytes, size: int, answer: A) -> None:
        """Keep an answer that could not be delivered."""
        self._keep(digest, _Kept(time.monotonic(), size, digest, answer))

    def find_lost(self, digest: bytes) -> A | None:
        """Return an undelivered answer to this request, once."""
        self._forget()
        if digest not in self._kept:
            return None
        answers = self._kept[digest]
        found = answers.popleft()
        self._size -= found.size
        if not answers:
            del self._kept[digest]
        return found.answer

    def name(self, key: bytes, digest: bytes, size: int, answer: A) -> None:
        """Keep an answer, finished or still growing, under its idempotency key."""
        self._drop(key)
        self._keep(key, _Kept(time.monotonic(), size, digest, answer))

    def find_named(self, key: bytes, digest: bytes) -> A | None:
        """The answer under an idempotency key, whatever became of it.

        Raises:
            ConflictError: The key came with another body.
        """
        self._forget()
        if key not in self._kept:
            return None
        (named,) = self._kept[key]
        if named.digest != digest:
            raise ConflictError(
                f"Idempotency-Key: this key was used with another request within the last {WINDOW_S / 60:.0f} minutes. Use a new"
                " key for each request, and the same key only to repeat one."
            )
        return named.answer

    def _keep(self, key: bytes, kept: _Kept[A]) -> None:
        self._kept.setdefault(key, deque()).append(kept)
        self._kept.move_to_end(key)
        self._size += kept.size
        self._forget()

    def _drop(self, key: bytes) -> None:
        self._size -= sum(kept.size for kept in self._kept.pop(key, ()))

    def _forget(self) -> None:
        oldest_kept = time.monotonic() - WINDOW_S
        while self._kept:
            key, answers = next(iter(self._kept.items()))
            if len(self._kept) <= MAX_REQUESTS and self._size <= MAX_BYTES and answers[-1].at >= oldest_kept:
                return
            self._drop(key)
