"""Client of the engine contract (docs/engines.md), for any engine: token ids in, token ids and log-probabilities out."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from art_backend.engines.contract import Generation, GenerationDelta, PauseMode, Sampling, SleepTag

CONNECT_TIMEOUT_S = 60.0
"""An engine that is not there refuses at once; one that is busy, with a thousand calls at the door, does not."""
KEEP_ALIVE_S = 60.0
"""Idle connections are dropped after this. The engine must keep them longer, or a call may meet a closing one."""
_SAMPLE_LINE = re.compile(r"([a-zA-Z_:][\w:]*(?:\{[^}]*\})?) ([^ ]+)")


class EngineError(Exception):
    """The engine refused a call, or failed in the middle of one.

    Args:
        status: HTTP status; 4xx means that the call was wrong.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"The engine answered {status}: {message}")
        self.status = status
        self.message = message


class EngineUnreachableError(Exception):
    """No answer, or half of one: the engine is not there, or died."""


class EngineClient:
    """One engine.

    There is no deadline on answers: a paused engine answers late by design, and a dead one closes the connection. Wrap
    calls in ``EngineProcess.guard`` where a deadline is needed.

    Args:
        address: ``unix:`` and the path of a socket, or a URL such as ``http://127.0.0.1:8123``.
    """

    def __init__(self, address: str, api_key: str) -> None:
        self.address = address.rstrip("/")
        self._socket = address.removeprefix("unix:") if address.startswith("unix:") else None
        self._base_url = self.address if self._socket is None else "http://engine"
        self._headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def generate(
        self, model: str, token_ids: Sequence[int], sampling: Sampling, *, rollout: str | None = None
    ) -> Generation:
        """Sample one completion of ``token_ids``.

        Cancelling the call ends the sampling.

        Args:
            rollout: Whose call it is. Where there are several engines, a rollout's calls go to the same one; here is one.

        Raises:
            EngineError: 404 for an unknown model, 400 for a prompt that is too long or a bad setting.
            EngineUnreachableError: The engine is not there, or died.
        """
        body = _generate_body(self._resolve(model), token_ids, sampling, stream=False)
        delta = _parse_delta(_json(await self._call("POST", "/inference/v1/generate", body)))
        if delta.finish_reason is None:
            raise EngineError(502, "The answer has no finish_reason.")
        return Generation(delta.token_ids, delta.logprobs, delta.top_logprobs, delta.finish_reason)

    async def stream(
        self, model: str, token_ids: Sequence[int], sampling: Sampling, *, rollout: str | None = None
    ) -> AsyncGenerator[GenerationDelta, None]:
        """Like ``generate``, in deltas of one or more tokens. Closing the iterator ends the sampling."""
        body = _generate_body(self._resolve(model), token_ids, sampling, stream=True)
        finished, held = False, b""
        async with self._request("POST", "/inference/v1/generate", body) as response:
            async for chunk in response.content.iter_any():
                *lines, held = (held + chunk).split(b"\n")
                try:
                    delta = _read_events(lines)
                except EngineError as error:
                    raise await self._failure(error) from error
                if delta is not None:
                    finished = finished or delta.finish_reason is not None
                    yield delta
        if not finished:
            raise EngineUnreachableError(f"The engine at {self.address} ended a stream before its last token.")

    async def greedy_logprobs(self, model: str, token_ids: list[int]) -> list[float]:
        """Log-probability of the likeliest next token, from every engine that answers under this address: from this one."""
        answer = await self.generate(model, token_ids, Sampling(max_tokens=1, temperature=0.0))
        return answer.logprobs

    async def load_adapter(self, name: str, path: Path) -> None:
        """Serve the PEFT directory ``path`` as ``name``; the path must be readable by the engine."""
        try:
            await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        except EngineError as error:
            raise EngineError(error.status, f"{error.message} (adapter {name!r} at {path})") from error

    async def unload_adapter(self, name: str) -> None:
        """Stop serving ``name``. Completions in flight finish on it."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def load_weights(self, name: str, path: Path) -> None:
        """Replace the model's own weights by those in the Hugging Face folder ``path``, served as ``name`` from now on.

        Nothing may be in flight: pause with mode ``wait`` first.
        """
        await self._post("/v1/load_weights", {"name": name, "path": str(path)})

    async def models(self) -> list[str]:
        """Names that are served: the base model and each adapter."""
        return [row["id"] for row in (await self._ask("GET", "/v1/models"))["data"]]

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stop computing. ``keep`` freezes what is in flight, ``wait`` lets it finish, ``abort`` ends it."""
        await self._post("/pause", params={"mode": mode})

    async def resume(self) -> None:
        """Continue after ``pause``."""
        await self._post("/resume")

    async def is_paused(self) -> bool:
        return bool((await self._ask("GET", "/is_paused"))["is_paused"])

    async def sleep(self) -> None:
        """Free the accelerator's memory. Pause first."""
        await self._post("/sleep", params={"level": 1, "mode": "keep"})

    async def wake_up(self, tags: Iterable[SleepTag] = ()) -> None:
        """Take back the memory of ``tags``; of both where none is named."""
        await self._post("/wake_up", params={"tags": list(tags)})

    async def is_sleeping(self) -> bool:
        return bool((await self._ask("GET", "/is_sleeping"))["is_sleeping"])

    async def health(self) -> None:
        """Return if the engine is alive and accepts our key; costs it nothing."""
        await self._call("GET", "/health")

    async def metrics(self) -> dict[str, float]:
        """Samples of ``/metrics``, by name (with labels, where a sample has them)."""
        text = (await self._call("GET", "/metrics")).decode()
        lines = (line for line in text.splitlines() if line and not line.startswith("#"))
        return {match[1]: float(match[2]) for line in lines if (match := _SAMPLE_LINE.match(line))}

    def _resolve(self, model: str) -> str:
        """Return what the engine itself calls a model."""
        return model

    async def _ask(self, method: str, path: str) -> dict[str, Any]:
        return _json(await self._call(method, path))

    async def _post(self, path: str, body: dict[str, Any] | None = None, params: dict[str, Any] | None = None) -> None:
        await self._call("POST", path, None if body is None else orjson.dumps(body), params)

    async def _call(
        self, method: str, path: str, content: bytes | None = None, params: dict[str, Any] | None = None
    ) -> bytes:
        async with self._request(method, path, content, params) as response:
            return await response.read()

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, content: bytes | None = None, params: dict[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; the response is open within the block, and leaving the block early ends it on both sides."""
        try:
            async with self._connections().request(
                method, f"{self._base_url}{path}", data=content, params=params, headers=self._headers
            ) as response:
                if response.status >= 400:
                    error = _error(response.status, await response.read())
                    raise error if path == "/health" else await self._failure(error)
                yield response
        except aiohttp.ClientError as error:
            raise EngineUnreachableError(
                f"The engine at {self.address} does not answer: {type(error).__name__} {error}".rstrip()
            ) from error

    def _connections(self) -> aiohttp.ClientSession:
        """The kept-alive connections; made by the first call, since they belong to its event loop.

        Raises:
            EngineUnreachableError: The client was closed, as it is when its engine has ended.
        """
        if self._session is not None and self._session.closed:
            raise EngineUnreachableError(f"The engine at {self.address} has ended.")
        if self._session is None:
            # every call in flight has its own connection; a limit would queue calls here, unseen by the engine
            connector = (
                aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
                if self._socket is None
                else aiohttp.UnixConnector(self._socket, limit=0, keepalive_timeout=KEEP_ALIVE_S)
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _failure(self, error: EngineError) -> EngineError | EngineUnreachableError:
        """Tell a failed call from a dead engine: of vLLM, the server lives on for seconds after what computes has died."""
        if error.status < 500:
            return error
        try:
            await self.health()
        except (EngineError, EngineUnreachableError):
            return EngineUnreachableError(f"The engine at {self.address} has died: {error.message}")
        return error


def _generate_body(model: str, token_ids: Sequence[int], sampling: Sampling, *, stream: bool) -> bytes:
    params: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0 if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": sampling.stop_token_ids,
        "logprobs": sampling.top_logprobs,
        "ignore_eos": True,
        "detokenize": False,
    }
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    if sampling.structure is not None:
        params["structured_outputs"] = sampling.structure.to_wire()
    return orjson.dumps({"model": model, "token_ids": list(token_ids), "sampling_params": params, "stream": stream})


def _read_events(lines: Iterable[bytes]) -> GenerationDelta | None:
    """What whole lines of a stream of server-sent events say together; ``None`` if nothing."""
    delta: GenerationDelta | None = None
    for line in lines:
        if not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
            continue
        event = _json(line[5:])
        if "error" in event:
            raise EngineError(int(event["error"].get("code") or 500), str(event["error"].get("message")))
        if delta is None:
            delta = _parse_delta(event)
        else:
            delta.extend(_parse_delta(event))
    return delta


def _parse_delta(body: dict[str, Any]) -> GenerationDelta:
    try:
        choice = body["choices"][0]
        content = choice["logprobs"]["content"] if choice["token_ids"] else []
        return GenerationDelta(
            token_ids=choice["token_ids"],
            logprobs=[entry["logprob"] for entry in content],
            top_logprobs=[[(top["token_id"], top["logprob"]) for top in entry["top_logprobs"]] for entry in content],
            finish_reason=choice["finish_reason"],
        )
    except (KeyError, IndexError, TypeError) as error:
        raise EngineError(502, f"The answer does not have the contract's shape: {error!r}.") from error


def _json(content: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(content)
    except ValueError as error:
        raise EngineError(502, f"The answer is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise EngineError(502, "The answer is not a JSON object.")
    return body


def _error(status: int, content: bytes) -> EngineError:
    try:
        message = orjson.loads(content)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = content[:500].decode(errors="replace") or "no explanation"
    return EngineError(status, str(message))
