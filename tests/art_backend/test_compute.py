"""The compute type is chosen in one place; weights in use do not depend on the files they came from."""

import pytest
import torch
from tests.support.tiny import build_tiny_model

from art.wire import LoraSpec
from art_backend.engines.torch_engine.runner import ModelRunner
from art_backend.errors import BadRequestError
from art_backend.models.compute import choose_dtype
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.policy.full import FullPolicy

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_variable_decides_what_auto_means_and_nothing_else(dtype, monkeypatch):
    monkeypatch.setenv("ART_COMPUTE_DTYPE", str(dtype).removeprefix("torch."))
    assert choose_dtype("auto", CPU) is dtype
    assert choose_dtype("bfloat16", CPU) is torch.bfloat16
    assert choose_dtype("float32", CPU) is torch.float32


@pytest.mark.parametrize("value", ["bf16", "float16", "auto"])
def test_another_value_is_refused_by_name(value, monkeypatch):
    monkeypatch.setenv("ART_COMPUTE_DTYPE", value)
    with pytest.raises(BadRequestError, match=f"ART_COMPUTE_DTYPE='{value}'.*bfloat16 or float32"):
        choose_dtype("auto", CPU)


@pytest.mark.parametrize("loaded_by", ["engine", "adapter trainer", "full trainer"])
def test_a_model_file_rewritten_in_place_does_not_reach_the_weights_in_use(loaded_by, tmp_path):
    """The file has the compute type, so that nothing is converted, and is emptied beneath the loaded model."""
    path = build_tiny_model(tmp_path / "base")
    model = _load(loaded_by, path)
    assert (
        model.get_input_embeddings().weight is model.get_output_embeddings().weight
    )  # tied, as the configuration says
    before = [p.detach().clone() for p in model.parameters()]
    with (path / "model.safetensors").open("r+b") as file:
        file.write(bytes((path / "model.safetensors").stat().st_size))
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))


def _load(loaded_by, path):
    if loaded_by == "engine":
        return ModelRunner(path, dtype=torch.float32, device=CPU, kv_cache_bytes=2**22, max_model_len=64)._model
    if loaded_by == "full trainer":
        return FullPolicy(path, precision="float32")._base
    return AdapterPolicy(path, LoraSpec(rank=4), precision="float32")._base
