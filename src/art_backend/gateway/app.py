"""The data plane: ``/v1`` and ``/r/{rollout}/v1``, with errors in the caller's protocol."""

import hashlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from art.wire import Name
from art_backend.errors import BadRequestError
from art_backend.gateway.dialects.chat import CHAT, ChatRequest
from art_backend.gateway.dialects.completions import COMPLETIONS, CompletionsRequest
from art_backend.gateway.dialects.messages import MESSAGES, CountRequest, MessagesRequest, read_count
from art_backend.gateway.dialects.requests import request_body
from art_backend.gateway.dialects.responding import AnswerResponse, Endpoint, Surface, in_shape_of
from art_backend.gateway.dialects.responses import RESPONSES, ResponsesRequest
from art_backend.gateway.dialects.stored_responses import add_stored_responses
from art_backend.gateway.limits import ProjectLimits, check_extent
from art_backend.gateway.ports import Identity, ModelDirectory
from art_backend.gateway.turns import TurnTaker
from art_backend.store.captures import CaptureStore
from art_backend.web.bodies import MAX_CALL_BYTES, BodyReader, parse_body

_NAME: TypeAdapter[str] = TypeAdapter(Name)

KEEP_ALIVE_S = 10.0
"""Longest silence towards a waiting caller."""


_SURFACES = (
    ("chat/completions", CHAT, ChatRequest, "OpenAI chat completions."),
    ("completions", COMPLETIONS, CompletionsRequest, "OpenAI completions: text or token ids."),
    ("responses", RESPONSES, ResponsesRequest, "OpenAI responses."),
    ("messages", MESSAGES, MessagesRequest, "Anthropic messages."),
    (
        "v1/messages",
        MESSAGES,
        MessagesRequest,
        "Anthropic messages, for clients that append the version to a URL that has it.",
    ),
)


class _Direct(APIRoute):
    """Gives its endpoint the request as it is: what is in it is checked in the words of the endpoint's protocol."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            return await self.endpoint(request, **request.path_params)

        return handle


class Identify(Protocol):
    def __call__(self, key: str | None, rollout: str | None = None) -> Identity: ...


def build_gateway(
    directory: ModelDirectory,
    captures: CaptureStore,
    identify: Identify,
    *,
    limits: ProjectLimits | None = None,
    keep_alive_s: float = KEEP_ALIVE_S,
) -> APIRouter:
    """Return the router of the data plane.

    Args:
        identify: Names the caller by key, and by the rollout of a ``/r/{rollout}/v1`` URL; raises UnauthorizedError.
        limits: How many calls each project may make at the same time.
        keep_alive_s: Seconds between keep-alives to a waiting caller.
    """
    taker = TurnTaker(directory, captures, limits or ProjectLimits())
    router = APIRouter(tags=["inference"], route_class=_Direct)
    bodies = BodyReader(MAX_CALL_BYTES)

    def endpoint(surface: Surface, summary: str) -> Endpoint:
        @in_shape_of(lambda _: surface)
        async def answer(request: Request, rollout: str | None = None) -> Response:
            identity = identify_request(request, rollout)
            raw = await bodies.read(request, _name_sender(identity))
            call = surface.read(parse_call(raw), partial(taker.find_turn, identity))
            call.size = len(raw)
            call.digest = _digest(surface, identity, raw)
            call.retry = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
            if key := request.headers.get("idempotency-key"):
                call.idempotency_key = _digest(surface, identity, b"idempotency-key " + key.encode())
            return AnswerResponse(surface, taker.take(identity, call), keep_alive_s)

        answer.__doc__ = summary
        return answer

    def identify_request(request: Request, rollout: str | None) -> Identity:
        if rollout is not None:
            check_rollout(rollout)
        return identify(read_key(request.headers), rollout)

    async def read_object(request: Request) -> dict[str, Any]:
        return parse_call(await bodies.read(request))

    @in_shape_of(_surface_of)
    async def list_models(request: Request, rollout: str | None = None) -> Response:
        """The models that this key opens, as OpenAI and Anthropic list them."""
        models = [_describe(name) for name in directory.list_names(identify_request(request, rollout))]
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {}
        return JSONResponse({"object": "list", "data": models, "has_more": False, **ends})

    @in_shape_of(_surface_of)
    async def retrieve_model(request: Request, model: str, rollout: str | None = None) -> Response:
        """One model that this key opens."""
        directory.resolve(identify_request(request, rollout), model)
        return JSONResponse(_describe(model))

    @in_shape_of(lambda _: MESSAGES)
    async def count_tokens(request: Request, rollout: str | None = None) -> Response:
        """Anthropic's count of tokens: how long the prompt of a message would be. Nothing is sampled or captured."""
        identity = identify_request(request, rollout)
        call = read_count(await read_object(request))
        return JSONResponse({"input_tokens": await taker.count(identity, call)})

    for prefix in ("/v1", "/r/{rollout}/v1"):
        for path, surface, model, summary in _SURFACES:
            extra = request_body(model)
            router.add_api_route(f"{prefix}/{path}", endpoint(surface, summary), methods=["POST"], openapi_extra=extra)
        extra = request_body(CountRequest)
        for path in ("messages/count_tokens", "v1/messages/count_tokens"):
            router.add_api_route(f"{prefix}/{path}", count_tokens, methods=["POST"], openapi_extra=extra)
        add_stored_responses(router, prefix, taker, identify_request, read_object, keep_alive_s)
        router.add_api_route(f"{prefix}/models", list_models, methods=["GET"])
        router.add_api_route(f"{prefix}/models/{{model:path}}", retrieve_model, methods=["GET"])
    return router


def read_key(headers: Mapping[str, str]) -> str | None:
    """The key in ``Authorization: Bearer`` or ``x-api-key``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None


def check_rollout(rollout: str) -> None:
    """Raise BadRequestError for what cannot be a rollout's id."""
    try:
        _NAME.validate_python(rollout)
    except ValidationError as error:
        raise BadRequestError(
            f"rollout: {rollout[:200]!r} is not a rollout id. Use the base_url that the rollout was created with.",
            param="rollout",
        ) from error


def _name_sender(identity: Identity) -> str:
    return identity.rollout or f"{identity.project}/{identity.model}"


def parse_call(raw: bytes) -> dict[str, Any]:
    """Parse the body of a model call. Raises BadRequestError for one that is malformed or too large."""
    body = parse_body(raw)
    check_extent(body, len(raw))
    return body


def _describe(name: str) -> dict[str, Any]:
    """A model in the fields of both protocols. When it was made is not known, for which both use the epoch."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "art"}
    return {
        **openai,
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }


def _surface_of(request: Request) -> Surface:
    """The protocol of a route that two protocols share: Anthropic's clients always send their version."""
    return MESSAGES if "anthropic-version" in request.headers else CHAT


def _digest(surface: Surface, identity: Identity, raw: bytes) -> bytes:
    who = f"{surface.name}/{identity.kind}/{identity.project}/{identity.model}/{identity.rollout}/"
    return hashlib.blake2b(who.encode() + raw, digest_size=16).digest()
