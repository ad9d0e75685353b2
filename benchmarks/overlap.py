"""Time to ten trained steps when environments are slow: synchronous, with groups in flight over one and two versions, and TRL.

    python -m benchmarks.overlap [--quick] [--json PATH] [--model NAME] [--seeds N] [--steps N] [--groups N] [--members N]
    python -m benchmarks.overlap --report PATH    write docs/efficiency.md and its picture from what --json left

An agent takes 5 turns of at most 24 tokens; after each it waits for its environment. The waits are log-normal with a mean of one
second and a heavy tail (99th percentile 8 s), drawn from the seed, the scenario, the member and the turn, so that all ways of training
meet the same environments. A step takes 8 groups of 8. All is colocated: engine and trainer take turns on the same processor cores, and the engine is
paused while the trainer works. Rewards are the share of lower-case letters in what the model says, which a tiny random model learns in
a few steps.

Every run is ``art.train`` with a new model; ``max_staleness=0`` is the synchronous loop. Engine and trainer are started by a step that
changes nothing, before the clock. While a run goes on, ``/metrics`` is read a few times a second; that is what the picture shows. TRL
runs its own loop (``overlap_trl.py``), two steps of it, scaled. On two quiet cores everything takes about 24 minutes; each finished run
is written to --json at once.
"""

import argparse
import asyncio
import importlib.util
import json
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

import art
from benchmarks.harness import console, measure_in_child, report
from benchmarks.overlap_environment import ANSWER, LEARNING_RATE, MAX_TOKENS, TURNS, latency, letters, prompt, reward
from benchmarks.overlap_runs import (
    MODES,
    STATES,
    SYNCHRONOUS,
    TRL,
    Run,
    draw,
    judge,
    markdown,
    table,
    write_section,
)

POLL_S = 0.25
TESTED = 128
"""Rollouts that the last version is tested with."""
TRL_STEPS = 2
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class Load:
    """The size of a run."""

    steps: int = 10
    groups: int = 8
    members: int = 8
    latency_scale: float = 1.0


QUICK = Load(steps=4, groups=4, members=4, latency_scale=0.4)


async def train_once(backend: art.LocalBackend, directory: Path, mode: str, seed: int, base: str, load: Load) -> Run:
    """Train a new model in one way."""
    name = "".join(character if character.isalnum() else "-" for character in f"{mode}-{seed}")
    model = art.TrainableModel(
        name=name,
        project="overlap",
        base_model=base,
        base_path=str(directory),
        _internal_config={"peft_args": {"random_state": seed}},
    )
    await model.register(backend)
    await backend.train(model, [art.TrajectoryGroup([await say(model, f"warm {i}") for i in range(2)])])
    members: Counter[int] = Counter()

    async def rollout(model: Any, scenario: int) -> art.Trajectory:
        member = members[scenario]
        members[scenario] += 1
        return await play(model, seed, scenario, member, load.latency_scale)

    timeline: list[list[float]] = []
    started = time.monotonic()
    poller = asyncio.create_task(poll(backend, started, timeline))
    await art.train(
        model,
        rollout,
        list(range(load.steps * load.groups * 4)),
        groups_per_step=load.groups,
        group_size=load.members,
        max_staleness=MODES[mode],
        steps=1 + load.steps,
        learning_rate=LEARNING_RATE,
        handle_signals=False,
        show_progress=False,
    )
    seconds = time.monotonic() - started
    poller.cancel()
    await asyncio.wait({poller})
    tested = await asyncio.gather(*(play(model, seed, -1 - i, 0, 0.0) for i in range(TESTED)))
    rows = read_history(directory / f"overlap/models/{name}/history.jsonl")
    spent = {state: sum(row[f"time/step_engine_{state}_s"] for row in rows) for state in STATES}
    return Run(
        mode=mode,
        seed=seed,
        seconds=seconds,
        steps=load.steps,
        measured_steps=load.steps,
        first_reward=rows[0]["train/reward"],
        final_reward=statistics.fmean(trajectory.reward for trajectory in tested),
        shares={state: value / sum(spent.values()) for state, value in spent.items()},
        stale=sum(row["pipeline/stale_groups"] for row in rows),
        staleness=statistics.fmean(row["offpolicy/staleness_mean"] for row in rows),
        trainer_s=sum(row["time/step_trainer_s"] for row in rows),
        timeline=timeline,
    )


