"""Whatever fits the service's own OpenAPI description, and much that does not, is answered without a 5xx.

The data plane stands before a scripted engine, the control API before a real service without models.
"""

import asyncio
import contextlib
import threading

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from tests.art_backend.gateway.conftest import SERVICE_KEY, start_gateway
from tests.support.scripted_engine import serve

from art_backend.app import build_app
from art_backend.service import Service
from art_backend.settings import Settings

EXAMPLES = 4


class Thread:
    """Serves an application in a thread of its own, for clients that block."""

    def __init__(self, start):
        self._start = start
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def __enter__(self):
        self._thread.start()

        async def begin():
            self._serving = self._start()
            return await self._serving.__aenter__()

        return self._run(begin())

    def __exit__(self, *_):
        self._run(self._serving.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.asynccontextmanager
async def start_service(directory):
    service = Service(Settings(path=directory, api_key=SERVICE_KEY))
    app = build_app(service)
    async with serve(app) as url:
        yield url
    await service.close()


def refine(schema):
    """Name the model and the tools that there are, so that requests get as far as they can."""
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        if "messages" in properties or "input" in properties or "prompt" in properties:
            properties["model"] = {"const": "m"}
        for value in schema.values():
            refine(value)
    elif isinstance(schema, list):
        for value in schema:
            refine(value)


def check(url, key, skip=()):
    """Ask for every operation, by and against its description."""
    raw = httpx.get(f"{url}/openapi.json", headers={"authorization": f"Bearer {SERVICE_KEY}"}).json()
    refine(raw)
    asked = set()
    for found in schemathesis.openapi.from_dict(raw).get_all_operations():
        operation = found.ok()
        name = f"{operation.method.upper()} {operation.path}"
        if name in skip or operation.path.startswith("/r/"):
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                ask(url, key, operation.as_strategy(generation_mode=mode), asked)
            except Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE, f"no example of {name}"
    return asked


def ask(url, key, cases, asked):
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def run(case):
        answer = case.call(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=20)
        asked.add((f"{case.method} {case.operation.path}", answer.status_code // 100))
        assert answer.status_code < 500, (case.as_curl_command(), answer.content)
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"] if answer.content[:1] == b"{" else answer.status_code in (404, 405)

    run()


def test_the_data_plane_answers_everything_without_a_5xx(tmp_path):
    with Thread(lambda: start_gateway(tmp_path, keep_alive_s=10.0)) as gateway:
        made = httpx.post(f"{gateway.url}/api/v1/rollouts", json={"project": "p", "model": "m"}).json()
        asked = check(gateway.url, made["api_key"])
        paths = ("chat/completions", "completions", "responses", "messages")
        assert all((f"POST /v1/{path}", 4) in asked for path in paths)
        assert any((f"POST /v1/{path}", 2) in asked for path in paths)


def test_the_control_api_answers_everything_without_a_5xx(tmp_path):
    with Thread(lambda: start_service(tmp_path)) as url:
        asked = check(url, SERVICE_KEY, skip={"POST /api/v1/models"})
        assert ("POST /api/v1/train", 4) in asked
