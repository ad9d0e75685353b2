"""OpenAI responses, plain and streaming.

``previous_response_id`` and references to items are resolved in the caller's rollout: a response's id is that of its turn, and
the tree holds the conversation before it. A response carries ``art: {turn, rollout, policy_version}``.
"""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field, WithJsonSchema

from art_backend.errors import ContextOverflowError, ServiceError
from art_backend.gateway.answers import Answer, Call, Completed
from art_backend.gateway.dialects.chat import write_error, write_logprobs
from art_backend.gateway.dialects.chat_messages import read_system
from art_backend.gateway.dialects.demands import read_form, read_words
from art_backend.gateway.dialects.requests import MESSAGE_SCHEMA, ConversationRequest, Stop, Texts, wrong
from art_backend.gateway.dialects.responding import Surface
from art_backend.gateway.dialects.response_events import EventWriter
from art_backend.gateway.dialects.response_items import FindTurn, ItemReader, write_items
from art_backend.gateway.dialects.response_tools import read_choice, read_tools
from art_backend.gateway.dialects.toolbox import Toolbox
from art_backend.gateway.sampling import plan_sampling
from art_backend.gateway.sources import Conversation
from art_backend.tokens.render import Message

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


_ITEM = {
    "anyOf": [MESSAGE_SCHEMA, {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}]
}


class ResponsesRequest(ConversationRequest):
    """The fields of a request that are honoured."""

    input: str | list[Annotated[Any, WithJsonSchema(_ITEM)]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    include: Texts | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    max_output_tokens: int | None = Field(default=None, ge=1)
    stop: Stop = None
    metadata: Any = None
    store: bool | None = None


def read_call(body: dict[str, Any], find_turn: FindTurn) -> Call:
    """Normalise the body of a responses request.

    Raises:
        BadRequestError: A field has a wrong type or value; the message names it.
    """
    request = ResponsesRequest.read(body)
    tools = Toolbox()
    read_tools(tools, request.tools, "tools")
    messages = _read_messages(request, find_turn, tools)
    words = read_words(request, (request.text or {}).get("format"), "text.format")
    form = read_form(read_choice(request.tool_choice), tools, words, parallel=request.parallel_tool_calls)
    return Call(
        model_name=request.model,
        sources=[Conversation(messages, tools.functions or None, form, request.chat_template_kwargs or {})],
        plan=plan_sampling(
            request,
            max_tokens=request.max_output_tokens,
            stop=request.stop,
            logprobs=wants_logprobs(request.include or ()),
            top_logprobs=request.top_logprobs,
        ),
        stream=bool(request.stream),
        echo={
            "created_at": int(time.time()),
            **{name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()},
        },
        keep=request.store is not False,
        aliases=tools.aliases,
    )


def wants_logprobs(include: Sequence[str]) -> bool:
    """Whether ``include`` asks for the log-probabilities of what was said."""
    return _LOGPROBS in include


def _read_messages(request: ResponsesRequest, find_turn: FindTurn, tools: Toolbox) -> list[Message]:
    reader = ItemReader(find_turn, tools)
    if (previous := request.previous_response_id) is not None:
        turn = find_turn(previous.removeprefix("resp_"))
        if turn is None:
            raise wrong(
                "previous_response_id",
                f"this rollout has no response {previous!r}. Responses are found with the key of their rollout, or of "
                "their model; otherwise send the whole input",
            )
        # the instructions of an earlier response do not carry over
        reader.messages += [message for message in turn.path_messages() if not message.get("instructions")]
    given = request.input
    for i, item in enumerate([{"role": "user", "content": given}] if isinstance(given, str) else given or ()):
        reader.read(item, f"input.{i}")
    if not reader.messages:
        raise wrong("input", "must not be empty")
    if system := read_system(request.instructions, "instructions"):
        return [{"role": "system", "content": system, "instructions": True}, *reader.messages]
    return reader.messages


def write_whole(answer: Answer) -> bytes:
    """The ``response`` object.

    Raises:
        ContextOverflowError: There was no room to sample anything.
    """
    (one,) = answer.completed
    if one.overflow:
        raise _overflow(answer)
    return orjson.dumps(_finished(answer, one))


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
            error = _overflow(answer)
            failed = {**_response(answer, "failed", []), "error": {"code": error.code.value, "message": error.message}}
            yield writer.event("response.failed", response=failed)
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
    items = write_items(answer.turn_ids[0], one, answer.call.aliases, logprobs)
    return {
        **_response(answer, "incomplete" if cut else "completed", items),
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
    body = orjson.dumps({**told, "sequence_number": 0})
    return b"event: error\ndata: " + body[:-1] + b"," + write_error(error)[1:] + b"\n\n"


RESPONSES = Surface("responses", read_call, write_whole, write_events, write_error, write_error_event)
