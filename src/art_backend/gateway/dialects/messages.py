"""Anthropic messages, plain and streaming, and its count of tokens.

A message carries ``art: {turn, rollout, policy_version}``; in a stream the ``message_delta`` event does.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
from pydantic import Field

from art_backend.errors import BadRequestError, ServiceError
from art_backend.gateway.answers import Answer, Call, Completed
from art_backend.gateway.dialects.chat_messages import join_text, read_system, split_begun, write_call
from art_backend.gateway.dialects.demands import read_form, read_words
from art_backend.gateway.dialects.message_tools import read_tools
from art_backend.gateway.dialects.requests import ConversationRequest, Messages, StopStrings, take, wrong
from art_backend.gateway.dialects.responding import Surface
from art_backend.gateway.sampling import plan_sampling
from art_backend.gateway.sources import Conversation
from art_backend.tokens.parse import ParsedMessage
from art_backend.tokens.render import Message
from art_backend.tokens.tool_calls import ParsedToolCall, read_arguments

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class ThreadUnsupportedError(BadRequestError):
    """History that stays on the server is not kept; clients fall back to sending it."""


class _PromptRequest(ConversationRequest):
    messages: Messages
    system: str | list[Any] | None = None
    stop_sequences: StopStrings | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    """``output_config.format``, as the protocol's beta called it."""


class MessagesRequest(_PromptRequest):
    """The fields of a request that are honoured."""

    max_tokens: int = Field(ge=1)


class CountRequest(_PromptRequest):
    """The same for a count, which samples nothing."""

    max_tokens: int | None = Field(default=None, ge=1)


def read_call(body: dict[str, Any], _: object = None) -> Call:
    """Normalise the body of a messages request.

    Raises:
        BadRequestError: A field has a wrong type or value; the message names it.
    """
    return _read(body, MessagesRequest)


def read_count(body: dict[str, Any]) -> Call:
    """Normalise the body of a count, which need not say ``max_tokens``."""
    return _read(body, CountRequest)


def _read(body: dict[str, Any], kind: type[MessagesRequest | CountRequest]) -> Call:
    if body.get("thread") is not None:
        raise ThreadUnsupportedError("thread: is not supported; send the whole history.", param="thread")
    request = kind.read(body)
    messages: list[Message] = []
    if system := read_system(request.system, "system"):
        messages.append({"role": "system", "content": system})
    for i, message in enumerate(request.messages):
        messages += _read_message(message, f"messages.{i}")
    begun = ""
    if request.messages[-1]["role"] == "assistant":
        messages, begun = split_begun(messages, f"messages.{len(request.messages) - 1}")
    tools, choice = read_tools(request.tools), request.tool_choice or {}
    if (shape := (request.output_config or {}).get("format")) is not None:
        words = read_words(request, shape, "output_config.format")
    else:
        words = read_words(request, request.output_format, "output_format")
    parallel = not choice.get("disable_parallel_tool_use")
    form = read_form(request.tool_choice, tools, words, parallel=parallel)
    return Call(
        request.model,
        [Conversation(messages, tools.functions or None, form, request.chat_template_kwargs or {}, begun)],
        plan_sampling(request, max_tokens=request.max_tokens, stop=request.stop_sequences),
        stream=bool(request.stream),
    )


def _read_message(message: dict[str, Any], where: str) -> list[Message]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise wrong(f"{where}.role", "must be 'user' or 'assistant'")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise wrong(f"{where}.content", "must be a string or a list of blocks")
    blocks = [_check_block(block, f"{where}.content.{i}") for i, block in enumerate(content)]
    return _read_assistant(blocks) if role == "assistant" else _read_others(role, blocks)


_USE: dict[str, type] = {"id": str, "name": str, "input": dict}
_BLOCKS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str},
    "redacted_thinking": {},
    "tool_use": _USE,
    "tool_result": {"tool_use_id": str},
    "server_tool_use": _USE,
    "mcp_tool_use": _USE,
}
"""Types of blocks, with the fields that they must have. Those of calls that a server ran stand in histories from elsewhere."""
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")


def _check_block(block: Any, where: str) -> dict[str, Any]:
    kind = str(block.get("type")) if isinstance(block, dict) else ""
    served = kind.endswith("_tool_result")
    if not served and kind not in _BLOCKS:
        raise wrong(f"{where}.type", f"must be one of {', '.join(_BLOCKS)}")
    if kind in _CALLS:
        block = {**block, "input": read_arguments(block.get("input"))}
    for name, expected in _BLOCKS["tool_result" if served else kind].items():
        take(block, name, expected, where)
    if served:
        return {**block, "content": _read_served(block.get("content"))}
    if kind == "tool_result":
        return {**block, "content": _read_result(block.get("content"), f"{where}.content")}
    return block


def _read_result(content: Any, where: str) -> str:
    """Read the result of the caller's tool; a reference to a tool that a search found becomes its name."""
    if isinstance(content, list):
        content = [
            {"text": part.get("tool_name")} if isinstance(part, dict) and part.get("type") == "tool_reference" else part
            for part in content
        ]
    return join_text(content, where)


