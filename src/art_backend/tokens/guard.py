"""Keeps control tokens that are only spelled out of a prompt: nothing that an environment says can forge a turn.

A tokenizer takes ``<|im_end|>`` for the control token wherever it stands. So wherever text of others spells one, a guard is put
after its first character before the template sees the text. The guard is a token of its own that no text contains: the tokenizer cuts
there, both halves are plain text, and the guard's id is taken out of the prompt. Text that spells none is left as it is,
and so are its ids.
"""

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from transformers import AddedToken, PreTrainedTokenizerFast

from art_backend.tokens.parse import END_THINK, THINK
from art_backend.tokens.setting import Message, Setting, Toolset


class ControlTokenGuard:
    """Guards the texts of messages, tools and template arguments for one tokenizer, which gets one more token for it.

    Control tokens are the special ones, and of the other added tokens those that the chat template writes.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        template = str(tokenizer.chat_template or "")
        added = [token for token in tokenizer.added_tokens_decoder.values() if len(token.content.strip()) > 1]
        special = [token.content for token in added if token.special]
        written = [token.content for token in added if not token.special and token.content in template]
        self._others = _any_of([*special, *written])
        # what the model itself says shows no special token, but may well have had the others as tokens
        self._own = _any_of(text for text in special if text not in (THINK, END_THINK))
        self._normalizer = tokenizer.backend_tokenizer.normalizer if any(token.normalized for token in added) else None
        self.mark = f"[guard-{secrets.token_hex(8)}]"
        tokenizer.add_tokens([AddedToken(self.mark, special=True, normalized=False)], special_tokens=True)
        self.id: int = tokenizer.convert_tokens_to_ids(self.mark)  # pyright: ignore[reportAttributeAccessIssue]

    def switch_off(self) -> None:
        """Leave texts as they are, for a renderer that does not tokenise by this tokenizer."""
        self._others = self._own = None

    def guard_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Guard all texts of messages. What the assistant says may hold tokens that are not special."""
        return [self._guard(m, self._own if m["role"] == "assistant" else self._others) for m in messages]

    def guard_tools(self, tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """Guard all texts of tools; ``None`` without tools."""
        if not tools:
            return None
        if self._others is None or not self._spells(Toolset.of(tools).text.decode(), self._others):
            return list(tools)
        return self._guard(list(tools), self._others)

    def guard_setting(self, setting: Setting) -> Setting:
        """Guard all texts of a setting's arguments: documents are among them."""
        return replace(setting, arguments={name: self._guard(v, self._others) for name, v in setting.arguments.items()})

    def without_guards(self, ids: list[int]) -> list[int]:
        """The ids of a guarded text."""
        return [i for i in ids if i != self.id] if self.id in ids else ids

    def _guard(self, value: Any, control: re.Pattern[str] | None) -> Any:
        if control is None:
            return value
        if isinstance(value, str):
            return self._guard_text(value, control) if self._spells(value, control) else value
        if isinstance(value, dict):
            return {self._guard(k, control): self._guard(v, control) for k, v in value.items()}
        if isinstance(value, list):
            return [self._guard(v, control) for v in value]
        return value

    def _spells(self, text: str, control: re.Pattern[str]) -> bool:
        return control.search(text) is not None or (
            self._normalizer is not None and control.search(self._normalizer.normalize_str(text)) is not None
        )

    def _guard_text(self, text: str, control: re.Pattern[str]) -> str:
        while control.search(text):
            text = control.sub(lambda found: found[0][0] + self.mark + found[0][1:], text)
        if self._spells(text, control):  # only as the tokenizer normalises it, so the prompt would hold that form
            assert self._normalizer is not None
            return self._guard_text(self._normalizer.normalize_str(text), control)
        return text


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(set(texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
