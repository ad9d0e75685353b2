"""Tools and their calls: ids and arguments as templates accept them, and both as text for templates that know no tools."""

import hashlib
import json
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_CALL_ID_ALPHABET = string.ascii_letters + string.digits
_CALL_ID_LENGTH = 9
"""Some chat templates accept ids of nine letters and digits, and no others."""


def new_call_id() -> str:
    """Draw an id for a call at random out of 62⁹, so that it is unique in its rollout."""
    return "".join(secrets.choice(_CALL_ID_ALPHABET) for _ in range(_CALL_ID_LENGTH))


def short_call_id(call_id: str) -> str:
    """Return an id as such a template accepts it: the id itself if it does, else always the same nine characters for it."""
    if len(call_id) == _CALL_ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    digest = hashlib.blake2b(call_id.encode(errors="replace"), digest_size=_CALL_ID_LENGTH).digest()
    return "".join(_CALL_ID_ALPHABET[byte % len(_CALL_ID_ALPHABET)] for byte in digest)


@dataclass(slots=True)
class ParsedToolCall:
    name: str
    arguments: str
    """JSON."""
    id: str = field(default_factory=new_call_id)


def make_call(name: str, arguments: Any) -> ParsedToolCall | None:
    """A call with ``arguments``, an object or its JSON; ``None`` if it is neither, or what JSON and Unicode cannot hold."""
    read = read_arguments(arguments)
    if read is None:
        return None
    try:
        text = json.dumps(read, ensure_ascii=False, allow_nan=False)
        (name + text).encode()  # escapes can spell halves of a character, which are no text
    except (ValueError, RecursionError):
        return None
    return ParsedToolCall(name, text)


def read_arguments(arguments: Any) -> dict[str, Any] | None:
    """Read the arguments of a call, an object or its JSON. Nothing, blank text and ``null`` are no arguments; ``None`` if malformed."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else None
        except (ValueError, RecursionError):
            return None
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else None


def give_objects(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give templates the arguments of calls as objects, as most of them expect; malformed ones as an object that says so."""
    result: list[dict[str, Any]] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [{**c, "function": _with_object(c["function"])} for c in calls]}
        result.append(message)
    return result


def give_short_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give templates that demand short ids of calls no others."""
    result: list[dict[str, Any]] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [{**call, "id": short_call_id(call.get("id", ""))} for call in calls]}
        if message["role"] == "tool":
            message = {**message, "tool_call_id": short_call_id(message.get("tool_call_id", ""))}
        result.append(message)
    return result


def _with_object(function: dict[str, Any]) -> dict[str, Any]:
    arguments = read_arguments(function["arguments"])
    return {**function, "arguments": {"malformed": function["arguments"]} if arguments is None else arguments}


_PREAMBLE = """You may call functions to help the user. These are available, one JSON signature a line:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between these tags:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def spell_out_tools(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Rewrite messages so that a template without tools can show them.

    The system message describes the tools, in the widespread ``<tool_call>`` convention. Earlier calls stand in the assistant's
    words in the same form, and results come as a user message. Models that were never trained on this learn it from rewards.
    """
    result: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            response = f"<tool_response>\n{message['content']}\n</tool_response>"
            if result and result[-1].get("responses"):
                result[-1]["content"] += f"\n{response}"
            else:
                result.append({"role": "user", "content": response, "responses": True})
        elif message.get("tool_calls"):
            calls = [_spell_out_call(call["function"]) for call in message["tool_calls"]]
            result.append({"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))})
        else:
            result.append({"role": message["role"], "content": message["content"]})
    for message in result:
        message.pop("responses", None)
    return _describe_tools(result, tools) if tools else result


def _describe_tools(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    preamble = _PREAMBLE.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if messages and messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{preamble}"}, *messages[1:]]
    return [{"role": "system", "content": preamble}, *messages]


def _spell_out_call(function: dict[str, Any]) -> str:
    what = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{what}\n</tool_call>"
