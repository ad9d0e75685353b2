"""Errors of HTTP calls that say what the server said."""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

import httpx

P = ParamSpec("P")
R = TypeVar("R")


def log_http_errors(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Decorate an async function: a status error whose body has a ``detail`` becomes an exception that shows it.

    >>> @log_http_errors
    ... async def fetch():
    ...     return 1
    >>> await fetch()
    1
    """

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await function(*args, **kwargs)
        except httpx.HTTPStatusError as error:
            detail = _detail(error.response)
            if detail is None:
                raise
            raise RuntimeError(f"{error.response.status_code} from {error.request.url}: {detail}") from error

    return call


def _detail(response: httpx.Response) -> Any:
    try:
        body: Any = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError, httpx.ResponseNotRead):
        return None
    return cast(dict[str, Any], body).get("detail") if isinstance(body, dict) else None
