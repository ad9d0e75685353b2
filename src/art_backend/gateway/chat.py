"""OpenAI chat completions, plain and streaming.

Every choice carries ``art: {turn, rollout, policy_version}``, the reference that a trajectory keeps; in a stream it is on the
chunk that carries the finish reason.
"""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import JSONResponse, Response, StreamingResponse

from art_backend.errors import BadRequestError
from art_backend.gateway.ports import Identity, ServedModel
from art_backend.gateway.render import Message
from art_backend.gateway.turns import Call, Completed, TurnTaker, collect
from art_backend.inference.contract import Generation, GenerationDelta

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_call(body: Any, *, retry: bool) -> Call:
    """Normalise the body of a chat request.

    Raises:
        BadRequestError: A field has a wrong type or value; the message names it.
    """
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object.")
    model, messages, tools = body.get("model"), body.get("messages"), body.get("tools")
    if not isinstance(model, str) or not model:
        raise BadRequestError("model: must be a non-empty string.", param="model")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages: must be a non-empty list.", param="messages")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise BadRequestError("tools: must be a list of objects.", param="tools")
    _refuse_unsupported(body)
    normalised = [_normalise(message, f"messages.{i}") for i, message in enumerate(messages)]
    return Call(model, normalised, tools if tools and body.get("tool_choice") != "none" else None, body, retry)


def _refuse_unsupported(body: dict[str, Any]) -> None:
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise BadRequestError(
            "tool_choice: this engine cannot force a tool call; use 'auto' or 'none'.", param="tool_choice"
        )
    kind = body.get("response_format")
    if kind is not None and (not isinstance(kind, dict) or kind.get("type") != "text"):
        raise BadRequestError(
            "response_format: this engine cannot enforce a format; ask for it in the prompt.", param="response_format"
        )


def _normalise(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise BadRequestError(f"{where}: must be an object.", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise BadRequestError(f"{where}.role: must be one of {', '.join(ROLES)}.", param=f"{where}.role")
    result: Message = {
        "role": {"developer": "system", "function": "tool"}.get(role, role),
        "content": _text(message.get("content"), f"{where}.content"),
    }
    if calls := message.get("tool_calls"):
        result["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    if isinstance(message.get("tool_call_id"), str):
        result["tool_call_id"] = message["tool_call_id"]
    return result


def _text(content: Any, where: str) -> str:
    """Join text parts; null, missing and empty are the same."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequestError(f"{where}: must be a string, null or a list of parts.", param=where)
    texts: list[str] = []
    for i, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise BadRequestError(f"{where}.{i}: only text parts are supported by this model.", param=f"{where}.{i}")
        texts.append(part["text"])
    return "".join(texts)


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise BadRequestError(f"{where}: must be a list.", param=where)
    result: list[dict[str, Any]] = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or not isinstance(call.get("id"), str)
        ):
            raise BadRequestError(f"{where}.{i}: needs an id, and a function with a name.", param=f"{where}.{i}")
        arguments = function.get("arguments") or "{}"
        result.append(
            {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": str(arguments)}}
        )
    return result


async def answer(taker: TurnTaker, identity: Identity, body: Any, *, retry: bool) -> Response:
    """Answer one request."""
    call = read_call(body, retry=retry)
    model, _ = taker.directory.resolve(identity, call.model_name)
    if not body.get("stream"):
        completed = await taker.take(identity, call)
        return JSONResponse(_completion(call, model, completed))
    return StreamingResponse(_stream(taker, identity, call, model), media_type="text/event-stream")


def _completion(call: Call, model: ServedModel, completed: list[Completed]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": call.model_name,
        "choices": [
            {
                "index": i,
                "message": _message(one),
                "logprobs": _logprobs(model, one.generation) if one.plan.logprobs else None,
                "finish_reason": one.finish_reason,
                "art": _reference(one),
            }
            for i, one in enumerate(completed)
        ],
        "usage": _usage(completed),
    }


def _message(completed: Completed) -> dict[str, Any]:
    parsed = completed.message
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content, "refusal": None}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message


def _reference(completed: Completed) -> dict[str, Any] | None:
    if completed.turn is None:
        return None
    return {"turn": completed.turn.id, "rollout": completed.rollout, "policy_version": completed.policy_version}


def _usage(completed: list[Completed]) -> dict[str, int]:
    prompt = completed[0].prompt_tokens
    sampled = sum(len(one.generation.token_ids) for one in completed)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _logprobs(model: ServedModel, generation: Generation | GenerationDelta) -> dict[str, Any]:
    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = model.renderer.token_text(token_id)
        return {"token": text, "bytes": list(text.encode()), "logprob": logprob}

    return {
        "content": [
            {**entry(token_id, logprob), "top_logprobs": [entry(*other) for other in top]}
            for token_id, logprob, top in zip(
                generation.token_ids, generation.logprobs, generation.top_logprobs, strict=True
            )
        ],
        "refusal": None,
    }


async def _stream(taker: TurnTaker, identity: Identity, call: Call, model: ServedModel) -> AsyncIterator[str]:
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": call.model_name,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None, **extra}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    opened = taker.open(identity, call)
    if opened is None:
        completed = taker.overflow(identity)
    else:
        generation = Generation([], [], [], "abort")
        shown = ""
        async with opened.model.lease(opened.step) as lease, opened.stream(lease) as deltas:
            async for delta in deltas:
                collect(generation, delta)
                text = opened.parse(generation).content
                if delta.finish_reason is None and text.endswith("\ufffd"):
                    continue  # the middle of a character
                logprobs = _logprobs(model, delta) if opened.plan.logprobs else None
                yield chunk({"content": text[len(shown) :]}, logprobs=logprobs)
                shown = text
        completed = taker.commit(opened, generation, lease.policy_version)
    calls = [
        {"index": i, "id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for i, c in enumerate(completed.message.tool_calls)
    ]
    yield chunk({"tool_calls": calls} if calls else {}, completed.finish_reason, art=_reference(completed))
    if (call.body.get("stream_options") or {}).get("include_usage"):
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': _usage([completed])})}\n\n"
    yield "data: [DONE]\n\n"
