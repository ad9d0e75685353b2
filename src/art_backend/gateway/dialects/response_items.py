"""Items of OpenAI's responses: read from a request's input, and written as output.

The ids of output items hold the id of their turn, so that a reference to one can be resolved for as long as the turn is kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

from art_backend.gateway.answers import Aliases, Completed
from art_backend.gateway.dialects.chat_messages import join_text, read_system
from art_backend.gateway.dialects.requests import take, wrong
from art_backend.gateway.dialects.response_tools import (
    CALLS,
    OUTPUTS,
    read_call,
    read_output,
    read_served,
    read_tools,
    write_call,
)
from art_backend.gateway.dialects.toolbox import Toolbox
from art_backend.tokens.parse import ParsedMessage
from art_backend.tokens.render import Message
from art_backend.tokens.tool_calls import ParsedToolCall
from art_backend.tokens.tree import Turn

FindTurn = Callable[[str], Turn | None]
"""A captured turn by its id; ``None`` if this caller has no such turn."""


class ItemReader:
    """Puts items together to messages: what the assistant thought, said and called in one turn becomes one message."""

    def __init__(self, find_turn: FindTurn, tools: Toolbox) -> None:
        self.messages: list[Message] = []
        self._find_turn = find_turn
        self._tools = tools
        self._assistant: Message | None = None
        self._call_ids: dict[str, str] = {}
        """By the ids of call items; the output of a ``local_shell_call`` may name either."""

    def read(self, item: Any, where: str) -> None:
        """Read one item.

        Raises:
            BadRequestError: It has a wrong type or value; the error names it.
        """
        if not isinstance(item, dict):
            raise wrong(where, "must be an object")
        kind = take(item, "type", str, where) if "type" in item else "message"
        if kind == "item_reference":
            self._refer(item.get("id"), where)
        elif kind == "message":
            self._read_message(item, where)
        elif kind == "reasoning":
            message = self._current(fresh=True)
            message["reasoning_content"] = _read_reasoning(item, where)
        elif kind in CALLS:
            self._read_call(item, where)
        elif kind in OUTPUTS:
            self._read_output(item, where)
        elif kind == "additional_tools":
            read_tools(self._tools, item.get("tools"), f"{where}.tools")
        elif (served := read_served(item)) is not None:
            function, output = served
            self._call(str(item.get("id") or ""), function)
            self._append({"role": "tool", "tool_call_id": str(item.get("id") or ""), "content": output})
        elif kind not in _SILENT:
            raise wrong(f"{where}.type", f"items of type {kind!r} are not supported")

    def _read_message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        read_content = read_system if role in ("system", "developer") else join_text
        content = read_content(item.get("content"), f"{where}.content")
        if role == "assistant":
            message = self._current(fresh=True)
            message["content"] = content
        elif role in ("user", "system", "developer"):
            self._append({"role": "user" if role == "user" else "system", "content": content})
        else:
            raise wrong(f"{where}.role", "must be 'user', 'assistant', 'system' or 'developer'")

    def _read_call(self, item: dict[str, Any], where: str) -> None:
        call_id = take(item, "call_id", str, where)
        if isinstance(item.get("id"), str):
            self._call_ids[item["id"]] = call_id
        self._call(call_id, read_call(item, where))

    def _read_output(self, item: dict[str, Any], where: str) -> None:
        if item.get("call_id") is None and isinstance(item.get("id"), str):
            call_id = self._call_ids.get(item["id"], item["id"])
        else:
            call_id = take(item, "call_id", str, where)
        message = {"role": "tool", "tool_call_id": call_id, "content": read_output(item, where)}
        if item["type"] == "tool_search_output":
            loaded = Toolbox()
            read_tools(loaded, item.get("tools"), f"{where}.tools")
            self._tools.aliases |= loaded.aliases
        self._append(message)

    def _call(self, call_id: str, function: dict[str, Any]) -> None:
        call = {"id": call_id, "type": "function", "function": function}
        self._current(fresh=False).setdefault("tool_calls", []).append(call)

    def _refer(self, item_id: Any, where: str) -> None:
        kind, turn_id, number = split_item_id(item_id if isinstance(item_id, str) else "")
        turn = self._find_turn(turn_id)
        if turn is None:
            raise wrong(f"{where}.id", f"this rollout has no item {item_id!r}. Send the items themselves")
        message = turn.message
        if kind == "rs":
            self._current(fresh=True)["reasoning_content"] = message.get("reasoning_content", "")
        elif kind == "msg":
            item = {"role": "assistant", "content": message["content"]}
            self._read_message(item, where)
        else:
            calls = {str(index): call for index, call in enumerate(message.get("tool_calls", []))}
            if number not in calls:
                raise wrong(f"{where}.id", f"no item {item_id!r} is known")
            self._current(fresh=False).setdefault("tool_calls", []).append(calls[number])

    def _current(self, *, fresh: bool) -> Message:
        """The assistant's message that is being put together; what follows its calls belongs to another."""
        current = self._assistant
        if current is None or (fresh and (current["content"] or current.get("tool_calls"))):
            current = self._assistant = {"role": "assistant", "content": ""}
            self.messages.append(current)
        return current

    def _append(self, message: Message) -> None:
        self._assistant = None
        self.messages.append(message)


_SILENT = {"mcp_list_tools", "mcp_approval_request", "mcp_approval_response"}
"""Types of items that are between a caller and OpenAI."""


def _read_reasoning(item: dict[str, Any], where: str) -> str:
    return join_text(item.get("content"), f"{where}.content") or join_text(item.get("summary"), f"{where}.summary")


def split_item_id(item_id: str) -> tuple[str, str, str]:
    """Kind and turn of an output item's id, and the number of a call in its turn."""
    kind, _, turn = item_id.partition("_")
    if kind != "fc":
        return kind, turn, ""
    turn, _, number = turn.rpartition("_")
    return kind, turn, number


def write_reasoning(turn_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"type": "reasoning", "id": f"rs_{turn_id}", "summary": [], "content": content, "encrypted_content": None}


def write_message(turn_id: str, text: str | None, status: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    """An output message; ``None`` for one that has no content yet."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
    return {
        "type": "message",
        "id": f"msg_{turn_id}",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [part],
    }


def write_calls(
    turn_id: str, calls: Sequence[ParsedToolCall], aliases: Aliases, start: int = 0
) -> list[dict[str, Any]]:
    """Output items of the calls of a turn from number ``start`` on."""
    return [
        write_call(f"fc_{turn_id}_{index}", call, aliases.get(call.name)) for index, call in enumerate(calls, start)
    ]


def write_items(turn_id: str, one: Completed, aliases: Aliases, logprobs: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """All output items of a completion: reasoning, words, calls."""
    message: ParsedMessage = one.message
    items: list[dict[str, Any]] = []
    if message.reasoning:
        items.append(write_reasoning(turn_id, message.reasoning))
    if message.content or not message.tool_calls:
        status = "incomplete" if one.finish_reason == "length" else "completed"
        items.append(write_message(turn_id, message.content, status, logprobs))
    return items + write_calls(turn_id, message.tool_calls, aliases)
