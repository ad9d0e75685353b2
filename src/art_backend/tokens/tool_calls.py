"""Calls of tools: their ids, their arguments, and what templates want of both."""

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
