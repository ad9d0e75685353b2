"""Items of OpenAI's responses: read from a request's input, and written as output.

The ids of output items hold the id of their turn, so that a reference to one can be resolved for as long as the turn is kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

from art_backend.errors import BadRequestError
from art_backend.gateway.answers import Completed
from art_backend.gateway.dialects.chat_messages import join_text, read_system
from art_backend.gateway.dialects.response_tools import (
    CALLS,
    OUTPUTS,
    read_call,
    read_output,
    read_served,
    read_tools,
    write_call,
)
from art_backend.gateway.dialects.toolbox import Aliases, Toolbox
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
            raise BadRequestError(f"{where}: must be an object.", param=where)
        kind = item.get("type", "message")
        if not isinstance(kind, str):
            raise BadRequestError(f"{where}.type: must be a string.", param=f"{where}.type")
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
            raise BadRequestError(f"{where}.type: items of type {kind!r} are not supported.", param=f"{where}.type")

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
            where = f"{where}.role"
            raise BadRequestError(f"{where}: must be 'user', 'assistant', 'system' or 'developer'.", param=where)

    def _read_call(self, item: dict[str, Any], where: str) -> None:
        call_id = _read_call_id(item.get("call_id"), where)
        if isinstance(item.get("id"), str):
            self._call_ids[item["id"]] = call_id
        self._call(call_id, read_call(item, where))

    def _read_output(self, item: dict[str, Any], where: str) -> None:
        call_id = item.get("call_id")
        if call_id is None and isinstance(item.get("id"), str):
            call_id = self._call_ids.get(item["id"], item["id"])
        message = {"role": "tool", "tool_call_id": _read_call_id(call_id, where), "content": read_output(item, where)}
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
            raise BadRequestError(
                f"{where}.id: no item {item_id!r} of this rollout is known. Send the items themselves.",
                param=f"{where}.id",
            )
        message = turn.message
        if kind == "rs":
            self._current(fresh=True)["reasoning_content"] = message.get("reasoning_content", "")
        elif kind == "msg":
            item = {"role": "assistant", "content": message["content"]}
            self._read_message(item, where)
        else:
            calls = {str(index): call for index, call in enumerate(message.get("tool_calls", []))}
            if number not in calls:
                raise BadRequestError(f"{where}.id: no item {item_id!r} is known.", param=f"{where}.id")
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


def _read_call_id(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise BadRequestError(f"{where}.call_id: must be a string.", param=f"{where}.call_id")
    return value


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


def write_input_items(turn_id: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The items of a conversation, as they are listed for a response that answered it."""
    items: list[dict[str, Any]] = []

    def add(kind: str, prefix: str, **data: Any) -> None:
        items.append({"type": kind, "id": f"{prefix}_{turn_id}_input_{len(items)}", "status": "completed", **data})

    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            add("function_call_output", "fco", call_id=message.get("tool_call_id", ""), output=content)
        elif role != "assistant":
            add("message", "msg", role=role, content=[{"type": "input_text", "text": content}])
        else:
            if reasoning := message.get("reasoning_content"):
                add("reasoning", "rs", summary=[], content=[{"type": "reasoning_text", "text": reasoning}])
            if content:
                part = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
                add("message", "msg", role="assistant", content=[part])
            for call in message.get("tool_calls", ()):
                add("function_call", "fc", call_id=call["id"], **call["function"])
    return items
