"""What the gateway costs: added latency, requests per second beside the litellm proxy, a thousand rollouts at once.

    python -m benchmarks.gateway [--quick] [--json PATH] [--litellm DIR] [--litellm-processes N …] [--only latency|throughput|rollouts]

The service is started as always, with its database on disk, but with an engine that speaks by script in a process of its
own. Client, gateway, engine and peer share the same two cores. Every call is captured.

- *latency*: 32 conversations at a time, completions of 16 to 48 tokens that take 10 ms per token, the same client against
  the gateway and against the engine's own chat endpoint. What the script takes is subtracted from each request.
- *throughput*: 32 conversations of 6 turns at a time, an engine that answers at once, the same client against the gateway
  and the litellm proxy, which passes the call to the same engine and captures nothing: one process of it, as it comes, and
  one per core, between which the conversations are divided. Client and engine take their share of the cores from both, so
  the processor time of each is counted too.
- *rollouts*: 1,000 streaming rollouts of 20 turns, all at once. The service's memory is read while tokens are added.

The peer lives in an environment of its own, made by ``make bench-gateway``.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from benchmarks.gateway_service import ENGINE_FILE, free_port
from benchmarks.harness import Row, alternate, compare, console, hold, measure_in_child, report
from benchmarks.load import Load
from benchmarks.scripted_engine import MODEL

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
CORES = 2
START_S = 120.0
AT_ONCE = 32
SPOKEN_MS = 10.0
"""What the engine takes per token where latency is measured."""
LATENCY_TURNS, THROUGHPUT_ROLLOUTS, THROUGHPUT_TURNS = 20, 200, 6
ROLLOUTS, ROLLOUT_TURNS = 1000, 20

T = TypeVar("T")
Side = tuple[list[str], str, list[str]]
"""URLs, model and keys, one for each conversation."""


@dataclass
class Bench:
    """A running service, and where its engine is."""

    directory: Path
    url: str
    pid: int
    control: httpx.Client
    engine: httpx.Client

    def script(self, shortest: int, longest: int, token_ms: float) -> None:
        body = {"shortest": shortest, "longest": longest, "token_ms": token_ms}
        self.engine.post("/script", json=body).raise_for_status()

    def rollouts(self, count: int) -> list[str]:
        """Make rollouts; return their keys."""
        keys: list[str] = []
        for _ in range(count):
            answer = self.control.post("/api/v1/rollouts", json={"project": "bench", "model": "m"})
            keys.append(answer.raise_for_status().json()["api_key"])
        return keys

    def ours(self, conversations: int) -> Side:
        return [f"{self.url}/v1"], "m", self.rollouts(conversations)

    def direct(self, conversations: int) -> Side:
        return [f"{self.engine.base_url}/v1"], MODEL, [self.engine_key] * conversations

    @property
    def engine_key(self) -> str:
        return json.loads((self.directory / ENGINE_FILE).read_text())["api_key"]

    def load_arguments(self, side: Side, concurrency: int, turns: int) -> list[str]:
        urls, model, keys = side
        (self.directory / "keys.json").write_text(json.dumps(keys))
        arguments = ["--url", *urls, "--model", model, "--keys", str(self.directory / "keys.json")]
        return [*arguments, "--concurrency", str(concurrency), "--turns", str(turns)]

    def drive(self, side: Side, turns: int) -> Load:
        load = Load(**measure_in_child("benchmarks.load", self.load_arguments(side, AT_ONCE, turns), {}))
        if load.failures:
            sys.exit(f"{len(load.failures)} conversations failed, the first: {load.failures[0]}")
        return load


@dataclass(frozen=True)
class Served:
    """A load, and the processor seconds that the gateway or proxy took for it; other work does not change those much."""

    load: Load
    cpu_s: float

    @property
    def speed(self) -> float:
        """Requests per second."""
        return len(self.load.latencies_ms) / self.load.seconds

    @property
    def thrift(self) -> float:
        """Requests per second of one core's time."""
        return len(self.load.latencies_ms) / self.cpu_s


