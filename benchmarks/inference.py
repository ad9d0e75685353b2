"""Multi-turn rollouts on the embedded engine, on vLLM's CPU build, through the gateway, and by transformers ``generate``.

    python -m benchmarks.inference [--quick] [--json PATH] [--model PATH] [--vllm-python PATH]

32 rollouts in 4 groups; a group shares a 600-token prompt. Each takes 5 turns of 24 sampled tokens, with 60 observed
tokens between them. They go over HTTP, each rollout on its own, and sample from an adapter of rank 8, as in training: on the
embedded engine, on vLLM itself, and through our gateway over the same vLLM. Both engines are also asked for the model without
an adapter. ``generate`` gets that, too, and all rollouts of a turn as one batch without padding, with its KV cache. All compute
in the type that the processor multiplies fastest (bfloat16 where it does so natively, else float32), with the same threads and
environment, and sample at temperature 1. Loading and a warm-up are not timed; the
sides are measured in turn, three times.

Then 50 versions of an adapter are published while agents talk, on both engines; and the embedded engine alone gets a load in
the shape of an agent with short turns: 128 conversations with 400 tokens of history, each turn 60 new tokens and 2 sampled ones.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from art_backend.engines.contract import Sampling
from art_backend.engines.process import CPU_ENVIRONMENT, EngineProcess, EngineSettings
from art_backend.engines.vllm import BARE_NAME
from benchmarks.harness import Row, alternate, compare, console, hold, measure_in_child, report
from benchmarks.swaps import SWAPS, Swaps, measure_swaps, save_versions
from benchmarks.vllm_side import VLLM_PYTHON, VllmService, serve_vllm

T = TypeVar("T")

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PEER = "transformers generate"
OURS, OURS_BARE = "embedded engine", "embedded engine, no adapter"
VLLM, GATEWAY, BARE = "vLLM-CPU", "gateway over vLLM-CPU", "vLLM-CPU, no adapter"
GROUPS, MEMBERS = 4, 8
PROMPT, TURNS, SAMPLED, OBSERVED = 600, 5, 24, 60
AGENTS, HISTORY, SHARED, AGENT_TURNS = 128, 400, 300, 2
COMPUTED = "art_engine_prompt_tokens_computed_total"
TARGET = 3.0
VLLM_TARGET = 1.5
GATEWAY_TARGET = 0.97
SWAP_TARGET_S = 1.0

Sample = Callable[[int, list[int]], Awaitable[list[int]]]
"""Takes a rollout's number and its history; returns what was sampled."""


@dataclass(frozen=True)
class Measurement:
    seconds: float
    prefilled: float
    """Prompt tokens that went through the model."""
    sampled: int = GROUPS * MEMBERS * TURNS * SAMPLED

    @property
    def tokens_per_s(self) -> float:
        return self.sampled / self.seconds

    def describe(self) -> str:
        return f"{self.seconds:.1f} s, {self.tokens_per_s:.0f} sampled tokens/s, {self.prefilled:.0f} prefilled"


class Tokens:
    """Random token ids, the same for all sides. Ids below 100 are left out: they are special."""

    def __init__(self, seed: int = 7) -> None:
        self._draw = random.Random(seed)

    def take(self, count: int) -> list[int]:
        return [self._draw.randrange(100, 49_000) for _ in range(count)]


def starts(tokens: Tokens) -> list[list[int]]:
    """The prompts of all rollouts."""
    prompts = [tokens.take(PROMPT) for _ in range(GROUPS)]
    return [list(prompt) for prompt in prompts for _ in range(MEMBERS)]


async def start_engine(model: Path, threads: int, log_dir: str) -> EngineProcess:
    settings = EngineSettings(
        model_path=model,
        served_name="base",
        log_path=Path(log_dir) / "engine.log",
        max_model_len=2048,
        max_num_seqs=AGENTS,
        threads=threads,
    )
    engine = await EngineProcess.start(settings)
    await engine.client.generate("base", Tokens().take(500), Sampling(4))
    return engine


