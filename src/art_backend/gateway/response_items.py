"""Items of OpenAI's responses: read from a request's input, and written as output.

The ids of output items hold the id of their turn, so that a reference to one can be resolved for as long as the turn is kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

from art_backend.errors import BadRequestError
from art_backend.gateway.answers import Completed
from art_backend.gateway.chat_messages import join_text, read_system
from art_backend.gateway.parse import ParsedMessage, ParsedToolCall
from art_backend.gateway.render import Message
from art_backend.gateway.tree import Turn

FindTurn = Callable[[str], Turn | None]
"""A captured turn by its id; ``None`` if this caller has no such turn."""


class ItemReader:
    """Puts items together to messages: what the assistant thought, said and called in one turn becomes one message."""

    def __init__(self, find_turn: FindTurn) -> None:
        self.messages: list[Message] = []
        self._find_turn = find_turn
        self._assistant: Message | None = None

    def read(self, item: Any, where: str) -> None:
        """Read one item.

        Raises:
            BadRequestError: It has a wrong type or value; the error names it.
        """
        if not isinstance(item, dict):
            raise BadRequestError(f"{where}: must be an object.", param=where)
        kind = item.get("type", "message")
        if kind == "item_reference":
            self._refer(item.get("id"), where)
        elif kind == "message":
            self._read_message(item, where)
        elif kind == "reasoning":
            message = self._current(fresh=True)
            message["reasoning_content"] = _read_reasoning(item, where)
        elif kind == "function_call":
            self._read_call(item, where)
        elif kind == "function_call_output":
            if not isinstance(item.get("call_id"), str):
                raise BadRequestError(f"{where}.call_id: must be a string.", param=f"{where}.call_id")
            output = join_text(item.get("output"), f"{where}.output")
            self._append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
        else:
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
        for name in ("call_id", "name", "arguments"):
            if not isinstance(item.get(name), str):
                raise BadRequestError(f"{where}.{name}: must be a string.", param=f"{where}.{name}")
        function = {"name": item["name"], "arguments": item["arguments"]}
        message = self._current(fresh=False)
        message.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})

    def _refer(self, item_id: Any, where: str) -> None:
        kind, turn_id, index = split_item_id(item_id if isinstance(item_id, str) else "")
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
            calls = message.get("tool_calls", [])
            if index >= len(calls):
                raise BadRequestError(f"{where}.id: no item {item_id!r} is known.", param=f"{where}.id")
            self._current(fresh=False).setdefault("tool_calls", []).append(calls[index])

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


def _read_reasoning(item: dict[str, Any], where: str) -> str:
    return join_text(item.get("content"), f"{where}.content") or join_text(item.get("summary"), f"{where}.summary")


def read_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Flat function tools to those of chat requests.

    Raises:
        BadRequestError: A tool has a wrong shape or runs on the server; the error names it.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise BadRequestError("tools: must be a list.", param="tools")
    read: list[dict[str, Any]] = []
    for i, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise BadRequestError(f"tools.{i}: only tools of type 'function' are supported.", param=f"tools.{i}")
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            raise BadRequestError(f"tools.{i}.name: must be a non-empty string.", param=f"tools.{i}.name")
        if not isinstance(tool.get("parameters", {}), dict | None):
            raise BadRequestError(f"tools.{i}.parameters: must be an object.", param=f"tools.{i}.parameters")
        function = {
            "name": tool["name"],
            "description": tool.get("description") or "",
            "parameters": tool.get("parameters") or {},
        }
        read.append({"type": "function", "function": function})
    return read or None


def split_item_id(item_id: str) -> tuple[str, str, int]:
    """Kind, turn and number of an output item's id."""
    kind, _, turn = item_id.partition("_")
    index = 0
    if kind == "fc":
        turn, _, number = turn.rpartition("_")
        index = int(number) if number.isdecimal() else 0
    return kind, turn, index


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


def write_call(turn_id: str, index: int, call: ParsedToolCall, status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{turn_id}_{index}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments if status == "completed" else "",
        "status": status,
    }


def write_items(turn_id: str, one: Completed, logprobs: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """All output items of a completion: reasoning, words, calls."""
    message: ParsedMessage = one.message
    items: list[dict[str, Any]] = []
    if message.reasoning:
        items.append(write_reasoning(turn_id, message.reasoning))
    if message.content or not message.tool_calls:
        status = "incomplete" if one.finish_reason == "length" else "completed"
        items.append(write_message(turn_id, message.content, status, logprobs))
    return items + [write_call(turn_id, i, call) for i, call in enumerate(message.tool_calls)]


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
