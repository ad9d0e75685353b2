"""Time to ten trained steps when environments are slow: synchronous, and with groups in flight over one and two versions.

    python -m benchmarks.overlap [--quick] [--json PATH] [--model PATH] [--seeds N] [--groups N] [--members N] [--plot PATH]

An agent takes 5 turns; after each it waits for its environment. The waits are log-normal with a mean of one second and a heavy
tail (99th percentile about 8 s), drawn from the seed, the scenario, the member and the turn, so that all ways of training meet
the same environments. A step takes 8 groups of 8. Engine and trainer share the machine: the engine is paused while the trainer
works. Rewards are the share of lower-case letters in what the model says, which a tiny random model learns in a few steps.

Every run is ``art.train`` on a service of its own; ``max_staleness=0`` is the synchronous loop. The service and its trainer are
started by a step that changes nothing, before the clock. While a run goes on, its ``/metrics`` are read a few times a second;
that is what the plot shows.
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

import art
from benchmarks.harness import Row, compare, console, hold, report

TURNS, MAX_TOKENS = 5, 8
MEAN_S, P99_S = 1.0, 8.0
POLL_S = 0.25
LEARNING_RATE = 3e-3
TESTED = 128
"""Rollouts that the last version is tested with."""
MODES = {"synchronous": 0, "max_staleness 1": 1, "max_staleness 2": 2}
SPEEDUP, IDLE_SHARE = 2.2, 0.15
STATES = ("busy", "idle", "paused")


@dataclass(frozen=True)
class Load:
    """The size of a run."""

    steps: int = 10
    groups: int = 8
    members: int = 8
    latency_scale: float = 1.0


QUICK = Load(steps=4, groups=4, members=4, latency_scale=0.4)


def sigma() -> float:
    """Of the log-normal distribution with this mean and 99th percentile: ln p99 = ln mean − σ²/2 + 2.326 σ."""
    z = statistics.NormalDist().inv_cdf(0.99)
    return z - math.sqrt(z * z - 2 * math.log(P99_S / MEAN_S))


def latency(*key: int) -> float:
    """Seconds that an environment takes for one turn."""
    spread = sigma()
    return random.Random(str(key)).lognormvariate(math.log(MEAN_S) - spread**2 / 2, spread)


@dataclass
class Run:
    """One measured run."""

    mode: str
    seed: int
    seconds: float
    first_reward: float
    """Of the first step."""
    final_reward: float
    """Of the last version, on scenarios that it was not trained on, without waits."""
    shares: dict[str, float]
    stale: float
    staleness_mean: float
    trainer_s: float
    timeline: list[list[float]] = field(default_factory=list)
    """[seconds, busy, idle, paused] of each interval."""

    def describe(self) -> str:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in self.shares.items())
        return (
            f"{self.seconds:.0f} s, {shares}, reward {self.first_reward:.3f} → {self.final_reward:.3f}, "
            f"{self.stale:.0f} stale groups, mean age {self.staleness_mean:.2f}, trainer {self.trainer_s:.0f} s"
        )


async def train_once(mode: str, seed: int, base_model: Path, load: Load) -> Run:
    """Train with one way of overlapping; everything is thrown away afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        async with art.LocalBackend(path=directory) as backend:
            model = art.TrainableModel(
                name="agent",
                project="overlap",
                base_model=str(base_model),
                base_path=directory,
                _internal_config={"peft_args": {"random_state": seed}},
            )
            await model.register(backend)
            warm = art.TrajectoryGroup([await say(model, f"warm {i}", 0.0) for i in range(2)])
            await backend.train(model, [warm])
            members: Counter[int] = Counter()

            async def rollout(model: Any, scenario: int) -> art.Trajectory:
                member = members[scenario]
                members[scenario] += 1
                return await play(model, seed, scenario, member, load.latency_scale)

            started = time.monotonic()
            poller = asyncio.create_task(poll(backend, started))
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
            tested = await asyncio.gather(*(play(model, seed, -1 - i, 0, 0.0) for i in range(TESTED)))
            poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await poller
        rows = read_history(Path(directory, "overlap/models/agent/history.jsonl"))
    spent = {state: sum(row[f"time/step_engine_{state}_s"] for row in rows) for state in STATES}
    return Run(
        mode=mode,
        seed=seed,
        seconds=seconds,
        first_reward=rows[0]["train/reward"],
        final_reward=statistics.fmean(trajectory.reward for trajectory in tested),
        shares={state: value / sum(spent.values()) for state, value in spent.items()},
        stale=sum(row["pipeline/stale_groups"] for row in rows),
        staleness_mean=statistics.fmean(row["offpolicy/staleness_mean"] for row in rows),
        trainer_s=sum(row["time/step_trainer_s"] for row in rows),
        timeline=TIMELINE.copy(),
    )


