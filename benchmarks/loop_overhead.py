"""What ``art.train`` itself costs with 2,000 rollouts in flight, beside the same rollouts under bare asyncio tasks.

    python -m benchmarks.loop_overhead [--quick] [--json PATH]

Each rollout asks a scripted engine and waits for its environment, twice. The agents' HTTP client is not the loop: it works in a
process of its own, to which the measured one hands its calls over a pipe, and its cost is told apart. Compared is the processor time
of the measured process per rollout, so that the load of the machine does not count; the table gives it in cores, at the rate at which
the environments alone would let rollouts end. The first half of a generation is not counted; then one and a half generations are.
"""

import argparse
import asyncio
import itertools
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
ATTEMPTS = 3

ENGINE = """
import asyncio, sys
from tests.support.scripted_engine import ScriptedEngine

async def serve():
    async with ScriptedEngine(lambda text: []) as engine:
        print(engine.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)  # ends with the process that started it

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


async def carry() -> None:
    """The agents' HTTP client: for each line from standard input, a call to the engine whose URL came first; then the line is
    given back, with the processor seconds that this process has taken."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    # the engine closes connections that idle for five seconds, and a call must not meet a closing one
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=1.0)
    url = (await lines.readline()).decode().strip()
    sampling = {"max_tokens": 8, "stop_token_ids": [2], "logprobs": 0}
    body = {"model": "m", "token_ids": list(range(200)), "sampling_params": sampling, "stream": False}
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": "Bearer engine-key"}, limits=limits, timeout=None
    ) as http:

        async def call(line: bytes) -> None:
            for attempt in range(ATTEMPTS):
                try:
                    (await http.post("/inference/v1/generate", json=body)).raise_for_status()
                    break
                except httpx.TransportError:  # 2,000 connections at once: one or two break, and SDKs ask again
                    if attempt + 1 == ATTEMPTS:
                        raise
            sys.stdout.write(f"{line.decode().strip()} {time.process_time():.6f}\n")
            sys.stdout.flush()

        async with asyncio.TaskGroup() as calls:  # one that fails ends this process, and with it the measurement
            while line := await lines.readline():
                calls.create_task(call(line))


class Client:
    """The measured process's side of ``carry``: ``ask`` returns when the engine has answered."""

    def __init__(self, carrier: asyncio.subprocess.Process) -> None:
        self._carrier = carrier
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count()
        self.client_s = 0.0
        """Processor seconds of the HTTP client by now."""

    async def ask(self) -> None:
        assert self._carrier.stdin is not None
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._carrier.stdin.write(b"%d\n" % number)
        await answer

    async def listen(self) -> None:
        assert self._carrier.stdout is not None
        while line := await self._carrier.stdout.readline():
            number, client_s = line.split()
            self.client_s = float(client_s)
            if not (answer := self._waiting.pop(int(number))).done():
                answer.set_result(None)


class Rollouts:
    """Rollouts against an engine; counts them, and notes the processor times at two of them."""

    def __init__(self, client: Client, first: int, last: int) -> None:
        self._client, self._first, self._last = client, first, last
        self._done = 0
        self._draw = random.Random(7)
        self.marks: list[tuple[float, float]] = []
        """Processor seconds of this process and of the HTTP client."""
        self.finished = asyncio.Event()

    async def run(self, model: Any, scenario: int) -> art.Trajectory:
        for _ in range(TURNS):
            await self._client.ask()
            await asyncio.sleep(self._draw.uniform(0.5, 1.5) * WAIT_S)
        self._done += 1
        if self._done in (self._first, self._last):
            self.marks.append((time.process_time(), self._client.client_s))
        if self._done == self._last:
            self.finished.set()
        return art.Trajectory(reward=self._draw.random())


async def measure(in_flight: int, looped: bool) -> dict[str, float]:
    """Milliseconds of processor time per rollout, of this process and of the HTTP client."""
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENGINE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    carrier = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.loop_overhead", "--side", "client", "--in-flight", str(in_flight),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert engine.stdout is not None and carrier.stdin is not None
    carrier.stdin.write(await engine.stdout.readline())
    client = Client(carrier)
    rollouts = Rollouts(client, in_flight // 2, 2 * in_flight)
    listening = asyncio.create_task(client.listen())
    work = asyncio.create_task(run_looped(rollouts, in_flight) if looped else run_bare(rollouts, in_flight))
    finished = asyncio.create_task(rollouts.finished.wait())
    await asyncio.wait({work, finished, listening}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, finished, listening):
        task.cancel()
    outcome, *_ = await asyncio.gather(work, finished, listening, return_exceptions=True)
    for process in (carrier, engine):
        if process.returncode is None:
            process.terminate()
        await process.wait()
    if len(rollouts.marks) < 2:
        raise RuntimeError("The rollouts ended too early.") from outcome
    counted = 2 * in_flight - in_flight // 2
    own_ms, client_ms = (1000 * (end - start) / counted for start, end in zip(*rollouts.marks, strict=True))
    return {"own_ms": own_ms, "client_ms": client_ms}


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


def compare_overhead(in_flight: int, rounds: int) -> list[Row]:
    """What the loop adds to bare tasks, and what the agents' client costs beside it."""

    def side(name: str) -> dict[str, float]:
        arguments = ["--side", name, "--in-flight", str(in_flight)]
        return measure_in_child("benchmarks.loop_overhead", arguments, {})

    found = alternate(
        {"art.train": lambda: side("loop"), "bare tasks": lambda: side("bare")},
        rounds,
        lambda times: f"{times['own_ms']:.2f} ms, and {times['client_ms']:.2f} ms of the HTTP client",
    )
    rate = in_flight / (TURNS * WAIT_S) / 1000

    def cores(name: str, part: str) -> float:
        return rate * statistics.median(times[part] for times in found[name])

    loop = hold(
        f"the loop, {in_flight:,} rollouts in flight", cores("art.train", "own_ms"),
        unit="cores", at_most=OVERHEAD_CORES, more_than=("bare asyncio tasks", cores("bare tasks", "own_ms")),
    )  # fmt: skip
    client = Row(
        "for comparison: the agents' HTTP client", cores("art.train", "client_ms"), cores("bare tasks", "client_ms"),
        "bare asyncio tasks", "cores", None, "", True,
    )  # fmt: skip
    return [loop, client]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 in flight, one round")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--in-flight", type=int, default=2000, help="rollouts at a time")
    parser.add_argument("--side", choices=("bare", "loop", "client"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "client":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * options.in_flight)), hard))
        asyncio.run(carry())
    elif options.side:
        print(json.dumps(asyncio.run(measure(options.in_flight, options.side == "loop"))))
    else:
        in_flight, rounds = (500, 1) if options.quick else (options.in_flight, 2)
        report(compare_overhead(in_flight, rounds), options.json)


if __name__ == "__main__":
    main()
