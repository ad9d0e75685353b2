"""What ``art.train`` itself costs with 2,000 rollouts in flight, beside the same rollouts under bare asyncio tasks.

    python -m benchmarks.loop_overhead [--quick] [--json PATH]

Each rollout asks a scripted engine, in a process of its own, and waits for its environment, twice. Compared is the processor time
of this process per rollout, so that the load of the machine does not count; the table gives it in cores, at the rate at which the
environments alone would let rollouts end. The first half of a generation is not counted; then one and a half generations are.
"""

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

import art
from art.types import TrainResult
from benchmarks.harness import Row, alternate, hold, measure_in_child, report

TURNS, WAIT_S, GROUP_SIZE = 2, 8.0, 8
OVERHEAD_CORES = 0.10

ENGINE = """
import asyncio
from tests.support.scripted_engine import ScriptedEngine

async def serve():
    async with ScriptedEngine(lambda text: []) as engine:
        print(engine.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(serve())
"""


class Sleeper:
    """A backend whose steps take a second and do nothing."""

    def __init__(self) -> None:
        self.step = 0

    async def register(self, model: Any) -> None: ...

    async def _prepare_backend_for_training(self, model: Any, config: Any = None) -> tuple[str, str]:
        return "http://127.0.0.1:9/v1", "none"

    async def _get_step(self, model: Any) -> int:
        return self.step

    async def train(self, model: Any, groups: Any, **options: Any) -> TrainResult:
        await asyncio.sleep(1)
        self.step += 1
        return TrainResult(self.step)


class Rollouts:
    """Rollouts against an engine; counts them, and notes the processor time at two of them."""

    def __init__(self, http: httpx.AsyncClient, first: int, last: int) -> None:
        self._http, self._first, self._last = http, first, last
        self._done = 0
        self._draw = random.Random(7)
        self.marks: list[float] = []
        self.finished = asyncio.Event()

    async def run(self, model: Any, scenario: int) -> art.Trajectory:
        sampling = {"max_tokens": 8, "stop_token_ids": [2], "logprobs": 0}
        body = {"model": "m", "token_ids": list(range(200)), "sampling_params": sampling, "stream": False}
        for _ in range(TURNS):
            (await self._http.post("/inference/v1/generate", json=body)).raise_for_status()
            await asyncio.sleep(self._draw.uniform(0.5, 1.5) * WAIT_S)
        self._done += 1
        if self._done in (self._first, self._last):
            self.marks.append(time.process_time())
        if self._done == self._last:
            self.finished.set()
        return art.Trajectory(reward=self._draw.random())


async def measure(in_flight: int, looped: bool) -> float:
    """Milliseconds of processor time per rollout."""
    engine = await asyncio.create_subprocess_exec(sys.executable, "-c", ENGINE, stdout=asyncio.subprocess.PIPE)
    assert engine.stdout is not None
    url = (await engine.stdout.readline()).decode().strip()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": "Bearer engine-key"}, limits=limits, timeout=None
    ) as http:
        rollouts = Rollouts(http, in_flight // 2, 2 * in_flight)
        work = asyncio.create_task(run_looped(rollouts, in_flight) if looped else run_bare(rollouts, in_flight))
        finished = asyncio.create_task(rollouts.finished.wait())
        await asyncio.wait({work, finished}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, finished):
            task.cancel()
        outcome, _ = await asyncio.gather(work, finished, return_exceptions=True)
    engine.terminate()
    await engine.wait()
    if len(rollouts.marks) < 2:
        raise RuntimeError("The rollouts ended too early.") from outcome
    return 1000 * (rollouts.marks[1] - rollouts.marks[0]) / (2 * in_flight - in_flight // 2)


async def run_bare(rollouts: Rollouts, in_flight: int) -> None:
    async def keep_busy(number: int) -> None:
        while True:
            await asyncio.gather(*(rollouts.run(None, number) for _ in range(GROUP_SIZE)))

    await asyncio.gather(*(keep_busy(number) for number in range(in_flight // GROUP_SIZE)))


async def run_looped(rollouts: Rollouts, in_flight: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = art.TrainableModel(name="m", project="scale", base_model="none", base_path=directory)
        await model.register(Sleeper())  # type: ignore[arg-type]
        await art.train(
            model,
            rollouts.run,
            range(in_flight),
            groups_per_step=in_flight // GROUP_SIZE // 2,
            group_size=GROUP_SIZE,
            max_staleness=1,
            rollout_timeout_s=600,
            handle_signals=False,
            show_progress=False,
        )


def compare_overhead(in_flight: int, rounds: int) -> Row:
    """What the loop adds to bare tasks."""

    def side(name: str) -> float:
        arguments = ["--side", name, "--in-flight", str(in_flight)]
        return measure_in_child("benchmarks.loop_overhead", arguments, {})["ms_per_rollout"]

    found = alternate(
        {"art.train": lambda: side("loop"), "bare tasks": lambda: side("bare")}, rounds, lambda ms: f"{ms:.2f} ms"
    )
    rate = in_flight / (TURNS * WAIT_S) / 1000
    ours, bare = (statistics.median(found[name]) * rate for name in ("art.train", "bare tasks"))
    name = f"{in_flight:,} rollouts in flight"
    return hold(name, ours, unit="cores", at_most=OVERHEAD_CORES, more_than=("bare asyncio tasks", bare))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 in flight, one round")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--in-flight", type=int, default=2000, help="rollouts at a time")
    parser.add_argument("--side", choices=("bare", "loop"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * options.in_flight)), hard))
        print(json.dumps({"ms_per_rollout": asyncio.run(measure(options.in_flight, options.side == "loop"))}))
        return
    in_flight, rounds = (500, 1) if options.quick else (options.in_flight, 2)
    report([compare_overhead(in_flight, rounds)], options.json)


if __name__ == "__main__":
    main()
