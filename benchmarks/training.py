"""One training step: ours and TRL's ``GRPOTrainer`` on the same captured batch.

    python -m benchmarks.training [--quick] [--json PATH] [--model PATH] [--batch agent|branching|plain]

Every measurement is a process of its own, which loads the model, takes one step to warm up and one that is timed, and reports
its peak memory. Sides alternate (ours, TRL, ours, TRL …), so that a change in the machine's load meets both. Ours includes all
that a step does: packing, canaries, the checkpoint. TRL is fed the same rows through ``rollout_func`` with ``env_mask``,
one row per micro-batch, without gradient checkpointing (which would save it memory and cost it time). A micro-batch of its
being one row, its warm-up has the two longest rows whole, and the others cut short: that shows it every shape, in less time.

Both sides compute in the type that the processor multiplies fastest: bfloat16 where it does so natively, else float32.

The table also has, for each batch, which share of the machine's matrix rate in that type the useful arithmetic of our step reached,
and which share of the step's processor time each kind of work took. On two cores of one's own, all three batches take about
20 minutes, the branching one 8.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from art.wire import LoraSpec, TokenRow, TrainOptions
from benchmarks.harness import Row, alternate, console, describe_machine, measure_in_child, report
from benchmarks.harness import compare as compare_sides

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
VOCABULARY = 49_000
LEARNING_RATE = 1e-5
PEER = "TRL GRPOTrainer"


@dataclass(frozen=True)
class Target:
    """What a batch has to reach, as ours against TRL's."""

    speed: float
    memory: float | None = None


TARGETS = {"agent": Target(3.0, 0.5), "branching": Target(4.0), "plain": Target(1.2)}


# Batches: lists of trajectories, each a list of rows.


def make_batch(name: str, quick: bool) -> list[list[TokenRow]]:
    """The rows of one group.

    ``agent``: 8 trajectories share a 1,500-token prompt; 6 turns of 24 sampled and 60 observed tokens. ``branching``: each
    trajectory also has 3 sub-agents that branch off after its second turn. ``plain``: nothing is shared.
    """
    draw = random.Random(7)

    def tokens(n: int) -> list[int]:
        return [draw.randrange(10, VOCABULARY) for _ in range(n)]

    def turns(n: int) -> list[tuple[list[int], bool]]:
        return [part for _ in range(n) for part in ((tokens(24), True), (tokens(60), False))]

    prompt = tokens(1_500)
    match name:
        case "agent":
            members = 3 if quick else 8
            return [[_row([(prompt, False), *turns(6)])] for _ in range(members)]
        case "branching":
            batch: list[list[TokenRow]] = []
            for _ in range(2 if quick else 4):
                stem = turns(2)
                seen = [(part, False) for part, _ in stem]  # trained in the main row, context in the branches
                branches = [_row([(prompt, False), *seen, *turns(2)]) for _ in range(3)]
                batch.append([_row([(prompt, False), *stem, *turns(4)]), *branches])
            return batch
        case _:
            return [[_row([(tokens(200), False), (tokens(300), True)])] for _ in range(6 if quick else 16)]


def _row(parts: list[tuple[list[int], bool]]) -> TokenRow:
    ids = [token for part, _ in parts for token in part]
    sampled = [flag for part, flag in parts for _ in part]
    return TokenRow(
        token_ids=ids,
        sampled=sampled,
        logprobs=[-10.0 if flag else 0.0 for flag in sampled],
        policy_versions=[0 if flag else -1 for flag in sampled],
        temperature=1.0,
    )


# One measurement, in a process of its own.


@dataclass
class Measurement:
    seconds: float
    cpu_seconds: float
    """Processor time of all threads: what ``seconds`` would be about, times the threads, on a machine of one's own."""
    peak_mb: float
    matrix_share: float | None = None
    """Part of the machine's matrix rate in the compute type that the useful arithmetic reached."""
    breakdown: dict[str, float] | None = None
    """Share of the step's processor time, by kind of work."""

    def describe(self) -> str:
        return f"{self.seconds:.1f} s, {self.cpu_seconds:.1f} s of processor time, {self.peak_mb:.0f} MB"


def measure_ours(batch: list[list[TokenRow]], model: Path, threads: int, profile: bool) -> Measurement:
    import torch

    from art_backend.training.metrics import peak_memory_bytes
    from art_backend.training.trainer import Trainer
    from art_backend.training.types import ModelSetup, ScoredTrajectory, StepInput

    torch.set_num_threads(threads)
    group = [ScoredTrajectory(float(i % 2), rows) for i, rows in enumerate(batch)]
    options = TrainOptions(learning_rate=LEARNING_RATE)
    with tempfile.TemporaryDirectory() as directory:
        setup = ModelSetup(model, LoraSpec(), 8_192, Path(directory) / "checkpoints")
        trainer = Trainer(setup)
        trainer.train(StepInput([group], options, 1))
        started, cpu = time.perf_counter(), time.process_time()
        output = trainer.train(StepInput([group], options, 2))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        peak = peak_memory_bytes() / 2**20
        if not profile:
            return Measurement(seconds, cpu, peak)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            trainer.train(StepInput([group], options, 3))
        events = [(event.key, float(event.self_cpu_time_total)) for event in profiler.key_averages()]
    useful = useful_flops(model, output.metrics["data/step_packed_tokens"], output.metrics["data/step_trainer_tokens"])
    return Measurement(seconds, cpu, peak, useful / seconds / matrix_rate(), break_down(events))


