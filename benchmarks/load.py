"""Agents that only talk: conversations over OpenAI chat completions, as many at a time as asked, in a process of their own.

Prints one line of JSON: every request's latency, and how much of that the engine itself took by its script.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

SYSTEM = "You are an agent in a benchmark. " + "Think about what was said, then answer in a few words. " * 5
_WORDS = [
    "the",
    "game",
    "board",
    "has",
    "moved",
    "and",
    "your",
    "turn",
    "comes",
    "next",
    "so",
    "tell",
    "me",
    "what",
    "you",
    "would",
    "do",
    "about",
    "it",
    "now",
]


@dataclass
class Load:
    """What was seen."""

    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    """From sending a request to its answer's last byte."""
    sampled: list[int] = field(default_factory=list)
    """Tokens of each answer."""
    failures: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    """Of each answer's prompt."""


@dataclass(frozen=True)
class Options:
    url: list[str]
    """Of OpenAI APIs, ending in ``/v1``; the conversations take turns at them."""
    model: str
    concurrency: int
    turns: int
    stream: bool
    progress: bool
    """Print a line whenever the number of added tokens has grown by a good piece."""


async def drive(keys: Sequence[str], options: Options) -> Load:
    """Run one conversation for each key."""
    load = Load()
    waiting = list(enumerate(keys))[::-1]
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def work() -> None:
            while waiting:
                seed, key = waiting.pop()
                try:
                    await _converse(session, key, seed, options, load)
                except (aiohttp.ClientError, RuntimeError) as error:
                    load.failures.append(f"{type(error).__name__}: {error}")

        begin = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(options.concurrency)))
        load.seconds = time.perf_counter() - begin
    return load


async def _converse(session: aiohttp.ClientSession, key: str, seed: int, options: Options, load: Load) -> None:
    draw = random.Random(seed)
    messages = [{"role": "system", "content": SYSTEM}]
    length = 0
    for _ in range(options.turns):
        messages.append({"role": "user", "content": f"{seed} " + " ".join(draw.choices(_WORDS, k=30))})
        body: dict[str, Any] = {"model": options.model, "messages": messages}
        if options.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        begin = time.perf_counter()
        async with session.post(
            f"{options.url[seed % len(options.url)]}/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {key}"},
        ) as response:
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {(await response.text())[:300]}")
            content, usage = await (_read_events(response) if options.stream else _read_whole(response))
        load.latencies_ms.append((time.perf_counter() - begin) * 1000)
        load.sampled.append(usage["completion_tokens"])
        load.prompt_tokens.append(usage["prompt_tokens"])
        messages.append({"role": "assistant", "content": content})
        if options.progress:
            print(usage["total_tokens"] - length, flush=True)
        length = usage["total_tokens"]


async def _read_whole(response: aiohttp.ClientResponse) -> tuple[str, dict[str, int]]:
    answer = json.loads(await response.read())
    return answer["choices"][0]["message"]["content"], answer["usage"]


async def _read_events(response: aiohttp.ClientResponse) -> tuple[str, dict[str, int]]:
    pieces: list[str] = []
    usage: dict[str, int] | None = None
    async for line in response.content:
        if line == b"data: [DONE]\n" and usage is not None:
            return "".join(pieces), usage
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise RuntimeError(f"error in a stream: {chunk['error']}")
        usage = chunk.get("usage") or usage
        pieces += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
    raise RuntimeError("a stream ended before [DONE]")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--url", nargs="+", required=True, help="of an OpenAI API, ending in /v1; several take turns")
    parser.add_argument("--keys", type=Path, required=True, help="file with a JSON list: one conversation for each key")
    parser.add_argument("--model", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--progress", action="store_true", help="print how many tokens each turn added")
    arguments = vars(parser.parse_args(argv))
    keys = json.loads(arguments.pop("keys").read_text())
    json.dump(asdict(uvloop.run(drive(keys, Options(**arguments)))), sys.stdout)
    print()


if __name__ == "__main__":
    main()
