"""OpenAI completions: text or token ids in, text out; plain and streaming.

Text is tokenised once: what was sampled or served before is found again in the next prompt, and only what follows is
tokenised. A prompt of ids is served as it is.
"""

from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Annotated, Any

import orjson
from pydantic import Field, WithJsonSchema

from art_backend.gateway.answers import Answer, Call, Completed, Part
from art_backend.gateway.dialects.chat import (
    write_end,
    write_error,
    write_error_event,
    write_event,
    write_head,
    write_usage,
)
from art_backend.gateway.dialects.demands import read_words
from art_backend.gateway.dialects.requests import OpenAIRequest, wrong
from art_backend.gateway.dialects.responding import Surface
from art_backend.gateway.sampling import plan_sampling
from art_backend.gateway.sources import Text

DEFAULT_MAX_TOKENS = 16
"""The protocol's own default."""


_IDS: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**31},
}
_PROMPT: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
        _IDS,
        {"type": "array", "minItems": 1, "items": _IDS},
    ]
}


class CompletionsRequest(OpenAIRequest):
    """The fields of a request that are honoured."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT)]
    """Read by hand: there may be a million ids."""
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    best_of: int | None = Field(default=None, ge=1)
    add_special_tokens: bool | None = None


def read_call(body: dict[str, Any], _: object = None) -> Call:
    """Normalise the body of a completions request.

    Raises:
        BadRequestError: A field has a wrong type or value; the message names it.
    """
    request = CompletionsRequest.read(body)
    if request.echo and request.logprobs is not None:
        raise wrong("echo", "prompt log-probabilities are not supported")
    if request.add_special_tokens is False:
        raise wrong("add_special_tokens", "false is not supported; send the prompt as ids")
    if request.best_of not in (None, 1, request.n):
        raise wrong("best_of", "is not supported; ask for n and choose")
    words, words_field = read_words(request, request.response_format, "response_format")
    return Call(
        model_name=request.model,
        sources=[Text(prompt, words, words_field) for prompt in _read_prompts(request.prompt)],
        plan=plan_sampling(
            request,
            max_tokens=request.max_tokens or DEFAULT_MAX_TOKENS,
            stop=request.stop,
            n=request.n,
            logprobs=request.logprobs is not None,
            top_logprobs=request.logprobs,
        ),
        stream=bool(request.stream),
        include_usage=request.include_usage,
        echo={"prompt": bool(request.echo)},
    )


def _read_prompts(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if _are_ids(prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt):
            return prompt
        if all(isinstance(item, list) and item and _are_ids(item) for item in prompt):
            return prompt
    raise wrong("prompt", "must be a string, a list of token ids, or a list of either")


def _are_ids(values: list[Any]) -> bool:
    """Whether all values can be token ids. There may be millions of them."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < 2**31


def write_whole(answer: Answer) -> bytes:
    """The ``text_completion`` object."""
    choices = [
        _choice(answer, index, _echo(answer, index) + one.message.content, one, 0)
        for index, one in enumerate(answer.completed)
    ]
    head = write_head(answer, "cmpl", "text_completion")
    return orjson.dumps({**head, "choices": choices, "usage": write_usage(answer)})


async def write_events(answer: Answer) -> AsyncIterator[bytes]:
    """The ``text_completion`` chunks."""
    head = write_head(answer, "cmpl", "text_completion")
    offsets = [0] * answer.call.choices
    begun: set[int] = set()
    async for index, news in answer.follow():
        text = "" if isinstance(news, Completed) else news.message.content
        if index not in begun:
            begun.add(index)
            text = _echo(answer, index) + text
        if isinstance(news, Completed) or text or (answer.call.plan.logprobs and news.ids):
            yield write_event({**head, "choices": [_choice(answer, index, text, news, offsets[index])]})
        offsets[index] += len(text)
    yield write_end(answer, head)


def _choice(answer: Answer, index: int, text: str, what: Completed | Part, offset: int) -> dict[str, Any]:
    choice: dict[str, Any] = {"text": text, "index": index, "logprobs": None, "finish_reason": None}
    ended, whole = isinstance(what, Completed), not answer.call.stream
    if answer.call.plan.logprobs and (whole or not ended):
        choice["logprobs"] = _logprobs(answer, what, offset)
    if isinstance(what, Completed):
        choice["finish_reason"] = what.finish_reason
        choice["art"] = what.reference()
        choice["token_ids"] = what.ids.tolist()
    return choice


def _logprobs(answer: Answer, what: Completed | Part, offset: int) -> dict[str, Any]:
    detokenizer = answer.model.renderer.detokenizer

    def name(token_id: int) -> str:
        data = detokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    tokens = [name(i) for i in what.ids]
    return {
        "tokens": tokens,
        "token_logprobs": list(what.logprobs),
        "top_logprobs": [{name(i): logprob for i, logprob in top} for top in what.top_logprobs],
        "text_offset": list(accumulate(map(len, tokens), initial=offset))[:-1],
    }


def _echo(answer: Answer, index: int) -> str:
    """The prompt of a choice, where it was asked for."""
    if not answer.call.echo["prompt"]:
        return ""
    source = answer.call.sources[index // answer.call.plan.n]
    assert isinstance(source, Text)
    return source.prompt if isinstance(source.prompt, str) else answer.model.renderer.detokenizer.decode(source.prompt)


COMPLETIONS = Surface("completions", read_call, write_whole, write_events, write_error, write_error_event)
