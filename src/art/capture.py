"""Recording chat completions into the trajectory that is active while they are made.

Clients that models hand out record by themselves, through their HTTP package's own hooks. For a client of your own:

    client = openai.AsyncOpenAI(http_client=art.capture.async_http_client())
"""

import json
import sys
from collections.abc import Callable
from typing import Any, cast

from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion import Choice
from pydantic import ValidationError

from art.active import active_trajectory, no_capture
from art.openai import consume_sync_chat_completion_stream
from art.trajectories import History, Trajectory, get_messages

__all__ = ["async_http_client", "http_client", "http_package", "no_capture", "place"]

_PATH = "/chat/completions"


def async_http_client(**options: Any) -> DefaultAsyncHttpxClient:
    """An HTTP client for ``openai.AsyncOpenAI`` that records.

    Args:
        options: Further arguments of ``openai.DefaultAsyncHttpxClient``.
    """
    return DefaultAsyncHttpxClient(event_hooks={"response": [_record_async]}, headers=_HEADERS, **options)


def http_client(**options: Any) -> DefaultHttpxClient:
    """An HTTP client for ``openai.OpenAI`` that records."""
    return DefaultHttpxClient(event_hooks={"response": [_record_sync]}, headers=_HEADERS, **options)


_HEADERS = {"Accept-Encoding": "identity"}  # a stream is recorded as it arrives, before any decoding


def place(trajectory: Trajectory, request: dict[str, Any], choice: Choice) -> None:
    """Append an exchange to the conversation that its request continues, or open another history for it."""
    messages: list[Any] = request["messages"]
    tools: list[Any] | None = request.get("tools")
    for history in (trajectory, *trajectory.additional_histories):
        so_far = history.messages()
        if not so_far and not history.tools:
            continues = True
        else:
            prefix = get_messages(messages[: len(so_far)])
            continues = so_far == prefix and (history.tools or None) == (tools or None)
        if continues:
            history.messages_and_choices.extend([*messages[len(so_far) :], choice])
            history.tools = tools
            return
    trajectory.additional_histories.append(History(messages_and_choices=[*messages, choice], tools=tools))


async def _record_async(response: Any) -> None:
    if (exchange := _begin(response)) is None:
        return
    trajectory, request = exchange
    if request.get("stream"):
        response.stream = _tee(response.stream, lambda body: _finish_stream(trajectory, request, body))
    else:
        _finish(trajectory, request, await response.aread())


def _record_sync(response: Any) -> None:
    if (exchange := _begin(response)) is None:
        return
    trajectory, request = exchange
    if request.get("stream"):
        response.stream = _tee(response.stream, lambda body: _finish_stream(trajectory, request, body))
    else:
        _finish(trajectory, request, response.read())


def _begin(response: Any) -> tuple[Trajectory, dict[str, Any]] | None:
    """The active trajectory and the request's body, if this is an exchange to record."""
    trajectory = active_trajectory.get()
    sent = response.request
    if trajectory is None or not response.is_success or sent.method != "POST" or not sent.url.path.endswith(_PATH):
        return None
    try:
        request: Any = json.loads(sent.content)
    except ValueError:
        return None
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):  # pyright: ignore[reportUnknownMemberType]
        return None
    return trajectory, cast(dict[str, Any], request)


def _finish(trajectory: Trajectory, request: dict[str, Any], body: bytes) -> None:
    try:
        choice = Choice.model_validate(json.loads(body)["choices"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        return  # not a chat completion
    place(trajectory, request, choice)


def _finish_stream(trajectory: Trajectory, request: dict[str, Any], body: bytes) -> None:
    chunks: list[ChatCompletionChunk] = []
    for line in body.decode(errors="replace").splitlines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or not data or data == "[DONE]":
            continue
        try:
            chunks.append(ChatCompletionChunk.model_validate_json(data))
        except ValidationError:
            return  # an error in the stream, or no chat completion
    if chunks and any(chunk.choices for chunk in chunks):
        completion = consume_sync_chat_completion_stream(chunks)
        place(trajectory, request, next(choice for choice in completion.choices if choice.index == 0))


def _tee(stream: Any, on_end: Callable[[bytes], None]) -> Any:
    """Pass a response's stream on and hand over what passed, at its end or when it is closed."""
    package = http_package()

    class Tee(package.AsyncByteStream, package.SyncByteStream):
        def __init__(self) -> None:
            self._parts: list[bytes] = []
            self._ended = False

        def _end(self) -> None:
            if not self._ended:
                self._ended = True
                on_end(b"".join(self._parts))

        def __iter__(self) -> Any:
            for part in stream:
                self._parts.append(part)
                yield part
            self._end()

        async def __aiter__(self) -> Any:
            async for part in stream:
                self._parts.append(part)
                yield part
            self._end()

        def close(self) -> None:
            self._end()
            stream.close()

        async def aclose(self) -> None:
            self._end()
            await stream.aclose()

    return Tee()


def http_package() -> Any:
    """The HTTP package that the installed ``openai`` is built on: httpx or httpx2."""
    client = next(kind for kind in DefaultAsyncHttpxClient.__mro__ if kind.__name__ == "AsyncClient")
    return sys.modules[client.__module__.partition(".")[0]]
