"""OpenAI completions: text or token ids in, text out; plain and streaming.

Text is tokenised once: what was sampled or served before is found again in the next prompt, and only what follows is
tokenised. A prompt of ids is served as it is.
"""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from art_backend.errors import BadRequestError
from art_backend.gateway.answers import Answer, Call, Completed, Part
from art_backend.gateway.demands import read_words
from art_backend.gateway.dialects import schemas
from art_backend.gateway.dialects.chat import (
    read_model,
    read_stream,
    write_error,
    write_error_event,
    write_event,
    write_json,
    write_usage,
)
from art_backend.gateway.dialects.chat_messages import read_flag
from art_backend.gateway.dialects.fields import check_fields
from art_backend.gateway.dialects.responding import Surface
from art_backend.gateway.sampling import plan_sampling
from art_backend.gateway.sources import Text

DEFAULT_MAX_TOKENS = 16
"""The protocol's own default."""


def read_call(body: dict[str, Any], _: object = None) -> Call:
    """Normalise the body of a completions request.

    Raises:
        BadRequestError: A field has a wrong type or value; the message names it.
    """
    check_fields(body, schemas.COMPLETIONS["properties"])
    words, words_field = read_words(body, (body.get("response_format"), "response_format"), nested=True)
    sources = [Text(prompt, words, words_field) for prompt in _read_prompts(body.get("prompt"))]
    top = body.get("logprobs")
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or not 0 <= top <= 20):
        raise BadRequestError("logprobs: must be an integer between 0 and 20.", param="logprobs")
    echo = read_flag(body, "echo")
    if echo and top is not None:
        raise BadRequestError("echo: log-probabilities of the prompt are not available.", param="echo")
    if read_flag(body, "add_special_tokens") is False:
        raise BadRequestError(
            "add_special_tokens: false is not supported; send the prompt as ids.", param="add_special_tokens"
        )
    if body.get("best_of") not in (None, 1, body.get("n")):
        raise BadRequestError("best_of: is not supported; ask for n and choose.", param="best_of")
    fields = {**body, "logprobs": top is not None, "top_logprobs": top}
    if body.get("max_tokens") is None:
        fields["max_tokens"] = DEFAULT_MAX_TOKENS
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequestError("stream_options: must be an object.", param="stream_options")
    return Call(
        model_name=read_model(body),
        sources=sources,
        plan=plan_sampling(fields),
        stream=read_stream(body),
        include_usage=bool((options or {}).get("include_usage")),
        echo={"prompt": bool(echo)},
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
    raise BadRequestError("prompt: must be a string, a list of token ids, or a list of either.", param="prompt")


def _are_ids(values: list[Any]) -> bool:
    """Whether all values can be token ids. There may be millions of them."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < 2**31


def write_whole(answer: Answer) -> bytes:
    """The ``text_completion`` object."""
    choices = [
        _choice(answer, index, _echo(answer, index) + one.message.content, one, 0)
        for index, one in enumerate(answer.completed)
    ]
    return write_json({**_head(answer), "choices": choices, "usage": write_usage(answer)})


async def write_events(answer: Answer) -> AsyncIterator[bytes]:
    """The ``text_completion`` chunks."""
    head = _head(answer)
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
    if answer.call.include_usage:
        yield write_event({**head, "choices": [], "usage": write_usage(answer)})
    yield b"data: [DONE]\n\n"


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
        "text_offset": _offsets(tokens, offset),
    }


def _offsets(tokens: Sequence[str], start: int) -> list[int]:
    offsets: list[int] = []
    for token in tokens:
        offsets.append(start)
        start += len(token)
    return offsets


def _echo(answer: Answer, index: int) -> str:
    """The prompt of a choice, where it was asked for."""
    if not answer.call.echo["prompt"]:
        return ""
    source = answer.call.sources[index // answer.call.plan.n]
    assert isinstance(source, Text)
    return source.prompt if isinstance(source.prompt, str) else answer.model.renderer.detokenizer.decode(source.prompt)


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": answer.call.model_name,
    }


COMPLETIONS = Surface("completions", read_call, write_whole, write_events, write_error, write_error_event)
