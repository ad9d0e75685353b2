"""A trajectory as text to read: what was said, by whom, wrapped at words."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

from art.terminal import indent, visible, wrap
from art.trajectories import Trajectory, get_messages, is_choice


def write_transcript(trajectory: Trajectory, width: int = 80) -> str:
    """The conversations of a trajectory, with its tool calls, reasoning and branches; then its logs and metadata.

    A further conversation shows only where it differs from the first ones. Control characters are shown, not obeyed.

    Args:
        width: Cells of a line.
    """
    conversations = [trajectory, *trajectory.additional_histories]
    shown = [_messages(one.messages_and_choices) for one in conversations]
    parts: list[str] = []
    for i, messages in enumerate(shown):
        shared, twin = _shared(messages, shown[:i])
        if len(shown) > 1:
            begins = f", begins with the first {shared} messages of conversation {twin + 1}" if shared else ""
            parts.append("\n".join(wrap(f"── conversation {i + 1} of {len(shown)}{begins}", width)))
        parts += ["\n".join(_message_lines(message, width)) for message in messages[shared:]]
    if trajectory.metadata:
        parts.append("\n".join(["metadata", *indent(json.dumps(trajectory.metadata, ensure_ascii=False), width)]))
    if trajectory.logs:
        parts.append("\n".join(["logs", *indent("\n".join(trajectory.logs), width)]))
    return "\n\n".join(parts)


def last_words(trajectory: Trajectory) -> str:
    """The agent's last words or calls, on one line."""
    for message in reversed(_messages(trajectory.messages_and_choices)):
        if message["role"] == "assistant":
            said = [_text(message.get("content")), *map(_call, message.get("tool_calls") or ())]
            return visible(" ".join(" ".join(said).split()))
    return ""


def _messages(items: Sequence[Any]) -> list[dict[str, Any]]:
    """The result of ``get_messages``, with the reasoning of sampled messages."""
    messages = cast(list[dict[str, Any]], get_messages(list(items)))
    for item, message in zip(items, messages, strict=True):
        if is_choice(item):
            said: Any = (vars(item) if isinstance(item, BaseModel) else item)["message"]
            fields = cast(Mapping[str, Any], said.model_dump(mode="json") if isinstance(said, BaseModel) else said)
            message["reasoning_content"] = fields.get("reasoning_content") or fields.get("reasoning")
    return messages


def _shared(messages: list[dict[str, Any]], earlier: list[list[dict[str, Any]]]) -> tuple[int, int]:
    """The length of the longest beginning shared with an earlier conversation, and the index of that conversation."""
    counts = [
        next((n for n, (a, b) in enumerate(zip(messages, one, strict=False)) if a != b), min(len(messages), len(one)))
        for one in earlier
    ]
    longest = max(counts, default=0)
    return longest, counts.index(longest) if counts else 0


def _message_lines(message: Mapping[str, Any], width: int) -> Iterator[str]:
    answers = message.get("tool_call_id")
    yield from wrap(str(message["role"]) + (f" (answers {answers})" if answers else ""), width)
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        yield "  (thinking)"
        yield from indent(str(reasoning), width)
        yield "  (end of thinking)"
    content = _text(message.get("content"))
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    if content or not calls:
        yield from indent(content or "(nothing)", width)
    for call in calls:
        yield from indent(call, width)


def _call(call: Any) -> str:
    fields = cast(Mapping[str, Any], call.model_dump(mode="json") if isinstance(call, BaseModel) else call)
    function = cast(Mapping[str, Any], fields.get("function") or fields.get("custom") or {})
    arguments = function.get("arguments", function.get("input", ""))
    number = f"  [{fields['id']}]" if fields.get("id") else ""
    return f"→ {function.get('name', '?')}({arguments}){number}"


def _text(content: Any) -> str:
    """The text of a content; parts that are none are named. Logs keep lists of parts as JSON."""
    if content is None:
        return ""
    parts: Any = content
    if isinstance(content, str):
        if not content.startswith('[{"'):
            return content
        try:
            parts = json.loads(content)
        except json.JSONDecodeError:
            return content
    found = [text for part in cast(Sequence[Any], parts) if (text := _part(part)) is not None]
    return "\n".join(found) if len(found) == len(parts) else str(content)


def _part(part: Any) -> str | None:
    """``None`` for what is no part of a message."""
    if not isinstance(part, Mapping) or "type" not in part:
        return None
    fields = cast(Mapping[str, Any], part)
    return str(fields["text"]) if "text" in fields else f"[{fields['type']}]"