def useful_flops(model: Path, packed_tokens: float, trained_tokens: float) -> float:
    """Arithmetic that a step cannot do without, leaving out attention: forward, and backward for the inputs alone."""
    config = json.loads((model / "config.json").read_text())
    hidden, width = config["hidden_size"], config["intermediate_size"]
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    layer = hidden * hidden * (2 + 2 * key_heads / heads) + 3 * hidden * width
    return 4 * (packed_tokens * config["num_hidden_layers"] * layer + trained_tokens * hidden * config["vocab_size"])


def matrix_rate() -> float:
    """Floating-point operations per second of a large product in the compute type on this machine, now."""
    import torch

    from art_backend.models.compute import choose_dtype

    dtype = choose_dtype("auto", torch.device("cpu"))
    a, b = (torch.randn(2_048, 2_048).to(dtype) for _ in range(2))
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * 2_048**3 / (time.perf_counter() - started))
    return best


_KINDS = {
    "linear layers": ("aten::mm", "aten::addmm_", "aten::addmm", "aten::linear"),
    "attention products": ("aten::bmm", "aten::baddbmm", "aten::baddbmm_"),
    "softmax": ("aten::_softmax", "aten::logsumexp", "aten::exp_"),
    "copies and conversions": ("aten::copy_", "aten::index_select", "aten::index_add_", "aten::cat", "aten::fill_"),
    "elementwise": (
        "aten::mul",
        "aten::mul_",
        "aten::add",
        "aten::add_",
        "aten::sub_",
        "aten::silu",
        "aten::silu_backward",
    ),
    "optimiser": ("aten::_fused_adamw_",),
}


def break_down(events: list[tuple[str, float]]) -> dict[str, float]:
    total = sum(spent for _, spent in events)
    shares = {kind: sum(s for key, s in events if key in keys) / total for kind, keys in _KINDS.items()}
    return {**shares, "rest": 1 - sum(shares.values())}


def measure_trl(batch: list[list[TokenRow]], model: Path, threads: int, output_dir: Path) -> Measurement:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from art_backend.models.compute import choose_device, choose_dtype
    from art_backend.training.metrics import peak_memory_bytes

    torch.set_num_threads(threads)
    dtype = choose_dtype("auto", choose_device())
    rows = [(float(i % 2), row) for i, member in enumerate(batch) for row in member]
    steps = iter([shorten_all_but_two(rows), rows])

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        cut = [((reward, row), row.sampled.index(True)) for reward, row in next(steps)]
        return {
            "prompt_ids": [row.token_ids[:s] for (_, row), s in cut],
            "completion_ids": [row.token_ids[s:] for (_, row), s in cut],
            "logprobs": [(row.logprobs or [])[s:] for (_, row), s in cut],
            "env_mask": [[int(flag) for flag in row.sampled[s:]] for (_, row), s in cut],
            "outcome": [reward for reward, _ in rows],
        }

    def score(outcome: list[float | None], **_: Any) -> list[float | None]:
        return outcome

    class Clock(TrainerCallback):
        started = cpu_started = seconds = cpu_seconds = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started, self.cpu_started = time.perf_counter(), time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds = time.perf_counter() - self.started
            self.cpu_seconds = time.process_time() - self.cpu_started

    clock = Clock()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=dtype),
        reward_funcs=score,
        args=GRPOConfig(
            output_dir=str(output_dir),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=len(rows),
            num_generations=len(rows),
            max_steps=2,
            max_completion_length=8_192,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            loss_type="dapo",
            beta=0.0,
            gradient_checkpointing=False,
            use_cpu=not torch.cuda.is_available(),
            bf16=dtype == torch.bfloat16,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": "unused"}] * 2),
        processing_class=AutoTokenizer.from_pretrained(model),
        rollout_func=rollout,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[clock],
    )
    trainer.train()
    return Measurement(clock.seconds, clock.cpu_seconds, peak_memory_bytes() / 2**20)


def shorten_all_but_two(rows: list[tuple[float, TokenRow]]) -> list[tuple[float, TokenRow]]:
    """The two longest rows as they are, and 32 tokens of each other one."""
    whole = sorted(range(len(rows)), key=lambda i: -len(rows[i][1].token_ids))[:2]
    return [
        (reward, row if i in whole else _row([(row.token_ids[:8], False), (row.token_ids[8:32], True)]))
        for i, (reward, row) in enumerate(rows)
    ]


# The comparison.


SHARES = {"bfloat16": {"ours": 0.22, "trl": 0.12}, "float32": {"ours": 0.29, "trl": 0.38}}
"""Parts of the matrix rate that were seen by compute type, for an estimate of how long the benchmark takes."""


