"""The scripted engine with the whole engine contract: adapters, pauses, sleep, metrics, and refusals of bad calls.

It has no weights, so its words follow from the name that is asked, the prompt and the seed.
"""

import asyncio
import itertools
import json
import random
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from tests.support.scripted_engine import EngineCall, ScriptedEngine

VOCABULARY = 259


class ContractEngine(ScriptedEngine):
    """Start with ``async with``.

    Args:
        base: Name of the base model.
        max_model_len: Longest prompt plus completion, in tokens.
    """

    def __init__(self, base: str, max_model_len: int) -> None:
        super().__init__(lambda text: list(text.encode()))
        self.token_delay_s = 0.0005
        self._limit = max_model_len
        self._names = {base}
        self._paused = self._sleeping = False
        self._accepts = asyncio.Event()
        self._accepts.set()
        routes = {
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/load_lora_adapter"): self._load,
            ("POST", "/v1/unload_lora_adapter"): self._unload,
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("GET", "/is_paused"): lambda request: _is(is_paused=self._paused),
            ("POST", "/sleep"): self._sleep,
            ("POST", "/wake_up"): self._wake_up,
            ("GET", "/is_sleeping"): lambda request: _is(is_sleeping=self._sleeping),
            ("GET", "/metrics"): self._metrics,
        }
        self.app.router.routes += [
            Route(path, self._guarded(answer), methods=[method]) for (method, path), answer in routes.items()
        ]

    def _guarded(self, answer: Any) -> Any:
        async def guarded(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {self.api_key}":
                return _error(401, "wrong key")
            return await answer(request)

        return guarded

    # What is sampled

    def _refuse(self, body: dict[str, Any]) -> tuple[int, str] | None:
        params, ids = body["sampling_params"], body["token_ids"]
        if body["model"] not in self._names:
            return 404, f"The model {body['model']!r} does not exist."
        if not isinstance(ids, list) or not ids or min(ids) < 0:
            return 400, "token_ids must be a list of ids"
        if max(ids) >= VOCABULARY:
            return 400, f"token id {max(ids)} is out of the vocabulary"
        if len(ids) >= self._limit:
            return 400, f"the prompt has {len(ids)} tokens; at most {self._limit} fit"
        params.setdefault("stop_token_ids", [])
        params.setdefault("logprobs", 0)
        for name, least in (("max_tokens", 1), ("temperature", 0.0), ("top_p", 1e-9)):
            if not isinstance(params.get(name, 1), int | float) or params.get(name, 1) < least:
                return 400, f"{name} must be a number of at least {least:g}"
        params["max_tokens"] = min(params["max_tokens"], self._limit - len(ids))
        return None

    def _next(self, call: EngineCall) -> list[int]:
        temperature = call.params.get("temperature", 1.0)
        seed = call.params.get("seed", next(_fresh)) if temperature else None
        draw = random.Random(f"{call.model} {call.fed} {temperature} {seed}")
        return [draw.randrange(VOCABULARY) for _ in range(call.params["max_tokens"])]

    async def _speak(self, call: EngineCall, ids: list[int] | int) -> Any:
        await self._accepts.wait()
        async for token_id in super()._speak(call, ids):
            yield token_id

    # What is served

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": name} for name in sorted(self._names)]})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        if body["lora_name"] in self._names:
            return _error(400, f"{body['lora_name']} is taken")
        try:
            json.loads((Path(body["lora_path"]) / "adapter_config.json").read_text())
        except (OSError, ValueError) as error:
            return _error(400, f"no adapter: {error}")
        self._names.add(body["lora_name"])
        return Response()

    async def _unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if name not in self._names:
            return _error(404, f"{name} is not loaded")
        self._names.remove(name)
        return Response()

    # Whether it computes

    async def _pause(self, request: Request) -> Response:
        self._paused = True
        self._accepts.clear()
        running = [call for call in self.calls if call.running]
        match request.query_params["mode"]:
            case "keep":
                self.hold()
            case "abort":
                for call in running:
                    call.aborted = True
        while not self.held and any(call.running for call in running):
            await asyncio.sleep(0.001)
        return Response()

    async def _resume(self, request: Request) -> Response:
        self._paused = False
        self._accepts.set()
        self.release()
        return Response()

    async def _sleep(self, request: Request) -> Response:
        self._sleeping = True
        return Response()

    async def _wake_up(self, request: Request) -> Response:
        self._sleeping = "kv_cache" not in request.query_params.getlist("tags")
        return Response()

    async def _metrics(self, request: Request) -> Response:
        sampled = sum(len(call.returned) for call in self.calls)
        return PlainTextResponse(
            f"art_engine_requests_running {self.waiting}\nart_engine_generated_tokens_total {sampled}\n"
        )


_fresh = itertools.count(10**9)


async def _is(**values: bool) -> Response:
    return JSONResponse(values)


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)
