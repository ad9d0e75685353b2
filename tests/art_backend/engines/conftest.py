"""Tiny random models, adapters, and engines around them."""

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tests.support.contract_engine import ContractEngine
from tests.support.tiny import build_tiny_tokenizer, save_random_model
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from art_backend.engines.client import EngineClient
from art_backend.engines.process import EngineProcess, EngineSettings, torch_engine
from art_backend.engines.vllm import find_vllm, vllm_engine

VOCABULARY = 259
"""Of the tokenizer that ``tests.support.tiny`` builds."""
VLLM_PYTHON = os.environ.get("ART_VLLM_PYTHON", str(Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"))
"""Interpreter of the environment that ``make vllm`` makes."""


def vllm_cpu(settings, socket, api_key):
    """Launch vLLM's CPU build."""
    installation = find_vllm(VLLM_PYTHON)
    assert installation is not None, f"{VLLM_PYTHON} has no vLLM; make it with `make vllm`"
    return vllm_engine(installation)(settings, socket, api_key)


LAUNCHERS = {"torch": torch_engine, "vllm": vllm_cpu}
"""Engines that the contract suite runs against; vLLM's part has a make target of its own, ``make test-vllm``."""
WITH_A_MODEL = ["torch", pytest.param("vllm", marks=pytest.mark.vllm)]
"""What needs weights is asked of these alone: the scripted engine's words and log-probabilities are of no distribution."""
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    # large enough that logits are far from uniform, so that a wrong token shows
    "initializer_range": 0.25,
}
SPECIAL_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
_WINDOWED = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS = {
    # 32 is the smallest head that vLLM computes on a CPU
    "llama": LlamaConfig(**_COMMON, head_dim=32, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**_COMMON),
    "qwen3": Qwen3Config(**_COMMON, head_dim=16),
    "mistral": MistralConfig(**_COMMON, head_dim=8, sliding_window=None),
    # products over so many elements that the order of their sum depends on the number of rows; no key is shared by heads
    "wide": LlamaConfig(**_COMMON | {"intermediate_size": 2048, "num_attention_heads": 2, "initializer_range": 0.05}),
    "untied": LlamaConfig(**_COMMON, head_dim=32, tie_word_embeddings=False),
    "windowed": MistralConfig(**_COMMON, head_dim=8, sliding_window=24),
    # every second layer without positions
    "smollm3": SmolLM3Config(**_COMMON | SPECIAL_IDS, no_rope_layer_interval=2),
    # norms after attention and MLP alone
    "olmo2": Olmo2Config(**_COMMON | SPECIAL_IDS),
    "olmo3": Olmo3Config(**_COMMON | SPECIAL_IDS, **_WINDOWED),
    # caps that the scores and logits of these weights reach
    "gemma2": Gemma2Config(
        **_COMMON | SPECIAL_IDS,
        **_WINDOWED,
        head_dim=32,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3_text": Gemma3TextConfig(**_COMMON | SPECIAL_IDS, **_WINDOWED, head_dim=32, query_pre_attn_scalar=24),
    "granite": GraniteConfig(
        **_COMMON | SPECIAL_IDS,
        attention_multiplier=0.3,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        logits_scaling=0.25,
    ),
    # one matrix for queries, keys and values, and one for gate and up
    "phi3": Phi3Config(**_COMMON | SPECIAL_IDS, sliding_window=24),
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Returns the directory of a tiny random model of a family."""
    made = {}

    def make(family):
        if family not in made:
            path, seed = tmp_path_factory.mktemp(family), list(CONFIGS).index(family) + 1
            made[family] = save_random_model(path, CONFIGS[family], build_tiny_tokenizer(), seed=seed, rough=True)
        return made[family]

    return make


@pytest.fixture(scope="session")
def tiny_adapter(tiny_model, tmp_path_factory):
    """Returns the directory of a random PEFT adapter whose effect is plainly visible."""
    made = {}

    def make(family, seed=0, **settings):
        key = (family, seed, json.dumps(settings, sort_keys=True))
        if key not in made:
            torch.manual_seed(100 + seed)
            settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | settings
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model(family)), LoraConfig(**settings))
            made[key] = tmp_path_factory.mktemp("adapter")
            model.save_pretrained(made[key])
            file = made[key] / "adapter_model.safetensors"
            save_file({name: torch.randn_like(value) * 0.2 for name, value in load_file(file).items()}, file)
        return made[key]

    return make


@pytest.fixture(scope="session")
def launchers():
    """How to start an engine of each kind."""
    return LAUNCHERS


@dataclass
class Served:
    """An engine without a process of its own."""

    client: EngineClient


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=[*WITH_A_MODEL, "scripted"])
async def engine(request, tiny_model, tmp_path_factory) -> AsyncIterator[EngineProcess | Served]:
    """A running engine of each kind, shared by the contract suite. Tests leave it as they found it."""
    if request.param == "scripted":
        async with ContractEngine("tiny/base", CONFIGS["llama"].max_position_embeddings) as scripted:
            client = EngineClient(scripted.url, scripted.api_key)
            yield Served(client)
            await client.close()
        return
    settings = EngineSettings(
        model_path=tiny_model("llama"),
        served_name="tiny/base",
        log_path=tmp_path_factory.mktemp("engine") / "engine.log",
        max_num_seqs=16,
        max_lora_rank=8,
        dtype="float32",
        threads=1,
        kv_cache_mib=32,
    )
    process = await EngineProcess.start(settings, LAUNCHERS[request.param])
    yield process
    await process.stop()


def logprobs_by_transformers(path, prompt, completion):
    """Log-probabilities of a completion's tokens by plain transformers."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([prompt + completion.token_ids])).logits[0], -1)
    return [logprobs[len(prompt) - 1 + i, token].item() for i, token in enumerate(completion.token_ids)]
