"""Reading PEFT directories: what is refused, and with which words."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from art_backend.engines.torch_engine.adapters import AdapterError, read_adapter


@pytest.fixture
def adapter(tiny_adapter, tmp_path):
    source = tiny_adapter("llama", 1)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    return tmp_path


def change_config(path, **changes):
    file = path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"fan_in_fan_out": True},
    ],
)
def test_settings_that_change_the_arithmetic_are_refused(adapter, changes):
    change_config(adapter, **changes)
    with pytest.raises(AdapterError, match=next(iter(changes))):
        read_adapter(adapter, max_rank=8)


def test_other_kinds_are_refused(adapter):
    change_config(adapter, peft_type="IA3")
    with pytest.raises(AdapterError, match="peft_type"):
        read_adapter(adapter, max_rank=8)


def test_rank_limit_is_named(adapter):
    with pytest.raises(AdapterError, match="--max-lora-rank 3"):
        read_adapter(adapter, max_rank=3)


def test_truncated_weights_are_damaged(adapter):
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(AdapterError, match="damaged"):
        read_adapter(adapter, max_rank=8)


def test_scale_is_alpha_over_rank_or_over_its_root(adapter):
    raw = load_file(adapter / "adapter_model.safetensors")
    key = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"
    for rslora, scale in ((False, 8 / 4), (True, 8 / 2)):
        change_config(adapter, use_rslora=rslora)
        a, b = read_adapter(adapter, max_rank=8)["model.layers.0.mlp.up_proj"].prepare(torch.empty(0))
        assert torch.equal(a, raw[key.replace("lora_B", "lora_A")].T)
        assert torch.allclose(b, raw[key].T * scale)


def test_an_adapter_of_another_model_is_refused(make_engine, adapter):
    driver = make_engine()
    file = adapter / "adapter_model.safetensors"
    original = load_file(file)
    save_file({name: value[:, :-1].contiguous() for name, value in original.items()}, file)
    with pytest.raises(AdapterError, match="another base model"):
        driver.load("m@1", adapter)
    save_file({name.replace("layers.1", "layers.7"): value for name, value in original.items()}, file)
    with pytest.raises(AdapterError, match=r"no module 'model.layers.7"):
        driver.load("m@2", adapter)
    assert driver.engine.adapters == {}
