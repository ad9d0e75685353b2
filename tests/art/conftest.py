"""A small service that speaks the control API, scripted by the test: what the client is tested against."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from openai.types.chat.chat_completion import Choice

from art.wire import (
    API_PREFIX,
    PROTOCOL_VERSION,
    ApiError,
    ApiErrorBody,
    CreateRollout,
    ErrorCode,
    Job,
    JobEvent,
    JobState,
    LoraSpec,
    MetricHistory,
    MetricRow,
    ModelInfo,
    PruneCheckpoints,
    RegisterModel,
    TrainRequest,
    TrainResult,
)

KEY = "service-key"


@dataclass
class FakeService:
    """State and script of one service. ``events`` makes the events of the n-th submission of a job."""

    url: str = ""
    protocol: int = PROTOCOL_VERSION
    step: int = 0
    models: dict[str, RegisterModel] = field(default_factory=dict)
    train_requests: list[TrainRequest] = field(default_factory=list)
    event_requests: list[int] = field(default_factory=list)
    rows: list[MetricRow] = field(default_factory=list)
    pruned: list[list[int]] = field(default_factory=list)
    rollouts: list[CreateRollout] = field(default_factory=list)
    drop_after: list[int] = field(default_factory=list)
    """Each stream of events takes one number and breaks off after that many events."""
    final: Callable[[int], Job | None] = lambda attempt: None
    """How the n-th submission ends; ``None``: it succeeds."""
    events: list[JobEvent] = field(default_factory=list)
    result: TrainResult | None = None
    refuse: tuple[int, Any] | None = None
    """Answer everything with this status and body."""

    def job(self, state: JobState, **fields: Any) -> Job:
        return Job(id="job_1", kind="train", state=state, project="p", model="m", created_at=0.0, **fields)

    def add_event(self, kind: str, data: dict[str, Any]) -> None:
        self.events.append(JobEvent(seq=len(self.events) + 1, type=kind, time=0.0, data=data))

    def submit(self, request: TrainRequest) -> Job:
        self.train_requests.append(request)
        attempt = len(self.train_requests)
        self.add_event("state", self.job(JobState.RUNNING).model_dump(mode="json"))
        self.add_event("progress", {"phase": "training", "done": 50, "total": 100})
        self.add_event("progress", {"phase": "training", "done": 100, "total": 100})
        final = self.final(attempt)
        if final is None:
            self.step += 1
            result = self.result or TrainResult(step=self.step, trained=True, metrics={"loss/train": 0.5})
            for warning in result.warnings:
                self.add_event("warning", {"message": warning})
            final = self.job(JobState.SUCCEEDED, result=result.model_dump(mode="json"))
        self.add_event("state", final.model_dump(mode="json"))
        return self.job(JobState.QUEUED)

    def info(self, spec: RegisterModel) -> ModelInfo:
        return ModelInfo(
            id="m_1",
            project=spec.project,
            name=spec.name,
            base_model=spec.base_model,
            lora=spec.lora,
            max_sequence_length=spec.max_sequence_length or 4096,
            step=self.step,
            inference_name=spec.name,
            inference_api_key="model-key",
        )


def build_app(fake: FakeService) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Any:
        if fake.refuse is not None:
            status, body = fake.refuse
            return JSONResponse(body, status) if isinstance(body, dict) else StreamingResponse(iter([body]), status)
        if not request.url.path.endswith("/version") and request.headers.get("authorization") != f"Bearer {KEY}":
            body = ApiErrorBody(code=ErrorCode.UNAUTHORIZED, message="The key is not known.")
            return JSONResponse(ApiError(error=body).model_dump(mode="json"), 401)
        return await call_next(request)

    @app.get(f"{API_PREFIX}/version")
    async def version() -> dict[str, Any]:
        return {"version": "9.9.9", "protocol": fake.protocol}

    @app.post(f"{API_PREFIX}/models")
    async def register(spec: RegisterModel) -> ModelInfo:
        fake.models[spec.name] = spec
        return fake.info(spec)

    @app.get(f"{API_PREFIX}/models/{{project}}/{{name}}")
    async def model(project: str, name: str) -> ModelInfo:
        return fake.info(
            fake.models.get(name) or RegisterModel(project=project, name=name, base_model="b", lora=LoraSpec())
        )

    @app.post(f"{API_PREFIX}/rollouts")
    async def rollout(body: CreateRollout) -> dict[str, Any]:
        fake.rollouts.append(body)
        number = len(fake.rollouts)
        return {
            "id": f"ro_{number}",
            "api_key": f"key_{number}",
            "base_path": f"/r/ro_{number}/v1",
            "kind": "keyed",
            "project": body.project,
            "model": body.model,
            "step": body.step,
        }

    @app.post(f"{API_PREFIX}/train", status_code=202)
    async def train(request: TrainRequest) -> Job:
        return fake.submit(request)

    @app.get(f"{API_PREFIX}/jobs/{{job}}/events")
    async def events(job: str, last_event_id: int = Header(default=0)) -> StreamingResponse:
        fake.event_requests.append(last_event_id)
        limit = fake.drop_after.pop(0) if fake.drop_after else None

        async def stream() -> Any:
            yield ": keep-alive\n\n"
            for sent, event in enumerate(fake.events[last_event_id:]):
                if sent == limit:
                    return
                yield f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
                await asyncio.sleep(0)

        return StreamingResponse(stream(), media_type="text/event-stream")

    @app.post(f"{API_PREFIX}/models/{{project}}/{{name}}/checkpoints/prune")
    async def prune(project: str, name: str, body: PruneCheckpoints) -> dict[str, Any]:
        fake.pruned.append(body.keep)
        return {"checkpoints": []}

    @app.post(f"{API_PREFIX}/models/{{project}}/{{name}}/metrics")
    async def metrics(project: str, name: str, body: MetricHistory) -> MetricHistory:
        if name == "forgotten":
            raise HTTPException(404)
        fake.rows.extend(body.rows)
        return MetricHistory(rows=fake.rows)

    return app


@pytest.fixture
def service():
    """A running fake service with a ``url``."""
    fake = FakeService()
    with serving(build_app(fake)) as url:
        fake.url = url
        yield fake


class serving:  # noqa: N801
    """Run an app in a thread, on a free port or a socket that is bound; the value is its URL."""

    def __init__(self, app: Any, bound: socket.socket | None = None) -> None:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([bound] if bound else None,), daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def make_choice():
    """Build a sampled choice as the gateway answers it; ``turn=None``: as another endpoint would."""

    def make(content: str | None = "hello", turn: str | None = "t1", **fields: Any) -> Choice:
        message = {"role": "assistant", "content": content, **fields.pop("message", {})}
        reference = {"art": {"turn": turn, "rollout": "ro_1", "policy_version": 0}} if turn else {}
        return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message, **reference, **fields})

    return make
