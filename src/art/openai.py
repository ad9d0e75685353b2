"""Assemble chat completion streams into completions."""

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from openai.types.chat.chat_completion_message import ChatCompletionMessage
from openai.types.chat.chat_completion_message_function_tool_call import ChatCompletionMessageFunctionToolCall, Function

OnChunk = Callable[[ChatCompletionChunk, ChatCompletion], Any]
"""Called with each chunk and the completion so far. Raising ``StopIteration`` ends the stream early."""

_REASONING = ("reasoning", "reasoning_content")


def init_chat_completion(chunk: ChatCompletionChunk) -> ChatCompletion:
    """The empty completion that ``chunk`` is the first piece of."""
    return ChatCompletion(
        id=chunk.id,
        choices=[_empty_choice(choice.index) for choice in chunk.choices],
        created=chunk.created,
        model=chunk.model,
        object="chat.completion",
    )


def update_chat_completion(chat_completion: ChatCompletion, chunk: ChatCompletionChunk) -> None:
    """Add a chunk: texts, log-probabilities and arguments are appended, everything else is replaced."""
    for piece in chunk.choices:
        choice = next((one for one in chat_completion.choices if one.index == piece.index), None)
        if choice is None:
            choice = _empty_choice(piece.index)
            chat_completion.choices.append(choice)
        _update_choice(choice, piece)
    if chunk.usage is not None:
        chat_completion.usage = chunk.usage
    if chunk.system_fingerprint is not None:
        chat_completion.system_fingerprint = chunk.system_fingerprint
    if chunk.service_tier is not None:
        chat_completion.service_tier = chunk.service_tier


async def consume_chat_completion_stream(
    stream: AsyncIterable[ChatCompletionChunk], on_chunk: OnChunk | None = None
) -> ChatCompletion:
    """Read a stream to its end.

    Raises:
        ValueError: The stream is empty.

    >>> stream = await model.openai_client().chat.completions.create(
    ...     model=model.get_inference_name(), messages=[{"role": "user", "content": "Hi."}], max_tokens=4, stream=True
    ... )
    >>> completion = await consume_chat_completion_stream(stream)
    >>> completion.choices[0].message.role
    'assistant'
    """
    completion: ChatCompletion | None = None
    async for chunk in stream:
        completion = completion or init_chat_completion(chunk)
        if not _take(completion, chunk, on_chunk):
            if (close := getattr(stream, "close", None) or getattr(stream, "aclose", None)) is not None:
                await close()
            break
    return _finished(completion)


def consume_sync_chat_completion_stream(
    stream: Iterable[ChatCompletionChunk], on_chunk: OnChunk | None = None
) -> ChatCompletion:
    """``consume_chat_completion_stream`` for sync clients."""
    completion: ChatCompletion | None = None
    for chunk in stream:
        completion = completion or init_chat_completion(chunk)
        if not _take(completion, chunk, on_chunk):
            if (close := getattr(stream, "close", None)) is not None:
                close()
            break
    return _finished(completion)


def _take(completion: ChatCompletion, chunk: ChatCompletionChunk, on_chunk: OnChunk | None) -> bool:
    """Add a chunk; False if the caller has seen enough."""
    update_chat_completion(completion, chunk)
    if on_chunk is not None:
        try:
            on_chunk(chunk, completion)
        except StopIteration:
            return False
    return True


def _finished(completion: ChatCompletion | None) -> ChatCompletion:
    if completion is None:
        raise ValueError("The chat completion stream contained no chunks.")
    return completion


def _empty_choice(index: int) -> Choice:
    return Choice(index=index, finish_reason="stop", message=ChatCompletionMessage(role="assistant"))


def _update_choice(choice: Choice, piece: ChunkChoice) -> None:
    message, delta = choice.message, piece.delta
    if delta.content:
        message.content = (message.content or "") + delta.content
    if delta.refusal:
        message.refusal = (message.refusal or "") + delta.refusal
    for name in _REASONING:
        if text := (delta.model_extra or {}).get(name):
            setattr(message, name, ((message.model_extra or {}).get(name) or "") + text)
    for call in delta.tool_calls or ():
        _update_tool_calls(message, call)
    if piece.logprobs is not None:
        choice.logprobs = choice.logprobs or ChoiceLogprobs()
        if piece.logprobs.content is not None:
            choice.logprobs.content = [*(choice.logprobs.content or ()), *piece.logprobs.content]
        if piece.logprobs.refusal is not None:
            choice.logprobs.refusal = [*(choice.logprobs.refusal or ()), *piece.logprobs.refusal]
    if piece.finish_reason is not None:
        choice.finish_reason = piece.finish_reason
    for name, value in (piece.model_extra or {}).items():
        setattr(choice, name, value)


def _update_tool_calls(message: ChatCompletionMessage, piece: ChoiceDeltaToolCall) -> None:
    calls: list[Any] = message.tool_calls or []
    while len(calls) <= piece.index:
        empty = Function(name="", arguments="")
        calls.append(ChatCompletionMessageFunctionToolCall(id="", type="function", function=empty))
    call = calls[piece.index]
    if piece.id:
        call.id = piece.id
    if piece.function is not None:
        if piece.function.name:
            call.function.name = piece.function.name
        call.function.arguments += piece.function.arguments or ""
    message.tool_calls = calls
