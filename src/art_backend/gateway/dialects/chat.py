"""OpenAI chat completions, plain and streaming.

Every choice carries ``art: {turn, rollout, policy_version}``, the reference that a trajectory keeps; in a stream it is on the
chunk that carries the finish reason.
"""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from pydantic import Field

from art_backend.errors import ServiceError
from art_backend.gateway.answers import Aliases, Answer, Call, Completed, TopLogprobs
from art_backend.gateway.dialects.chat_messages import read_messages, read_tools, split_begun, write_call
from art_backend.gateway.dialects.demands import read_form, read_words
from art_backend.gateway.dialects.requests import ConversationRequest, Messages, OpenAIRequest, wrong
from art_backend.gateway.dialects.responding import Surface
from art_backend.gateway.dialects.toolbox import write_custom_input
from art_backend.gateway.ports import ServedModel
from art_backend.gateway.sampling import plan_sampling
from art_backend.gateway.sources import Conversation
from art_backend.tokens.parse import ParsedMessage
from art_backend.tokens.render import Message
from art_backend.tokens.tool_calls import ParsedToolCall

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    429: "rate_limit_error",
}


class ChatRequest(OpenAIRequest, ConversationRequest):
    """The fields of a request that are honoured."""

    messages: Messages
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


def read_call(body: dict[str, Any], _: object = None) -> Call:
    """Normalise the body of a chat request.

    Raises:
        BadRequestError: A field has a wrong type or value; the message names it.
    """
    request = ChatRequest.read(body)
    tools = read_tools(request.tools)
    messages, begun = _read_begun(request)
    words = read_words(request, request.response_format, "response_format")
    form = read_form(request.tool_choice, tools, words, parallel=request.parallel_tool_calls)
    return Call(
        model_name=request.model,
        sources=[Conversation(messages, tools.functions or None, form, request.chat_template_kwargs or {}, begun)],
        plan=plan_sampling(
            request,
            max_tokens=request.max_completion_tokens or request.max_tokens,
            stop=request.stop,
            n=request.n,
            logprobs=bool(request.logprobs),
            top_logprobs=request.top_logprobs,
        ),
        stream=bool(request.stream),
        include_usage=request.include_usage,
        aliases=tools.aliases,
    )


def _read_begun(request: ChatRequest) -> tuple[list[Message], str]:
    """The messages, and the text that the answer begins with; empty unless the request says so.

    It does by ``continue_final_message``, or by ``prefix`` in the last message.
    """
    messages, last = read_messages(request.messages), len(request.messages) - 1
    marked = [i for i, message in enumerate(request.messages) if message.get("prefix") is True]
    if marked and marked != [last]:
        raise wrong(f"messages.{marked[0]}.prefix", "only the last message can prefill the answer")
    begun = request.continue_final_message or bool(marked)
    if request.add_generation_prompt is not None and request.add_generation_prompt == begun:
        raise wrong("add_generation_prompt", "must be false with continue_final_message, and true without")
    return (
        split_begun(messages, f"messages.{last}" if marked else "continue_final_message") if begun else (messages, "")
    )


def write_whole(answer: Answer) -> bytes:
    """The ``chat.completion`` object."""
    return orjson.dumps(
        {
            **write_head(answer, "chatcmpl", "chat.completion"),
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


async def write_events(answer: Answer) -> AsyncIterator[bytes]:
    """The ``chat.completion.chunk`` events."""
    head = write_head(answer, "chatcmpl", "chat.completion.chunk")
    if answer.call.include_usage:
        head["usage"] = None

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return write_event({**head, "choices": [choice]})

    opened = 0
    calls = [0] * answer.call.choices
    async for index, news in answer.follow():
        while opened <= index:  # OpenAI's SDK takes it that choices begin in their order
            yield chunk(opened, {"role": "assistant", "content": ""})
            opened += 1
        if isinstance(news, Completed):
            yield chunk(index, {}, finish_reason=news.finish_reason, art=news.reference())
            continue
        deltas = _deltas(news.message, calls[index], answer.call.aliases)
        calls[index] += len(news.message.tool_calls)
        logprobs = None
        if answer.call.plan.logprobs and news.ids:
            logprobs = write_logprobs(answer.model, news.ids, news.logprobs, news.top_logprobs)
            deltas = deltas or [{}]
        for delta in deltas:
            yield chunk(index, delta, logprobs=logprobs)
            logprobs = None  # each token is reported once
    yield write_end(answer, head)


def write_error(error: ServiceError) -> bytes:
    """OpenAI's error object."""
    body = {
        "message": error.message,
        "type": _TYPES.get(error.status, "server_error"),
        "param": error.param,
        "code": error.code.value,
    }
    return orjson.dumps({"error": body})


def write_error_event(error: ServiceError) -> bytes:
    return b"data: " + write_error(error) + b"\n\n"


def write_event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def write_head(answer: Answer, prefix: str, kind: str) -> dict[str, Any]:
    """The fields that an answer and all its chunks share."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": answer.call.model_name,
    }


def write_end(answer: Answer, head: dict[str, Any]) -> bytes:
    """The end of a stream, with a count of tokens if the request asked for one."""
    usage = write_event({**head, "choices": [], "usage": write_usage(answer)}) if answer.call.include_usage else b""
    return usage + b"data: [DONE]\n\n"


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


def _message(parsed: ParsedMessage, aliases: Aliases) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content, "refusal": None}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = [_tool_call(call, aliases) for call in parsed.tool_calls]
    return message


def _deltas(part: ParsedMessage, calls_before: int, aliases: Aliases) -> list[dict[str, Any]]:
    """One delta a kind, as OpenAI sends them: AutoGen's client, for one, drops the calls of a chunk that has words too."""
    calls = [{"index": calls_before + i, **_tool_call(call, aliases)} for i, call in enumerate(part.tool_calls)]
    kinds = {"reasoning_content": part.reasoning, "content": part.content, "tool_calls": calls}
    return [{kind: news} for kind, news in kinds.items() if news]


def _tool_call(call: ParsedToolCall, aliases: Aliases) -> dict[str, Any]:
    if call.name in aliases and (text := write_custom_input(call)) is not None:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text}}
    return write_call(call.id, call.name, call.arguments)


CHAT = Surface("chat", read_call, write_whole, write_events, write_error, write_error_event)
