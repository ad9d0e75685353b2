"""The control API: models, rollouts, training, jobs, checkpoints, metrics and health under ``/api/v1``."""

from collections.abc import AsyncIterator, Callable, Coroutine
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute

from art.wire import (
    API_PREFIX,
    PROTOCOL_VERSION,
    CheckpointList,
    CreateRollout,
    Health,
    Job,
    MetricHistory,
    ModelInfo,
    ModelList,
    Name,
    PruneCheckpoints,
    RegisterModel,
    RolloutInfo,
    RolloutRows,
    RolloutTree,
    TrainRequest,
    TrainSftRequest,
    Version,
)
from art_backend.auth import Keyring
from art_backend.gateway.app import read_key
from art_backend.service import Service
from art_backend.store.captures import CaptureStore
from art_backend.web.bodies import MAX_CONTROL_BYTES, BodyReader, parse_body

EVENT_KEEP_ALIVE_S = 10.0
"""An event stream never stays silent for longer, so that proxies and clients can tell it from a dead one."""


def service_only(keyring: Keyring) -> type[APIRoute]:
    """Return the kind of route that only the service's key opens. The key is checked before the body is read."""

    bodies = BodyReader(MAX_CONTROL_BYTES)

    class ServiceRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def check_and_handle(request: Request) -> Response:
                keyring.require_service(read_key(request.headers))
                raw = await bodies.read(request)
                return await handle(_ReadRequest(request, raw, parse_body(raw) if raw else None))

            return check_and_handle

    return ServiceRoute


class _ReadRequest(Request):
    """A request whose body was read and parsed."""

    def __init__(self, request: Request, raw: bytes, parsed: dict[str, Any] | None) -> None:
        super().__init__(request.scope, request.receive)
        self._raw = raw
        self._parsed = parsed

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> Any:
        return self._parsed


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
        """Create a rollout and its key. The key is returned only here."""
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


def build_api(service: Service, route_class: type[APIRoute]) -> APIRouter:
    """Return the router of the control API.

    Args:
        route_class: Of all routes but ``health`` and ``version``, which need no key.
    """

    open_router = APIRouter(prefix=API_PREFIX, tags=["service"])
    router = APIRouter(prefix=API_PREFIX, route_class=route_class)

    @open_router.get("/health")
    async def get_health(request: Request) -> Health:
        """Passive: reports what is known of the processes without asking them; without the service's key, no processes."""
        health = service.health()
        opened = service.keyring.opens_service(read_key(request.headers))
        return health if opened else health.model_copy(update={"processes": []})

    @open_router.get("/version")
    async def get_version() -> Version:
        return Version(version=version("art-trainer"), protocol=PROTOCOL_VERSION)

    @router.post("/models", tags=["models"])
    async def register_model(spec: RegisterModel) -> ModelInfo:
        """Register a model. The same registration again changes nothing."""
        return await service.register(spec)

    @router.get("/models", tags=["models"])
    async def list_models() -> ModelList:
        return ModelList(models=[service.describe(spec.project, spec.name) for spec in service.served()])

    @router.get("/models/{project}/{name}", tags=["models"])
    async def get_model(project: Name, name: Name) -> ModelInfo:
        return service.describe(project, name)

    @router.delete("/models/{project}/{name}", tags=["models"])
    async def delete_model(project: Name, name: Name) -> ModelInfo:
        """Delete a model with its checkpoints, captures, metrics and files; returns what it was."""
        return await service.delete_model(project, name)

    @router.get("/models/{project}/{name}/checkpoints", tags=["checkpoints"])
    async def list_checkpoints(project: Name, name: Name) -> CheckpointList:
        return service.checkpoints(project, name)

    @router.post("/models/{project}/{name}/checkpoints/prune", tags=["checkpoints"])
    async def prune_checkpoints(project: Name, name: Name, body: PruneCheckpoints) -> CheckpointList:
        """Delete all checkpoints but those named. The latest, and those in use, are kept in any case."""
        return service.prune_checkpoints(project, name, body.keep)

    @router.get("/models/{project}/{name}/metrics", tags=["metrics"])
    async def get_metrics(project: Name, name: Name) -> MetricHistory:
        service.runs.find_model(project, name)
        return MetricHistory(rows=service.runs.metric_rows(project, name))

    @router.post("/models/{project}/{name}/metrics", tags=["metrics"])
    async def log_metrics(project: Name, name: Name, body: MetricHistory) -> MetricHistory:
        """Store metrics. A row sent again merges into the stored one."""
        service.runs.find_model(project, name)
        for row in body.rows:
            service.runs.merge_metrics(project, name, row)
        return MetricHistory(rows=service.runs.metric_rows(project, name))

    @router.post("/train", status_code=202, tags=["training"])
    async def train(request: TrainRequest) -> Job:
        """Start one training step. A request repeated with its idempotency key returns the first one's job."""
        return await service.train(request)

    @router.post("/train_sft", status_code=202, tags=["training"])
    async def train_sft(request: TrainSftRequest) -> Job:
        """Start supervised fine-tuning on conversations, which makes one new version. Idempotent like ``train``."""
        return await service.train(request)

    @router.get("/jobs/{job}", tags=["training"])
    async def get_job(job: Name) -> Job:
        return service.runs.job(job)

    @router.get("/jobs/{job}/events", response_class=StreamingResponse, tags=["training"])
    async def stream_events(
        job: Name,
        last_event_id: Annotated[int, Header(ge=0, lt=2**63, description="Number of the last event received.")] = 0,
    ) -> StreamingResponse:
        """Server-sent events of a job: all beyond ``Last-Event-ID``, then live until it ends."""
        service.runs.job(job)
        return StreamingResponse(_encode_events(service, job, last_event_id), media_type="text/event-stream")

    parent = APIRouter()
    parent.include_router(open_router)
    parent.include_router(router)
    return parent


async def _encode_events(service: Service, job: str, after: int) -> AsyncIterator[str]:
    async for event in service.jobs.events(job, after, EVENT_KEEP_ALIVE_S):
        if event is None:
            yield ": keep-alive\n\n"
        else:
            yield f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
