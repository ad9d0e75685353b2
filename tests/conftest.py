"""Fixtures that several areas share."""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from art_backend.process import BRIEF_WAITING, EQUAL_ROWS

# Before torch is loaded, and for every process that a test starts: test processes compute as engine and trainer do, and one
# thread each is fastest where several workers share the cores.
for name, value in {"OMP_NUM_THREADS": "1", **BRIEF_WAITING, **EQUAL_ROWS}.items():
    os.environ.setdefault(name, value)

from tests.support.tiny import build_tiny_model  # noqa: E402

# How long an example takes, or its making, depends on what else the machine does. What a run finds depends on the code alone;
# `--hypothesis-profile=explore` looks for more.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("explore"), derandomize=True)
settings.load_profile("steady")


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


LONGEST = ("end_to_end", "examples", "docs")
"""Areas by the length of their tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first: of the files that workers share out, a long one that begins last ends alone."""
    items.sort(key=lambda item: next((i for i, area in enumerate(LONGEST) if area in item.path.parts), len(LONGEST)))
