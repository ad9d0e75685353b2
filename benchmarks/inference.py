"""Multi-turn rollouts on the embedded engine, against plain transformers ``generate``.

    python -m benchmarks.inference [--quick] [--json PATH] [--model PATH]

32 rollouts in 4 groups; a group shares a 600-token prompt. Each takes 5 turns of 24 sampled tokens, with 60 observed
tokens between them. Ours goes over HTTP, each rollout on its own. ``generate`` gets all rollouts of a turn as one batch
without padding, with its KV cache, in bf16, with the same threads and environment. Both sample at temperature 1 and
always take all 24 tokens. Loading and a warm-up are not timed.

A second load, of ours alone, has the shape of an agent with short turns: 128 conversations with 400 tokens of history,
each turn 60 new tokens and 2 sampled ones.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from art_backend.inference.contract import Sampling
from art_backend.inference.process import CPU_ENVIRONMENT, EngineProcess, EngineSettings
from benchmarks.harness import alternate, compare, console, measure_in_child, report

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PEER = "transformers generate"
GROUPS, MEMBERS = 4, 8
PROMPT, TURNS, SAMPLED, OBSERVED = 600, 5, 24, 60
AGENTS, HISTORY, SHARED, AGENT_TURNS = 128, 400, 300, 2
COMPUTED = "art_engine_prompt_tokens_computed_total"
TARGET = 3.0


@dataclass(frozen=True)
class Measurement:
    seconds: float
    prefilled: float
    """Prompt tokens that went through the model."""

    @property
    def tokens_per_s(self) -> float:
        return GROUPS * MEMBERS * TURNS * SAMPLED / self.seconds

    def describe(self) -> str:
        return f"{self.seconds:.1f} s, {self.tokens_per_s:.0f} sampled tokens/s, {self.prefilled:.0f} prefilled"


class Tokens:
    """Random token ids, the same for both sides. Ids below 100 are left out: they are special."""

    def __init__(self) -> None:
        self._draw = random.Random(7)

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


async def measure_rollouts(engine: EngineProcess) -> Measurement:
    tokens = Tokens()
    histories = starts(tokens)
    observations = [[tokens.take(OBSERVED) for _ in range(TURNS)] for _ in histories]

    async def roll_out(history: list[int], observed: list[list[int]]) -> None:
        for new in observed:
            completion = await engine.client.generate("base", history, Sampling(SAMPLED))
            if len(completion.token_ids) != SAMPLED:
                raise RuntimeError(f"Sampled {len(completion.token_ids)} tokens instead of {SAMPLED}.")
            history += completion.token_ids + new

    before = (await engine.client.metrics())[COMPUTED]
    begin = time.perf_counter()
    await asyncio.gather(*map(roll_out, histories, observations))
    seconds = time.perf_counter() - begin
    return Measurement(seconds, (await engine.client.metrics())[COMPUTED] - before)


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


def measure_ours(model: Path, threads: int) -> Measurement:
    async def run() -> Measurement:
        with tempfile.TemporaryDirectory() as log_dir:
            engine = await start_engine(model, threads, log_dir)
            try:
                return await measure_rollouts(engine)
            finally:
                await engine.stop()

    return asyncio.run(run())


def measure_short_turns(model: Path, threads: int) -> str:
    async def run() -> str:
        with tempfile.TemporaryDirectory() as log_dir:
            engine = await start_engine(model, threads, log_dir)
            try:
                return await measure_agents(engine)
            finally:
                await engine.stop()

    return asyncio.run(run())


def measure_peer(model_path: Path, threads: int) -> Measurement:
    """``generate`` on the same rollouts, in this process."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).eval()
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


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round instead of three; ends within five minutes")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--model", type=Path, help=f"directory of the model; found by name without it ({BASE_MODEL})")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["peer"], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.model is None:
        from art_backend.base_models import find_base_model

        options.model = find_base_model(BASE_MODEL)
    model, threads = options.model, options.threads
    if options.side == "peer":
        print(json.dumps(asdict(measure_peer(model, threads))))
        return
    peer_arguments = ["--side", "peer", "--model", str(model), "--threads", str(threads)]
    results = alternate(
        {
            "ours": lambda: measure_ours(model, threads),
            PEER: lambda: Measurement(**measure_in_child("benchmarks.inference", peer_arguments, CPU_ENVIRONMENT)),
        },
        rounds=1 if options.quick else 3,
        describe=Measurement.describe,
    )
    ours, peer = results["ours"], results[PEER]
    console.print(f"short turns, {AGENTS} conversations: {measure_short_turns(model, threads)}")
    speeds = [m.tokens_per_s for m in ours], [m.tokens_per_s for m in peer]
    computed = [m.prefilled for m in ours], [m.prefilled for m in peer]
    rows = [
        compare("sampled tokens", *speeds, peer_name=PEER, unit="tokens/s", at_least=TARGET),
        compare("prompt tokens computed", *computed, peer_name=PEER, unit="tokens"),
    ]
    report(rows, options.json)


if __name__ == "__main__":
    main()
