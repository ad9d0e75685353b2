"""The events of a streamed response: items open, grow and close, one after the other, and each event has a number."""

from typing import Any

import orjson

from art_backend.gateway.answers import Aliases, Completed
from art_backend.gateway.dialects.response_items import write_calls, write_message, write_reasoning
from art_backend.tokens.parse import ParsedMessage

_GROWING = {"function_call": "arguments", "custom_tool_call": "input"}
"""Types of calls whose arguments are streamed, with the field that holds them."""


class EventWriter:
    """Writes the output of one turn."""

    def __init__(self, turn_id: str, aliases: Aliases) -> None:
        self._turn_id = turn_id
        self._aliases = aliases
        self._number = -1
        self._index = -1
        self._open: str | None = None
        self._item_id = ""
        self._text = ""
        self._calls = 0

    def event(self, kind: str, **data: Any) -> bytes:
        """One event, with the next number."""
        self._number += 1
        body = orjson.dumps({"type": kind, "sequence_number": self._number, **data})
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def write(self, part: ParsedMessage) -> list[bytes]:
        """What came new."""
        events: list[bytes] = []
        if part.reasoning:
            events += self._grow("reasoning", part.reasoning)
        if part.content:
            events += self._grow("message", part.content)
        for item in write_calls(self._turn_id, part.tool_calls, self._aliases, self._calls):
            self._calls += 1
            events += self._close() + self._call(item)
        return events

    def finish(self, one: Completed) -> list[bytes]:
        """The end of the output; a turn that said nothing has an empty message."""
        events: list[bytes] = []
        if not one.message.content and not one.message.tool_calls:
            events += self._switch("message")
        status = "incomplete" if one.finish_reason == "length" else "completed"
        return events + self._close(status)

    def _grow(self, kind: str, text: str) -> list[bytes]:
        events = self._switch(kind)
        self._text += text
        where: dict[str, Any] = {
            "item_id": self._item_id,
            "output_index": self._index,
            "content_index": 0,
            "delta": text,
        }
        if kind == "message":
            return [*events, self.event("response.output_text.delta", **where, logprobs=[])]
        return [*events, self.event("response.reasoning_text.delta", **where)]

    def _switch(self, kind: str) -> list[bytes]:
        """Close the open item and open one of this kind, unless that is open."""
        if self._open == kind:
            return []
        events = self._close()
        self._open, self._text = kind, ""
        self._index += 1
        if kind == "message":
            item = write_message(self._turn_id, None, "in_progress")
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = write_reasoning(self._turn_id, "")
            part = {"type": "reasoning_text", "text": ""}
        self._item_id = item["id"]
        events.append(self.event("response.output_item.added", output_index=self._index, item=item))
        where = {"item_id": self._item_id, "output_index": self._index, "content_index": 0}
        return [*events, self.event("response.content_part.added", **where, part=part)]

    def _close(self, status: str = "completed") -> list[bytes]:
        if self._open is None:
            return []
        where: dict[str, Any] = {"item_id": self._item_id, "output_index": self._index, "content_index": 0}
        if self._open == "message":
            item = write_message(self._turn_id, self._text, status)
            done = self.event("response.output_text.done", **where, text=self._text, logprobs=[])
            part: dict[str, Any] = item["content"][0]
        else:
            item = write_reasoning(self._turn_id, self._text)
            done = self.event("response.reasoning_text.done", **where, text=self._text)
            part = {"type": "reasoning_text", "text": self._text}
        self._open = None
        return [
            done,
            self.event("response.content_part.done", **where, part=part),
            self.event("response.output_item.done", output_index=self._index, item=item),
        ]

    def _call(self, item: dict[str, Any]) -> list[bytes]:
        self._index += 1
        field = _GROWING.get(item["type"])
        begun = {**item, "status": "in_progress"} | ({field: ""} if field else {})
        events = [self.event("response.output_item.added", output_index=self._index, item=begun)]
        if field:
            kind, where = f"response.{item['type']}_{field}", {"item_id": item["id"], "output_index": self._index}
            whole = {field: item[field]} | ({"name": item["name"]} if field == "arguments" else {})
            events.append(self.event(f"{kind}.delta", **where, delta=item[field]))
            events.append(self.event(f"{kind}.done", **where, **whole))
        return [*events, self.event("response.output_item.done", output_index=self._index, item=item)]
