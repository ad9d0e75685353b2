"""An inference engine whose words the test decides: the engine contract's ``generate`` over real HTTP, without a model.

It logs the exact ids that it was fed and that it returned, so a test can compare what was captured with what happened.
``contract_engine`` has the rest of the contract.
"""

import asyncio
import contextlib
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

STOP_ID = 2


@dataclass(eq=False)
class EngineCall:
    """One call that the engine answered, or was answering when its client left."""

    model: str
    fed: list[int]
    params: dict[str, Any]
    returned: list[int] = field(default_factory=list)
    """Ids that were sent; of a completed stream or answer all of them."""
    finish_reason: str | None = None
    """``None`` while it runs, and for ever if the client left."""
    cancelled: bool = False
    aborted: bool = False
    """Whether it is to end where it stands."""

    @property
    def running(self) -> bool:
        return self.finish_reason is None and not self.cancelled


def logprob_of(token_id: int, position: int) -> float:
    """A recognisable log-probability of an id at a place."""
    return -((token_id * 31 + position * 7) % 97 + 1) / 100


class ScriptedEngine:
    """Start with ``async with``; then ``url`` is its address.

    Args:
        encode: Turns the words given to ``say`` into ids.
        seed: Of the random completions given when nothing was scripted.
    """

    api_key = "engine-key"

    def __init__(self, encode: Callable[[str], list[int]], seed: int = 0) -> None:
        self.calls: list[EngineCall] = []
        self.url = ""
        self.token_delay_s = 0.0
        self.choose: Callable[[EngineCall], list[int] | None] | None = None
        """Called for completions that ``say`` did not script."""
        self._encode = encode
        self._script: deque[list[int] | Exception | int] = deque()
        self._random = random.Random(seed)
        self._open = asyncio.Event()
        self._open.set()
        self.app = Starlette(routes=[Route("/inference/v1/generate", self._generate, methods=["POST"])])
        """The engine itself, to be served beside something else."""

    def say(self, *texts: str) -> None:
        """Script the next completions: words, then the end of the turn."""
        for text in texts:
            self.emit([*self._encode(text), STOP_ID])

    def emit(self, ids: Sequence[int]) -> None:
        """Script the next completion id by id. Without ``STOP_ID`` at its end it goes on until ``max_tokens``."""
        self._script.append(list(ids))

    def fail(self, status: int) -> None:
        """Answer the next call with an error; 0 breaks the connection after two ids."""
        self._script.append(status)

    def hold(self) -> None:
        """Let calls wait before their first id."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    @property
    def held(self) -> bool:
        return not self._open.is_set()

    @property
    def waiting(self) -> int:
        """Calls that were neither finished nor given up."""
        return sum(call.running for call in self.calls)

    async def __aenter__(self) -> "ScriptedEngine":
        self._serving = contextlib.AsyncExitStack()
        self.url = await self._serving.enter_async_context(serve(self.app))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await self._serving.aclose()

    async def _generate(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {self.api_key}":
            return JSONResponse({"error": {"message": "wrong key"}}, 401)
        body = await request.json()
        refused = self._refuse(body)
        if refused is not None:
            return JSONResponse({"error": {"message": refused[1]}}, refused[0])
        call = EngineCall(body["model"], body["token_ids"], body["sampling_params"])
        self.calls.append(call)
        ids = self._next(call)
        if isinstance(ids, int) and ids:
            call.finish_reason = "error"
            return JSONResponse({"error": {"message": f"scripted failure {ids}"}}, ids)
        if body["stream"]:
            return StreamingResponse(self._events(request, call, ids), media_type="text/event-stream")
        work = asyncio.ensure_future(self._run(call, ids))
        gone = asyncio.ensure_future(_disconnected(request))
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not work.done():
            work.cancel()
            call.cancelled = True
            return Response()
        return JSONResponse(_shape(call, 0, call.returned, call.finish_reason))

    def _next(self, call: EngineCall) -> list[int] | int:
        if self._script:
            return self._script.popleft()  # type: ignore[return-value]
        if self.choose is not None and (chosen := self.choose(call)) is not None:
            return chosen
        length = self._random.randrange(1, 9)
        return [*(self._random.randrange(35, 120) for _ in range(length)), STOP_ID]

    def _refuse(self, body: dict[str, Any]) -> tuple[int, str] | None:
        """Status and message for a call that cannot be answered."""
        return None

    async def _speak(self, call: EngineCall, ids: list[int] | int) -> AsyncIterator[int]:
        """The ids of a completion, in their time. Sets its ``finish_reason`` before the last one."""
        stops, limit = call.params["stop_token_ids"], call.params["max_tokens"]
        ids = [70, 71] if (broken := isinstance(ids, int)) else ids[:limit]
        await self._open.wait()
        for at, token_id in enumerate(ids, start=1):
            if self.token_delay_s:
                await asyncio.sleep(self.token_delay_s)
            await self._open.wait()
            if call.aborted:
                call.finish_reason = "abort"
                return
            call.returned.append(token_id)
            if not broken and (token_id in stops or at == len(ids)):
                call.finish_reason = "stop" if token_id in stops else "length"
            yield token_id
            if call.finish_reason is not None:
                return

    async def _run(self, call: EngineCall, ids: list[int] | int) -> None:
        async for _ in self._speak(call, ids):
            pass

    async def _events(self, request: Request, call: EngineCall, ids: list[int] | int) -> AsyncIterator[str]:
        try:
            async for token_id in self._speak(call, ids):
                yield _event(call, [token_id])
            if call.finish_reason == "abort":
                yield _event(call, [])
            if isinstance(ids, int):
                call.finish_reason = "error"
                yield 'data: {"error": {"message": "scripted death", "code": 500}}\n\n'
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, ClientDisconnect, GeneratorExit):
            call.cancelled = call.finish_reason is None
            raise


def _event(call: EngineCall, ids: list[int]) -> str:
    return f"data: {json.dumps(_shape(call, len(call.returned) - len(ids), ids, call.finish_reason))}\n\n"


def _shape(call: EngineCall, start: int, ids: list[int], reason: str | None) -> dict[str, Any]:
    count = call.params["logprobs"]
    content = []
    for at, token_id in enumerate(ids, start=start):
        logprob = logprob_of(token_id, at)
        others = [{"token_id": (token_id + k) % 250, "logprob": logprob - k} for k in range(count)]
        content.append({"token_id": token_id, "logprob": logprob, "top_logprobs": others})
    choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}
    return {"request_id": "scripted", "choices": [choice]}


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free loopback port, in this event loop; the value is its URL."""
    # clients keep idle connections; by default they would be closed after 5 s, in the middle of a call if the machine stalls
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="error",
        lifespan="off",
        timeout_keep_alive=600,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        if task.done():
            task.result()
            raise RuntimeError("the server did not start")
        await asyncio.sleep(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task
