"""New policy versions on an engine under load: how soon each answers, and whether any request suffers."""

import asyncio
import itertools
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from art.wire import LoraSpec
from art_backend.engines.client import EngineClient, EngineError, EngineUnreachableError
from art_backend.engines.contract import Sampling

SWAPS = 50
TALKERS = 4
"""Agents that call the latest version all the time."""
PROMPT_TOKENS, SAMPLED = 16, 8
"""Short, so that what is measured is the swap: no cache knows a new version's prompts."""
KEPT = 2
"""Versions that stay loaded, as in the service."""


@dataclass(frozen=True)
class Swaps:
    seconds: list[float]
    """Of each version: from its saved weights to its first token."""
    requests: int
    failed: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def describe(self) -> str:
        return (
            f"{len(self.seconds)} versions, each answered after {self.median:.2f} s ({max(self.seconds):.2f} s at most); "
            f"{self.requests} requests meanwhile, {self.failed} failed"
        )


def save_versions(model: Path, directory: Path, count: int = SWAPS) -> list[Path]:
    """Save random adapters of a model as a trainer does; return their directories."""
    import torch

    from art_backend.training.policy.adapter import AdapterPolicy

    policy = AdapterPolicy(model, LoraSpec(rank=8, alpha=16))
    first = directory / "0001"
    first.mkdir(parents=True)
    torch.manual_seed(0)
    policy.weights += torch.randn_like(policy.weights) * 1e-3
    policy.save(first)
    return [first, *(Path(shutil.copytree(first, directory / f"{i:04d}")) for i in range(2, count + 1))]


async def measure_swaps(client: EngineClient, versions: Sequence[Path]) -> Swaps:
    """Load one version after the other while agents talk to whatever is the latest."""
    latest, failed, requests, over = "", 0, 0, False
    prompts = itertools.count()

    def prompt() -> list[int]:
        start = 1000 + next(prompts) % 1000 * 7
        return list(range(start, start + PROMPT_TOKENS))

    async def talk() -> None:
        nonlocal failed, requests
        while not over:
            requests += 1
            try:
                await client.generate(latest, prompt(), Sampling(SAMPLED))
            except (EngineError, EngineUnreachableError):
                failed += 1

    async def publish(name: str, path: Path) -> float:
        begin = time.perf_counter()
        await client.load_adapter(name, path)
        await client.generate(name, prompt(), Sampling(1))
        return time.perf_counter() - begin

    seconds: list[float] = []
    talkers: list[asyncio.Task[None]] = []
    for step, path in enumerate(versions, start=1):
        name = f"bench@{step}"
        seconds.append(await publish(name, path))
        latest = name
        if not talkers:
            talkers = [asyncio.create_task(talk()) for _ in range(TALKERS)]
        if step > KEPT:
            await client.unload_adapter(f"bench@{step - KEPT}")
    over = True
    await asyncio.gather(*talkers)
    for step in range(len(versions) - KEPT + 1, len(versions) + 1):
        await client.unload_adapter(f"bench@{step}")
    return Swaps(seconds[1:], requests, failed)
