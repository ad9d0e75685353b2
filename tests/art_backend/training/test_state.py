"""Tensors in files: whole, and not twice in memory."""

import tracemalloc

import pytest
import torch
from safetensors.torch import load_file

from art_backend.training.state import save_tensors


def test_what_is_written_is_read_and_was_not_copied(tmp_path):
    tensors = {"a": torch.randn(2**22), "step": torch.tensor(3), "part": torch.randn(4, 6)[:, ::2]}
    tracemalloc.start()
    save_tensors(tmp_path / "it", tensors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    found = load_file(tmp_path / "it")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_what_cannot_be_written_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"writing .*nowhere/it"):
        save_tensors(tmp_path / "nowhere" / "it", {"a": torch.zeros(2)})
