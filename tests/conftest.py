"""Fixtures that several areas share."""

import json
import os
from typing import Any

import pytest
from hypothesis import settings

from art_backend.process import BRIEF_WAITING, EQUAL_ROWS

# Before torch is loaded, and for every process that a test starts: test processes compute as engine and trainer do, and one
# thread each is fastest where several workers share the cores.
for name, value in {"OMP_NUM_THREADS": "1", **BRIEF_WAITING, **EQUAL_ROWS}.items():
    os.environ.setdefault(name, value)

from tests.support.tiny import build_tiny_model  # noqa: E402

# How long an example takes depends on what else the machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory):
    """Directory of a tiny random Llama with a byte-level ChatML tokenizer."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    build_tiny_model(path)
    return path


@pytest.fixture
def read_history():
    """Read the rows of a model's ``history.jsonl``."""

    def read(model: Any) -> list[dict[str, Any]]:
        with model._path("history.jsonl").open() as rows:
            return [json.loads(line) for line in rows]

    return read