def read_history(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


TIMELINE: list[list[float]] = []
"""Of the run in progress."""


async def poll(backend: art.RemoteBackend, started: float) -> None:
    """Read how the engine's time is spent, again and again."""
    TIMELINE.clear()
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
                TIMELINE.append([time.monotonic() - started, *(now[state] - last[state] for state in STATES)])
            last = now
            await asyncio.sleep(POLL_S)


async def say(model: Any, text: str, reward: float) -> art.Trajectory:
    async with model.rollout() as run:
        await run.openai_client().chat.completions.create(
            model=model.name, messages=[{"role": "user", "content": text}], max_tokens=1
        )
        return run.trajectory(reward=reward)


async def play(model: Any, seed: int, scenario: int, member: int, latency_scale: float) -> art.Trajectory:
    """Five turns with a slow environment."""
    letters = 0
    async with model.rollout() as run:
        client = run.openai_client()
        messages: list[Any] = [{"role": "user", "content": f"Say something ({scenario})."}]
        for turn in range(TURNS):
            answer = await client.chat.completions.create(model=model.name, messages=messages, max_tokens=MAX_TOKENS)
            said = answer.choices[0].message.content or ""
            letters += sum("a" <= character <= "z" for character in said)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And more?"}]
            await asyncio.sleep(latency_scale * latency(seed, scenario, member, turn))
        return run.trajectory(reward=letters / (TURNS * MAX_TOKENS))


# The report.


def draw(runs: list[Run], path: Path) -> None:
    """How the engine's time was spent in the first seed's runs, one band per way of training."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = {run.mode: run for run in reversed(runs)}
    figure = Figure(figsize=(11, 1.3 + 1.5 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    bands = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    colours = {"busy": "#16a34a", "idle": "#fca5a5", "paused": "#9ca3af"}
    labels = {"busy": "busy with calls", "idle": "idle: waiting for environments", "paused": "paused for training"}
    for axes, mode in zip(bands, [mode for mode in MODES if mode in shown], strict=True):
        run = shown[mode]
        rows = [row for row in run.timeline if row[0] <= run.seconds]
        times = [row[0] for row in rows]
        shares = [[row[1 + i] / max(sum(row[1:]), 1e-9) for row in rows] for i in range(3)]
        axes.stackplot(
            times, shares, colors=[colours[s] for s in STATES], labels=[labels[s] for s in STATES], step="pre"
        )
        text = ", ".join(f"{state} {100 * run.shares[state]:.0f} %" for state in STATES)
        axes.set_title(f"{mode}: {run.seconds:.0f} s; {text}", loc="left", fontsize=10)
        axes.set(ylim=(0, 1), yticks=[])
        axes.spines[["top", "right", "left"]].set_visible(False)
    bands[-1].set_xlabel("seconds")
    handles, names = bands[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def compare_runs(runs: list[Run]) -> list[Row]:
    """Medians over the seeds, against the synchronous loop."""
    by_mode = {mode: [run for run in runs if run.mode == mode] for mode in MODES}
    peers = by_mode["synchronous"]
    rows: list[Row] = []
    for mode in list(MODES)[1:]:
        ours = by_mode[mode]
        # A ratio of speeds, so that more is better.
        speed, peer_speed = ([1 / run.seconds for run in side] for side in (ours, peers))
        rows.append(
            compare(f"{mode}: speed", speed, peer_speed, peer_name="synchronous", unit="runs/s", at_least=SPEEDUP)
        )
        rewards, peer_rewards = ([run.final_reward for run in side] for side in (ours, peers))
        noise = 2 * max(statistics.pstdev(rewards), statistics.pstdev(peer_rewards), 0.02)
        row = compare(f"{mode}: final reward", rewards, peer_rewards, peer_name="synchronous", unit="")
        equal = statistics.median(rewards) >= statistics.median(peer_rewards) - noise
        rows.append(replace(row, target="equal within noise", ok=equal))
        idle = statistics.median(run.shares["idle"] for run in ours)
        rows.append(hold(f"{mode}: idle for environments", idle, unit="share", at_most=IDLE_SHARE))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, smaller steps, shorter waits")
    parser.add_argument("--json", type=Path, help="write the rows and runs here")
    parser.add_argument("--model", type=Path, help="a Hugging Face directory; without it, a tiny random model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=Load.groups, help="groups of a step")
    parser.add_argument("--members", type=int, default=Load.members, help="rollouts of a group")
    parser.add_argument("--plot", type=Path, help="write the utilisation picture here")
    options = parser.parse_args()
    load, seeds = (QUICK, 1) if options.quick else (Load(groups=options.groups, members=options.members), options.seeds)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as directory:
        base_model = options.model or _tiny_model(Path(directory))
        for seed in range(1, seeds + 1):
            for mode in MODES:
                runs.append(asyncio.run(train_once(mode, seed, base_model, load)))
                console.print(f"{mode}, seed {seed}: {runs[-1].describe()}")
                save([], runs, options.json)
    rows = compare_runs(runs)
    if options.plot is not None:
        draw(runs, options.plot)
    report(rows, None)
    save(rows, runs, options.json)


def save(rows: list[Row], runs: list[Run], path: Path | None) -> None:
    """Write what is known by now."""
    if path is not None:
        path.write_text(json.dumps({"rows": [asdict(row) for row in rows], "runs": [asdict(run) for run in runs]}))


def _tiny_model(directory: Path) -> Path:
    from tests.support.tiny import build_tiny_model

    return build_tiny_model(directory / "tiny")


if __name__ == "__main__":
    main()
