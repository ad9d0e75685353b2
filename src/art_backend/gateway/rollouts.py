"""The control API's routes for rollouts."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from art.wire import API_PREFIX, CreateRollout, Name, RolloutInfo, RolloutRows, RolloutTree
from art_backend.store.captures import CaptureStore


def build_rollouts(
    captures: CaptureStore, require_model: Callable[[str, str], Any], route_class: type[APIRoute]
) -> APIRouter:
    """Return the router.

    Args:
        require_model: Raises NotFoundError for a model that is not served.
        route_class: Lets only the service's key pass.
    """
    router = APIRouter(prefix=API_PREFIX, tags=["rollouts"], route_class=route_class)

    @router.post("/rollouts")
    async def create_rollout(body: CreateRollout) -> RolloutInfo:
        """Make a rollout and its key. The key is told this once."""
        require_model(body.project, body.model)
        return captures.create_rollout(body.project, body.model, body.step, body.metadata)

    @router.get("/rollouts/{rollout}")
    async def get_rollout(rollout: Name) -> RolloutTree:
        """The rollout and its tree: every message, with the ids that it added."""
        return captures.describe(rollout)

    @router.get("/rollouts/{rollout}/trajectory")
    async def get_rows(rollout: Name) -> RolloutRows:
        """The rows that would be trained: exact ids, in order."""
        return captures.rows(rollout)

    @router.delete("/rollouts/{rollout}", status_code=204)
    async def delete_rollout(rollout: Name) -> None:
        """Delete a rollout and its tokens."""
        captures.delete(rollout)

    return router
