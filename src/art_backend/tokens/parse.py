"""From a completion's text to what the agent sees: reasoning, words and tool calls.

This is the grammar of plain templates: ``<think>…</think>`` before the answer, and calls in the template's notation where tools were
offered. Streaming and whole answers go through the same machine, so they read the same. A malformed call stays in the text: it
is the agent's to deal with.

The message streams parse a completion while it grows: ``feed`` takes new ids, and the parts that it gives out, joined, are the
message. When a stop string is complete ``stopped`` names it, and the ids up to there are the completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from renderers.base import Renderer, ToolCallParseStatus

from art_backend.tokens.detokenize import TextStream
from art_backend.tokens.notation import Notation, read_constants
from art_backend.tokens.tool_calls import ParsedToolCall, make_call

THINK, END_THINK = "<think>", "</think>"


@dataclass(slots=True)
class ParsedMessage:
    """What an agent gets to see of a completion, or of a part of one."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ParsedToolCall] = field(default_factory=list[ParsedToolCall])

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)

    def extend(self, part: "ParsedMessage") -> None:
        """Append a later part."""
        self.content += part.content
        self.reasoning += part.reasoning
        self.tool_calls += part.tool_calls


class TextParser:
    """Takes text bit by bit and gives back what is certain of it.

    Args:
        notation: How calls are written; ``None`` where no tools were offered, so that a call is text.
        tools: Those that were offered.
        thinking: Whether the prompt itself opened the reasoning.
        plain: Whether all of the text is words.
    """

    def __init__(
        self,
        notation: Notation | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        thinking: bool = False,
        plain: bool = False,
    ) -> None:
        self._notation = notation
        self._tools = tools
        self._state: Literal["start", "before_reasoning", "reasoning", "after_reasoning", "content", "call"] = (
            "content" if plain else "before_reasoning" if thinking else "start"
        )
        self._held = ""
        self._gap = ""
        """White space before the call being read; it belongs to the text if the call does."""
        self._called = False
        self._spoken = False
        """Whether words have begun; calls without a mark stand before any."""

    def read(self, text: str) -> ParsedMessage:
        """Read a whole text."""
        message = self.feed(text)
        message.extend(self.finish())
        return message

    def feed(self, text: str) -> ParsedMessage:
        """Take more text; return the part of the message that is now certain."""
        self._held += text
        part = ParsedMessage()
        while self._step(part):
            pass
        return part

    def finish(self) -> ParsedMessage:
        """The text has ended: return the rest."""
        part = self.feed("")
        rest, self._held = self._held, ""
        if self._state == "reasoning":
            part.reasoning += rest
        elif self._state == "call":
            self._take_calls(part, rest)
        elif self._state not in ("before_reasoning", "after_reasoning") and not (self._called and not rest.strip()):
            part.content += rest
        return part

    def _step(self, part: ParsedMessage) -> bool:
        """Make one transition; false when more text is needed for the next."""
        match self._state:
            case "start":
                return self._start()
            case "before_reasoning":
                self._state = "reasoning" if self._held else "before_reasoning"
                self._held = self._held.removeprefix("\n")
                return self._state == "reasoning"
            case "reasoning":
                text, _, ended = self._until(END_THINK)
                part.reasoning += text
                self._state = "after_reasoning" if ended else "reasoning"
                return ended
            case "after_reasoning":
                self._held = self._held.lstrip("\n")
                self._state = "content" if self._held else "after_reasoning"
                return bool(self._held)
            case "content":
                return self._content(part)
            case "call":
                assert self._notation is not None
                end = self._notation.end
                at = self._held.find(end) if end else -1
                if at >= 0:
                    body, self._held = self._held[:at], self._held[at + len(end) :]
                    self._take_calls(part, body, end)
                return at >= 0

    def _start(self) -> bool:
        words = self._held.lstrip()
        if words.startswith(THINK):
            self._held = words[len(THINK) :]
            self._state = "before_reasoning"
            return True
        if THINK.startswith(words):
            return False
        self._state = "content"
        return True

    def _until(self, mark: str) -> tuple[str, str, bool]:
        """Take text up to ``mark``, the white space before it, and whether it was there.

        Without the mark, what could be its beginning is held back, and white space before that.
        """
        at = self._held.find(mark)
        end = at if at >= 0 else len(self._held) - overlap(self._held, mark)
        text = self._held[:end].rstrip()
        gap = self._held[len(text) : end]
        self._held = self._held[at + len(mark) :] if at >= 0 else self._held[len(text) :]
        return text, gap, at >= 0

    def _content(self, part: ParsedMessage) -> bool:
        notation = self._notation
        if notation is not None and notation.bare and not self._spoken:
            words = self._held.lstrip()
            if words.startswith(notation.begins_with):
                self._gap, self._held = self._held[: len(self._held) - len(words)], words
                self._state = "call"
                return False
            if not words:
                return False
            self._spoken = True
        if notation is None or notation.bare:
            part.content += self._held
            self._held = ""
            return False
        text, gap, ended = self._until(notation.mark)
        part.content += text
        if ended:
            self._gap = gap
            self._state = "call"
        return ended

    def _take_calls(self, part: ParsedMessage, body: str, end: str = "") -> None:
        """Calls have ended: read them, and leave in the text what is malformed."""
        assert self._notation is not None
        calls, rest = self._notation.read(body, self._tools)
        if not calls:
            part.content += self._gap + self._notation.mark + body + end
        elif rest:
            part.content += rest + end
        part.tool_calls += calls
        self._called = self._called or bool(calls)
        self._state = "content"
        self._spoken = True


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` with which ``mark`` begins."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


class StopScanner:
    """Ends a text before the first of some strings; holds back what could be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found."""

    @property
    def stopped(self) -> bool:
        return self.matched is not None

    def feed(self, text: str) -> str:
        """Take more text; return what certainly stands before any stop string."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.matched = min(found)[1]
        end = min(found)[0] if found else len(self._held) - max(overlap(self._held, stop) for stop in self._stops)
        certain, self._held = self._held[:end], self._held[end:]
        return certain

    def finish(self) -> str:
        """The text has ended: return what was held back, unless a stop string was found."""
        rest, self._held = self._held, ""
        return "" if self.stopped else rest


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


MessageStream = TextMessageStream | KnownMessageStream
