"""Messages as text for people."""

from collections.abc import Mapping
from typing import Any


def format_message(message: Mapping[str, Any]) -> str:
    """The role, the content, and each tool call as ``name(arguments)``.

    >>> print(format_message({"role": "user", "content": "Hi."}))
    User:
    Hi.
    """
    lines = [f"{str(message['role']).capitalize()}:", str(message.get("content") or "")]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    lines += [f"{function['name']}({function['arguments']})" for function in calls]
    return "\n".join(lines)
