"""Parsing a completion while it grows: the parts that a stream gives out, joined, are the message.

``feed`` takes new ids. When a stop string is complete ``stopped`` turns true, and the ids up to there are the completion.
"""

from collections.abc import Sequence
from typing import Any

from renderers.base import Renderer, ToolCallParseStatus

from art_backend.tokens.detokenize import TextStream
from art_backend.tokens.notation import read_constants
from art_backend.tokens.parse import ParsedMessage, StopScanner, TextParser, overlap
from art_backend.tokens.tool_calls import make_call


class TextMessageStream:
    """Parses the text of a completion."""

    def __init__(self, text: TextStream, parser: TextParser, stops: Sequence[str]) -> None:
        self._text = text
        self._stops = StopScanner(stops)
        self._parser = parser

    @property
    def stopped(self) -> str | None:
        """The stop string that is complete."""
        return self._stops.matched

    def feed(self, ids: Sequence[int]) -> ParsedMessage:
        return self._parser.feed(self._stops.feed(self._text.feed(ids)))

    def finish(self) -> ParsedMessage:
        part = self._parser.feed(self._stops.feed(self._text.finish()) + self._stops.finish())
        part.extend(self._parser.finish())
        return part


class KnownMessageStream:
    """Parses with a hand-written renderer: the whole completion again now and then, handing out what has settled."""

    _EVERY = 8
    _TAG_LENGTH = 24

    def __init__(
        self,
        renderer: Renderer,
        prompt: list[int],
        tools: Sequence[dict[str, Any]] | None,
        text: TextStream,
        stops: Sequence[str],
    ) -> None:
        self._renderer = renderer
        self._prompt = prompt
        self._tools = tools
        self._text = text
        self._stops = StopScanner(stops)
        self._strings = stops
        self._ids: list[int] = []
        self._next = self._EVERY
        self._given = ParsedMessage()

    @property
    def stopped(self) -> str | None:
        """The stop string that is complete."""
        return self._stops.matched

    def feed(self, ids: Sequence[int]) -> ParsedMessage:
        self._ids.extend(ids)
        if self._strings:
            self._stops.feed(self._text.feed(ids))
        if len(self._ids) < self._next or self.stopped:
            return ParsedMessage()
        self._next = len(self._ids) + max(self._EVERY, len(self._ids) // 32)
        now = self._parse(ended=False)
        return self._give(ParsedMessage(self._settled(now.content), self._settled(now.reasoning.lstrip("\n"))))

    def finish(self) -> ParsedMessage:
        now = self._parse(ended=True)
        if self.stopped:
            now.content, now.reasoning = self._cut(now.content), self._cut(now.reasoning)
        return self._give(now)

    def _parse(self, *, ended: bool) -> ParsedMessage:
        return parse_known(self._renderer, self._ids, self._prompt, self._tools, ended=ended)

    def _cut(self, text: str) -> str:
        return text[: min((at for stop in self._strings if (at := text.find(stop)) >= 0), default=len(text))]

    def _settled(self, text: str) -> str:
        """Without an end that may still become a tag, a stop string, a whole character or stripped white space."""
        tag = text.rfind("<", max(0, len(text) - self._TAG_LENGTH))
        text = text if tag < 0 else text[:tag]
        if self._strings:
            text = text[: len(text) - max(overlap(text, stop) for stop in self._strings)]
        return text.rstrip("\ufffd").rstrip()

    def _give(self, now: ParsedMessage) -> ParsedMessage:
        """Hand out what is new. What was handed out stays, also where parsing has changed its mind about it."""
        part = ParsedMessage(tool_calls=now.tool_calls)
        if now.content.startswith(self._given.content):
            part.content = now.content[len(self._given.content) :]
        if now.reasoning.startswith(self._given.reasoning):
            part.reasoning = now.reasoning[len(self._given.reasoning) :]
        self._given.extend(part)
        return part


def parse_known(
    renderer: Renderer,
    completion: list[int],
    prompt: list[int],
    tools: Sequence[dict[str, Any]] | None,
    *,
    ended: bool = True,
) -> ParsedMessage:
    """Parse with a hand-written renderer. Malformed calls of a completion that has ended are text."""
    offered: Any = list(tools) if tools else None
    parsed = renderer.parse_response(completion, tools=offered, prompt_ids=prompt)
    message = ParsedMessage(parsed.content, parsed.reasoning_content or "")
    for call in parsed.tool_calls:
        arguments: Any = call.arguments or {}
        if call.status is ToolCallParseStatus.INVALID_JSON:
            arguments = read_constants(call.name or "", arguments, tools)
        elif call.status is not ToolCallParseStatus.OK:
            arguments = None
        made = make_call(call.name, arguments) if call.name and tools and arguments is not None else None
        if made:
            message.tool_calls.append(made)
        elif ended:
            message.content += call.raw
    return message
