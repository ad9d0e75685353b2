"""The demo against a backend in a process of its own, with a key, as on another machine."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.experiment import Results

KEY = "a-key-of-this-test"
ART = [sys.executable, "-c", "from art.cli import main; main()"]
TINY_RUN = ["--steps", "1", "--groups", "2", "--group-size", "2", "--episodes", "4"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def service_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("service")
    command = [*ART, "serve", "--port", "0", "--path", str(path), "--api-key", KEY]
    with (path / "stderr").open("w") as stderr:
        service = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=stderr)
    try:
        assert service.stdout is not None
        first_line = service.stdout.readline()
        found = re.search(r"http://\S+", first_line)
        assert found, first_line + (path / "stderr").read_text()
        yield found.group()
    finally:
        service.send_signal(signal.SIGINT)
        try:
            service.wait(timeout=30)
        finally:
            service.kill()
            service.communicate()


def run_demo(url: str, output: Path, *more: str, key: str = KEY) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*ART, "demo", *TINY_RUN, "--backend", url, "--api-key", key, "--output", str(output), *more],
        text=True,
        capture_output=True,
        check=False,
        timeout=380,
        env={**os.environ, "COLUMNS": "80"},
    )


def test_a_wrong_key_is_told_at_once(service_url: str, tmp_path: Path) -> None:
    finished = run_demo(service_url, tmp_path / "run", key="another-key")
    assert finished.returncode == 1
    assert "key" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_small_run_is_played_trained_shown_and_extended(service_url: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    finished = run_demo(service_url, run)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    results = Results.read(run / "results.json")
    assert [step.step for step in results.steps] == [1]
    assert set(results.steps[0].metrics) >= {"win", "draw", "loss", "illegal"}
    before, after, rules_only = results.players
    assert (before.step, after.step, rules_only.step) == (0, 1, None)
    assert before.episodes == after.episodes == 4
    assert results.peak_memory_bytes is None, "the backend's memory is not ours to measure"
    assert json.loads((run / "results.json").read_text())["seed"] == 1
    assert (run / "reward.png").exists()
    assert finished.stdout.count(", reward ") == 2, "a game of each version is shown"

    again = run_demo(service_url, run)
    assert again.returncode == 0
    assert "This run is finished: 1 steps" in again.stdout
    assert "--fresh" in again.stdout

    extended = run_demo(service_url, run, "--steps", "2")
    assert extended.returncode == 0, extended.stdout + extended.stderr
    assert "resuming after step 1 of 2" in extended.stderr
    results = Results.read(run / "results.json")
    assert [step.step for step in results.steps] == [1, 2]
    assert results.step == results.player("trained").step == 2


def test_games_may_overlap_with_training(service_url: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    finished = run_demo(service_url, run, "--steps", "2", "--max-staleness", "1")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "training from step 0 of 2" in finished.stderr
    results = Results.read(run / "results.json")
    assert [step.step for step in results.steps] == [1, 2]
    assert results.step == 2
    assert results.max_logprob_gap is not None
    assert (run / "reward.png").exists()

    refused = run_demo(service_url, run, "--steps", "3")
    assert refused.returncode == 1
    assert "max_staleness is 1 there, not 0" in " ".join(refused.stderr.split())
