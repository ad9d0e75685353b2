"""Messages to token ids and back, for one model.

What was sampled is never rendered again. The next prompt of a conversation is *bridged*: the exact ids served so far, plus
the ids of the messages that are new. ``renderers`` does this for the families that it knows (see ``families``), the difference
of two renderings for other chat templates (see ``bridging``). Where neither can prove it, ``bridge`` returns ``None`` and the
conversation forks into another row.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from renderers.base import Renderer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from art_backend.errors import BadRequestError, ModelNotAvailableError
from art_backend.tokens.bridging import SPOKEN, Difference
from art_backend.tokens.detokenize import Detokenizer, TextStream
from art_backend.tokens.families import Family, find_family
from art_backend.tokens.guard import ControlTokenGuard
from art_backend.tokens.learning import SAMPLE_TOOLS, demands_short_ids, learn_notation
from art_backend.tokens.notation import HERMES, Notation
from art_backend.tokens.parse import (
    END_THINK,
    THINK,
    KnownMessageStream,
    MessageStream,
    ParsedMessage,
    TextMessageStream,
    TextParser,
    parse_known,
)
from art_backend.tokens.setting import Message, Setting, Tools, apply_template, find_argument_names
from art_backend.tokens.tool_calls import give_objects, give_short_ids, spell_out_tools

_LONG = 2000
"""Characters of a text that takes so long to tokenise that others must go on meanwhile."""


class ChatRenderer:
    """Renders, bridges and parses for one tokenizer.

    Args:
        tokenizer: A fast tokenizer with a chat template.
        family: Has hand-written renderers for this model, if there are any.
        stop_token_ids: Further ids that end a completion.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        family: Family | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._family = family
        renderer = family and family.plain
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.detokenizer = Detokenizer(tokenizer)
        self.vocabulary_size = len(tokenizer)
        self._guard = ControlTokenGuard(tokenizer)
        if renderer and self._guard.id not in renderer.render_ids([{"role": "user", "content": self._guard.mark}]):
            self._guard.switch_off()  # it spells the texts of others by itself, as Harmony's does
        template = tokenizer.chat_template or ""
        self._template_text = str(template)
        self._shows_tools = renderer is not None or "tools" in self._template_text
        self.varies = re.search(r"\b(strftime_now|random|lipsum)\b", self._template_text) is not None
        """Whether the same messages may be written in another way at another time."""
        self._short_call_ids = False  # while the template is asked
        self._short_call_ids = self._shows_tools and renderer is None and demands_short_ids(self._write_sample)
        self._difference: Difference | None = None
        if renderer is None and template:
            self._difference = Difference.find(self._template, tokenizer.added_tokens_decoder, varies=self.varies)
        close = self._difference and self._difference.close
        ids = renderer.get_stop_token_ids() if renderer else [tokenizer.eos_token_id, close]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in [*ids, *stop_token_ids] if i is not None))

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> "ChatRenderer":
        """Load the tokenizer in ``path``; ``name`` is the model's hub id."""
        tokenizer = AutoTokenizer.from_pretrained(path)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ModelNotAvailableError(f"The model in {path} has no tokenizer.json, which ART needs to read its ids.")
        return cls(tokenizer, find_family(tokenizer, name), _generation_stops(path))

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters has at least n / longest_token ids."""
        return max(len(token) for token, i in self._tokenizer.get_vocab().items() if i < self.vocabulary_size)

    def render(
        self, messages: Sequence[Message], tools: Tools | None = None, setting: Setting | None = None
    ) -> list[int]:
        """Return the ids of a whole prompt, up to where the assistant begins to speak.

        Raises:
            BadRequestError: The model's chat template refuses the messages, or has no use for an argument of the setting.
        """
        setting = setting or Setting()
        self._check_arguments(setting)
        return self._render(messages, tools, setting, generation_prompt=True)

    def begin(self, prompt: Sequence[int], text: str) -> list[int]:
        """Return the ids of ``text`` where an answer to ``prompt`` begins with it; reasoning that the prompt opens is closed.

        Raises:
            BadRequestError: The text spells a control token, or this model's words are not the plain text of its completions.
        """
        if not self.speaks_plainly:
            raise BadRequestError(
                "messages: answers of this model cannot be prefilled in its own notation.", param="messages"
            )
        ids = self.encode(text)
        if any(self.detokenizer.is_special(i) for i in ids):
            raise BadRequestError(
                "messages: a prefilled answer must not contain a control token; leave it out.", param="messages"
            )
        return [*self.encode(f"\n{END_THINK}\n\n"), *ids] if self.opens_thinking(prompt) else ids

    def spell(
        self,
        messages: Sequence[Message],
        answer: Message,
        tools: Tools | None = None,
        setting: Setting | None = None,
    ) -> list[int]:
        """Return the ids that the model would have sampled to say ``answer`` after ``messages``, its end of turn included.

        Raises:
            BadRequestError: The template refuses the messages, or does not write this answer where it asks for one.
        """
        setting = setting or Setting()
        prompt = self.render(messages, tools, setting)
        with _refusals():
            if renderer := self._hand_written(setting):
                whole = self._render_known(renderer, [*messages, answer], tools, generation_prompt=False)
                said = whole[len(prompt) :] if whole[: len(prompt)] == prompt else []
            else:
                before = self._template(messages, tools, setting, generation_prompt=True)
                text = self._template([*messages, answer], tools, setting, generation_prompt=False)
                said = self.encode(text[len(before) :]) if text.startswith(before) else []
        if not said:
            raise BadRequestError(
                "The chat template renders this assistant message differently from its generation prompt, so its tokens"
                " cannot be recovered. Leave the message out, or train on what was sampled.",
                param="messages",
            )
        ends = [i for i, token in enumerate(said) if token in self.stop_token_ids]
        return said[: ends[-1] + 1] if ends else said

    def render_whole(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """Return the ids of a conversation as the template writes it, with no further turn begun.

        Raises:
            BadRequestError: The model's chat template refuses the messages.
        """
        return self._render(messages, tools, Setting(), generation_prompt=False)

    def _render(
        self, messages: Sequence[Message], tools: Tools | None, setting: Setting, *, generation_prompt: bool
    ) -> list[int]:
        with _refusals():
            if renderer := self._hand_written(setting):
                return self._render_known(renderer, messages, tools, generation_prompt=generation_prompt)
            return self.encode(self._template(messages, tools, setting, generation_prompt=generation_prompt))

    def _render_known(
        self, renderer: Renderer, messages: Sequence[Message], tools: Tools | None, *, generation_prompt: bool
    ) -> list[int]:
        ready, shown = self._guarded(messages, tools)
        ids = renderer.render_ids(ready, tools=shown, add_generation_prompt=generation_prompt)  # pyright: ignore[reportArgumentType]
        return self._guard.without_guards(list(ids))

    def _guarded(
        self, messages: Sequence[Message], tools: Tools | None
    ) -> tuple[list[Message], list[dict[str, Any]] | None]:
        """Messages and tools as templates and renderers get them."""
        return self._guard.guard_messages(give_objects(messages)), self._guard.guard_tools(tools)

    def bridge(
        self,
        prompt: Sequence[int],
        completion: Sequence[int],
        new_messages: Sequence[Message],
        tools: Tools | None,
        setting: Setting | None = None,
        before: Sequence[Message] = (),
    ) -> list[int] | None:
        """Return the ids that follow ``prompt`` and its ``completion`` in the next prompt; ``None`` if it cannot be proven.

        Args:
            before: The messages that the prompt and its completion are; templates that number messages need them.
        """
        if not completion or not new_messages:
            return None
        setting = setting or Setting()
        if renderer := self._hand_written(setting):
            return self._bridge_known(renderer, list(prompt), list(completion), new_messages, tools)
        if self._difference is None:
            return None
        text = self._difference.after(new_messages, tools, setting, before)
        if text is None:
            return None
        extension, close = self.encode(text), self._difference.close
        if extension[:1] != [close]:
            return None
        return extension[1:] if completion[-1] == close else extension

    def _hand_written(self, setting: Setting) -> Renderer | None:
        """The renderer of this model's family for a setting."""
        return self._family and self._family.renderer_of(self._guard.guard_setting(setting))

    def _check_arguments(self, setting: Setting) -> None:
        """Raise BadRequestError for an argument that would have no effect, or that is not the caller's to give."""
        for name in setting.arguments:
            if name not in (self._family.argument_names if self._family else self._argument_names):
                where = f"chat_template_kwargs.{name}"
                raise BadRequestError(
                    f"{where}: this model's chat template has no such argument; leave it out.", param=where
                )
        try:
            self._hand_written(setting)
        except ValueError as error:
            raise BadRequestError(f"chat_template_kwargs: {error}", param="chat_template_kwargs") from error

    @cached_property
    def _argument_names(self) -> frozenset[str]:
        with _refusals():
            return find_argument_names(self._template_text)

    def _bridge_known(
        self,
        renderer: Renderer,
        prompt: list[int],
        completion: list[int],
        new_messages: Sequence[Message],
        tools: Tools | None,
    ) -> list[int] | None:
        ready, shown = self._guarded(new_messages, tools)
        bridged = renderer.bridge_to_next_turn(prompt, completion, ready, tools=shown)  # pyright: ignore[reportArgumentType]
        if bridged is None:
            return None
        served = len(prompt) + len(completion)
        ids = list(bridged.token_ids)
        # a bridge may drop ids after the turn's end; those were served, so they cannot be dropped here
        return self._guard.without_guards(ids[served:]) if ids[:served] == prompt + completion else None

    def parse(
        self,
        completion: Sequence[int],
        prompt: Sequence[int],
        tools: Tools | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> ParsedMessage:
        """Split a completion into what was said, thought and called. Malformed calls stay in the text."""
        if self._family:
            return parse_known(self._family.renderer(arguments or {}), list(completion), list(prompt), tools)
        text = (self._marked if tools else self.detokenizer).decode(completion)
        return self._parser(prompt, tools).read(text)

    def stream_text(self, stops: Sequence[str] = ()) -> TextMessageStream:
        """Decode a completion while it is sampled, without looking for reasoning or calls in it."""
        return TextMessageStream(TextStream(self.detokenizer), TextParser(plain=True), stops)

    def stream(
        self,
        prompt: Sequence[int],
        tools: Tools | None = None,
        stops: Sequence[str] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> MessageStream:
        """Parse a completion of ``prompt`` while it is sampled; ``stops`` are strings that end it."""
        text = TextStream(self._marked if tools else self.detokenizer)
        if self._family:
            return KnownMessageStream(self._family.renderer(arguments or {}), list(prompt), tools, text, stops)
        return TextMessageStream(text, self._parser(prompt, tools), stops)

    def _parser(self, prompt: Sequence[int], tools: Tools | None) -> TextParser:
        notation = (self.notation or HERMES) if tools else None
        return TextParser(notation, tools, thinking=self.opens_thinking(prompt))

    def opens_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt itself begins the reasoning of its completion."""
        return self.detokenizer.decode(prompt[-8:]).rstrip().endswith(THINK)

    def mark(self, text: str) -> int | None:
        """The id of a mark such as ``<tool_call>``, if the tokenizer has a token for it."""
        return self._marks.get(text)

    @cached_property
    def _marks(self) -> dict[str, int]:
        added = self._tokenizer.added_tokens_decoder.items()
        return {token.content: token_id for token_id, token in added if token_id < self.vocabulary_size}

    @cached_property
    def notation(self) -> Notation | None:
        """The notation in which this model's template writes calls; ``None`` if it cannot be read back."""
        stops = [self._tokenizer.added_tokens_decoder[i].content for i in self.stop_token_ids]
        return learn_notation(self._write_sample, self._read_sample, stops, self._marks)

    def explain_calls(self) -> str | None:
        """Why calls of this model cannot be forced, and what that means; ``None`` if they can."""
        if self.notation is not None:
            return None
        if self._family is not None:
            return "tool_choice cannot force a call of this model: its chat template writes call ids instead of names."
        return (
            "The chat template of this model does not write tool calls in a way that can be read back. Calls are looked for"
            f" in the notation {HERMES.mark}{{JSON}}{HERMES.end}, and tool_choice cannot force any."
        )

    def _write_sample(self, messages: Sequence[Message]) -> str:
        if self._family:
            ids = self._render_known(self._family.plain, messages, SAMPLE_TOOLS, generation_prompt=False)
            return self._backend.decode(ids, skip_special_tokens=False)
        return self._template(messages, SAMPLE_TOOLS, Setting(), generation_prompt=False)

    def _read_sample(self, notation: Notation, text: str) -> ParsedMessage:
        if self._family:
            return parse_known(self._family.plain, self.encode(text), [], SAMPLE_TOOLS)
        return TextParser(notation, SAMPLE_TOOLS).read(text)

    def split_marks(self, text: str) -> list[str | int]:
        """A text in pieces: the ids of the added tokens that it spells, and the texts between them."""
        return [self._marks.get(piece, piece) for piece in self._any_mark.split(text) if piece]

    @cached_property
    def _any_mark(self) -> re.Pattern[str]:
        longest_first = sorted(self._marks, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @cached_property
    def _marked(self) -> Detokenizer:
        """Decodes with the marks of calls, which may be special tokens."""
        marks = self.notation.texts if self.notation else ""
        shown = {i for text, i in self._marks.items() if text in marks and self.detokenizer.is_special(i)}
        return Detokenizer(self._tokenizer, frozenset(shown))

    @cached_property
    def speaks_plainly(self) -> bool:
        """Whether this model's words are the completion's text as it stands."""
        return self.parse(self.encode(SPOKEN), ()).content == SPOKEN

    def _encode(self, text: str, *, special: bool) -> list[int]:
        if len(text) <= _LONG:
            return self._backend.encode(text, add_special_tokens=special).ids
        # of a batch, unlike of a single text, the library does not hold Python's lock: others go on
        return self._backend.encode_batch_fast([text], add_special_tokens=special)[0].ids

    def encode(self, text: str) -> list[int]:
        return self._guard.without_guards(self._encode(text, special=False))

    def encode_text(self, text: str, beginning: bool) -> list[int]:
        """Ids of plain text, with what the tokenizer puts at the beginning of every text."""
        return self._encode(text, special=beginning)

    def _template(
        self, messages: Sequence[Message], tools: Tools | None, setting: Setting, *, generation_prompt: bool
    ) -> str:
        ready, shown = self._guarded(messages, tools)
        if self._short_call_ids:
            ready = give_short_ids(ready)
        if not self._shows_tools:
            ready, shown = spell_out_tools(ready, shown), None
        with setting.seeded() if self.varies else nullcontext():
            guarded = self._guard.guard_setting(setting)
            return apply_template(self._tokenizer, ready, shown, guarded, generation_prompt=generation_prompt)


@contextmanager
def _refusals() -> Iterator[None]:
    """Templates raise whatever their authors liked; to the caller it is a 400."""
    try:
        yield
    except Exception as error:
        raise BadRequestError(f"The model's chat template refuses these messages: {error}", param="messages") from error


def _generation_stops(path: Path) -> list[int]:
    """Ids that ``generation_config.json`` says end a completion."""
    config = path / "generation_config.json"
    if not config.exists():
        return []
    eos = json.loads(config.read_text()).get("eos_token_id")
    return [eos] if isinstance(eos, int) else list(eos or [])
