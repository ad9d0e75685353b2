"""Telling a failure of the service from a failure of a rollout."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from art.errors import INFRASTRUCTURE_CODES, BackendDiedError, BackendError, BackendUnreachableError
from art.wire import ErrorCode

_service_urls: set[str] = set()


def remember_service(url: str) -> None:
    """Note the address of a backend in use: a refused connection to it is a failure of the service."""
    _service_urls.add(url.rstrip("/") + "/")


def is_service_failure(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, says that the engine or the gateway is broken."""
    return any(_says_broken(one) for one in _chain(error))


def is_context_overflow(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, says that a prompt outgrew the model's context: an episode's normal end."""
    from openai import APIError

    known = (one for one in _chain(error) if isinstance(one, (APIError, BackendError)))
    return any(one.code == ErrorCode.CONTEXT_LENGTH_EXCEEDED for one in known)


def _says_broken(error: BaseException) -> bool:
    from openai import APIConnectionError, APIStatusError, APITimeoutError

    if isinstance(error, BackendError):
        return isinstance(error, (BackendDiedError, BackendUnreachableError)) or error.code in INFRASTRUCTURE_CODES
    if isinstance(error, APIStatusError):
        return error.code in INFRASTRUCTURE_CODES
    if isinstance(error, APITimeoutError):
        return False
    if isinstance(error, APIConnectionError):
        return _is_ours(str(error.request.url))
    if isinstance(error, httpx.HTTPStatusError):
        return _code(error.response) in INFRASTRUCTURE_CODES
    if isinstance(error, httpx.ConnectError):
        return _is_ours(str(error.request.url))
    return False


def _is_ours(url: str) -> bool:
    return any(url.startswith(known) for known in _service_urls)


def _code(response: httpx.Response) -> Any:
    try:
        return response.json()["error"]["code"]
    except (json.JSONDecodeError, httpx.ResponseNotRead, KeyError, TypeError):
        return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
