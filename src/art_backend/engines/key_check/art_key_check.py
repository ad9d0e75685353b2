"""The key of an engine, checked on every path.

vLLM guards only some of its paths with its own key; ``--middleware`` puts this class before all of them. It is imported
by vLLM's own Python from this directory, so it needs nothing but the standard library, and shares it with nothing else.
"""

import hmac
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

KEY_VARIABLE = "ART_ENGINE_KEY"
"""The key comes in the environment, so that it is not seen in the list of processes."""


class KeyCheck:
    """ASGI middleware that lets requests through that carry ``Authorization: Bearer {key}``.

    Args:
        api_key: ``None`` takes it from the environment.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], api_key: str | None = None) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ[KEY_VARIABLE] if api_key is None else api_key}".encode()

    async def __call__(
        self,
        scope: Any,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        if scope["type"] != "lifespan":
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._expected):
                await _refuse(send)
                return
        await self._app(scope, receive, send)


async def _refuse(send: Callable[[Any], Awaitable[None]]) -> None:
    error = {"message": "Wrong or missing API key.", "type": "AuthenticationError", "code": 401}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