async def measure_rollouts(
    sample: Sample, count_computed: Callable[[], Awaitable[float]], seed: int = 7
) -> Measurement:
    tokens = Tokens(seed)
    histories = starts(tokens)
    observations = [[tokens.take(OBSERVED) for _ in range(TURNS)] for _ in histories]
    sampled = 0

    async def roll_out(number: int, history: list[int], observed: list[list[int]]) -> None:
        nonlocal sampled
        for new in observed:
            completion = await sample(number, history)
            sampled += len(completion)
            history += completion + new

    before = await count_computed()
    begin = time.perf_counter()
    await asyncio.gather(*(roll_out(i, *both) for i, both in enumerate(zip(histories, observations, strict=True))))
    seconds = time.perf_counter() - begin
    return Measurement(seconds, await count_computed() - before, sampled)


async def measure_agents(engine: EngineProcess) -> str:
    """Short turns at high concurrency: requests and new prompt tokens per second, HTTP included."""
    tokens = Tokens()
    shared = tokens.take(SHARED)
    histories = [shared + tokens.take(HISTORY - SHARED) for _ in range(AGENTS)]

    async def turn(history: list[int]) -> None:
        completion = await engine.client.generate("base", history, Sampling(2))
        history += completion.token_ids + tokens.take(OBSERVED)

    await asyncio.gather(*map(turn, histories))
    begin = time.perf_counter()
    before = (await engine.client.metrics())[COMPUTED]
    for _ in range(AGENT_TURNS):
        await asyncio.gather(*map(turn, histories))
    seconds = time.perf_counter() - begin
    computed = (await engine.client.metrics())[COMPUTED] - before
    requests = AGENTS * AGENT_TURNS
    return f"{requests / seconds:.0f} requests/s, {computed / seconds:.0f} new prompt tokens/s"


async def on_embedded(model: Path, threads: int, measure: Callable[[EngineProcess], Awaitable[T]]) -> T:
    """Measure on an embedded engine of its own."""
    with tempfile.TemporaryDirectory() as log_dir:
        engine = await start_engine(model, threads, log_dir)
        try:
            return await measure(engine)
        finally:
            await engine.stop()


async def measure_ours(engine: EngineProcess, adapter: Path | None = None) -> Measurement:
    name = "base"
    if adapter is not None:
        name = "bench@1"
        await engine.client.load_adapter(name, adapter)

    async def sample(_: int, history: list[int]) -> list[int]:
        return (await engine.client.generate(name, history, Sampling(SAMPLED))).token_ids

    async def count_computed() -> float:
        return (await engine.client.metrics())[COMPUTED]

    return await measure_rollouts(sample, count_computed)


async def measure_vllm(service: VllmService, side: str, seed: int) -> Measurement:
    """Rollouts on vLLM itself, with or without an adapter, or through the gateway.

    Args:
        seed: Of the prompts; another one each time, since the server's prefix cache knows those of before.
    """
    keys = [await service.rollout_key() for _ in range(GROUPS * MEMBERS)] if side == GATEWAY else []
    name = BARE_NAME if side == BARE else service.base_model

    async def sample(number: int, history: list[int]) -> list[int]:
        if keys:
            return await service.complete(history, SAMPLED, keys[number])
        return await service.ask_engine(history, SAMPLED, name)

    return await measure_rollouts(sample, service.count_computed, seed)


def measure_peer(model_path: Path, threads: int) -> Measurement:
    """``generate`` on the same rollouts, in this process."""
    import torch
    from transformers import AutoModelForCausalLM

    from art_backend.models.compute import choose_dtype

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    dtype = choose_dtype("auto", torch.device("cpu"))
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype).eval()
    tokens = Tokens()
    histories = torch.tensor(starts(tokens))

    def generate(inputs: torch.Tensor, count: int) -> torch.Tensor:
        return model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=True,
            top_k=0,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
        )

    generate(histories[:2, :100], 4)
    begin = time.perf_counter()
    prefilled = 0
    for _ in range(TURNS):
        prefilled += histories.numel()
        histories = generate(histories, SAMPLED)
        observed = torch.tensor([tokens.take(OBSERVED) for _ in histories])
        histories = torch.cat([histories, observed], dim=1)
    return Measurement(time.perf_counter() - begin, prefilled)


