"""OpenAI responses, plain and streaming.

``previous_response_id`` and references to items are resolved in the caller's rollout: a response's id is that of its turn, and
the tree holds the conversation before it. A response carries ``art: {turn, rollout, policy_version}``.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

from art_backend.errors import BadRequestError, ContextOverflowError, ServiceError
from art_backend.gateway.answers import Answer, Call, Completed
from art_backend.gateway.demands import read_form, read_words
from art_backend.gateway.dialects import schemas
from art_backend.gateway.dialects.chat import read_model, read_stream, write_error, write_json, write_logprobs
from art_backend.gateway.dialects.chat_messages import read_flag, read_system, read_template_arguments
from art_backend.gateway.dialects.fields import check_fields
from art_backend.gateway.dialects.responding import Surface
from art_backend.gateway.dialects.response_events import EventWriter
from art_backend.gateway.dialects.response_items import FindTurn, ItemReader, write_items
from art_backend.gateway.dialects.response_tools import read_choice, read_tools
from art_backend.gateway.dialects.toolbox import Toolbox
from art_backend.gateway.form import Form
from art_backend.gateway.sampling import plan_sampling
from art_backend.gateway.sources import Conversation
from art_backend.tokens.render import Message

_NAMES = {"max_tokens": "max_output_tokens"}
_LOGPROBS = "message.output_text.logprobs"
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, with their defaults."""


def read_call(body: dict[str, Any], find_turn: FindTurn) -> Call:
    """Normalise the body of a responses request.

    Raises:
        BadRequestError: A field has a wrong type or value; the message names it.
    """
    check_fields(body, schemas.RESPONSES["properties"])
    tools = Toolbox()
    read_tools(tools, body.get("tools"), "tools")
    messages = _read_messages(body, find_turn, tools)
    include = body.get("include") or []
    if not isinstance(include, list):
        raise BadRequestError("include: must be a list.", param="include")
    fields = {**body, "max_tokens": body.get("max_output_tokens"), "logprobs": wants_logprobs(include)}
    return Call(
        model_name=read_model(body),
        sources=[
            Conversation(messages, tools.functions or None, _read_form(body, tools), read_template_arguments(body))
        ],
        plan=plan_sampling(fields, _NAMES),
        stream=read_stream(body),
        echo={
            "created_at": int(time.time()),
            **{name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()},
        },
        keep=read_flag(body, "store") is not False,
        aliases=tools.aliases,
    )


def wants_logprobs(include: Any) -> bool:
    """Whether ``include`` asks for the log-probabilities of what was said."""
    return _LOGPROBS in include


def _read_form(body: dict[str, Any], tools: Toolbox) -> Form:
    text = body.get("text")
    if not isinstance(text, dict | None):
        raise BadRequestError("text: must be an object.", param="text")
    words = read_words(body, ((text or {}).get("format"), "text.format"), nested=False)
    return read_form(
        read_choice(body.get("tool_choice")),
        tools,
        words=words,
        parallel=read_flag(body, "parallel_tool_calls"),
    )


def _read_messages(body: dict[str, Any], find_turn: FindTurn, tools: Toolbox) -> list[Message]:
    instructions, previous, given = body.get("instructions"), body.get("previous_response_id"), body.get("input")
    if not isinstance(instructions, str | None):
        raise BadRequestError("instructions: must be a string.", param="instructions")
    reader = ItemReader(find_turn, tools)
    if previous is not None:
        # the instructions of an earlier response do not carry over
        history = _find_history(previous, find_turn)
        reader.messages += [message for message in history if not message.get("instructions")]
    if isinstance(given, str):
        reader.read({"role": "user", "content": given}, "input")
    elif isinstance(given, list):
        for i, item in enumerate(given):
            reader.read(item, f"input.{i}")
    elif given is not None:
        raise BadRequestError("input: must be a string or a list of items.", param="input")
    if not reader.messages:
        raise BadRequestError("input: must not be empty.", param="input")
    if system := read_system(instructions, "instructions"):
        return [{"role": "system", "content": system, "instructions": True}, *reader.messages]
    return reader.messages


def _find_history(response_id: Any, find_turn: FindTurn) -> list[Message]:
    turn = find_turn(response_id.removeprefix("resp_")) if isinstance(response_id, str) else None
    if turn is None:
        raise BadRequestError(
            f"previous_response_id: no response {response_id!r} of this rollout is known. Responses are found with the key "
            "of their rollout, or of their model; otherwise send the whole input.",
            param="previous_response_id",
        )
    return turn.path_messages()


def write_whole(answer: Answer) -> bytes:
    """The ``response`` object.

    Raises:
        ContextOverflowError: There was no room to sample anything.
    """
    (one,) = answer.completed
    if one.overflow:
        raise _overflow(answer)
    return write_json(_finished(answer, one))


async def write_events(answer: Answer) -> AsyncIterator[bytes]:
    """The events of a streamed response."""
    writer = EventWriter(answer.turn_ids[0], answer.call.aliases)
    begun = False
    async for _, news in answer.follow():
        if not begun:
            begun = True
            for kind in ("response.created", "response.in_progress"):
                yield writer.event(kind, response=_response(answer, "in_progress", []))
        if isinstance(news, Completed) and news.overflow:
            yield writer.event("response.failed", response=_failed(answer))
        elif isinstance(news, Completed):
            for event in writer.finish(news):
                yield event
            response = _finished(answer, news)
            yield writer.event(f"response.{response['status']}", response=response)
        else:
            for event in writer.write(news.message):
                yield event


def _finished(answer: Answer, one: Completed) -> dict[str, Any]:
    logprobs: list[Any] = []
    if answer.call.plan.logprobs:
        logprobs = write_logprobs(answer.model, one.ids, one.logprobs, one.top_logprobs)["content"]
    cut = one.finish_reason == "length"
    return {
        **_response(
            answer,
            "incomplete" if cut else "completed",
            write_items(answer.turn_ids[0], one, answer.call.aliases, logprobs),
        ),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": len(one.ids),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + len(one.ids),
        },
        "art": one.reference(),
    }


def _overflow(answer: Answer) -> ContextOverflowError:
    return ContextOverflowError(answer.model.max_sequence_length, "input")


def _failed(answer: Answer) -> dict[str, Any]:
    error = _overflow(answer)
    return {
        **_response(answer, "failed", []),
        "error": {"code": error.code.value, "message": error.message},
    }


def _response(answer: Answer, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.turn_ids[0]}",
        "object": "response",
        "status": status,
        "model": answer.call.model_name,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "usage": None,
        **answer.call.echo,
    }


def write_error_event(error: ServiceError) -> bytes:
    """The ``error`` event, with the error object that the SDKs raise."""
    told = {"type": "error", "code": error.code.value, "message": error.message, "param": error.param}
    body = write_json({**told, "sequence_number": 0})
    return b"event: error\ndata: " + body[:-1] + b"," + write_error(error)[1:] + b"\n\n"


RESPONSES = Surface("responses", read_call, write_whole, write_events, write_error, write_error_event)
