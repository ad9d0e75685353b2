"""One prompt of a model call, and its place in a tree: a ``Conversation`` of messages, or one ``Text``. Both have the same methods."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from art_backend.errors import BadRequestError
from art_backend.gateway.form import Form
from art_backend.tokens.grammar import Structure
from art_backend.tokens.parse import MessageStream, ParsedMessage
from art_backend.tokens.render import ChatRenderer, Message
from art_backend.tokens.setting import Toolset
from art_backend.tokens.tree import Digest, PlainText, Prompt, Tree, extend_digest


@dataclass(slots=True)
class Conversation:
    """Messages, and the tools that they may call."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    form: Form = field(default_factory=Form)
    """What the completion must look like. Where no calls are wanted, what looks like one is text."""
    template_arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """The request's ``chat_template_kwargs``."""

    begun: str = ""
    """Text that the answer begins with: context, as the prompt is."""
    _before: Digest = b""
    """Place before the answer."""

    def __post_init__(self) -> None:
        self.tools = Toolset.of(self.tools) if self.tools else None

    def size(self) -> int:
        """Characters of the whole prompt: how much work rendering it takes."""
        written = orjson.dumps([self.messages, self.template_arguments])
        return len(self.begun) + len(written) + len(Toolset.of(self.tools).text)

    def least_tokens(self, renderer: ChatRenderer) -> int:
        """A lower bound of the prompt's tokens."""
        content = len(self.begun) + sum(len(message["content"]) for message in self.messages)
        return max(len(self.messages), content // renderer.longest_token)

    def depth(self, tree: Tree) -> int:
        """How much of it a tree has seen; 0 if nothing that was sampled there."""
        return tree.known_messages(self.messages, self.tools, self.template_arguments)

    def place(self, tree: Tree, renderer: ChatRenderer) -> Prompt:
        prompt = tree.place(self.messages, self.tools, renderer, self.template_arguments)
        self._before = prompt.digest
        return tree.begin(prompt, self.begun, renderer.begin(prompt.path_ids(), self.begun)) if self.begun else prompt

    def parse(self, renderer: ChatRenderer, completion: Sequence[int], prompt: Sequence[int]) -> ParsedMessage:
        return renderer.parse(completion, prompt, self._offered, self.template_arguments)

    def stream(self, renderer: ChatRenderer, prompt: Sequence[int], stops: Sequence[str]) -> MessageStream:
        return renderer.stream(prompt, self._offered, stops, self.template_arguments)

    @property
    def _offered(self) -> list[dict[str, Any]] | None:
        """The tools whose calls are read as calls."""
        return self.tools if self.form.parse_calls else None

    def structure(self, renderer: ChatRenderer, prompt: Sequence[int]) -> Structure | None:
        """The form that a completion must have; ``None`` if it is free. Raises BadRequestError where that cannot be enforced."""
        structure = self.form.structure(renderer, prompt, self.tools)
        if structure is not None and self.begun:
            raise BadRequestError(
                f"{self.structure_field}: cannot be combined with a prefilled answer; leave one of them out.",
                param=self.structure_field,
            )
        return structure

    def demands(self) -> Iterator[tuple[Structure, str]]:
        """The parts of the structure, each with the field that demanded it."""
        return self.form.parts(self.tools)

    @property
    def structure_field(self) -> str:
        """The field to blame for a structure that the engine refuses."""
        return self.form.words_field or "tools"

    def remember(
        self, renderer: ChatRenderer, parsed: ParsedMessage, ids: Sequence[int]
    ) -> tuple[Message, Digest | None]:
        """The message to keep of a completion, and the place after it where the message does not say it."""
        message = as_message(parsed)
        if not self.begun:
            return message, None
        message["content"] = self.begun + message["content"]
        return message, extend_digest(self._before, message)

    def forget(self) -> None:
        """Drop what only placing needed: retries keep the answer, and the tree keeps the history."""
        self.messages, self.tools, self.form = [], None, Form()


@dataclass(slots=True)
class Text:
    """A prompt that is text, or a list of ids."""

    prompt: str | list[int]
    words: Structure | None = None
    """What form the completion must have."""
    structure_field: str = ""

    def size(self) -> int:
        return len(self.prompt)

    def least_tokens(self, renderer: ChatRenderer) -> int:
        return len(self.prompt) // (renderer.longest_token if isinstance(self.prompt, str) else 1)

    def depth(self, tree: Tree) -> int:
        return tree.known_text(self._as_plain(lambda text, beginning: []))

    def place(self, tree: Tree, renderer: ChatRenderer) -> Prompt:
        if not isinstance(self.prompt, str):
            largest = max(self.prompt)
            if largest >= renderer.vocabulary_size:
                raise BadRequestError(
                    f"prompt: id {largest} is outside the vocabulary of {renderer.vocabulary_size}.", param="prompt"
                )
        prompt = tree.place_text(self._as_plain(renderer.encode_text))
        if not prompt.length:
            raise BadRequestError("prompt: must not be empty; this model has no BOS token.", param="prompt")
        return prompt

    def parse(self, renderer: ChatRenderer, completion: Sequence[int], prompt: Sequence[int]) -> ParsedMessage:
        return ParsedMessage(renderer.detokenizer.decode(completion))

    def stream(self, renderer: ChatRenderer, prompt: Sequence[int], stops: Sequence[str]) -> MessageStream:
        return renderer.stream_text(stops)

    def structure(self, renderer: ChatRenderer, prompt: Sequence[int]) -> Structure | None:
        return self.words

    def demands(self) -> Iterator[tuple[Structure, str]]:
        if self.words is not None:
            yield self.words, self.structure_field

    def remember(
        self, renderer: ChatRenderer, parsed: ParsedMessage, ids: Sequence[int]
    ) -> tuple[Message, Digest | None]:
        silent = next((n for n, i in enumerate(reversed(ids)) if not renderer.detokenizer.is_special(i)), len(ids))
        spoken = ids[: len(ids) - silent]
        plain = self._as_plain(renderer.encode_text)
        digest, end = plain.extended(spoken, renderer.detokenizer.decode(spoken))
        return {"role": "completion", "content": parsed.content, "end": end, "silent": silent}, digest

    def forget(self) -> None:
        """Keeps the prompt: an answer may repeat it."""

    def _as_plain(self, tokenise: Any) -> PlainText:
        if isinstance(self.prompt, str):
            return PlainText(b"text", self.prompt.encode(), tokenise)
        return PlainText(b"ids", array("i", self.prompt).tobytes(), tokenise)


Source = Conversation | Text


def as_message(parsed: ParsedMessage) -> Message:
    """The message that an agent will bring back."""
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message
