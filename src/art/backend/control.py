"""The HTTP client of a backend's control API.

Connections are made per request: calls are few, and a client object may be used from any event loop. What is safe to
send again (everything here has a natural or an idempotency key) is sent again while the backend is away, up to a bound.
"""

import asyncio
import functools
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError

from art.errors import (
    BackendError,
    BackendUnreachableError,
    BusyError,
    VersionMismatchError,
    from_api_error,
)
from art.wire import API_PREFIX, PROTOCOL_VERSION, TERMINAL_STATES, ApiError, ErrorCode, JobEvent, JobState, Version
from art.wire.base import Wire

W = TypeVar("W", bound=Wire)

CALL_TIMEOUT_S = 60.0
EVENT_SILENCE_S = 60.0
"""The service sends keep-alives more often than this; longer silence means that the connection is dead."""
_POLL_S = 0.2


class ControlClient:
    """Calls of the control API, with typed answers and typed errors.

    Args:
        url: Where the service listens, possibly with a path prefix.
        api_key: The service's key.
        reconnect_s: How long a backend that answered before may be away.
        first_contact_s: How long to try a backend that never answered.
        watch: Returns an error once the backend is known to be dead, which ends every wait.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        reconnect_s: float = 600.0,
        first_contact_s: float = 10.0,
        watch: Callable[[], BackendError | None] = lambda: None,
    ) -> None:
        parts = urlsplit(str(url))
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"url must look like http://host:port or https://host/prefix, not {url!r}.")
        self.url = url.rstrip("/")
        self.api_key = api_key
        self._reconnect_s = reconnect_s
        self._first_contact_s = first_contact_s
        self._watch = watch
        self._answered = False
        self._version_checked = False

    async def get(self, path: str, answer: type[W], *, timeout_s: float = CALL_TIMEOUT_S) -> W:
        return await self._call("GET", path, None, answer, timeout_s)

    async def post(self, path: str, body: Wire, answer: type[W], *, timeout_s: float = CALL_TIMEOUT_S) -> W:
        return await self._call("POST", path, body.model_dump_json(), answer, timeout_s)

    async def delete(self, path: str, answer: type[W], *, timeout_s: float = CALL_TIMEOUT_S) -> W:
        return await self._call("DELETE", path, None, answer, timeout_s)

    async def events(self, job_id: str, *, after: int = 0) -> AsyncGenerator[JobEvent]:
        """Follow a job's events from number ``after`` + 1 to its end, through dropped connections.

        Raises:
            BackendUnreachableError: The backend stayed away longer than ``reconnect_s``.
        """
        path = f"{API_PREFIX}/jobs/{quote(job_id)}/events"
        patience = _Patience(self._reconnect_s)
        while True:
            try:
                async for event in self._stream(path, after):
                    patience.renew()
                    after = event.seq
                    yield event
                    if event.type == "state" and JobState(event.data["state"]) in TERMINAL_STATES:
                        return
                problem: Exception = BackendUnreachableError(
                    f"The event stream of {job_id} ended before the job did.", 503
                )
            except (httpx.TransportError, BackendUnreachableError) as error:
                problem = error
            await self._wait_or_raise(patience, problem)

    async def check_version(self) -> None:
        """Make sure, once, that both sides speak the same protocol."""
        if self._version_checked:
            return
        version = await self._call("GET", f"{API_PREFIX}/version", None, Version, CALL_TIMEOUT_S)
        if version.protocol != PROTOCOL_VERSION:
            older, newer = ("backend", "art") if version.protocol < PROTOCOL_VERSION else ("art", "backend")
            raise VersionMismatchError(
                f"The backend at {self.url} (version {version.version}) speaks protocol {version.protocol}, this art speaks "
                f"protocol {PROTOCOL_VERSION}. Upgrade the {older} to the version of the {newer}: pip install -U art-trainer",
                code=ErrorCode.VERSION_MISMATCH,
            )
        self._version_checked = True

    async def _call(self, method: str, path: str, body: str | None, answer: type[W], timeout_s: float) -> W:
        patience = _Patience(self._reconnect_s if self._answered else self._first_contact_s)
        while True:
            try:
                response = await self._watched(self._send(method, path, body, timeout_s))
                self._answered = True
                if response.is_success:
                    return _parse(response, answer)
                raise _error_of(response, self.url)
            except httpx.ReadTimeout as error:
                raise BackendUnreachableError(
                    f"{method} {self.url}{path} was not answered within {timeout_s:g} s.", 504
                ) from error
            except (httpx.TransportError, BackendUnreachableError, BusyError) as error:
                problem: Exception = error
            await self._wait_or_raise(patience, problem)

    async def _send(self, method: str, path: str, body: str | None, timeout_s: float) -> httpx.Response:
        async with self._http(httpx.Timeout(timeout_s, connect=10.0)) as http:
            return await http.request(method, self.url + path, content=body)

    async def _stream(self, path: str, after: int) -> AsyncIterator[JobEvent]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": str(after)} if after else {})}
        async with (
            self._http(httpx.Timeout(10.0, read=EVENT_SILENCE_S)) as http,
            http.stream("GET", self.url + path, headers=headers) as response,
        ):
            if not response.is_success:
                await response.aread()
                raise _error_of(response, self.url)
            data: list[str] = []
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    data.append(line.removeprefix("data:").removeprefix(" "))
                elif not line and data:
                    event = JobEvent.model_validate_json("\n".join(data))
                    data = []
                    if event.seq > after:
                        yield event

    def _http(self, timeout: httpx.Timeout) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"},
            timeout=timeout,
            verify=_tls() if self.url.startswith("https:") else False,
            trust_env=not is_loopback(self.url),  # a proxy setting is not meant for our own child
        )

    async def _watched(self, call: Any) -> httpx.Response:
        """Await a call, but no longer than the backend lives."""
        task: asyncio.Task[httpx.Response] = asyncio.ensure_future(call)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_POLL_S)
                if not task.done() and (death := self._watch()):
                    raise death
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _wait_or_raise(self, patience: "_Patience", problem: Exception) -> None:
        if death := self._watch():
            raise death from problem
        if "CERTIFICATE_VERIFY_FAILED" in str(problem):  # waiting will not change it
            raise BackendUnreachableError(
                f"The certificate of {self.url} is not trusted on this machine ({problem}). If an authority of your own issued it, set "
                "SSL_CERT_FILE to the file with that authority's certificate.",
                495,
            ) from problem
        asked = problem.retry_after_s if isinstance(problem, BusyError) else None
        if (delay := patience.next_delay(asked)) is None:
            if isinstance(problem, BackendError):
                raise problem
            raise BackendUnreachableError(
                f"No backend answers at {self.url} ({type(problem).__name__}: {problem}). Is `art serve` running there, and is "
                "the address right?",
                503,
            ) from problem
        await asyncio.sleep(delay)


class _Patience:
    """Doubling delays within a total that starts with the first failure."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self.renew()

    def renew(self) -> None:
        self._deadline: float | None = None
        self._delay_s = 0.1

    def next_delay(self, asked_s: float | None = None) -> float | None:
        """Seconds to wait before the next attempt; ``None`` when patience is at its end."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._total_s
        if now >= self._deadline:
            return None
        delay = min(asked_s or self._delay_s, self._deadline - now)
        self._delay_s = min(2 * self._delay_s, 5.0)
        return delay


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def is_loopback(url: str) -> bool:
    """Whether ``url`` points to this machine by a loopback name or address."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _parse(response: httpx.Response, answer: type[W]) -> W:
    try:
        return answer.model_validate_json(response.content)
    except ValidationError as error:
        raise BackendError(
            f"{response.request.url} did not answer with a {answer.__name__}. Is this an ART backend of the same "
            f"version? {error}",
            502,
        ) from error


def _error_of(response: httpx.Response, url: str) -> BackendError:
    try:
        body = ApiError.model_validate_json(response.content).error
    except ValidationError:
        text = response.text[:300].strip() or response.reason_phrase
        if response.status_code in (502, 503, 504):  # a proxy in front, with nothing behind it
            return BackendUnreachableError(f"{url} answered {response.status_code}: {text}", response.status_code)
        return BackendError(f"{response.request.url} answered {response.status_code}: {text}", response.status_code)
    error = from_api_error(body, response.status_code)
    if isinstance(error, BusyError):
        error.retry_after_s = _seconds(response.headers.get("retry-after"))
    return error


def _seconds(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:  # the header may also hold a date
        return None


def path_of(project: str, name: str, *rest: str) -> str:
    """Path of a model's resource."""
    return "/".join((f"{API_PREFIX}/models", quote(project, safe=""), quote(name, safe=""), *rest))