def cpu_s(pids: Sequence[int]) -> float:
    """Processor seconds that processes and their children have taken so far."""
    processes = [one for pid in pids for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
    return sum(times.user + times.system for times in (one.cpu_times() for one in processes))


def wait_for(what: str, look: Callable[[], T | None], process: "subprocess.Popen[Any]", log: Path) -> T:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if (found := look()) is not None:
                return found
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit(f"{what} did not start:\n{log.read_text()[-4000:]}")


@contextlib.contextmanager
def child(command: Sequence[str], log: Path, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process; end it, and all that it started, by its id."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def service(directory: Path) -> Iterator[Bench]:
    ready, log = directory / "ready.json", directory / "service.log"
    command = [sys.executable, "-m", "benchmarks.gateway_service", "--path", str(directory), "--ready-file", str(ready)]
    with child(command, log) as process:
        where = wait_for("the service", lambda: json.loads(ready.read_text()) if ready.exists() else None, process, log)
        headers = {"Authorization": f"Bearer {where['api_key']}"}
        with httpx.Client(base_url=where["url"], headers=headers, timeout=60) as control:
            spec = {"project": "bench", "name": "m", "base_model": BASE_MODEL}
            control.post("/api/v1/models", json=spec).raise_for_status()
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            control.post("/v1/chat/completions", json=body).raise_for_status()
            engine_at = json.loads((directory / ENGINE_FILE).read_text())
            headers = {"Authorization": f"Bearer {engine_at['api_key']}"}
            with httpx.Client(base_url=engine_at["url"], headers=headers) as engine:
                yield Bench(directory, where["url"], where["pid"], control, engine)


def measure_latency(bench: Bench, rounds: int) -> list[Row]:
    bench.script(16, 48, SPOKEN_MS)
    loads = alternate(
        {
            "gateway": lambda: bench.drive(bench.ours(AT_ONCE), LATENCY_TURNS),
            "engine alone": lambda: bench.drive(bench.direct(AT_ONCE), LATENCY_TURNS),
        },
        rounds,
        lambda load: "p50 {:.2f} ms, p99 {:.2f} ms beside the script".format(*_percentiles([load])),
    )
    ours, direct = _percentiles(loads["gateway"]), _percentiles(loads["engine alone"])
    name = "latency beside the script, "
    return [
        hold(f"{name}p50", ours[0], unit="ms", at_most=3, more_than=("engine alone", direct[0])),
        hold(f"{name}p99", ours[1], unit="ms", at_most=15, more_than=("engine alone", direct[1])),
    ]


def _percentiles(loads: Sequence[Load]) -> tuple[float, float]:
    """p50 and p99 of what requests took beyond the engine's script, in ms."""
    beside = [
        latency - sampled * SPOKEN_MS
        for load in loads
        for latency, sampled in zip(load.latencies_ms, load.sampled, strict=True)
    ]
    hundredths = statistics.quantiles(beside, n=100)
    return hundredths[49], hundredths[98]


@dataclass(frozen=True)
class Proxy:
    url: str
    pid: int


@contextlib.contextmanager
def litellm_proxy(bench: Bench, environment: Path) -> Iterator[Proxy]:
    """A litellm proxy, of one process, in front of the engine."""
    command = environment / "bin" / "litellm"
    if not command.exists():
        sys.exit(f"No litellm in {environment}. Install it with: make bench-gateway")
    route = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{bench.engine.base_url}/v1", "api_key": bench.engine_key}
    port = free_port()
    config, log = bench.directory / "litellm.json", bench.directory / f"litellm-{port}.log"
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": route}]}))
    argv = [str(command), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PYTHONPATH": ""}
    url = f"http://127.0.0.1:{port}"
    with child(argv, log, **quiet) as process:
        wait_for("the litellm proxy", lambda: httpx.get(f"{url}/health/liveliness").is_success or None, process, log)
        yield Proxy(f"{url}/v1", process.pid)


def measure_throughput(bench: Bench, rounds: int, litellm: Path, processes: Sequence[int]) -> list[Row]:
    bench.script(16, 16, 0)
    with contextlib.ExitStack() as started:
        proxies = [started.enter_context(litellm_proxy(bench, litellm)) for _ in range(max(processes))]
        peers = {
            f"litellm proxy, {number} process{'es' if number > 1 else ''}": proxies[:number] for number in processes
        }

        def ask_ours(conversations: int, turns: int) -> Served:
            return count(bench.ours(conversations), turns, [bench.pid])

        def ask(some: Sequence[Proxy], conversations: int, turns: int) -> Served:
            side = [proxy.url for proxy in some], "m", ["unused"] * conversations
            return count(side, turns, [proxy.pid for proxy in some])

        def count(side: Side, turns: int, pids: Sequence[int]) -> Served:
            before = cpu_s(pids)
            load = bench.drive(side, turns)
            return Served(load, cpu_s(pids) - before)

        sides = {"gateway": ask_ours} | {name: partial(ask, some) for name, some in peers.items()}
        for side in sides.values():  # warm up
            side(AT_ONCE, 2)
        served = alternate(
            {name: partial(side, THROUGHPUT_ROLLOUTS, THROUGHPUT_TURNS) for name, side in sides.items()},
            rounds,
            lambda one: f"{one.speed:.0f} requests/s, {1000 / one.thrift:.2f} ms of processor time each",
        )
    ours = served["gateway"]
    rows = [
        compare(
            f"requests, beside {name}",
            [one.speed for one in ours],
            [one.speed for one in served[name]],
            peer_name=name,
            unit="requests/s",
            at_least=5 if number == 1 else None,  # one process beside one process
        )
        for number, name in zip(processes, peers, strict=True)
    ]
    name = list(peers)[-1]
    thrift = [one.thrift for one in ours], [one.thrift for one in served[name]]
    rows.append(compare("requests per core's second", *thrift, peer_name=name, unit="requests/s"))
    return rows


def measure_rollouts(bench: Bench) -> list[Row]:
    bench.script(8, 24, 5)
    arguments = bench.load_arguments(bench.ours(ROLLOUTS), ROLLOUTS, ROLLOUT_TURNS)
    command = [sys.executable, "-m", "benchmarks.load", *arguments, "--stream", "--progress"]
    gateway = psutil.Process(bench.pid)
    added, samples, turns, last = 0, list[tuple[int, int]](), 0, ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line
            if not line.startswith("{"):
                added += int(line)
                turns += 1
                if turns % (ROLLOUTS // 4) == 0 and turns >= 2 * ROLLOUTS:  # connections and caches are there by then
                    samples.append((added, gateway.memory_info().rss))
    if process.returncode:
        sys.exit("the load failed")
    load = Load(**json.loads(last))
    tokens, memory = zip(*samples, strict=True)
    slope, start = statistics.linear_regression(tokens, memory)
    fit = statistics.correlation(tokens, memory) ** 2
    half = len(samples) // 2
    early, late = (
        statistics.linear_regression(t, m).slope for t, m in (_split(samples[:half]), _split(samples[half:]))
    )
    console.print(
        f"{turns} turns in {load.seconds:.0f} s, {added} tokens added; memory = {start / 2**20:.0f} MiB + "
        f"{slope:.0f} bytes x tokens added, R² {fit:.4f}; second half {late / early:.2f} times as steep as the first; "
        f"p50 {statistics.median(load.latencies_ms):.0f} ms a turn"
    )
    for failure in load.failures[:3]:
        console.print(f"failed: {failure}")
    return [
        hold("rollouts failed, of 1,000 at once", len(load.failures), unit="rollouts", at_most=0),
        hold("memory per added token", slope, unit="bytes", at_most=1000),
        hold("memory, later slope by earlier", late / early, unit="×", at_most=1.3),
    ]


def _split(samples: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    tokens, memory = zip(*samples, strict=True)
    return tokens, memory


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round instead of three; ends within five minutes")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--litellm", type=Path, default=Path(".venv-litellm"), help="environment of the peer")
    parser.add_argument(
        "--litellm-processes",
        type=int,
        nargs="+",
        default=[1, CORES],
        help="of the peer; each number is measured, conversations taking turns",
    )
    parser.add_argument("--only", choices=["latency", "throughput", "rollouts"], help="measure one thing")
    parser.add_argument("--keep", type=Path, help="keep the service's directory, with its log, here")
    options = parser.parse_args(argv)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    rounds = 1 if options.quick else 3
    directory = Path(tempfile.mkdtemp(prefix="art-gateway-"))
    rows: list[Row] = []
    try:
        with service(directory) as bench:
            if options.only in (None, "latency"):
                rows += measure_latency(bench, rounds)
            if options.only in (None, "throughput"):
                rows += measure_throughput(bench, rounds, options.litellm, options.litellm_processes)
            if options.only in (None, "rollouts"):
                rows += measure_rollouts(bench)
    finally:
        if options.keep is not None:
            shutil.copytree(directory, options.keep, dirs_exist_ok=True)
        shutil.rmtree(directory)
    report(rows, options.json)


if __name__ == "__main__":
    main()
