"""Responses that were answered before: retrieved, deleted.

A response is its turn, as it was captured, and what it repeats of its request, which is stored beside the turn unless the request
said ``store: false``. So it is there for as long as the turn is kept, also after a restart. Forgetting a response leaves its turn,
which may still be trained.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from art_backend.errors import NotFoundError
from art_backend.gateway.answers import Answer
from art_backend.gateway.dialects.requests import request_body, wrong
from art_backend.gateway.dialects.responding import AnswerResponse, in_shape_of
from art_backend.gateway.dialects.responses import RESPONSES, ResponsesRequest, read_call, wants_logprobs
from art_backend.gateway.ports import Identity
from art_backend.gateway.turns import TurnTaker


def add_stored_responses(
    router: APIRouter,
    prefix: str,
    taker: TurnTaker,
    identify: Callable[[Request, str | None], Identity],
    read_body: Callable[[Request], Awaitable[dict[str, Any]]],
    keep_alive_s: float,
) -> None:
    """Add the routes below ``{prefix}/responses``.

    Args:
        identify: Names the caller of a request, given the rollout in its path.
        read_body: Reads the JSON of a request.
    """

    def find(identity: Identity, response_id: str) -> Answer:
        answer = taker.recall(identity, response_id.removeprefix("resp_"))
        if answer is None:
            raise NotFoundError(
                f"No response {response_id!r}. Responses are found with the key of their rollout, or of their model, unless they "
                "were sent with store=false or deleted.",
                param="response_id",
            )
        return answer

    in_shape = in_shape_of(lambda _: RESPONSES)

    @in_shape
    async def retrieve(request: Request, response_id: str, rollout: str | None = None) -> Response:
        """Retrieve a stored response, whole or as events."""
        answer, query = find(identify(request, rollout), response_id), request.query_params
        include = [value for name, value in query.multi_items() if name in ("include", "include[]")]
        answer.call.plan = answer.call.plan.with_logprobs(wants_logprobs(include))
        answer.call.stream = query.get("stream", "false").lower() == "true"
        if query.get("starting_after") is not None:
            raise wrong("starting_after", "is not supported; events are always sent from the first")
        return AnswerResponse(RESPONSES, answer, keep_alive_s)

    @in_shape
    async def forget(request: Request, response_id: str, rollout: str | None = None) -> Response:
        """Delete a response; its turn is kept."""
        answer = find(identify(request, rollout), response_id)
        taker.captures.forget_request(answer.turn_ids[0])
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @in_shape
    async def count(request: Request, rollout: str | None = None) -> Response:
        """How many tokens the input of a response would have. Nothing is sampled or captured."""
        identity = identify(request, rollout)
        call = read_call(await read_body(request), partial(taker.find_turn, identity))
        return JSONResponse({"object": "response.input_tokens", "input_tokens": await taker.count(identity, call)})

    one = f"{prefix}/responses/{{response_id}}"
    extra = request_body(ResponsesRequest)
    router.add_api_route(f"{prefix}/responses/input_tokens", count, methods=["POST"], openapi_extra=extra)
    router.add_api_route(one, retrieve, methods=["GET"])
    router.add_api_route(one, forget, methods=["DELETE"])
