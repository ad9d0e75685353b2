"""Making a model say what is already known, for instance to score a demonstration or to warm a cache."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel


class GuidedParams(dict[str, Any]):
    """Arguments for ``chat.completions.create(**params)``; unpacked, the older triple of texts, tool choice and tools."""

    def __iter__(self) -> Iterator[Any]:
        form: dict[str, Any] = self.get("extra_body", {}).get("structured_outputs", {})
        return iter((form.get("choice"), self.get("tool_choice"), self.get("tools")))


def get_guided_completion_params(
    completion: ChatCompletion | Choice | BaseModel | Mapping[str, Any] | str,
    base_tools: Iterable[Mapping[str, Any]] | None = None,
) -> GuidedParams:
    """Arguments for ``chat.completions.create`` under which only one answer is possible: the given one.

    Args:
        completion: A completion, a choice, a message, or the text of one. With tool calls, it must be one call alone.
        base_tools: The tools that the request offers; the called one is replaced by one that takes these arguments only.

    Returns:
        ``extra_body`` for a text; ``tools`` and ``tool_choice`` for a tool call.

    Raises:
        ValueError: There is neither text nor a call, there is text beside a call, or there are several calls.

    >>> get_guided_completion_params("yes")
    {'extra_body': {'structured_outputs': {'choice': ['yes']}}}
    """
    text, calls = _parts(completion)
    if not calls:
        if not text:
            raise ValueError("completion: contains neither text nor a tool call, so there is nothing to guide to.")
        return GuidedParams(extra_body={"structured_outputs": {"choice": [text]}})
    if len(calls) > 1 or text:
        raise ValueError("completion: must contain either only text or exactly one tool call.")
    (function,) = calls
    name = str(function["name"])
    arguments: dict[str, Any] = json.loads(function["arguments"])
    forced = {"type": "function", "function": {"name": name, "strict": True, "parameters": _only(arguments)}}
    offered: list[Any] = [tool for tool in base_tools or () if tool["function"]["name"] != name]
    return GuidedParams(tools=[*offered, forced], tool_choice={"type": "function", "function": {"name": name}})


def _parts(completion: Any) -> tuple[str, Sequence[Mapping[str, Any]]]:
    if isinstance(completion, str):
        return completion, ()
    if isinstance(completion, ChatCompletion):
        completion = completion.choices[0]
    found: Mapping[str, Any] = completion.model_dump() if isinstance(completion, BaseModel) else completion
    message = cast(Mapping[str, Any], found.get("message") or found)
    return message.get("content") or "", [call["function"] for call in message.get("tool_calls") or ()]


def _only(value: Any) -> dict[str, Any]:
    """The schema that one value alone matches."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return {
            "type": "object",
            "properties": {name: _only(inner) for name, inner in fields.items()},
            "required": list(fields),
            "additionalProperties": False,
        }
    return {"const": value}
