"""Messages to token ids and back, for one model family.

What was sampled is never rendered again. The next prompt of a conversation is *bridged*: the exact ids served so far, plus
the ids of the messages that are new. ``renderers`` does this for the families that it knows. For any other chat template
the difference of two renderings of a stand-in conversation gives the new ids, if it provably can:

1. Render ``[user, assistant]`` and ``[user, assistant, *new messages]``. The first must be a prefix of the second.
2. What the template writes after the assistant's words must begin with the id that ends a turn: a special token, at which
   tokenisation cannot merge neighbours. That id is dropped if the model sampled it, and kept (as observed) if it did not.

Where one of these does not hold, ``bridge`` returns ``None`` and the conversation forks into another row.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from renderers import create_renderer
from renderers.base import MODEL_RENDERER_MAP, Renderer, ToolCallParseStatus
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from art_backend.errors import BadRequestError

Message = dict[str, Any]
"""A normalised chat message: ``role``, ``content`` (a string), and where they apply ``tool_calls``, ``tool_call_id``, ``name``."""

_STAND_IN = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "stand-in"}]


@dataclass(slots=True)
class ParsedToolCall:
    name: str
    arguments: str
    """JSON, as the model wrote it."""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


@dataclass(slots=True)
class ParsedMessage:
    """What an agent gets to see of a completion."""

    content: str
    reasoning: str | None = None
    tool_calls: list[ParsedToolCall] = field(default_factory=list[ParsedToolCall])


class ChatRenderer:
    """Renders, bridges and parses for one tokenizer.

    Args:
        tokenizer: A fast tokenizer with a chat template.
        renderer: A hand-written renderer for this model family, if there is one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, renderer: Renderer | None = None) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._shows_tools = "tools" in (tokenizer.chat_template or "")
        ids = renderer.get_stop_token_ids() if renderer else [tokenizer.eos_token_id]
        self.stop_token_ids: tuple[int, ...] = tuple(ids)

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> "ChatRenderer":
        """Load the tokenizer in ``path``; ``name`` is the model's hub id, by which its family is known."""
        tokenizer = AutoTokenizer.from_pretrained(path)
        known = name is not None and name in MODEL_RENDERER_MAP
        if known:
            tokenizer.name_or_path = name
        return cls(tokenizer, create_renderer(tokenizer) if known else None)

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """Return the ids of a whole prompt, up to where the assistant begins to speak.

        Raises:
            BadRequestError: The model's chat template refuses the messages.
        """
        if self._renderer:
            return list(self._renderer.render_ids(list(messages), tools=_tools(tools), add_generation_prompt=True))
        return self._encode(self._template(messages, tools, generation_prompt=True))

    def bridge(
        self, previous: Sequence[int], new_messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int] | None:
        """Return the ids that follow ``previous`` (a prompt and its completion) for the next prompt, or ``None``."""
        if self._renderer:
            bridged = self._renderer.bridge_to_next_turn(list(previous), [], list(new_messages), tools=_tools(tools))
            return None if bridged is None else list(bridged.token_ids[len(previous) :])
        before = self._template(_STAND_IN, tools, generation_prompt=False)
        after = self._template([*_STAND_IN, *new_messages], tools, generation_prompt=True)
        if not after.startswith(before):
            return None
        spoken = before.rindex(_STAND_IN[-1]["content"]) + len(_STAND_IN[-1]["content"])
        extension = self._encode(after[spoken:])
        if not extension or extension[0] not in self.stop_token_ids:
            return None
        if self._encode(after) != self._encode(after[:spoken]) + extension:
            return None
        return extension[1:] if previous[-1] == extension[0] else extension

    def parse(self, completion: Sequence[int], prompt: Sequence[int]) -> ParsedMessage:
        """Split a completion into what was said, thought and called. Malformed calls stay in the text."""
        if self._renderer:
            parsed = self._renderer.parse_response(list(completion), prompt_ids=list(prompt))
            good = [call for call in parsed.tool_calls if call.status is ToolCallParseStatus.OK]
            bad = [call.raw for call in parsed.tool_calls if call.status is not ToolCallParseStatus.OK]
            calls = [ParsedToolCall(call.name or "", json.dumps(call.arguments or {})) for call in good]
            return ParsedMessage("".join([parsed.content, *bad]), parsed.reasoning_content, calls)
        return ParsedMessage(self.decode(completion))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without the ids that end a turn."""
        spoken = list(ids)
        while spoken and spoken[-1] in self.stop_token_ids:
            spoken.pop()
        return self._tokenizer.decode(spoken, skip_special_tokens=False)

    def token_text(self, token_id: int) -> str:
        """Text of a single id; the replacement character where it is a part of a character only."""
        return self._tokenizer.decode([token_id])

    def encode(self, text: str) -> list[int]:
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _template(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, *, generation_prompt: bool
    ) -> str:
        if tools and not self._shows_tools:
            raise BadRequestError("The chat template of this model cannot show tools.", param="tools")
        try:
            return self._tokenizer.apply_chat_template(
                list(messages), tools=_tools(tools), tokenize=False, add_generation_prompt=generation_prompt
            )
        except Exception as error:  # templates raise whatever their authors liked
            raise BadRequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error


def _tools(tools: Sequence[dict[str, Any]] | None) -> list[Any] | None:
    return list(tools) if tools else None
