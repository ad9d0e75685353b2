"""Send answers, whole or as server-sent events, with keep-alives while the caller waits.

Clients give up, or send their request again, after 60 to 300 seconds of silence. So a held request gets white space before
its JSON, and a held stream gets comments. Until the first of those, an error has its proper status; after that, a stream
says it in an event, and a whole answer breaks off, which clients retry.

A caller that goes away frees the engine at once.
"""

import asyncio
import functools
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from art_backend.errors import BadRequestError, EngineFailedError, ServiceError
from art_backend.gateway.answers import Answer, Call
from art_backend.store.database import explain_damage
from art_backend.tokens.tree import Turn

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surface:
    """One protocol: how it writes an answer, and an error."""

    name: str
    read: Callable[[dict[str, Any], Callable[[str], Turn | None]], Call]
    """Normalise a request's body; the second argument finds a captured turn of this caller by its id. What it cannot
    know (digest, retry) is filled in by the caller."""
    whole: Callable[[Answer], bytes]
    """The JSON of a finished answer."""
    events: Callable[[Answer], AsyncIterator[bytes]]
    """The events of an answer, from its beginning to its end."""
    error: Callable[[ServiceError], bytes]
    """The JSON of an error."""
    error_event: Callable[[ServiceError], bytes]
    """The event that ends a stream with an error."""


class ErrorResponse(Response):
    """An error in a protocol's own shape."""

    def __init__(self, surface: Surface, error: ServiceError) -> None:
        headers: dict[str, str] = {}
        if error.status < 429 or error.permanent:
            headers["x-should-retry"] = "false"
        if error.retry_after_s is not None:
            headers["Retry-After"] = f"{error.retry_after_s:.0f}"
        super().__init__(surface.error(error), error.status, headers, "application/json")


Endpoint = Callable[..., Awaitable[Response]]


def in_shape_of(find_surface: Callable[[Request], Surface]) -> Callable[[Endpoint], Endpoint]:
    """Decorate an endpoint whose errors leave in the shape of the request's protocol."""

    def decorate(endpoint: Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def answer(request: Request, **path: Any) -> Response:
            try:
                return await endpoint(request, **path)
            except Exception as error:  # noqa: BLE001  every error is sent in the protocol's own format
                return ErrorResponse(find_surface(request), tell(error))

        return answer

    return decorate


class AnswerResponse(Response):
    """Waits for an answer, then sends it; or sends its events while it is made."""

    def __init__(self, surface: Surface, answer: Answer, keep_alive_s: float) -> None:
        super().__init__(media_type="text/event-stream" if answer.call.stream else "application/json")
        self._surface = surface
        self._answer = answer
        self._keep_alive_s = keep_alive_s
        self._ready: list[bytes] = []
        """Events that were made and not sent yet."""
        self._news = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answer.reading():
            gone = asyncio.ensure_future(_disconnected(receive))
            try:
                send_answer = self._send_events if self._answer.call.stream else self._send_whole
                if (error := await send_answer(gone, send)) is not None:
                    await ErrorResponse(self._surface, tell(error))(scope, receive, send)
            finally:
                gone.cancel()

    async def _send_whole(self, gone: "asyncio.Future[None]", send: Send) -> Exception | None:
        """Send the answer; return the error that came before the first byte."""
        started = False
        while await _first(self._answer.work, gone, self._keep_alive_s) is None:
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": _JSON_HEADERS})
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
        if not self._answer.work.done():
            return None
        try:
            self._answer.work.result()
            body = self._surface.whole(self._answer)
        except Exception as error:  # noqa: BLE001  every error is sent in the protocol's own format
            return None if started else error
        if not started:
            headers = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send_last(body, gone, send)
        return None

    async def _send_last(self, body: bytes, gone: "asyncio.Future[None]", send: Send) -> None:
        """Send the end of the answer, which has arrived if the connection stands until it is handed over."""
        for _ in range(_ROUNDS_TO_NOTICE):
            await asyncio.sleep(0)
        if gone.done():
            return
        await send({"type": "http.response.body", "body": body})
        self._answer.delivered = True

    async def _send_events(self, gone: "asyncio.Future[None]", send: Send) -> Exception | None:
        """Send the events; return the error that came before the first byte."""
        making = asyncio.ensure_future(self._make())
        for task in (gone, making):
            task.add_done_callback(lambda _: self._news.set())
        started = ended = False
        try:
            while not ended:
                body, ended, error = await self._next(making)
                if gone.done():
                    return None
                if error is not None and not started and not body:
                    return error
                if error is not None:
                    body += self._surface.error_event(tell(error))
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
                if ended and error is None:
                    await self._send_last(body, gone, send)
                else:
                    await send({"type": "http.response.body", "body": body, "more_body": not ended})
            return None
        finally:
            making.cancel()

    async def _make(self) -> None:
        """Make events as fast as the answer grows; those that are ready together are sent together."""
        async for event in self._surface.events(self._answer):
            self._ready.append(event)
            self._news.set()

    async def _next(self, making: "asyncio.Future[None]") -> tuple[bytes, bool, Exception | None]:
        """Wait for the next event; return what to send, whether it is the last, and the error that ended it."""
        try:
            async with asyncio.timeout(self._keep_alive_s):
                await self._news.wait()
        except TimeoutError:
            return b": keep-alive\n\n", False, None
        self._news.clear()
        body = b"".join(self._ready)
        self._ready.clear()
        if not making.done():
            return body, False, None
        try:
            making.result()
        except Exception as error:  # noqa: BLE001  every error is sent in the protocol's own format
            return body, True, error
        return body, True, None


_ROUNDS_TO_NOTICE = 3
"""Rounds of the event loop until a closed connection is noticed. After the end of an answer it can no longer be noticed."""

_JSON_HEADERS = [(b"content-type", b"application/json")]
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def tell(error: Exception) -> ServiceError:
    """Convert any exception to a ServiceError; log unexpected ones."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, RecursionError):
        return BadRequestError("The body is nested too deeply.")
    if isinstance(error, sqlite3.DatabaseError):
        _log.error("The database failed", exc_info=error)
        return explain_damage(error)
    if isinstance(error, asyncio.CancelledError):
        return EngineFailedError("The answer was cancelled.")
    _log.error("Unexpected error in a model call", exc_info=error)
    return ServiceError(f"{type(error).__name__}: {error}. The service's log has the traceback.")


async def _first(
    work: "asyncio.Future[None]", gone: "asyncio.Future[None]", timeout_s: float
) -> "asyncio.Future[None] | None":
    """Which of two ends first, the work if both have; ``None`` if neither does in time."""
    if not work.done():
        await asyncio.wait((work, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return work if work.done() else gone if gone.done() else None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
