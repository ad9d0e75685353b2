"""Ids to text, token by token: what a stream shows, and the text and bytes of single tokens."""

import codecs
from collections.abc import Sequence

from tokenizers import decoders, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_PARTIAL = "\ufffd"
"""What decoding shows for bytes that are not (yet) a whole character."""

_LONGEST_CHARACTER = 4
"""Bytes of a character. After as many ids a partial one is shown as it is: it will not become whole any more."""


class Detokenizer:
    """Decodes ids of one tokenizer. Special tokens have no text.

    Args:
        shown: Special tokens that have one nevertheless: the marks of calls, where calls are looked for.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, shown: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._added = tokenizer.added_tokens_decoder
        self._shown = shown
        self._bytes: dict[int, bytes] = {}
        self.is_byte_level = _spells_bytes(self._backend.decoder)
        """Whether the text of ids is just their bytes, concatenated."""
        self._byte_of = _byte_alphabet() if self.is_byte_level else {}

    def decode(self, ids: Sequence[int]) -> str:
        at = next((n for n, i in enumerate(ids) if i in self._shown), None) if self._shown else None
        if at is None:
            return self._backend.decode(list(ids), skip_special_tokens=True)
        mark = self._added[ids[at]].content
        return self._backend.decode(list(ids[:at]), skip_special_tokens=True) + mark + self.decode(ids[at + 1 :])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for, also where they are only a part of a character."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def is_special(self, token_id: int) -> bool:
        """Whether a token has no text."""
        return token_id in self._added and self._added[token_id].special and token_id not in self._shown

    def _find_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].content.encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(token, str):
            return b""
        if self.is_byte_level and all(character in self._byte_of for character in token):
            return bytes(self._byte_of[character] for character in token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])  # byte fallback of SentencePiece vocabularies
        return token.replace("▁", " ").encode()


class TextStream:
    """Text of a growing list of ids. What was handed out never changes; a partial character waits for its rest."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._ids: list[int] = []
        self._start = 0
        """The window that is decoded begins here: far enough back that joins between tokens come out right."""
        self._shown = 0
        """Ids before this one have been handed out."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Sequence[int]) -> str:
        """Append ids; return the text that is now certain."""
        if self._detokenizer.is_byte_level:
            spoken = (i for i in ids if not self._detokenizer.is_special(i))
            return self._utf8.decode(b"".join(map(self._detokenizer.token_bytes, spoken)))
        text = ""
        for token_id in ids:
            self._ids.append(token_id)
            text += self._advance(certain=False)
        return text

    def finish(self) -> str:
        """Return the text that was held back."""
        if self._detokenizer.is_byte_level:
            return self._utf8.decode(b"", final=True)
        return self._advance(certain=True)

    def _advance(self, *, certain: bool) -> str:
        new = len(self._ids) - self._shown
        if not new:
            return ""
        before = self._detokenizer.decode(self._ids[self._start : self._shown])
        after = self._detokenizer.decode(self._ids[self._start :])
        if after.endswith(_PARTIAL) and new < _LONGEST_CHARACTER and not certain:
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return after[len(before) :]


def _spells_bytes(decoder: decoders.Decoder | None) -> bool:
    """Whether a decoder reads the byte-level alphabet; it may stand in a sequence with others."""
    return decoder is not None and decoder.decode(["Ġ", "Ã", "©"]) == " é"


def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (Radford et al. 2019, GPT-2)."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    visible = [byte for byte in range(256) if chr(byte) in alphabet]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