async def measure_all(
    model: Path, threads: int, vllm_python: Path, *, quick: bool
) -> tuple[dict[str, list[Measurement]], dict[str, Swaps]]:
    """All sides in turn, then new versions on each engine; vLLM waits idle while others are measured."""
    seeds = itertools.count(100)
    peer_arguments = ["--side", "peer", "--model", str(model), "--threads", str(threads)]
    loop = asyncio.get_running_loop()

    def wait(measuring: Coroutine[Any, Any, Measurement]) -> Measurement:
        return asyncio.run_coroutine_threadsafe(measuring, loop).result()

    async with contextlib.AsyncExitStack() as stack:
        versions = save_versions(model, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        sides: dict[str, Callable[[], Measurement]] = {
            OURS: lambda: wait(on_embedded(model, threads, lambda engine: measure_ours(engine, versions[0]))),
            OURS_BARE: lambda: wait(on_embedded(model, threads, measure_ours)),
        }
        swaps = {OURS: lambda: on_embedded(model, threads, lambda engine: measure_swaps(engine.client, versions))}
        if not quick:
            service = await stack.enter_async_context(serve_vllm(str(model), vllm_python, threads))
            sides[VLLM] = lambda: wait(measure_vllm(service, VLLM, next(seeds)))
            sides[GATEWAY] = lambda: wait(measure_vllm(service, GATEWAY, next(seeds)))
            sides[BARE] = lambda: wait(measure_vllm(service, BARE, next(seeds)))
            swaps[VLLM] = lambda: measure_swaps(service.engine, versions)
        sides[PEER] = lambda: Measurement(**measure_in_child("benchmarks.inference", peer_arguments, CPU_ENVIRONMENT))
        results = await asyncio.to_thread(alternate, sides, 1 if quick else 3, Measurement.describe)
        swapped: dict[str, Swaps] = {}
        for side, measure in swaps.items():
            swapped[side] = await measure()
            console.print(f"{side}: {swapped[side].describe()}")
    agents = await on_embedded(model, threads, measure_agents)
    console.print(f"short turns, {AGENTS} conversations: {agents}")
    return results, swapped


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, and without vLLM; ends within six minutes")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--model", type=Path, help=f"directory of the model; found by name without it ({BASE_MODEL})")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vllm-python", type=Path, default=VLLM_PYTHON, help=f"default: {VLLM_PYTHON}")
    parser.add_argument("--side", choices=["peer"], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.model is None:
        from art_backend.models.base import find_base_model

        options.model = find_base_model(BASE_MODEL)
    model, threads = options.model, options.threads
    if options.side == "peer":
        print(json.dumps(asdict(measure_peer(model, threads))))
        return
    if not options.quick and not options.vllm_python.exists():
        sys.exit(
            f"No vLLM at {options.vllm_python}. Install its CPU build with: make vllm; or leave it out with --quick"
        )
    results, swapped = asyncio.run(measure_all(model, threads, options.vllm_python, quick=options.quick))
    speeds = {side: [m.tokens_per_s for m in measured] for side, measured in results.items()}
    computed = {side: [m.prefilled for m in measured] for side, measured in results.items()}

    def speed(side: str, peer: str, at_least: float | None = None) -> Row:
        return compare(side, speeds[side], speeds[peer], peer_name=peer, unit="tokens/s", at_least=at_least)

    def prefilled(peer: str) -> Row:
        return compare("prompt computed", computed[OURS], computed[peer], peer_name=peer, unit="tokens")

    rows = [speed(OURS, PEER, TARGET), speed(OURS_BARE, PEER), prefilled(PEER)]
    if not options.quick:
        rows += [speed(OURS, VLLM, VLLM_TARGET), speed(OURS_BARE, BARE), prefilled(VLLM)]
        rows += [speed(GATEWAY, VLLM, GATEWAY_TARGET)]
    for engine, seen in swapped.items():
        rows.append(hold(f"saved to answers, {engine}", seen.median, unit="s", at_most=SWAP_TARGET_S))
        rows.append(hold(f"failed in {SWAPS} swaps, {engine}", seen.failed, unit="requests", at_most=0))
    report(rows, options.json)


if __name__ == "__main__":
    main()
