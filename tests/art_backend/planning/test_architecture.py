"""Counts against the real models of transformers, built without memory."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config, SmolLM3Config

from art_backend.errors import BadRequestError
from art_backend.planning.architecture import KNOWN, parse_config, read_architecture

LLAMA_8B = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=131_072,
)
QWEN_7B = Qwen2Config(
    vocab_size=152_064,
    hidden_size=3584,
    intermediate_size=18_944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    max_position_embeddings=32_768,
)
SMOL = LlamaConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
QWEN3_8B = Qwen3Config(
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40_960,
)
BIASED = LlamaConfig(
    vocab_size=100, hidden_size=64, intermediate_size=96, num_attention_heads=4, attention_bias=True, mlp_bias=True
)
SMOLLM3 = SmolLM3Config(num_hidden_layers=4)


def build(config: PretrainedConfig) -> torch.nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())  # a tied head is the same parameter, told once


@pytest.mark.parametrize(
    ("config", "known"),
    [
        (LLAMA_8B, "Llama-3.1-8B"),
        (QWEN_7B, "Qwen2.5-7B"),
        (SMOL, "SmolLM2-135M"),
        (QWEN3_8B, "Qwen3-8B"),
        (BIASED, None),
        (SMOLLM3, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parameters_are_those_of_the_real_model(config, known):
    found = parse_config(json.loads(config.to_json_string(use_diff=False)), "it")
    assert found.parameters() == count(build(config))
    if known is not None:
        assert KNOWN[known].parameters() == found.parameters()
        assert (KNOWN[known].context, KNOWN[known].kv_width) == (found.context, found.kv_width)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-3B", 3_085_938_688),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen2.5-14B", 14_770_033_664),
        ("Qwen2.5-32B", 32_763_876_352),
        ("Llama-3.2-1B", 1_235_814_400),
        ("Llama-3.2-3B", 3_212_749_824),
        ("Llama-3.1-8B", 8_030_261_248),
        ("SmolLM2-135M", 134_515_008),
    ],
)
def test_known_models_have_their_published_size(name, published):
    assert KNOWN[name].parameters() == published


@pytest.mark.parametrize("modules", [None, ["q_proj", "v_proj"]])
def test_an_adapter_has_as_many_parameters_as_pefts(modules):
    config = LlamaConfig.from_dict({**SMOL.to_dict(), "num_hidden_layers": 3})
    adapted = get_peft_model(build(config), LoraConfig(r=8, target_modules=modules or "all-linear"))
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert parse_config(config.to_dict(), "it").lora_parameters(8, modules) == trained


def test_a_model_is_found_by_directory_by_cache_and_by_name(tmp_path, tiny_model_path):
    assert read_architecture(str(tiny_model_path)).layers == 2
    cached = tmp_path / "models" / "Somebody--Something"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text(SMOL.to_json_string())
    assert read_architecture("Somebody/Something", cache=tmp_path).hidden == 576
    assert read_architecture("Qwen/Qwen2.5-7B-Instruct", cache=tmp_path).parameters() == 7_615_616_512


def test_what_is_not_known_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(BadRequestError, match=r"hf download Nobody/Nothing config\.json"):
        read_architecture("Nobody/Nothing", cache=tmp_path)
    with pytest.raises(BadRequestError, match="memory of mamba models is not planned"):
        parse_config({"model_type": "mamba"}, "it")
    with pytest.raises(BadRequestError, match=r"target_modules: none of \['c_attn'\]"):
        KNOWN["Qwen2.5-7B"].lora_parameters(8, ["c_attn"])
