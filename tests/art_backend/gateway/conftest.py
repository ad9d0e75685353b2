"""The real gateway over HTTP, in front of a scripted engine."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import openai
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from tests.support.scripted_engine import ScriptedEngine, serve
from tests.support.tiny import build_tiny_tokenizer

from art_backend.api import build_rollouts
from art_backend.app import add_error_handlers
from art_backend.engines.client import EngineClient, EngineUnreachableError
from art_backend.errors import EngineFailedError, NotFoundError, UnauthorizedError
from art_backend.gateway.app import build_gateway
from art_backend.gateway.limits import ProjectLimits
from art_backend.gateway.ports import Identity, Lease
from art_backend.serving.policies import Gate
from art_backend.store.captures import CaptureStore
from art_backend.store.database import open_database
from art_backend.tokens.render import ChatRenderer

SERVICE_KEY = "service-key"
MODEL_KEY = "model-key"


@dataclass
class ScriptedModel:
    """A served model without weights; ``step`` is what it says it is."""

    renderer: ChatRenderer
    client: EngineClient | None = None
    project: str = "p"
    name: str = "m"
    step: int = 0
    max_sequence_length: int = 2000
    gate: Gate = field(default_factory=lambda: Gate(0.4))

    @contextlib.asynccontextmanager
    async def lease(self, step=None):
        await self.gate.enter()
        version = self.step if step is None else step
        try:
            yield Lease(self.client, f"m@{version}", version)
        except EngineUnreachableError as error:
            raise EngineFailedError(str(error)) from error


@dataclass
class Gateway:
    """Everything that a test needs."""

    url: str
    engine: ScriptedEngine
    model: ScriptedModel
    captures: CaptureStore
    renderer: ChatRenderer
    limits: ProjectLimits

    def rollout(self, step=None):
        return self.captures.create_rollout("p", "m", step=step)

    def client(self, key, rollout=None, **options):
        prefix = f"/r/{rollout}" if rollout else ""
        return openai.AsyncOpenAI(base_url=f"{self.url}{prefix}/v1", api_key=key, **{"max_retries": 0, **options})

    def new_client(self, **options):
        """A client with a rollout of its own, and the rollout's id."""
        info = self.rollout()
        return self.client(info.api_key, **options), info.id

    def turns(self, rollout):
        return list(self.captures.tree(rollout).turns.values())

    def check(self, rollout):
        """Every captured turn is what the engine was fed and returned, and is trained exactly once."""
        served = [(call.fed, call.returned) for call in self.engine.calls]
        # what the engine sampled after a stop string was never shown: such turns take what the exact ones leave
        for turn in sorted(self.turns(rollout), key=lambda turn: ("stop" in turn.sampling, -len(turn.ids))):
            fed, ids = turn.prompt.path_ids().tolist(), turn.ids.tolist()
            cut = "stop" in turn.sampling
            fitting = [pair for pair in served if pair[0] == fed and (pair[1][: len(ids)] if cut else pair[1]) == ids]
            assert fitting, (fed, ids, served)
            served.remove(min(fitting, key=lambda pair: len(pair[1])))
        check_rows(self.captures.rows(rollout).rows, self.turns(rollout))


def check_rows(rows, turns):
    """Each sampled token of trainable turns is trained exactly once, with its own ids before it and its own numbers."""
    expected = sorted(
        (turn.prompt.path_ids().tolist() + turn.ids.tolist()[: i + 1], turn.logprobs[i], turn.policy_version)
        for turn in turns
        if turn.untrainable is None
        for i in range(len(turn.ids))
    )
    trained = sorted(
        (row.token_ids[: i + 1], row.logprobs[i], row.policy_versions[i])
        for row in rows
        for i, sampled in enumerate(row.sampled)
        if sampled
    )
    assert trained == expected


class Directory:
    def __init__(self, model, captures):
        self.model = model
        self.captures = captures

    def resolve(self, identity, requested):
        name, _, step = requested.partition("@")
        if name != self.model.name:
            raise NotFoundError(f"No model {requested!r}. Models: {self.list_names(identity)}.", param="model")
        if identity.rollout is not None and not step:
            return self.model, self.captures.get(identity.rollout).step
        return self.model, int(step) if step else None

    def list_names(self, identity):
        return [self.model.name]


def identify_by(captures):
    def identify(key, rollout=None):
        if key == SERVICE_KEY and rollout is None:
            return Identity("service")
        if key == MODEL_KEY and rollout is None:
            return Identity("model", project="p", model="m")
        info = captures.get(rollout) if key == SERVICE_KEY else captures.find_by_key(key or "")
        if info is None or (rollout is not None and info.id != rollout):
            raise UnauthorizedError("The service does not know this API key.")
        return Identity("rollout", project="p", model="m", rollout=info.id)

    return identify


class Breaking:
    """Breaks the connections of requests with the header ``x-break``, before their answer can be sent.

    ``x-break: made`` waits until it is made; ``x-break: now`` does not, for answers that were made before.
    """

    def __init__(self, app, captures):
        self._app = app
        self._captures = captures

    async def __call__(self, scope, receive, send):
        when = dict(scope.get("headers", ())).get(b"x-break")
        if when is None:
            await self._app(scope, receive, send)
            return
        broken = asyncio.Event()
        turns = self._count()

        whole = False

        async def receive_or_break():
            nonlocal whole
            if whole:
                await broken.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            whole = not message.get("more_body")
            return message

        async def drop(message):
            while when == b"made" and self._count() == turns:
                await asyncio.sleep(0.005)
            broken.set()

        await self._app(scope, receive_or_break, drop)

    def _count(self):
        return self._captures._db.execute("SELECT count(*) FROM turns").fetchone()[0]


@contextlib.asynccontextmanager
async def start_gateway(directory, tokenizer=None, routers=(), client=None, limits=None, family=None, **options):
    """Start engine and gateway; ``routers`` are served beside them, ``options`` go to the gateway.

    ``client`` is of another engine than the scripted one.
    """
    limits = limits or ProjectLimits(1000, 1000, 60.0)
    renderer = ChatRenderer(tokenizer or build_tiny_tokenizer(), family)
    database = open_database(directory / "art.db")
    captures = CaptureStore(database)
    engine = ScriptedEngine(renderer.encode)
    model = ScriptedModel(renderer)
    app = FastAPI()
    add_error_handlers(app)
    options["limits"] = limits
    app.include_router(build_gateway(Directory(model, captures), captures, identify_by(captures), **options))
    app.include_router(build_rollouts(captures, lambda project, name: model, APIRoute))
    for router in routers:
        app.include_router(router)
    app.mount("/engine", engine.app)
    async with serve(Breaking(app, captures)) as url:
        model.client = client or EngineClient(f"{url}/engine", engine.api_key)
        yield Gateway(url, engine, model, captures, renderer, limits)
        engine.release()
        if client is None:
            await model.client.close()
    database.close()


@pytest.fixture
async def gateway(tmp_path):
    async with start_gateway(tmp_path, keep_alive_s=0.15) as running:
        yield running


@pytest.fixture
async def quiet_gateway(tmp_path):
    """A gateway that gives no signs of life, so that waiting ends with the status it should."""
    async with start_gateway(tmp_path, keep_alive_s=30.0) as running:
        yield running
