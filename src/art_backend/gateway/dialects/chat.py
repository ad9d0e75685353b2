"""OpenAI chat completions, plain and streaming.

Every choice carries ``art: {turn, rollout, policy_version}``, the reference that a trajectory keeps; in a stream it is on the
chunk that carries the finish reason.
"""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from art_backend.errors import BadRequestError, ServiceError
from art_backend.gateway.answers import Answer, Call, Completed, TopLogprobs
from art_backend.gateway.demands import read_form, read_words
from art_backend.gateway.dialects import schemas
from art_backend.gateway.dialects.chat_messages import (
    read_begun,
    read_choice,
    read_flag,
    read_messages,
    read_template_arguments,
    read_tools,
)
from art_backend.gateway.dialects.fields import check_fields
from art_backend.gateway.dialects.responding import Surface
from art_backend.gateway.dialects.toolbox import Aliases, Toolbox, write_custom_input
from art_backend.gateway.form import Form
from art_backend.gateway.ports import ServedModel
from art_backend.gateway.sampling import plan_sampling
from art_backend.gateway.sources import Conversation
from art_backend.tokens.parse import ParsedMessage
from art_backend.tokens.tool_calls import ParsedToolCall

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    429: "rate_limit_error",
}


def read_call(body: dict[str, Any], _: object = None) -> Call:
    """Normalise the body of a chat request.

    Raises:
        BadRequestError: A field has a wrong type or value; the message names it.
    """
    check_fields(body, schemas.CHAT["properties"])
    tools = read_tools(body.get("tools"))
    messages, begun = read_begun(body, read_messages(body.get("messages")))
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequestError("stream_options: must be an object.", param="stream_options")
    return Call(
        model_name=read_model(body),
        sources=[
            Conversation(
                messages, tools.functions or None, _read_form(body, tools), read_template_arguments(body), begun
            )
        ],
        plan=plan_sampling(body),
        stream=read_stream(body),
        include_usage=bool((options or {}).get("include_usage")),
        aliases=tools.aliases,
    )


def _read_form(body: dict[str, Any], tools: Toolbox) -> Form:
    words = read_words(body, (body.get("response_format"), "response_format"), nested=True)
    return read_form(
        read_choice(body.get("tool_choice")),
        tools,
        words=words,
        parallel=read_flag(body, "parallel_tool_calls"),
    )


def read_model(body: dict[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequestError("model: must be a non-empty string.", param="model")
    return model


def read_stream(body: dict[str, Any]) -> bool:
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise BadRequestError("stream: must be true or false.", param="stream")
    return bool(stream)


def write_whole(answer: Answer) -> bytes:
    """The ``chat.completion`` object."""
    return write_json(
        {
            **_head(answer, "chat.completion"),
            "choices": [
                {
                    "index": index,
                    "message": _message(one.message, answer.call.aliases),
                    "logprobs": write_logprobs(answer.model, one.ids, one.logprobs, one.top_logprobs)
                    if answer.call.plan.logprobs
                    else None,
                    "finish_reason": one.finish_reason,
                    "art": one.reference(),
                }
                for index, one in enumerate(answer.completed)
            ],
            "usage": write_usage(answer),
        }
    )


_OPENING = {"role": "assistant", "content": ""}
"""The first delta of a choice."""


async def write_events(answer: Answer) -> AsyncIterator[bytes]:
    """The ``chat.completion.chunk`` events."""
    head = _head(answer, "chat.completion.chunk")
    if answer.call.include_usage:
        head["usage"] = None
    begun = 0
    calls = [0] * answer.call.choices
    async for index, news in answer.follow():
        choice: dict[str, Any] = {"index": index, "delta": {}, "logprobs": None, "finish_reason": None}
        for earlier in range(begun, index):  # OpenAI's SDK takes it that choices begin in their order
            yield write_event({**head, "choices": [{**choice, "index": earlier, "delta": _OPENING}]})
        if index >= begun:
            begun = index + 1
            choice["delta"] = dict(_OPENING)
        if isinstance(news, Completed):
            choice["finish_reason"] = news.finish_reason
            choice["art"] = news.reference()
        else:
            choice["delta"].update(_delta(news.message, calls[index], answer.call.aliases))
            calls[index] += len(news.message.tool_calls)
            if answer.call.plan.logprobs and news.ids:
                choice["logprobs"] = write_logprobs(answer.model, news.ids, news.logprobs, news.top_logprobs)
            elif not choice["delta"]:
                continue
        yield write_event({**head, "choices": [choice]})
    if answer.call.include_usage:
        yield write_event({**head, "choices": [], "usage": write_usage(answer)})
    yield b"data: [DONE]\n\n"


def write_error(error: ServiceError) -> bytes:
    """OpenAI's error object."""
    body = {
        "message": error.message,
        "type": _TYPES.get(error.status, "server_error"),
        "param": error.param,
        "code": error.code.value,
    }
    return write_json({"error": body})


def write_error_event(error: ServiceError) -> bytes:
    return b"data: " + write_error(error) + b"\n\n"


def write_event(data: dict[str, Any]) -> bytes:
    return b"data: " + write_json(data) + b"\n\n"


def write_usage(answer: Answer) -> dict[str, int]:
    sampled = sum(len(one.ids) for one in answer.completed)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": answer.prompt_tokens + sampled,
    }


def write_logprobs(
    model: ServedModel, ids: Sequence[int], logprobs: Sequence[float], top_logprobs: TopLogprobs
) -> dict[str, Any]:
    """One entry per sampled token, the one that ends the turn included."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        data = model.renderer.detokenizer.token_bytes(token_id)
        return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}

    return {
        "content": [
            {**entry(token_id, logprob), "top_logprobs": [entry(*other) for other in top]}
            for token_id, logprob, top in zip(ids, logprobs, top_logprobs, strict=True)
        ],
        "refusal": None,
    }


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": answer.call.model_name,
    }


def _message(parsed: ParsedMessage, aliases: Aliases) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content, "refusal": None}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = [_tool_call(call, aliases) for call in parsed.tool_calls]
    return message


def _delta(part: ParsedMessage, calls_before: int, aliases: Aliases) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if part.content:
        delta["content"] = part.content
    if part.reasoning:
        delta["reasoning_content"] = part.reasoning
    if part.tool_calls:
        delta["tool_calls"] = [
            {"index": calls_before + i, **_tool_call(call, aliases)} for i, call in enumerate(part.tool_calls)
        ]
    return delta


def _tool_call(call: ParsedToolCall, aliases: Aliases) -> dict[str, Any]:
    if call.name in aliases and (text := write_custom_input(call)) is not None:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def write_json(value: Any) -> bytes:
    return orjson.dumps(value)


CHAT = Surface("chat", read_call, write_whole, write_events, write_error, write_error_event)