def estimate_seconds(names: list[str], model: Path, quick: bool, rounds: int, rate: float) -> float:
    """Estimate how long the measurements take on a machine of this matrix rate: our steps (to warm up, timed, and once
    profiled) over packed tokens, and TRL's (to warm up on two rows, and timed) over whole rows."""
    import torch

    from art_backend.models.compute import choose_dtype
    from art_backend.training.rows.batch import training_row
    from art_backend.training.rows.packing import pack_rows
    from art_backend.training.trainer import MICRO_BATCH_TOKENS

    shares = SHARES[str(choose_dtype("auto", torch.device("cpu"))).removeprefix("torch.")]
    seconds = 0.0
    for name in names:
        batch = make_batch(name, quick)
        rows = [row for member in batch for row in member]
        packed = sum(
            pack.size for pack in pack_rows([training_row(row, 1.0, None) for row in rows], MICRO_BATCH_TOKENS["cpu"])
        )
        whole, two = sum(len(row.token_ids) for row in rows), 2 * max(len(row.token_ids) for row in rows)
        trained = sum(sum(row.sampled) for row in rows)
        seconds += (2 * rounds + 1) * useful_flops(model, packed, trained) / rate / shares["ours"]
        seconds += rounds * useful_flops(model, whole + two, whole + two) / rate / shares["trl"]
    return seconds


def run_child(side: str, batch: str, model: Path, threads: int, quick: bool, profile: bool) -> Measurement:
    from art_backend.training.process import CPU_ENVIRONMENT

    arguments = ["--side", side, "--batch", batch, "--model", str(model), "--threads", str(threads)]
    arguments += ["--quick"] * quick + ["--profile"] * profile
    return Measurement(**measure_in_child("benchmarks.training", arguments, CPU_ENVIRONMENT))


def compare(name: str, model: Path, threads: int, quick: bool, rounds: int) -> list[Row]:
    """Measure one batch, and hold it against its targets."""
    profiles = iter([True])  # the first measurement of ours also tells where its time goes

    def measure(side: str) -> Measurement:
        return run_child(side, name, model, threads, quick, profile=side == "ours" and next(profiles, False))

    sides = {f"{name}, {side}": partial(measure, side) for side in ("ours", "trl")}
    ours, peer = alternate(sides, rounds, Measurement.describe).values()
    return make_rows(name, len(make_batch(name, quick)), ours, peer)


def make_rows(name: str, members: int, ours: list[Measurement], peer: list[Measurement]) -> list[Row]:
    """The rows of one batch: the comparison, then our share of the matrix rate and where the rest of the time goes."""
    target = TARGETS[name]
    speed, peer_speed = ([members / m.seconds for m in side] for side in (ours, peer))
    rows = [
        compare_sides(f"{name}: speed", speed, peer_speed, peer_name=PEER, unit="trajectories/s", at_least=target.speed)
    ]
    memory, peer_memory = ([m.peak_mb for m in side] for side in (ours, peer))
    rows.append(
        compare_sides(f"{name}: peak memory", memory, peer_memory, peer_name=PEER, unit="MB", at_most=target.memory)
    )
    shares = [m.matrix_share for m in ours if m.matrix_share is not None]
    rows.append(_own(f"{name}: of the matrix rate", statistics.median(shares)))
    for breakdown in (m.breakdown for m in ours if m.breakdown is not None):
        rows += [_own(f"{name}: time in {kind}", share) for kind, share in breakdown.items()]
    return rows


def _own(name: str, share: float) -> Row:
    """A share that nothing is compared with."""
    return Row(name, share, None, "", "share", None, "", True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="smaller batches, one round; begins by saying how long it takes"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--model", type=Path, help=f"directory of the model; found by name without it ({BASE_MODEL})")
    parser.add_argument("--batch", choices=list(TARGETS), help="this batch alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["ours", "trl"], help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        batch = make_batch(options.batch, options.quick)
        if options.side == "ours":
            result = measure_ours(batch, options.model, options.threads, options.profile)
        else:
            with tempfile.TemporaryDirectory() as directory:
                result = measure_trl(batch, options.model, options.threads, Path(directory))
        print(json.dumps(asdict(result)))
        return
    if find_spec("trl") is None:
        sys.exit(
            "TRL is not installed, so there is nothing to compare with. Install it: pip install 'art-trainer[trl]'"
        )
    if options.model is None:
        from art_backend.models.base import find_base_model

        options.model = find_base_model(BASE_MODEL)
    names, rounds = [options.batch] if options.batch else list(TARGETS), 1 if options.quick else 3
    rate = matrix_rate()
    expected = estimate_seconds(names, options.model, options.quick, rounds, rate)
    console.print(
        f"{describe_machine()}: {rate / 1e9:,.0f} GFLOP/s. This takes about {max(expected / 60, 1):.0f} minutes."
    )
    rows: list[Row] = []
    for name in names:
        rows += compare(name, options.model, options.threads, options.quick, rounds)
    report(rows, options.json)


if __name__ == "__main__":
    main()
