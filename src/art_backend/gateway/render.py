"""Messages to token ids and back, for one model.

What was sampled is never rendered again. The next prompt of a conversation is *bridged*: the exact ids served so far, plus
the ids of the messages that are new. ``renderers`` does this for the families that it knows. For any other chat template
the difference of two renderings of a stand-in conversation gives the new ids, if it provably can:

1. Render ``[user, assistant]`` and ``[user, assistant, *new messages]``. The first must be a prefix of the second, up to the
   token that closes the assistant's turn.
2. That token is one of the tokenizer's added tokens: text is cut there before it is tokenised, so the ids that follow do not
   depend on what stands before. If the model sampled the closing token it is not repeated; if it did not (a completion cut
   short), it is part of the new ids, as observed.

Where one of these does not hold, ``bridge`` returns ``None`` and the conversation forks into another row.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from renderers import create_renderer
from renderers.base import MODEL_RENDERER_MAP, Renderer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from art_backend.errors import BadRequestError, ModelNotAvailableError
from art_backend.gateway.detokenize import Detokenizer, TextStream
from art_backend.gateway.message_stream import KnownMessageStream, TextMessageStream, parse_known
from art_backend.gateway.parse import CALL, END_CALL, THINK, ParsedMessage, TextParser
from art_backend.gateway.tool_prompt import spell_out_tools

Message = dict[str, Any]
"""A normalised chat message: ``role``, ``content`` (a string), and where they apply ``tool_calls``, ``tool_call_id``,
``reasoning_content``."""

Tools = Sequence[dict[str, Any]]

_STAND_INS = 256
"""Renderings of the stand-in conversation that are kept, one for each list of tools."""

_SPOKEN = "stand-in"
_STAND_IN = [{"role": "user", "content": "q"}, {"role": "assistant", "content": _SPOKEN}]


class ChatRenderer:
    """Renders, bridges and parses for one tokenizer.

    Args:
        tokenizer: A fast tokenizer with a chat template.
        renderer: A hand-written renderer for this model family, if there is one.
        stop_token_ids: Further ids that end a completion.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        renderer: Renderer | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.detokenizer = Detokenizer(tokenizer)
        self._stand_ins: dict[str, str] = {}
        template = tokenizer.chat_template or ""
        self._shows_tools = renderer is not None or "tools" in str(template)
        self._close = None if renderer or not template else self._find_close()
        ids = renderer.get_stop_token_ids() if renderer else [tokenizer.eos_token_id, self._close]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in [*ids, *stop_token_ids] if i is not None))

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> "ChatRenderer":
        """Load the tokenizer in ``path``; ``name`` is the model's hub id, by which its family is known."""
        tokenizer = AutoTokenizer.from_pretrained(path)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ModelNotAvailableError(f"The model in {path} has no tokenizer.json, which ART needs to read its ids.")
        known = name is not None and name in MODEL_RENDERER_MAP
        if known:
            tokenizer.name_or_path = name
        return cls(tokenizer, create_renderer(tokenizer) if known else None, _generation_stops(path))

    @property
    def vocabulary_size(self) -> int:
        return len(self._tokenizer)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters has at least n / longest_token ids."""
        return max(len(token) for token in self._tokenizer.get_vocab())

    def render(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """Return the ids of a whole prompt, up to where the assistant begins to speak.

        Raises:
            BadRequestError: The model's chat template refuses the messages.
        """
        try:
            if self._renderer:
                ready = _with_objects(messages)
                return list(self._renderer.render_ids(ready, tools=_list(tools), add_generation_prompt=True))  # pyright: ignore[reportArgumentType]
            return self.encode(self._template(messages, tools, generation_prompt=True))
        except Exception as error:  # templates raise whatever their authors liked
            raise BadRequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error

    def spell(self, messages: Sequence[Message], answer: Message, tools: Tools | None = None) -> list[int]:
        """Return the ids that the model would have sampled to say ``answer`` after ``messages``, its end of turn included.

        Raises:
            BadRequestError: The template refuses the messages, or does not write this answer where it asks for one.
        """
        prompt = self.render(messages, tools)
        try:
            if self._renderer:
                ready = _with_objects([*messages, answer])
                whole = list(self._renderer.render_ids(ready, tools=_list(tools)))  # pyright: ignore[reportArgumentType]
                said = whole[len(prompt) :] if whole[: len(prompt)] == prompt else []
            else:
                before = self._template(messages, tools, generation_prompt=True)
                text = self._template([*messages, answer], tools, generation_prompt=False)
                said = self.encode(text[len(before) :]) if text.startswith(before) else []
        except Exception as error:  # templates raise whatever their authors liked
            raise BadRequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error
        if not said:
            raise BadRequestError(
                "The model's chat template writes this answer of the assistant otherwise than it asks for one, so its tokens"
                " cannot be told. Leave the message out, or train on what was sampled.",
                param="messages",
            )
        ends = [i for i, token in enumerate(said) if token in self.stop_token_ids]
        return said[: ends[-1] + 1] if ends else said

    def render_whole(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """Return the ids of a conversation as the template writes it, with no further turn begun.

        Raises:
            BadRequestError: The model's chat template refuses the messages.
        """
        try:
            if self._renderer:
                return list(self._renderer.render_ids(_with_objects(messages), tools=_list(tools)))  # pyright: ignore[reportArgumentType]
            return self.encode(self._template(messages, tools, generation_prompt=False))
        except Exception as error:  # templates raise whatever their authors liked
            raise BadRequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error

    def bridge(
        self, prompt: Sequence[int], completion: Sequence[int], new_messages: Sequence[Message], tools: Tools | None
    ) -> list[int] | None:
        """Return the ids that follow ``prompt`` and its ``completion`` in the next prompt; ``None`` if it cannot be proven."""
        if not completion or not new_messages:
            return None
        if self._renderer:
            return self._bridge_known(self._renderer, list(prompt), list(completion), new_messages, tools)
        if self._close is None:
            return None
        try:
            before = self._before(tools)
            after = self._template([*_STAND_IN, *new_messages], tools, generation_prompt=True)
        except Exception:  # noqa: BLE001  a template may refuse the stand-in and accept the real messages
            return None
        spoken = before.rindex(_SPOKEN) + len(_SPOKEN)
        close = self._tokenizer.added_tokens_decoder[self._close].content
        if not after.startswith(before) or not after.startswith(close, spoken):
            return None
        extension = self.encode(after[spoken:])
        if extension[:1] != [self._close]:
            return None
        return extension[1:] if completion[-1] == self._close else extension

    def _before(self, tools: Tools | None) -> str:
        """The stand-in conversation as a template writes it with ``tools``; always the same while those are."""
        key = json.dumps(tools) if tools else ""
        if key not in self._stand_ins:
            if len(self._stand_ins) >= _STAND_INS:
                self._stand_ins.pop(next(iter(self._stand_ins)))
            self._stand_ins[key] = self._template(_STAND_IN, tools, generation_prompt=False)
        return self._stand_ins[key]

    def _bridge_known(
        self,
        renderer: Renderer,
        prompt: list[int],
        completion: list[int],
        new_messages: Sequence[Message],
        tools: Tools | None,
    ) -> list[int] | None:
        ready = _with_objects(new_messages)
        bridged = renderer.bridge_to_next_turn(prompt, completion, ready, tools=_list(tools))  # pyright: ignore[reportArgumentType]
        if bridged is None:
            return None
        served = len(prompt) + len(completion)
        ids = list(bridged.token_ids)
        # a bridge may drop ids after the turn's end; those were served, so they cannot be dropped here
        return ids[served:] if ids[:served] == prompt + completion else None

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Tools | None = None) -> ParsedMessage:
        """Split a completion into what was said, thought and called. Malformed calls stay in the text."""
        if self._renderer:
            return parse_known(self._renderer, list(completion), list(prompt), tools)
        parser = self._parser(prompt, tools)
        message = parser.feed(self.detokenizer.decode(completion))
        message.extend(parser.finish())
        return message

    def stream_text(self, stops: Sequence[str] = ()) -> TextMessageStream:
        """Decode a completion while it is sampled, without looking for reasoning or calls in it."""
        return TextMessageStream(TextStream(self.detokenizer), TextParser(calls=False, plain=True), stops)

    def stream(
        self, prompt: Sequence[int], tools: Tools | None = None, stops: Sequence[str] = ()
    ) -> TextMessageStream | KnownMessageStream:
        """Parse a completion of ``prompt`` while it is sampled; ``stops`` are strings that end it."""
        text = TextStream(self.detokenizer)
        if self._renderer:
            return KnownMessageStream(self._renderer, list(prompt), tools, text, stops)
        return TextMessageStream(text, self._parser(prompt, tools), stops)

    def _parser(self, prompt: Sequence[int], tools: Tools | None) -> TextParser:
        return TextParser(calls=bool(tools), thinking=self.opens_thinking(prompt))

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt itself begins the reasoning of its completion."""
        return self.detokenizer.decode(prompt[-8:]).rstrip().endswith(THINK)

    def mark(self, text: str) -> int | None:
        """The id of a mark such as ``<tool_call>``, where the tokenizer has it as a token of its own."""
        return self._marks.get(text)

    @cached_property
    def _marks(self) -> dict[str, int]:
        return {token.content: token_id for token_id, token in self._tokenizer.added_tokens_decoder.items()}

    @cached_property
    def writes_json_calls(self) -> bool:
        """Whether this model's calls are JSON between ``<tool_call>`` tags, one object with name and arguments."""
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        spelled = f'{CALL}\n{{"name": "f", "arguments": {{}}}}\n{END_CALL}'
        calls = self.parse(self.encode(spelled), (), [tool]).tool_calls
        return [(call.name, call.arguments) for call in calls] == [("f", "{}")]

    @cached_property
    def speaks_plainly(self) -> bool:
        """Whether this model's words are the completion's text as it stands."""
        return self.parse(self.encode(_SPOKEN), ()).content == _SPOKEN

    def encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_text(self, text: str, beginning: bool) -> list[int]:
        """Ids of plain text, with what the tokenizer puts at the beginning of every text."""
        return self._backend.encode(text, add_special_tokens=beginning).ids

    def _find_close(self) -> int | None:
        """The added token that the template writes right after an assistant's words."""
        try:
            text = self._template(_STAND_IN, None, generation_prompt=False)
        except Exception:  # noqa: BLE001  such a template is rendered as a whole each time
            return None
        tail = text[text.rindex(_SPOKEN) + len(_SPOKEN) :]
        for token_id, token in self._tokenizer.added_tokens_decoder.items():
            if token.content and tail.startswith(token.content) and not token.lstrip:
                return token_id
        return None

    def _template(self, messages: Sequence[Message], tools: Tools | None, *, generation_prompt: bool) -> str:
        ready, shown = _with_objects(messages), _list(tools)
        if not self._shows_tools:
            ready, shown = spell_out_tools(ready, tools), None
        text = self._tokenizer.apply_chat_template(
            ready,
            tools=shown,  # pyright: ignore[reportArgumentType]
            tokenize=False,
            add_generation_prompt=generation_prompt,
        )
        if not isinstance(text, str):
            raise TypeError(f"the chat template gave {type(text).__name__}")
        return text


def _with_objects(messages: Sequence[Message]) -> list[Message]:
    """Give templates the arguments of calls as objects, as most of them expect; malformed ones as an object that says so."""
    result: list[Message] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [{**c, "function": _with_object(c["function"])} for c in calls]}
        result.append(message)
    return result


def _with_object(function: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"malformed": function["arguments"]}
    return {**function, "arguments": arguments}


def _generation_stops(path: Path) -> list[int]:
    """Ids that ``generation_config.json`` says end a completion."""
    config = path / "generation_config.json"
    if not config.exists():
        return []
    eos = json.loads(config.read_text()).get("eos_token_id")
    return [eos] if isinstance(eos, int) else list(eos or [])


def _list(tools: Tools | None) -> list[dict[str, Any]] | None:
    return list(tools) if tools else None
