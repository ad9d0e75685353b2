"""The text that a chat template adds after a turn, found as the difference of two renderings, without rendering the past.

1. Render ``[user, assistant]`` and ``[user, assistant, *new messages]``. The first must be a prefix of the second, up to the
   token that closes the assistant's turn, but for numbers: a template that counts messages rewrites nothing that was said. It
   is enough if this holds with reasoning, or without: some templates write the last answer's, even an empty one.
2. The closing token is one of the tokenizer's added tokens: text is cut there before it is tokenised, so the ids that follow do
   not depend on what stands before. If the model sampled the closing token it is not repeated; if it did not (a completion cut
   short), it is part of the new ids, as observed.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

import orjson
from tokenizers import AddedToken

from art_backend.tokens.setting import Message, Setting, SizedCache, Tools, Toolset, attempt

_KEPT = 16 * 2**20
"""Characters of renderings of a stand-in that are kept, one for each list of tools and each setting."""

SPOKEN = "stand-in"
ASKED: Message = {"role": "user", "content": "q"}
_ANSWERS: tuple[Message, ...] = (
    {"role": "assistant", "content": SPOKEN},
    {"role": "assistant", "content": SPOKEN, "reasoning_content": "t"},
)
_NUMBER = re.compile(r"\d+")


class Write(Protocol):
    """Renders messages as text."""

    def __call__(
        self, messages: Sequence[Message], tools: Tools | None, setting: Setting, *, generation_prompt: bool
    ) -> str: ...


class Difference:
    """Takes differences of what one template writes.

    Args:
        close: The added token that the template writes right after an assistant's words.
        varies: Whether the template may write the same conversation in two ways in two settings with the same arguments.
    """

    def __init__(self, write: Write, close: int, text: str, *, varies: bool) -> None:
        self.close = close
        self._text = text
        self._write = write
        self._varies = varies
        self._before: SizedCache[str] = SizedCache(_KEPT, len)

    @classmethod
    def find(cls, write: Write, added_tokens: Mapping[int, AddedToken], *, varies: bool) -> "Difference | None":
        """``None`` for a template without an end-of-turn token; it is rendered as a whole each time."""
        text = attempt(write, [ASKED, _ANSWERS[0]], None, Setting(), generation_prompt=False)
        if text is None:
            return None
        tail = text.rpartition(SPOKEN)[2]
        for token_id, token in added_tokens.items():
            if token.content and tail.startswith(token.content) and not token.lstrip:
                return cls(write, token_id, token.content, varies=varies)
        return None

    def after(
        self, new: Sequence[Message], tools: Tools | None, setting: Setting, before: Sequence[Message] = ()
    ) -> str | None:
        """The text that new messages add after an assistant's words, the closing token first; ``None`` if it is not proven.

        Args:
            before: What stands before them, the assistant's message included; templates that number messages need it.
        """
        history = before[:-1] if before and self._counts else [ASKED]
        for answer in _ANSWERS:
            stand_in = [*history, answer]
            ended = attempt(self._ended, stand_in, tools, setting)
            whole = attempt(self._write, [*stand_in, *new], tools, setting, generation_prompt=True)
            if ended is None or whole is None:
                continue  # a template may refuse the stand-in and accept the real messages
            text = _following(ended, whole)
            if text is not None and text.startswith(self._text):
                return text
        return None

    def _ended(self, stand_in: list[Message], tools: Tools | None, setting: Setting) -> str:
        """A stand-in as the template writes it; mostly the same as last time."""
        if self._counts:
            return self._write(stand_in, tools, setting, generation_prompt=False)
        began = setting.began if self._varies else None
        key = orjson.dumps(["reasoning_content" in stand_in[-1], setting.arguments, began]) + Toolset.of(tools).text
        return self._before.get(key, lambda: self._write(stand_in, tools, setting, generation_prompt=False))

    @cached_property
    def _counts(self) -> bool:
        """Whether the template numbers messages: after two rounds it writes something else than after one."""
        first, second = (
            attempt(
                self._write, [*[ASKED, _ANSWERS[0]] * rounds, ASKED], None, Setting(began=0), generation_prompt=True
            )
            for rounds in (1, 2)
        )
        if first is None or second is None:
            return False
        return first.rpartition(SPOKEN)[2] != second.rpartition(SPOKEN)[2]


def _following(before: str, after: str) -> str | None:
    """The text in ``after`` behind the words that ``before`` ends with; ``None`` if the texts before them differ."""
    head, _, close = before.rpartition(SPOKEN)
    count = head.count(SPOKEN) + 1
    *same, text = after.split(SPOKEN, count)
    if len(same) != count or not text.startswith(close):
        return None
    now = SPOKEN.join(same)
    return text if now == head or _NUMBER.sub("0", now) == _NUMBER.sub("0", head) else None
