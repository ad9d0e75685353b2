"""The real gateway over a scripted engine, and the real service; the frameworks run in interpreters of their own, as their users
run them."""

import asyncio
import json
import sys

import pytest
from fastapi import APIRouter
from tests.art_backend.gateway.conftest import MODEL_KEY, Gateway, start_gateway
from tests.support.scripted_engine import STOP_ID, EngineCall
from tests.support.tiny import build_tiny_tokenizer

from art.wire import API_PREFIX, PROTOCOL_VERSION, ModelInfo, RegisterModel, Version

KEY = "the-key-of-this-service"

LOOK = "Let me look.\n"
CALL = '<tool_call>\n{"name": "%s", "arguments": {"%s":  "%s"}}\n</tool_call>'
"""Two spaces after the colon, and a letter beyond ASCII: what is sent back of it is rarely what was sampled."""


def script(gateway: Gateway) -> None:
    """Let the model ask for the weather, and tell it once it knows: whatever the order of the calls."""
    tokenizer = build_tiny_tokenizer()

    def choose(call: EngineCall) -> list[int]:
        prompt = tokenizer.decode(call.fed)
        if "21 degrees" not in prompt:
            said = LOOK + CALL % ("get_weather", "city", "Zürich")
        elif '"final_answer"' in prompt:  # a tool to answer with, as smolagents has it
            said = CALL % ("final_answer", "answer", "It is sunny in Zürich.")
        else:
            said = "It is sunny in Zürich."
        return [*gateway.renderer.encode(said), STOP_ID]

    gateway.engine.choose = choose


def control_api() -> APIRouter:
    """What the frontend needs of the control API beside rollouts."""
    router = APIRouter(prefix=API_PREFIX)

    @router.get("/version")
    async def version() -> Version:
        return Version(version="0", protocol=PROTOCOL_VERSION)

    @router.post("/models")
    async def register(spec: RegisterModel) -> ModelInfo:
        return ModelInfo(
            id="m_1",
            project=spec.project,
            name=spec.name,
            base_model=spec.base_model,
            lora=spec.lora,
            max_sequence_length=20_000,
            step=0,
            inference_name=spec.name,
            inference_api_key=MODEL_KEY,
        )

    return router


@pytest.fixture
async def gateway(tmp_path):
    async with start_gateway(tmp_path, routers=[control_api()]) as running:
        running.model.max_sequence_length = 20_000
        script(running)
        yield running


@pytest.fixture
async def url(tmp_path):
    """A service of its own, as ``art serve`` starts it."""
    ready = tmp_path / "ready.json"
    length = ("--max-sequence-length", 12_288)  # where a model takes so many
    arguments = ("serve", "--port", "0", "--path", tmp_path / "art", "--api-key", KEY, "--ready-file", ready, *length)
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "art_backend", *map(str, arguments), "--watch-stdin"), stdin=asyncio.subprocess.PIPE
    )
    try:
        while not ready.exists():
            assert service.returncode is None, "the service did not start"
            await asyncio.sleep(0.1)
        yield json.loads(ready.read_text())["url"]
    finally:
        service.stdin.close()
        await service.wait()
