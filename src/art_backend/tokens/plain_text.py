"""Prompts without messages, and the places in them."""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlainText:
    """A prompt that was written as a whole: text, or ids."""

    kind: bytes
    content: bytes
    """UTF-8, or the ids as 32-bit integers."""
    tokenise: Callable[[str, bool], list[int]]
    """Text to ids; the second argument says whether it is the beginning."""

    @property
    def is_ids(self) -> bool:
        return self.kind == b"ids"

    @property
    def shown(self) -> Any:
        return self.shown_from(0)

    def shown_from(self, start: int) -> Any:
        """The text, or the ids, from byte ``start`` on, as they are stored for people to read."""
        return array("i", self.content[start:]).tolist() if self.is_ids else self.content[start:].decode()

    def encode(self, start: int) -> list[int]:
        """Ids of the content from byte ``start`` on."""
        shown = self.shown_from(start)
        return shown if self.is_ids else self.tokenise(shown, start == 0)

    def extended(self, ids: Sequence[int], text: str) -> tuple[bytes, int]:
        """The place after a completion, and the bytes up to there."""
        content = self.content + (array("i", ids).tobytes() if self.is_ids else text.encode())
        return hashlib.blake2b(self.kind + content, digest_size=16).digest(), len(content)
