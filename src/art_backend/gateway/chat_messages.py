"""From the many ways of writing a chat message to one: what the tree compares and templates render."""

import json
import re
from typing import Any

from art_backend.errors import BadRequestError
from art_backend.gateway.render import Message
from art_backend.gateway.toolbox import Alias, Toolbox, describe_custom, read_list, read_name, read_parameters

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


def read_tools(value: Any) -> Toolbox:
    """Read the ``tools`` of a chat request: functions, and custom tools.

    Raises:
        BadRequestError: A tool has a wrong shape; the error names it.
    """
    box = Toolbox()
    for i, tool in enumerate(read_list(value, "tools")):
        kind, where = tool.get("type", "function"), f"tools.{i}"
        inner = tool.get(kind) if kind in ("function", "custom") else None
        if not isinstance(inner, dict):
            raise BadRequestError(
                f"{where}: must be an object with type and object 'function' or 'custom'.", param=where
            )
        name = read_name(inner, f"{where}.{kind}")
        if kind == "custom":
            box.add(describe_custom(name, inner), where, alias=Alias(kind, name))
        else:
            read_parameters(inner.get("parameters"), f"{where}.function.parameters")
            box.add(tool, f"{where}.function.parameters", strict=inner.get("strict") is True)
    return box


def read_choice(choice: Any) -> Any:
    """``tool_choice`` with a custom tool that it names as a function."""
    custom = choice.get("custom") if isinstance(choice, dict) else None
    if isinstance(custom, dict):
        return {"type": "function", "function": custom}
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
        return {**choice, "allowed_tools": {**allowed, "tools": [read_choice(tool) for tool in allowed["tools"]]}}
    return choice


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
        elif call := message.get("function_call"):  # the form that functions had before tools
            result["tool_calls"] = _read_calls([{"function": call}], f"{where}.function_call")
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
        if isinstance(call, dict) and isinstance(custom := call.get("custom"), dict):
            function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
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
