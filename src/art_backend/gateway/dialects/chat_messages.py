"""From the many ways of writing a chat message to one: what the tree compares and templates render."""

import json
import re
from typing import Any

from art_backend.errors import BadRequestError
from art_backend.gateway.dialects.toolbox import Alias, Toolbox, describe_custom, read_list, read_name, read_parameters
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


def read_messages(value: Any) -> list[Message]:
    """Normalise the ``messages`` of a chat request. Keys that no template needs are left out.

    Raises:
        BadRequestError: A message has a wrong type or value; the error names it.
    """
    if not isinstance(value, list) or not value:
        raise BadRequestError("messages: must be a non-empty list.", param="messages")
    return [_read_message(message, f"messages.{i}") for i, message in enumerate(value)]


def split_begun(messages: list[Message], where: str) -> tuple[list[Message], str]:
    """Take the last message as the beginning of the answer: what comes before it, and its text.

    Raises:
        BadRequestError: It is something other than words of the assistant.
    """
    last = messages[-1]
    if last["role"] != "assistant" or last.keys() & {"tool_calls", "reasoning_content"}:
        raise BadRequestError(
            f"{where}: an answer can only begin with a last message of the assistant that holds text alone.",
            param=where,
        )
    return messages[:-1], last["content"]


def read_begun(body: dict[str, Any], messages: list[Message]) -> tuple[list[Message], str]:
    """The messages of a chat request, and the text that the answer begins with; empty unless the request says so.

    It does by ``continue_final_message``, or by ``prefix`` in the last message.

    Raises:
        BadRequestError: The request contradicts itself, or does not end with words of the assistant.
    """
    marked = [i for i, message in enumerate(body["messages"]) if message.get("prefix") is True]
    where = f"messages.{len(messages) - 1}" if marked else "continue_final_message"
    if marked and marked != [len(messages) - 1]:
        raise BadRequestError(
            f"messages.{marked[0]}.prefix: only the last message can begin the answer.",
            param=f"messages.{marked[0]}.prefix",
        )
    begun, opened = read_flag(body, "continue_final_message") or bool(marked), read_flag(body, "add_generation_prompt")
    if opened is not None and opened == begun:
        raise BadRequestError(
            "add_generation_prompt: must be false with continue_final_message, and true without.",
            param="add_generation_prompt",
        )
    return split_begun(messages, where) if begun else (messages, "")


def read_template_arguments(body: dict[str, Any]) -> dict[str, Any]:
    """Arguments for the chat template. Raises BadRequestError where they are neither an object nor null."""
    arguments = body.get("chat_template_kwargs")
    if not isinstance(arguments, dict | None):
        raise BadRequestError("chat_template_kwargs: must be an object.", param="chat_template_kwargs")
    return arguments or {}


def read_flag(body: dict[str, Any], name: str) -> bool | None:
    """Raises BadRequestError where a field is neither a boolean nor null."""
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise BadRequestError(f"{name}: must be true or false.", param=name)
    return value


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