def read_history(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def poll(backend: art.RemoteBackend, started: float, timeline: list[list[float]]) -> None:
    """Read how the engine's time is spent, again and again, into ``timeline``."""
    control = await backend._control()
    last: dict[str, float] | None = None
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {control.api_key}"}) as http:
        while True:
            try:
                text = (await http.get(f"{control.url}/metrics", timeout=60)).text
            except httpx.TransportError as error:  # one point less in the picture
                console.print(f"a reading of /metrics failed: {error!r}")
                continue
            now = {
                sample.labels["state"]: sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == "art_engine_seconds_total"
            }
            if last is not None:
                timeline.append([time.monotonic() - started, *(now[state] - last[state] for state in STATES)])
            last = now
            await asyncio.sleep(POLL_S)


async def say(model: Any, text: str) -> art.Trajectory:
    async with model.rollout() as run:
        await run.openai_client().chat.completions.create(
            model=model.name, messages=[{"role": "user", "content": text}], max_tokens=1
        )
        return run.trajectory(reward=0.0)


async def play(model: Any, seed: int, scenario: int, member: int, latency_scale: float) -> art.Trajectory:
    """Five turns with a slow environment."""
    counted = 0
    async with model.rollout() as run:
        client = run.openai_client()
        messages: list[Any] = [{"role": "user", "content": prompt(scenario)}]
        for turn in range(TURNS):
            answer = await client.chat.completions.create(model=model.name, messages=messages, max_tokens=MAX_TOKENS)
            said = answer.choices[0].message.content or ""
            counted += letters(said)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": ANSWER}]
            await asyncio.sleep(latency_scale * latency(seed, scenario, member, turn))
        return run.trajectory(reward=reward(counted))


def run_trl(base: Path, load: Load) -> Run:
    """TRL's loop, in a process of its own."""
    steps = min(TRL_STEPS, load.steps)
    sizes = {"steps": steps, "groups": load.groups, "members": load.members, "latency-scale": load.latency_scale}
    arguments = [f"--{name}={value}" for name, value in sizes.items()]
    found = measure_in_child("benchmarks.overlap_trl", [f"--model={base}", "--seed=1", *arguments], {})
    seconds = statistics.fmean(found["seconds"]) * load.steps
    return Run(TRL, 1, seconds, load.steps, steps, first_reward=found["rewards"][0], final_reward=None, shares={})


async def measure(options: argparse.Namespace, load: Load, base: Path, results: "Results") -> None:
    """All runs, each way of training in turn, so that a change in the machine's load meets all of them."""
    with tempfile.TemporaryDirectory() as directory:
        async with art.LocalBackend(path=directory) as backend:
            for seed in range(1, options.seeds + 1):
                for mode in MODES:
                    results.add(await train_once(backend, Path(directory), mode, seed, str(base), load))


class Results:
    """Collects runs, and writes what is known by now after each."""

    def __init__(self, task: str, command: str, path: Path | None) -> None:
        self.task, self.command, self._path = task, command, path
        self.runs: list[Run] = []

    def add(self, run: Run) -> None:
        self.runs.append(run)
        console.print(f"{run.mode}, seed {run.seed}: {run.describe()}")
        rows = judge(self.runs) if any(run.mode == SYNCHRONOUS for run in self.runs) else []
        found = {"task": self.task, "command": self.command, "rows": [asdict(row) for row in rows]}
        if self._path is not None:
            self._path.write_text(json.dumps({**found, "runs": [asdict(run) for run in self.runs]}))


def show(runs: list[Run]) -> None:
    """Print the table and the verdicts."""
    heading, *lines = table(runs)
    shown = Table(*heading, title="means over the seeds, ± their standard deviation")
    for line in lines:
        shown.add_row(*line)
    Console(stderr=True, width=max(console.width, 150)).print(shown)
    report(judge(runs), None)


def write_report(path: Path) -> None:
    """Print a finished measurement, and put it into the docs."""
    found = json.loads(path.read_text())
    runs = [Run(**run) for run in found["runs"]]
    show(runs)
    draw(runs, DOCS / "images/efficiency.png")
    write_section(DOCS / "efficiency.md", markdown(runs, found["task"], "images/efficiency.png", found["command"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, smaller steps, shorter waits")
    parser.add_argument("--json", type=Path, help="write rows and runs here, after each run")
    parser.add_argument("--model", default="tiny", help="tiny (a random model), smollm2, or a Hugging Face directory")
    parser.add_argument("--seeds", type=int, help="default 3, with another model than tiny 1")
    parser.add_argument("--steps", type=int, default=Load.steps, help="trained steps of a run")
    parser.add_argument("--groups", type=int, default=Load.groups, help="groups of a step")
    parser.add_argument("--members", type=int, default=Load.members, help="rollouts of a group")
    parser.add_argument("--report", type=Path, metavar="PATH", help="measure nothing: write the docs from this JSON")
    options = parser.parse_args()
    if options.report is not None:
        write_report(options.report)
        return
    load = QUICK if options.quick else Load(options.steps, options.groups, options.members)
    options.seeds = options.seeds or (3 if options.model == "tiny" and not options.quick else 1)
    task = (
        f"Environments that take {load.latency_scale:g} s per turn on average, with a heavy tail (99th percentile "
        f"{8 * load.latency_scale:g} s); {TURNS} turns of at most {MAX_TOKENS} tokens, {load.steps} steps of "
        f"{load.groups} groups of {load.members}; model: "
        f"{'a tiny random one' if options.model == 'tiny' else options.model}; two processes, engine and trainer, on the same cores."
    )
    given = {"model": "tiny", "seeds": 3, "steps": 10, "groups": 8, "members": 8}
    changed = [f"--{name} {getattr(options, name)}" for name, usual in given.items() if getattr(options, name) != usual]
    command = " ".join(["python -m benchmarks.overlap", *changed, "--json overlap.json"])
    results = Results(task, f"{command}\npython -m benchmarks.overlap --report overlap.json", options.json)
    with tempfile.TemporaryDirectory() as directory:
        base = _find_model(options.model, Path(directory))
        if importlib.util.find_spec("trl") is None:
            console.print("TRL is left out: it is not installed. Install it: pip install 'art-trainer[trl]'")
        else:
            results.add(run_trl(base, load))
        asyncio.run(measure(options, load, base, results))
    show(results.runs)


def _find_model(name: str, directory: Path) -> Path:
    if name == "tiny":
        from tests.support.tiny import build_tiny_model

        return build_tiny_model(directory / "tiny")
    from art_backend.models.base import find_base_model

    return find_base_model(SMOLLM2 if name == "smollm2" else name)


if __name__ == "__main__":
    main()
