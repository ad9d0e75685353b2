"""An engine without a model, in a process of its own: it says random words at the pace that it is told.

It answers the engine contract's ``generate`` and, for what cannot speak that, OpenAI chat completions. ``POST /script``
with ``{"shortest", "longest", "token_ms"}`` sets how long completions are and how long each token takes.
"""

import argparse
import asyncio
import json
import os
import random
import socket
from dataclasses import dataclass
from typing import Any

import uvicorn

STOP_ID = 2
"""``<|im_end|>`` of SmolLM2."""

MODEL = "scripted"
_WORDS = range(1_000, 9_000)
_TEXT = " word"


@dataclass
class Script:
    """How the engine speaks."""

    shortest: int = 16
    longest: int = 16
    token_ms: float = 0.0


class ScriptedEngine:
    """The ASGI application."""

    def __init__(self, api_key: str) -> None:
        self._authorization = f"Bearer {api_key}".encode()
        self._script = Script()
        self._random = random.Random(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        if headers.get(b"authorization") != self._authorization:
            await _answer(send, {"error": {"message": "wrong key"}}, 401)
            return
        match scope["path"]:
            case "/inference/v1/generate":
                await self._generate(await _read(receive), send)
            case "/v1/chat/completions":
                await self._chat(await _read(receive), send)
            case "/script":
                self._script = Script(**await _read(receive))
                await _answer(send, {})
            case _:
                await _answer(send, {"data": [{"id": MODEL}]})

    def _draw(self) -> list[int]:
        length = self._random.randint(self._script.shortest, self._script.longest)
        return [*self._random.choices(_WORDS, k=length - 1), STOP_ID]

    async def _wait(self, tokens: int) -> None:
        if self._script.token_ms:
            await asyncio.sleep(tokens * self._script.token_ms / 1000)

    async def _generate(self, body: dict[str, Any], send: Any) -> None:
        ids = self._draw()
        if not body["stream"]:
            await self._wait(len(ids))
            await _answer(send, _shape(ids, "stop"))
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for token_id in ids:
            await self._wait(1)
            event = _shape([token_id], "stop" if token_id == STOP_ID else None)
            await send({"type": "http.response.body", "body": b"data: " + _encode(event) + b"\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _chat(self, body: dict[str, Any], send: Any) -> None:
        sampled = len(self._draw())
        await self._wait(sampled)
        prompt = sum(len(message["content"]) for message in body["messages"]) // 4
        message = {"role": "assistant", "content": _TEXT * (sampled - 1)}
        await _answer(
            send,
            {
                "id": "chatcmpl-scripted",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": sampled,
                    "total_tokens": prompt + sampled,
                },
            },
        )


def _shape(ids: list[int], reason: str | None) -> dict[str, Any]:
    content = [{"token_id": token_id, "logprob": -0.5, "top_logprobs": []} for token_id in ids]
    choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}
    return {"request_id": MODEL, "choices": [choice]}


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _read(receive: Any) -> dict[str, Any]:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return json.loads(body)


async def _answer(send: Any, value: Any, status: int = 200) -> None:
    body = _encode(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scripted_engine", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--uds", required=True, help="Unix socket to listen on, beside the port")
    options = parser.parse_args()
    engine = ScriptedEngine(os.environ["ART_ENGINE_KEY"])
    listeners = [socket.socket(), socket.socket(socket.AF_UNIX)]
    listeners[0].bind(("127.0.0.1", options.port))
    listeners[1].bind(options.uds)
    config = uvicorn.Config(engine, log_level="error", lifespan="off", backlog=4096, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=listeners)


if __name__ == "__main__":
    main()
