"""The HTTP surface of the embedded engine: the engine contract of docs/engines.md."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan

from art_backend.engines.contract import GenerationDelta, Sampling, SleepTag
from art_backend.engines.key_check.art_key_check import KeyCheck
from art_backend.engines.torch_engine.adapters import AdapterError
from art_backend.engines.torch_engine.engine import Engine, NameTakenError, Output, UnknownModelError
from art_backend.engines.torch_engine.metrics import render_metrics
from art_backend.engines.torch_engine.runner import WeightsError
from art_backend.engines.torch_engine.sequence import Delivery, Sequence
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.guidance import StructureError
from art_backend.tokens.grammar.vocabulary import GrammarVocabulary, Guide

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")
TokenId = Annotated[int, Field(ge=0, strict=True)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StructuredOutputs(_Body):
    """``structured_outputs`` of the contract, with vLLM's names. One of them is set."""

    json_schema: str | dict[str, Any] | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1)
    grammar: str | None = None

    def to_structure(self) -> Structure:
        given: dict[Any, Any] = self.model_dump(exclude_none=True, by_alias=True)
        if given.pop("json_object", False):
            given["json"] = {"type": "object"}
        if len(given) != 1:
            raise RequestError(
                400, "structured_outputs: needs exactly one of json, json_object, regex, choice, grammar."
            )
        if isinstance(self.json_schema, str):
            return Structure("json", self.json_schema)
        return Structure.from_wire(given)


class SamplingParams(_Body):
    """``sampling_params`` of the contract, with vLLM's names and bounds."""

    max_tokens: int = Field(default=16, ge=1, strict=True)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    """0 and -1 sample from the whole vocabulary."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    seed: int | None = None
    stop_token_ids: list[TokenId] = []
    logprobs: int | None = Field(default=None, ge=0)
    structured_outputs: StructuredOutputs | None = None
    ignore_eos: Literal[True] = True
    """Only ``stop_token_ids`` end a completion."""
    detokenize: Literal[False] = False
    """Ids go in, ids come out."""

    def to_sampling(self) -> Sampling:
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k if self.top_k > 0 else None,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            stop_token_ids=tuple(self.stop_token_ids),
            seed=self.seed,
            top_logprobs=self.logprobs or 0,
            structure=self.structured_outputs.to_structure() if self.structured_outputs else None,
        )


class GenerateRequest(_Body):
    request_id: str | None = None
    model: str
    token_ids: list[TokenId] = Field(min_length=1)
    sampling_params: SamplingParams
    stream: bool = False


class LoadAdapterRequest(_Body):
    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)


class LoadWeightsRequest(_Body):
    name: str = Field(min_length=1)
    path: str = Field(min_length=1)


class UnloadAdapterRequest(_Body):
    lora_name: str


class RequestError(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer an error that the caller can fix."""
    status = error.status if isinstance(error, RequestError) else 404 if isinstance(error, UnknownModelError) else 400
    kind = "NotFoundError" if status == 404 else "BadRequestError" if status < 500 else "InternalServerError"
    return JSONResponse({"error": {"message": str(error), "type": kind, "code": status}}, status_code=status)


class Deliveries:
    """Carries what the model thread produced into the event loop, one hop per step."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """Deliver into the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def publish(self, outputs: list[Output]) -> None:
        if self._loop is None:
            raise RuntimeError("No event loop is bound.")
        self._loop.call_soon_threadsafe(self._dispatch, outputs)

    @staticmethod
    def _dispatch(outputs: list[Output]) -> None:
        for sequence, output in outputs:
            sequence.deliver(output)