def _read_served(content: Any) -> str:
    """Read the result of a server's tool: its text, or else all of it as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text")) for part in content)
    return json.dumps(content, ensure_ascii=False)


def _read_assistant(blocks: list[dict[str, Any]]) -> list[Message]:
    """Read the assistant's words and calls; a server's result among them becomes a message between two others."""
    messages, said = list[Message](), list[dict[str, Any]]()
    for block in blocks:
        if not block["type"].endswith("tool_result"):
            said.append(block)
            continue
        if said:
            messages.append(_read_said(said))
            said = []
        messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]})
    return [*messages, _read_said(said)] if said or not messages else messages


def _read_said(blocks: list[dict[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": "".join(b["text"] for b in blocks if b["type"] == "text")}
    if reasoning := "".join(block["thinking"] for block in blocks if block["type"] == "thinking"):
        message["reasoning_content"] = reasoning
    if calls := [block for block in blocks if block["type"] in _CALLS]:
        message["tool_calls"] = [
            write_call(call["id"], call["name"], json.dumps(call["input"], ensure_ascii=False)) for call in calls
        ]
    return message


def _read_others(role: str, blocks: list[dict[str, Any]]) -> list[Message]:
    """Results of tools become messages of their own; text around them stays together."""
    messages: list[Message] = []
    for block in blocks:
        if block["type"] == "tool_result":
            messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]})
        elif block["type"] == "text":
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += block["text"]
            else:
                messages.append({"role": role, "content": block["text"]})
    return messages or [{"role": role, "content": ""}]


def write_whole(answer: Answer) -> bytes:
    """The ``message`` object."""
    (one,) = answer.completed
    return orjson.dumps(
        {
            **_head(answer),
            "content": _blocks(one.message),
            "stop_reason": _stop_reason(one),
            "stop_sequence": one.stop_string,
            "usage": _usage(answer, len(one.ids)),
            "art": one.reference(),
        }
    )


async def write_events(answer: Answer) -> AsyncIterator[bytes]:
    """The events of a streamed message."""
    started = False
    writer = _BlockWriter()
    async for _, news in answer.follow():
        if not started:
            started = True
            message = {**_head(answer), "content": [], "stop_reason": None, "stop_sequence": None}
            yield _event("message_start", message={**message, "usage": _usage(answer, 0)})
        if isinstance(news, Completed):
            for event in writer.close():
                yield event
            delta = {"stop_reason": _stop_reason(news), "stop_sequence": news.stop_string}
            yield _event("message_delta", delta=delta, usage=_usage(answer, len(news.ids)), art=news.reference())
        else:
            for event in writer.write(news.message):
                yield event
    yield _event("message_stop")


class _BlockWriter:
    """Writes parts of a message as blocks that open and close."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def write(self, part: ParsedMessage) -> list[bytes]:
        events: list[bytes] = []
        if part.reasoning:
            events += self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._delta({"type": "thinking_delta", "thinking": part.reasoning}))
        if part.content:
            events += self._switch("text", {"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": part.content}))
        for call in part.tool_calls:
            events += self.close()
            events += self._switch("tool_use", {**_tool_use(call), "input": {}})
            events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return events

    def close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [_event("content_block_stop", index=self._index)]

    def _switch(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        if self._open == kind:
            return []
        events = self.close()
        self._open = kind
        self._index += 1
        return [*events, _event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _blocks(message: ParsedMessage) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    return blocks + [_tool_use(call) for call in message.tool_calls]


def _tool_use(call: ParsedToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": orjson.Fragment(call.arguments)}


def _stop_reason(one: Completed) -> str:
    if one.context_full:
        return "model_context_window_exceeded"
    if one.stop_string is not None and one.finish_reason == "stop":
        return "stop_sequence"
    return _STOP_REASONS[one.finish_reason]


def _head(answer: Answer) -> dict[str, Any]:
    model = answer.call.model_name
    return {"id": f"msg_{answer.turn_ids[0]}", "type": "message", "role": "assistant", "model": model}


def _usage(answer: Answer, sampled: int) -> dict[str, int]:
    return {"input_tokens": answer.prompt_tokens, "output_tokens": sampled}


def _event(kind: str, **data: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **data}) + b"\n\n"


def write_error(error: ServiceError) -> bytes:
    """Anthropic's error object."""
    body: dict[str, Any] = {"type": _TYPES.get(error.status, "api_error"), "message": error.message}
    if isinstance(error, ThreadUnsupportedError):
        body["details"] = {"error_code": "thread_unsupported_request"}
    return orjson.dumps({"type": "error", "error": body})


def write_error_event(error: ServiceError) -> bytes:
    return b"event: error\ndata: " + write_error(error) + b"\n\n"


MESSAGES = Surface("messages", read_call, write_whole, write_events, write_error, write_error_event)
