"""vLLM's CPU build under the service: asked directly, and through the gateway."""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from art_backend.engines.client import EngineClient
from art_backend.process import ChildProcess
from benchmarks.gateway_service import ENGINE_FILE

VLLM_PYTHON = Path(".venv-vllm") / "bin" / "python"
"""What ``make vllm`` makes."""

START_S = 300.0
_ROLLOUT = {"project": "bench", "model": "m"}


@dataclass(frozen=True)
class VllmService:
    """A running service whose engine is vLLM."""

    engine: EngineClient
    engine_key: str
    engine_session: aiohttp.ClientSession
    """Connects to the engine's own socket, whatever the URL."""
    url: str
    key: str
    session: aiohttp.ClientSession
    base_model: str

    async def rollout_key(self) -> str:
        """The key of a new rollout."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with self.session.post(f"{self.url}/api/v1/rollouts", json=_ROLLOUT, headers=headers) as response:
            return (await _read(response))["api_key"]

    async def complete(self, prompt: list[int], count: int, rollout_key: str) -> list[int]:
        """Sample after a prompt of ids through the gateway, as a rollout."""
        return await self._complete(self.session, self.url, rollout_key, "m", prompt, count)

    async def ask_engine(self, prompt: list[int], count: int, model: str) -> list[int]:
        """Sample after a prompt of ids from vLLM itself."""
        return await self._complete(self.engine_session, "http://engine", self.engine_key, model, prompt, count)

    async def _complete(
        self, session: aiohttp.ClientSession, url: str, key: str, model: str, prompt: list[int], count: int
    ) -> list[int]:
        """By OpenAI completions."""
        body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": count, "temperature": 1.0}
        body |= {"return_token_ids": True, "logprobs": 0}
        headers = {"Authorization": f"Bearer {key}"}
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
            return (await _read(response))["choices"][0]["token_ids"]

    async def count_computed(self) -> float:
        """Prompt tokens that went through the model so far."""
        metrics = await self.engine.metrics()

        def total(name: str) -> float:
            return sum(value for key, value in metrics.items() if key.startswith(name))

        return total("vllm:prompt_tokens_total") - total("vllm:prefix_cache_hits_total")


async def _read(response: aiohttp.ClientResponse) -> dict[str, Any]:
    if response.status != 200:
        raise RuntimeError(f"{response.url} answered {response.status}: {(await response.text())[:500]}")
    return await response.json()


@contextlib.asynccontextmanager
async def serve_vllm(base_model: str, python: Path, threads: int) -> AsyncIterator[VllmService]:
    """Start the service on vLLM; end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        directory = Path(name)
        ready = directory / "ready.json"
        argv = [sys.executable, "-m", "benchmarks.gateway_service", "--path", name, "--ready-file", str(ready)]
        argv += ["--vllm-python", str(python), "--threads", str(threads)]
        log = directory / "service.log"
        child = await ChildProcess.start(argv, name="service", log_path=log, pipes=True)
        try:
            await child.guard(_appear(ready), deadline_s=START_S, doing="its start-up")
            at = json.loads(ready.read_text())
            headers = {"Authorization": f"Bearer {at['api_key']}"}
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
                spec = {**_ROLLOUT, "base_model": base_model, "lora": {"rank": 8}}
                spec["name"] = spec.pop("model")
                async with session.post(f"{at['url']}/api/v1/models", json=spec, headers=headers) as response:
                    await _read(response)
                warm = {"model": "m", "prompt": list(range(100, 164)), "max_tokens": 4}
                async with session.post(f"{at['url']}/v1/completions", json=warm, headers=headers) as response:
                    await _read(response)
                engine = json.loads((directory / ENGINE_FILE).read_text())
                client = EngineClient(engine["url"], engine["api_key"])
                connector = aiohttp.UnixConnector(engine["url"].removeprefix("unix:"), limit=0)
                async with aiohttp.ClientSession(
                    connector=connector, timeout=aiohttp.ClientTimeout(total=None)
                ) as direct:
                    yield VllmService(client, engine["api_key"], direct, at["url"], at["api_key"], session, base_model)
                await client.close()
        finally:
            await child.stop(grace_s=20)


async def _appear(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240  another process makes it
        await asyncio.sleep(0.1)
