"""How far two sequences are the same, and whether two messages are: edits, or what frameworks change on the way back.

They drop reasoning and the words beside calls, and spell arguments in their own way. Whatever says something else is an edit.
"""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from art_backend.tokens.setting import Message


def common_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the longest common beginning of two texts, lists or arrays."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def without_reasoning(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def says_nothing_else(message: Message, sampled: Message) -> bool:
    """Whether a message with as many calls says and calls nothing that the sampled one did not; it may leave things out.

    Reasoning where none was sampled is a framework's own note.
    """
    if message["content"] not in ("", sampled["content"]):
        return False
    if "reasoning_content" in sampled and not thinks_nothing_else(message, sampled):
        return False
    pairs = zip(message["tool_calls"], sampled["tool_calls"], strict=True)
    return all(_calls_nothing_else(call["function"], other["function"]) for call, other in pairs)


def thinks_nothing_else(message: Message, sampled: Message) -> bool:
    """Whether a message has the sampled one's reasoning, or none."""
    given = message.get("reasoning_content", "").strip()
    return not given or given == sampled.get("reasoning_content", "").strip()


def _calls_nothing_else(function: dict[str, Any], sampled: dict[str, Any]) -> bool:
    """Whether it is the same function with the same arguments, or with none."""
    if function["name"] != sampled["name"]:
        return False
    try:
        arguments = _read_json(function["arguments"])
        return arguments in (None, {}) or arguments == _read_json(sampled["arguments"])
    except (ValueError, ArithmeticError, RecursionError):
        return function["arguments"] == sampled["arguments"]


def _read_json(text: str) -> Any:
    """JSON to be compared: 1 and 1.0 are the same number, and no number is ``true``. Blank text is null."""

    def whole(digits: str) -> tuple[str, Decimal]:
        return "number", Decimal(digits)

    def broken(digits: str) -> tuple[str, Decimal]:
        return "number", Decimal(repr(float(digits)))

    return json.loads(text, parse_int=whole, parse_float=broken) if text.strip() else None
