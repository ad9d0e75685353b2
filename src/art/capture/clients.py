"""HTTP clients that record the model calls made through them, and the ``AsyncOpenAI`` clients that models hand out."""

import functools
import json
import ssl
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, cast

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, Timeout
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice
from openai.types.responses import Response
from pydantic import BaseModel

from art.backend.control import is_loopback
from art.capture.streams import (
    assemble_chat,
    assemble_completion,
    assemble_message,
    assemble_response,
    read_events,
)
from art.trajectories import History, Trajectory, active_trajectory, get_messages
from art.types import Exchange, ExchangeRequest

__all__ = ["async_http_client", "http_client"]

TIMEOUT_S = 1200.0
CONNECT_S = 5.0
CONNECTIONS = 100_000


@dataclass(frozen=True)
class _Protocol:
    """A protocol of model calls."""

    exchanges: str
    """The list of a trajectory's exchanges that its calls go to."""
    assemble: Callable[[Sequence[str]], Any]
    """Puts the events of a stream together to an answer; ``None`` if the stream was cut off."""
    answer: type[BaseModel] | None = None
    """The SDK's type of an answer; ``None``: that of Anthropic's SDK, which may not be installed."""


_PROTOCOLS = {
    "/chat/completions": _Protocol("chat_completions", assemble_chat, ChatCompletion),
    "/v1/completions": _Protocol("completions", assemble_completion, Completion),
    "/v1/responses": _Protocol("responses", assemble_response, Response),
    "/v1/messages": _Protocol("messages", assemble_message),
}
"""By the end of the path of its calls."""


def async_http_client(**options: Any) -> DefaultAsyncHttpxClient:
    """Return a recording HTTP client for ``openai.AsyncOpenAI`` or ``anthropic.AsyncAnthropic``.

    Args:
        options: Further arguments of ``openai.DefaultAsyncHttpxClient``.

    >>> import openai
    >>> async with openai.AsyncOpenAI(base_url=endpoint, api_key="key", http_client=async_http_client()) as client:
    ...     with art.Trajectory() as t:
    ...         _ = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi."}])
    >>> len(t.exchanges.chat_completions)
    1
    """
    return DefaultAsyncHttpxClient(event_hooks={"response": [_record_async]}, headers=_HEADERS, **options)


def http_client(**options: Any) -> DefaultHttpxClient:
    """Return a recording HTTP client for ``openai.OpenAI`` or ``anthropic.Anthropic``."""
    return DefaultHttpxClient(event_hooks={"response": [_record_sync]}, headers=_HEADERS, **options)


def make_client(base_url: str, api_key: str) -> AsyncOpenAI:
    """Return a client with long timeouts that allows very many concurrent calls."""
    limits = _http_package().Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    timeout = Timeout(TIMEOUT_S, connect=CONNECT_S)
    if is_loopback(base_url):  # a proxy setting is not meant for this machine, which needs no certificates either
        http = async_http_client(timeout=timeout, limits=limits, trust_env=False, verify=_no_tls())
    else:
        http = async_http_client(timeout=timeout, limits=limits)
    return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout, http_client=http)


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """A context without certificates: reading them takes longer than everything else in making a client."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _http_package() -> Any:
    """The HTTP package that the installed ``openai`` is built on: httpx or httpx2."""
    client = next(kind for kind in DefaultAsyncHttpxClient.__mro__ if kind.__name__ == "AsyncClient")
    return sys.modules[client.__module__.partition(".")[0]]


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


@dataclass(frozen=True)
class _Call:
    """A call that is to be recorded once its response is there."""

    trajectory: Trajectory
    protocol: _Protocol
    request: dict[str, Any]
    started: datetime


async def _record_async(response: Any) -> None:
    if (call := _begin(response)) is not None:
        _read_body(call, await response.aread())


def _record_sync(response: Any) -> None:
    if (call := _begin(response)) is not None:
        _read_body(call, response.read())


def _begin(response: Any) -> _Call | None:
    """The call, if this is an exchange to record whose body is there to be read; a stream is recorded as it passes."""
    trajectory = active_trajectory.get()
    sent = response.request
    if trajectory is None or not response.is_success or sent.method != "POST":
        return None
    protocol = next((found for path, found in _PROTOCOLS.items() if sent.url.path.endswith(path)), None)
    if protocol is None:
        return None
    try:
        request: Any = json.loads(sent.content)
    except ValueError:
        return None
    if not isinstance(request, dict):
        return None
    body = cast(dict[str, Any], request)
    if protocol.answer is ChatCompletion and not isinstance(body.get("messages"), list):
        return None
    call = _Call(trajectory, protocol, body, datetime.now())
    if not body.get("stream"):
        return call
    response.stream = _tee(response, lambda passed: _read(call, lambda: protocol.assemble(read_events(passed))))
    return None


def _read_body(call: _Call, body: bytes) -> None:
    _read(call, lambda: json.loads(body))


def _read(call: _Call, answer: Callable[[], Any]) -> None:
    """Keep an answer, given as its JSON or put together from its events; leave out what is not what its path says."""
    kind = call.protocol.answer or _anthropic_message()
    if kind is None:
        return
    try:
        answered: Any = answer()
        if answered is None:
            return
        assembled = isinstance(answered, BaseModel)
        response: BaseModel = answered if assembled else kind.model_validate(answered)
        choice = None
        if isinstance(response, ChatCompletion):
            first = next(choice for choice in response.choices if not assembled or choice.index == 0)
            choice = first if assembled else Choice.model_validate(answered["choices"][0])
    except (ValueError, KeyError, IndexError, TypeError, StopIteration):
        return
    _keep(call, response, choice)


def _anthropic_message() -> type[BaseModel] | None:
    """The type of a message; ``None``, after a warning, if Anthropic's SDK is not there to describe it."""
    try:
        return import_module("anthropic.types").Message
    except ModuleNotFoundError:
        warnings.warn(
            "A call of the messages protocol was not recorded: install anthropic, whose types describe it, or capture the "
            "run with `async with model.rollout()`.",
            stacklevel=2,
        )
        return None


def _keep(call: _Call, response: BaseModel, choice: Choice | None) -> None:
    exchange = Exchange(
        request=ExchangeRequest(call.request),
        response=response,
        model=str(call.request.get("model", "")),
        start_time=call.started,
        end_time=datetime.now(),
    )
    call.trajectory.exchanges.of(call.protocol.exchanges).append(exchange)
    if choice is not None:
        place(call.trajectory, call.request, choice)


def _tee(response: Any, on_end: Callable[[bytes], None]) -> Any:
    """Pass a response's stream on; give what passed to ``on_end`` when the stream ends or is closed."""
    stream = response.stream
    package = sys.modules[type(response).__module__.partition(".")[0]]  # a client's own: httpx or httpx2

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
