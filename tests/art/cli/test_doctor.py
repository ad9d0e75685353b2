import importlib.metadata
import json
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


def test_a_directory_that_cannot_hold_anything_is_a_fault(installed, monkeypatch, tmp_path: Path):
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    result = run("--path", str(tmp_path))
    assert result.exit_code == 1
    assert "only 1.0 GB free" in result.stdout
