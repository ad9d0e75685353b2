"""From the many ways of writing a chat message to one: what the tree compares and templates render."""

import json
import re
from typing import Any

from art_backend.errors import BadRequestError
from art_backend.gateway.render import Message

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


_TRANSPORT = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""A line that Claude Code puts before its system prompt. It differs in every call, and no model is meant to read it."""


def read_messages(value: Any) -> list[Message]:
    """Normalise the ``messages`` of a chat request. Keys that no template needs are left out.

    Raises:
        BadRequestError: A message has a wrong type or value; the error names it.
    """
    if not isinstance(value, list) or not value:
        raise BadRequestError("messages: must be a non-empty list.", param="messages")
    return [_read_message(message, f"messages.{i}") for i, message in enumerate(value)]


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Check the ``tools`` of a chat request; an empty list is the same as none.

    Raises:
        BadRequestError: A tool has a wrong shape; the error names it.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadRequestError("tools: must be a list.", param="tools")
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise BadRequestError(
                f"tools.{i}: must be an object with type 'function' and a 'function' object.", param=f"tools.{i}"
            )
        if not isinstance(function.get("name"), str) or not function["name"]:
            where = f"tools.{i}.function.name"
            raise BadRequestError(f"{where}: must be a non-empty string.", param=where)
        if not isinstance(function.get("parameters", {}), dict | None):
            where = f"tools.{i}.function.parameters"
            raise BadRequestError(f"{where}: must be an object.", param=where)
    return value or None


def _read_message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise BadRequestError(f"{where}: must be an object.", param=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequestError(f"{where}.role: must be one of {', '.join(_ROLES)}.", param=f"{where}.role")
    read_content = read_system if _ROLES[role] == "system" else join_text
    result: Message = {"role": _ROLES[role], "content": read_content(message.get("content"), f"{where}.content")}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            result["tool_calls"] = _read_calls(calls, f"{where}.tool_calls")
        reasoning = message.get("reasoning_content")
        if isinstance(reasoning, str) and reasoning:
            result["reasoning_content"] = reasoning
    elif result["role"] == "tool" and isinstance(message.get("tool_call_id"), str):
        result["tool_call_id"] = message["tool_call_id"]
    return result


def join_text(content: Any, where: str) -> str:
    """Join text parts; null, missing and empty are the same.

    Raises:
        BadRequestError: Something else than text.
    """
    return "".join(_read_parts(content, where))


def read_system(content: Any, where: str) -> str:
    """Join the text parts of a system prompt, without what only the transport reads.

    Raises:
        BadRequestError: Something else than text.
    """
    return "".join(_TRANSPORT.sub("", part) for part in _read_parts(content, where))


def _read_parts(content: Any, where: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise BadRequestError(f"{where}: must be a string, null or a list of parts.", param=where)
    texts: list[str] = []
    for i, part in enumerate(content):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise BadRequestError(f"{where}.{i}: only text parts are supported by this model.", param=f"{where}.{i}")
        texts.append(text)
    return texts


def _read_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise BadRequestError(f"{where}: must be a list.", param=where)
    result: list[dict[str, Any]] = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequestError(f"{where}.{i}: needs a function with a name.", param=f"{where}.{i}")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps({} if arguments is None else arguments)
        call_id = call.get("id")
        result.append(
            {
                "id": call_id if isinstance(call_id, str) else "",
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return result
