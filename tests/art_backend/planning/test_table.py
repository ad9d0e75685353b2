"""The command as it is typed."""

import json
import subprocess
import sys

from art_backend.planning.memory import GIB


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from art.cli import main; main()", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_model_that_fits():
    done = run("--model", "Qwen2.5-7B", "--gpu-memory", "80GB")
    assert done.returncode == 0, done.stderr
    shown = words(done.stdout)
    for part in ("engine: weights", "engine: KV cache", "trainer: activations", "trainer: optimiser", "in all"):
        assert part in shown
    assert "Qwen2.5-7B fits into 80.0 GB. The KV cache holds" in shown
    assert "Taking turns saves 56.6 GB of the device" in shown
    assert "CPU memory needed: 29.2 GB." in shown


def test_a_model_that_does_not_fit_as_json():
    done = run("--model", "Qwen2.5-7B", "--gpu-memory", "24", "--context", "4096", "--lora-rank", "8", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["fits"], told["device_bytes"], told["parameters"]) == (False, 24 * GIB, 7_615_616_512)
    assert sum(part["training"] for part in told["parts"]) == told["training_bytes"] > 24 * GIB
    assert "gradient_checkpointing=True" in told["remedy"]


def test_what_cannot_be_planned_is_one_line():
    done = run("--model", "Nobody/Nothing", "--gpu-memory", "24GB")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: model: found no config.json of 'Nobody/Nothing' here")
    assert run("--model", "Qwen2.5-7B", "--gpu-memory", "much").stderr.startswith(
        "Error: gpu_memory: 'much' is not a size"
    )
