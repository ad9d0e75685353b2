"""From the many ways of writing a chat message to one: what the tree compares and templates render."""

import json
import re
from collections.abc import Sequence
from typing import Any

from art_backend.gateway.answers import Alias
from art_backend.gateway.dialects.requests import take, wrong
from art_backend.gateway.dialects.toolbox import Toolbox, describe_custom, read_list, read_name, read_parameters
from art_backend.tokens.render import Message

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


def read_messages(messages: Sequence[dict[str, Any]]) -> list[Message]:
    """Normalise the ``messages`` of a chat request. Keys that no template needs are left out.

    Raises:
        BadRequestError: A message has a wrong type or value; the error names it.
    """
    return [_read_message(message, f"messages.{i}") for i, message in enumerate(messages)]


def split_begun(messages: list[Message], where: str) -> tuple[list[Message], str]:
    """Take the last message as the beginning of the answer: what comes before it, and its text.

    Raises:
        BadRequestError: It is something other than words of the assistant.
    """
    last = messages[-1]
    if last["role"] != "assistant" or last.keys() & {"tool_calls", "reasoning_content"}:
        raise wrong(where, "to prefill an answer, the last message must be the assistant's and contain only text")
    return messages[:-1], last["content"]


def read_tools(tools: list[dict[str, Any]] | None) -> Toolbox:
    """Read the ``tools`` of a chat request: functions, and custom tools.

    Raises:
        BadRequestError: A tool has a wrong shape; the error names it.
    """
    box = Toolbox()
    for i, tool in enumerate(read_list(tools, "tools")):
        kind, where = tool.get("type", "function"), f"tools.{i}"
        inner = tool.get(kind) if kind in ("function", "custom") else None
        if not isinstance(inner, dict):
            raise wrong(where, "must be an object with type and object 'function' or 'custom'")
        name = read_name(inner, f"{where}.{kind}")
        if kind == "custom":
            box.add(describe_custom(name, inner, f"{where}.{kind}"), where, alias=Alias(kind, name))
        else:
            read_parameters(inner, "parameters", f"{where}.function")
            box.add(tool, f"{where}.function.parameters", strict=inner.get("strict") is True)
    return box


def _read_message(message: dict[str, Any], where: str) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(f"{where}.role", f"must be one of {', '.join(_ROLES)}")
    read_content = read_system if _ROLES[role] == "system" else join_text
    result: Message = {"role": _ROLES[role], "content": read_content(message.get("content"), f"{where}.content")}
    if role == "assistant":
        if message.get("tool_calls"):
            calls = take(message, "tool_calls", list, where)
            result["tool_calls"] = [_read_call(call, f"{where}.tool_calls.{i}") for i, call in enumerate(calls)]
        elif call := message.get("function_call"):  # the form that functions had before tools
            result["tool_calls"] = [_read_call({"function": call}, f"{where}.function_call")]
        reasoning = message.get("reasoning_content")
        if isinstance(reasoning, str) and reasoning:
            result["reasoning_content"] = reasoning
    elif result["role"] == "tool" and isinstance(message.get("tool_call_id"), str):
        result["tool_call_id"] = message["tool_call_id"]
    return result


def join_text(content: Any, where: str) -> str:
    """Join text parts; null, missing and empty are the same.

    Raises:
        BadRequestError: It holds something other than text.
    """
    return "".join(_read_parts(content, where))


def read_system(content: Any, where: str) -> str:
    """Join the text parts of a system prompt, without what only the transport reads.

    Raises:
        BadRequestError: It holds something other than text.
    """
    return "".join(_TRANSPORT.sub("", part) for part in _read_parts(content, where))


def _read_parts(content: Any, where: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise wrong(where, "must be a string, null or a list of parts")
    texts: list[str] = []
    for i, part in enumerate(content):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise wrong(f"{where}.{i}", "this model supports only text parts")
        texts.append(text)
    return texts


def _read_call(call: Any, where: str) -> dict[str, Any]:
    holder = call if isinstance(call, dict) else {}
    function = holder.get("function")
    if isinstance(custom := holder.get("custom"), dict):
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong(where, "needs a function with a name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    call_id = holder.get("id")
    return write_call(call_id if isinstance(call_id, str) else "", function["name"], arguments)


def write_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as templates render it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
