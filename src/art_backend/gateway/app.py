"""The data plane: ``/v1`` and ``/r/{rollout}/v1``, with errors in the caller's protocol."""

import json
from typing import Any, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from art_backend.errors import BadRequestError, ServiceError
from art_backend.gateway import chat
from art_backend.gateway.keys import read_key
from art_backend.gateway.ports import Identity, ModelDirectory
from art_backend.gateway.turns import TurnTaker
from art_backend.store.captures import CaptureStore

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Identify(Protocol):
    def __call__(self, key: str | None, rollout: str | None = None) -> Identity: ...


def build_gateway(directory: ModelDirectory, captures: CaptureStore, identify: Identify) -> APIRouter:
    """Return the router of the data plane."""
    taker = TurnTaker(directory, captures)
    router = APIRouter(tags=["inference"])

    async def complete_chat(request: Request, rollout: str | None = None) -> Response:
        """OpenAI chat completions."""
        try:
            identity = identify(read_key(request.headers), rollout)
            retry = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
            return await chat.answer(taker, identity, await _read_json(request), retry=retry)
        except ServiceError as error:
            return _answer_error(error)

    async def list_models(request: Request, rollout: str | None = None) -> Response:
        """The models that this key opens."""
        try:
            identity = identify(read_key(request.headers), rollout)
        except ServiceError as error:
            return _answer_error(error)
        names = directory.list_names(identity)
        return JSONResponse(
            {"object": "list", "data": [{"id": n, "object": "model", "created": 0, "owned_by": "art"} for n in names]}
        )

    for prefix in ("/v1", "/r/{rollout}/v1"):
        router.add_api_route(f"{prefix}/chat/completions", complete_chat, methods=["POST"])
        router.add_api_route(f"{prefix}/models", list_models, methods=["GET"])
    return router


async def _read_json(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The body is not valid JSON: {error}.") from error


def _answer_error(error: ServiceError) -> Response:
    headers = {"x-should-retry": "false"} if error.status in (400, 401, 403, 404) else {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = f"{error.retry_after_s:.0f}"
    body = {
        "message": error.message,
        "type": _TYPES.get(error.status, "server_error"),
        "param": error.param,
        "code": error.code.value,
    }
    return JSONResponse({"error": body}, error.status, headers=headers)