def build_app(engine: Engine, *, api_key: str, lifespan: Lifespan[Starlette]) -> ASGIApp:
    """The ASGI application. Every path needs ``Authorization: Bearer {api_key}``."""

    async def load_adapter(request: Request) -> Response:
        body = _parse(LoadAdapterRequest, await request.body())
        installing = await asyncio.to_thread(engine.load_adapter, body.lora_name, Path(body.lora_path))
        await asyncio.wrap_future(installing)
        return PlainTextResponse(f"Success: LoRA adapter {body.lora_name!r} added.")

    async def unload_adapter(request: Request) -> Response:
        body = _parse(UnloadAdapterRequest, await request.body())
        await asyncio.wrap_future(engine.unload_adapter(body.lora_name))
        return PlainTextResponse(f"Success: LoRA adapter {body.lora_name!r} removed.")

    async def load_weights(request: Request) -> Response:
        body = _parse(LoadWeightsRequest, await request.body())
        await asyncio.wrap_future(engine.load_weights(body.name, Path(body.path)))
        return PlainTextResponse(f"Success: weights {body.name!r} loaded.")

    async def models(request: Request) -> Response:
        base = engine.served_name
        limit = engine.runner.max_model_len
        rows: list[dict[str, Any]] = [
            {"id": base, "object": "model", "root": str(engine.runner.path), "parent": None, "max_model_len": limit}
        ]
        for name, adapter in list(engine.adapters.items()):
            rows.append(
                {"id": name, "object": "model", "root": str(adapter.path), "parent": base, "max_model_len": limit}
            )
        return JSONResponse({"object": "list", "data": rows})

    async def pause(request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        if mode not in ("keep", "wait", "abort"):
            raise RequestError(400, f"mode={mode!r} is not one of keep, wait, abort.")
        await asyncio.wrap_future(engine.pause(mode))
        return JSONResponse({"status": "paused"})

    async def resume(request: Request) -> Response:
        await asyncio.wrap_future(engine.resume())
        return JSONResponse({"status": "resumed"})

    async def is_paused(request: Request) -> Response:
        return JSONResponse({"is_paused": engine.is_paused})

    async def sleep(request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level != "1":
            raise RequestError(400, f"level={level!r} is not supported; this engine sleeps at level 1.")
        if request.query_params.get("mode", "keep") != "keep":
            raise RequestError(400, "mode: this engine keeps what is in flight when it sleeps (mode=keep).")
        await asyncio.wrap_future(engine.sleep())
        return Response()

    async def wake_up(request: Request) -> Response:
        tags: set[SleepTag] = set()
        for tag in request.query_params.getlist("tags") or ("weights", "kv_cache"):
            if tag not in ("weights", "kv_cache"):
                raise RequestError(400, f"tags={tag!r} is not one of weights, kv_cache.")
            tags.add(tag)
        await asyncio.wrap_future(engine.wake_up(tags))
        return Response()

    async def is_sleeping(request: Request) -> Response:
        return JSONResponse({"is_sleeping": bool(engine.sleeping)})

    async def health(request: Request) -> Response:
        return Response()

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(render_metrics(engine))

    app = Starlette(
        routes=[
            Route("/inference/v1/generate", Generation(engine).answer, methods=["POST"]),
            Route("/v1/load_lora_adapter", load_adapter, methods=["POST"]),
            Route("/v1/unload_lora_adapter", unload_adapter, methods=["POST"]),
            Route("/v1/load_weights", load_weights, methods=["POST"]),
            Route("/v1/models", models),
            Route("/pause", pause, methods=["POST"]),
            Route("/resume", resume, methods=["POST"]),
            Route("/is_paused", is_paused),
            Route("/sleep", sleep, methods=["POST"]),
            Route("/wake_up", wake_up, methods=["POST"]),
            Route("/is_sleeping", is_sleeping),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers=dict.fromkeys(
            (RequestError, UnknownModelError, AdapterError, NameTakenError, WeightsError, ClientDisconnect), _refuse
        ),
        lifespan=lifespan,
    )
    return KeyCheck(app, api_key)


class Generation:
    """``POST /inference/v1/generate``. A client that goes away frees its place in the engine at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._vocabulary: GrammarVocabulary | None = None
        self._compiling = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        body = _parse(GenerateRequest, await request.body())
        outputs: asyncio.Queue[GenerationDelta | Exception] = asyncio.Queue()
        sequence = self._sequence(body, outputs.put_nowait)
        sequence.guide = await self._guide(sequence.sampling)
        deltas = self._sample(sequence, outputs)
        if body.stream:
            return StreamingResponse(_events(body.request_id or "", deltas), media_type="text/event-stream")
        async with contextlib.aclosing(deltas):
            output = await _unless_gone(request, anext(deltas))
        if isinstance(output, Exception):
            raise RequestError(*_explain(output))
        return Response(json.dumps(_shape(body.request_id or "", output)), media_type="application/json")

    async def _sample(
        self, sequence: Sequence, outputs: "asyncio.Queue[GenerationDelta | Exception]"
    ) -> AsyncGenerator[GenerationDelta | Exception, None]:
        """Yield what the engine produces, up to the last delta or an error. Closing the iterator ends the sampling."""
        self._engine.submit(sequence)
        try:
            while True:
                output = await outputs.get()
                yield output
                if isinstance(output, Exception) or output.finish_reason is not None:
                    return
        finally:
            if sequence.finish_reason is None:
                self._engine.abort(sequence)

    def _sequence(self, body: GenerateRequest, deliver: Delivery) -> Sequence:
        engine = self._engine
        adapter = engine.find_adapter(body.model)
        limit = engine.runner.max_model_len
        if len(body.token_ids) >= limit:
            raise RequestError(
                400,
                f"token_ids has {len(body.token_ids)} tokens; prompt and completion together are limited to {limit}.",
            )
        if max(body.token_ids) >= engine.runner.vocab_size:
            raise RequestError(
                400, f"token_ids contains {max(body.token_ids)}; the vocabulary has {engine.runner.vocab_size} tokens."
            )
        return Sequence(
            tokens=body.token_ids,
            sampling=body.sampling_params.to_sampling(),
            adapter=adapter,
            max_length=limit,
            stream=body.stream,
            deliver=deliver,
        )

    async def _guide(self, sampling: Sampling) -> Guide | None:
        """Compile the structure that was asked for, beside the event loop."""
        structure = sampling.structure
        if structure is None:
            return None
        runner = self._engine.runner
        if any(token >= runner.vocab_size for token in sampling.stop_token_ids):
            raise RequestError(400, f"stop_token_ids: the vocabulary has {runner.vocab_size} tokens.")
        async with self._compiling:
            try:
                if self._vocabulary is None:
                    self._vocabulary = await asyncio.to_thread(GrammarVocabulary.load, runner.path, runner.vocab_size)
                return await asyncio.to_thread(self._vocabulary.start, structure, sampling.stop_token_ids)
            except StructureError as error:
                raise RequestError(400, f"structured_outputs: {error}.") from error


async def _events(
    request_id: str, deltas: AsyncGenerator[GenerationDelta | Exception, None]
) -> AsyncGenerator[bytes, None]:
    """Server-sent events. An error after the first is an event too, since the status is sent by then."""
    async with contextlib.aclosing(deltas):
        async for output in deltas:
            if isinstance(output, Exception):
                status, message = _explain(output)
                event: dict[str, Any] = {"error": {"message": message, "code": status}}
            else:
                event = _shape(request_id, output)
            yield f"data: {json.dumps(event)}\n\n".encode()
    yield b"data: [DONE]\n\n"


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Await ``work``; leave it as soon as the client disconnects."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError(400, "The client disconnected.")
        return task.result()
    finally:
        for waiting in (task, gone):
            waiting.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _explain(error: Exception) -> tuple[int, str]:
    """Status and message of an error that ended a completion."""
    if isinstance(error, StructureError):
        return 400, f"structured_outputs: {error}."
    return 500, str(error)


def _shape(request_id: str, delta: GenerationDelta) -> dict[str, Any]:
    content = [
        {
            "token_id": token,
            "logprob": logprob,
            "top_logprobs": [{"token_id": other, "logprob": value} for other, value in top],
        }
        for token, logprob, top in zip(delta.token_ids, delta.logprobs, delta.top_logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "token_ids": delta.token_ids,
        "logprobs": {"content": content},
        "finish_reason": delta.finish_reason,
    }
    return {"request_id": request_id, "choices": [choice]}


def _parse(kind: type[B], body: bytes) -> B:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise RequestError(400, f"{where}: {first['msg']}") from None
