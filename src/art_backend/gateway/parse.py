"""From a completion's text to what the agent sees: reasoning, words and tool calls.

This is the grammar of plain templates: ``<think>…</think>`` before the answer, and ``<tool_call>{"name", "arguments"}</tool_call>``
where tools were offered. Streaming and whole answers go through the same machine, so they read the same. A call that is not
valid JSON stays in the text: it is the agent's to deal with.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


@dataclass(slots=True)
class ParsedToolCall:
    name: str
    arguments: str
    """JSON."""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


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
        calls: Whether tools were offered; without them a call is text.
        thinking: Whether the prompt itself opened the reasoning.
        plain: Whether all of the text is words.
    """

    def __init__(self, *, calls: bool, thinking: bool = False, plain: bool = False) -> None:
        self._calls = calls
        self._state: Literal["start", "before_reasoning", "reasoning", "after_reasoning", "content", "call"] = (
            "content" if plain else "before_reasoning" if thinking else "start"
        )
        self._held = ""
        self._gap = ""
        """White space before the call being read; it belongs to the text if the call does."""
        self._called = False

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
            self._take_call(part, rest, rest)
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
                at = self._held.find(END_CALL)
                if at >= 0:
                    body, self._held = self._held[:at], self._held[at + len(END_CALL) :]
                    self._take_call(part, body, body + END_CALL)
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
        if not self._calls:
            part.content += self._held
            self._held = ""
            return False
        text, gap, ended = self._until(CALL)
        part.content += text
        if ended:
            self._gap = gap
            self._state = "call"
        return ended

    def _take_call(self, part: ParsedMessage, body: str, raw: str) -> None:
        """A call has ended: read it, or leave it in the text."""
        if call := read_call(body):
            part.tool_calls.append(call)
            self._called = True
        else:
            part.content += self._gap + CALL + raw
        self._state = "content"


def read_call(body: str) -> ParsedToolCall | None:
    """Read ``{"name": …, "arguments": {…}}``; ``None`` if it is anything else."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", call.get("parameters"))
    return make_call(call["name"], {} if arguments is None else arguments)


def make_call(name: str, arguments: Any) -> ParsedToolCall | None:
    """A call with ``arguments``, an object or its JSON; ``None`` if it is neither, or what JSON and Unicode cannot hold."""
    try:
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + text).encode()  # escapes can spell halves of a character, which are no text
    except (ValueError, RecursionError):
        return None
    return ParsedToolCall(name, text) if isinstance(arguments, dict) else None


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
