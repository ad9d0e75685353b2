"""Responses that were answered before: told again, listed, forgotten.

A response is its turn, as it was captured, and what it repeats of its request, which is stored beside the turn unless the request
said ``store: false``. So it is there for as long as the turn is kept, also after a restart. Forgetting a response leaves its turn,
which may still be trained.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from art_backend.errors import BadRequestError, NotFoundError
from art_backend.gateway.answers import Answer
from art_backend.gateway.dialects.responding import AnswerResponse, ErrorResponse, tell
from art_backend.gateway.dialects.response_items import write_input_items
from art_backend.gateway.dialects.responses import RESPONSES, read_call, wants_logprobs
from art_backend.gateway.dialects.schemas import RESPONSES as RESPONSES_SCHEMA
from art_backend.gateway.dialects.schemas import request_body
from art_backend.gateway.ports import Identity
from art_backend.gateway.turns import TurnTaker
from art_backend.tokens.render import Message

PAGE = 20
MAX_PAGE = 100

Handler = Callable[[Identity, Request, str], Awaitable[Response]]


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

    async def retrieve(identity: Identity, request: Request, response_id: str) -> Response:
        answer, query = find(identity, response_id), request.query_params
        include = [value for name, value in query.multi_items() if name in ("include", "include[]")]
        answer.call.plan = answer.call.plan.with_logprobs(wants_logprobs(include))
        answer.call.stream = query.get("stream", "false").lower() == "true"
        if query.get("starting_after") is not None:
            raise BadRequestError(
                "starting_after: is not supported; events are sent from the first.", param="starting_after"
            )
        return AnswerResponse(RESPONSES, answer, keep_alive_s)

    async def forget(identity: Identity, _: Request, response_id: str) -> Response:
        answer = find(identity, response_id)
        taker.captures.forget_request(answer.turn_ids[0])
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    async def cancel(identity: Identity, _: Request, response_id: str) -> Response:
        find(identity, response_id)
        raise BadRequestError("Only responses in the background can be cancelled; close the connection of others.")

    async def list_input(identity: Identity, request: Request, response_id: str) -> Response:
        turn = find(identity, response_id).completed[0].turn
        assert turn is not None
        messages: list[Message] = turn.path_messages()[:-1]
        items = write_input_items(turn.id, [m for m in messages if not m.get("instructions")])
        query = request.query_params
        if query.get("order", "desc") != "asc":
            items.reverse()
        limit = read_number(query.get("limit"), "limit", least=1) or PAGE
        if limit > MAX_PAGE:
            raise BadRequestError(f"limit: must not be more than {MAX_PAGE}.", param="limit")
        if (after := query.get("after")) is not None:
            at = next((i for i, item in enumerate(items) if item["id"] == after), None)
            if at is None:
                raise BadRequestError(f"after: no item {after!r}.", param="after")
            items = items[at + 1 :]
        page = items[:limit]
        ends = (page[0]["id"], page[-1]["id"]) if page else ("", "")
        return JSONResponse(
            {"object": "list", "data": page, "first_id": ends[0], "last_id": ends[1], "has_more": len(items) > limit}
        )

    async def count(request: Request, rollout: str | None = None) -> Response:
        """How many tokens the input of a response would have. Nothing is sampled or captured."""
        try:
            identity = identify(request, rollout)
            call = read_call(await read_body(request), partial(taker.find_turn, identity))
            return JSONResponse({"object": "response.input_tokens", "input_tokens": await taker.count(identity, call)})
        except Exception as error:  # noqa: BLE001  every error is told in the protocol's own shape
            return ErrorResponse(RESPONSES, tell(error))

    def endpoint(handler: Handler, summary: str) -> Callable[..., Awaitable[Response]]:
        async def answer(request: Request, response_id: str, rollout: str | None = None) -> Response:
            try:
                return await handler(identify(request, rollout), request, response_id)
            except Exception as error:  # noqa: BLE001  every error is told in the protocol's own shape
                return ErrorResponse(RESPONSES, tell(error))

        answer.__doc__ = summary
        return answer

    one = f"{prefix}/responses/{{response_id}}"
    extra = request_body(RESPONSES_SCHEMA)
    router.add_api_route(f"{prefix}/responses/input_tokens", count, methods=["POST"], openapi_extra=extra)
    router.add_api_route(one, endpoint(retrieve, "A stored response, whole or as its events."), methods=["GET"])
    router.add_api_route(one, endpoint(forget, "Forget a response; its turn stays."), methods=["DELETE"])
    router.add_api_route(f"{one}/cancel", endpoint(cancel, "Nothing runs in the background: a 400."), methods=["POST"])
    router.add_api_route(f"{one}/input_items", endpoint(list_input, "What a response answered."), methods=["GET"])


def read_number(text: str | None, name: str, *, least: int) -> int | None:
    """A number of the query. Raises BadRequestError for anything else."""
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 12 or int(text) < least:
        raise BadRequestError(f"{name}: must be a number, at least {least}.", param=name)
    return int(text)
