"""Sizes against numbers computed by hand, and against what the real trainer keeps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from art.wire import LoraSpec, Optimizer
from art_backend.planning.architecture import KNOWN, parse_config
from art_backend.planning.memory import (
    GIB,
    GRAPH_BYTES,
    PROCESS_BYTES,
    Wanted,
    activation_bytes,
    kv_bytes_per_token,
    layer_activation_bytes,
    plan,
)
from art_backend.planning.verdict import describe, find_remedy, smallest_device
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.policy.full import FullPolicy
from art_backend.training.rows.packing import plain_pack

QWEN = KNOWN["Qwen2.5-7B"]
TOKENS = 96


def sizes(wanted: Wanted) -> dict[str, tuple[int, int, int]]:
    return {part.name: (part.rollouts, part.training, part.host) for part in plan(wanted).parts}


def test_one_device_by_hand():
    # 7,615,616,512 parameters of 2 bytes; a layer's adapter: 16 · ((3584+3584) + 2·(3584+512) + (3584+3584) + 3·(3584+18944))
    weights, adapter = 15_231_233_024, 28 * 16 * (7168 + 2 * 4096 + 7168 + 3 * 22_528)
    assert adapter == 40_370_176
    found = sizes(Wanted(QWEN, 48 * GIB))
    assert found["engine: weights"] == (weights, 0, weights)
    assert found["trainer: frozen weights"] == (0, weights, weights)
    assert found["engine: adapters"] == (2 * 2 * adapter, 0, 4 * adapter)
    assert found["trainer: trained weights, bf16"] == (0, 2 * adapter, 2 * adapter)
    assert found["trainer: weights and gradient, fp32"] == (0, 8 * adapter, 8 * adapter)
    assert found["trainer: optimiser"] == (0, 8 * adapter, 8 * adapter)
    assert found["engine: libraries"] == (PROCESS_BYTES + GRAPH_BYTES, PROCESS_BYTES + GRAPH_BYTES, 0)
    # 28 layers of 4 heads of 128, keys and values of 2 bytes
    assert kv_bytes_per_token(QWEN) == 57_344
    assert sum(found[name][0] for name in found if name.startswith("engine")) == int(0.9 * 48 * GIB)


def test_activations_by_hand():
    # 2 · (4·3584 + 3·3584 + 2·512 + 18944 + 6·16) + 8 + 4·28
    assert layer_activation_bytes(QWEN, lora_rank=16) == 90_424
    wanted = Wanted(QWEN, 80 * GIB, batch_tokens=8192)
    inside = 2 * (4 * 18_944 + 4 * 3584)
    assert activation_bytes(wanted) == 8192 * (28 * 90_424 + inside) + 320 * 2**20
    again = replace(wanted, gradient_checkpointing=True)
    assert activation_bytes(again) == 8192 * (28 * 3584 * 2 + 90_424 + inside) + 320 * 2**20


def test_all_weights_by_hand():
    found = sizes(Wanted(KNOWN["Qwen2.5-0.5B"], 80 * GIB, full=True))
    n = 494_032_768
    trained = ("trainer: trained weights, bf16", "trainer: weights and gradient, fp32", "trainer: optimiser")
    assert [found[name][1] for name in trained] == [2 * n, 8 * n, 8 * n]
    assert "trainer: frozen weights" not in found
    smaller = sizes(Wanted(KNOWN["Qwen2.5-0.5B"], 80 * GIB, full=True, optimizer=Optimizer.PAGED_ADAMW_8BIT))
    assert smaller["trainer: optimiser"][1] == 2 * n + 2 * 4 * 1_929_816  # blocks of 256, each with two scales


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
@pytest.mark.parametrize("rank", [4, None])
def test_a_layer_keeps_what_the_trainer_keeps(kind, rank, tmp_path):
    """The difference between six layers and two is four layers, as autograd itself counts what it saves."""
    kept = [_saved_bytes(kind, layers, rank, tmp_path / str(layers)) for layers in (2, 6)]
    architecture = parse_config(_config(kind, 2).to_dict(), "it")
    expected = layer_activation_bytes(architecture, lora_rank=rank, flex=False)
    assert (kept[1] - kept[0]) / (4 * TOKENS) == expected


def _config(kind, layers):
    return kind(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )


def _saved_bytes(kind, layers: int, rank: int | None, path: Path) -> int:
    AutoModelForCausalLM.from_config(_config(kind, layers)).save_pretrained(path)
    if rank is None:
        policy = FullPolicy(path, precision="bfloat16", attention="branches")
    else:
        policy = AdapterPolicy(path, LoraSpec(rank=rank), precision="bfloat16", attention="branches")
    stored = {t.untyped_storage().data_ptr() for t in [*policy._base.parameters(), *policy._base.buffers()]}
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in stored:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)  # kept, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        policy.forward(plain_pack(np.arange(TOKENS) % 64))
    return sum(size for size, _ in saved.values())


def test_taking_turns_is_what_makes_it_fit():
    found = plan(Wanted(QWEN, 24 * GIB, gradient_checkpointing=True, batch_tokens=4096))
    assert found.fits
    assert found.saving + max(found.rollouts, found.training) > 24 * GIB
    assert found.host > 4 * 7_615_616_512  # both copies of the weights
    apart = plan(Wanted(QWEN, 24 * GIB, gradient_checkpointing=True, batch_tokens=4096, placement="dedicated"))
    assert (apart.saving, apart.host) == (0, 0)
    assert apart.training == found.training - PROCESS_BYTES - GRAPH_BYTES


def test_what_does_not_fit_is_told_with_a_remedy_that_does():
    found = plan(Wanted(QWEN, 24 * GIB))
    assert not found.fits
    assert describe(found) == "Qwen2.5-7B does not fit into 24.0 GB: training takes 58.7 GB."
    remedy = find_remedy(found)
    assert remedy is not None
    assert "gradient_checkpointing=True and micro_batch_tokens=8192" in remedy.text
    assert remedy.plan.fits
    beyond = find_remedy(plan(Wanted(KNOWN["Qwen2.5-72B"], 24 * GIB)))
    assert beyond is not None
    assert "Use a device with" in beyond.text
    assert beyond.plan.fits


def test_an_engine_without_room_for_one_sequence_does_not_fit():
    found = plan(Wanted(QWEN, 16 * GIB, gradient_checkpointing=True, batch_tokens=4096))
    assert not found.rollouts_fit
    assert (
        "beside the engine's weights there is room for 0 tokens of KV cache, and one sequence needs 4,096"
        in describe(found)
    )


@given(
    name=st.sampled_from(sorted(KNOWN)),
    gigabytes=st.integers(8, 400),
    context=st.integers(512, 65_536),
    rank=st.integers(1, 256),
    full=st.booleans(),
    placement=st.sampled_from(["colocated", "dedicated"]),
)
def test_every_remedy_works_and_more_memory_never_hurts(name, gigabytes, context, rank, full, placement):
    wanted = Wanted(KNOWN[name], gigabytes * GIB, context=context, lora_rank=rank, full=full, placement=placement)
    found, remedy = plan(wanted), find_remedy(plan(wanted))
    assert (remedy is None) == (found.fits and not found.tight)
    assert remedy is None or (remedy.plan.fits and not remedy.plan.tight)
    smallest = smallest_device(wanted)
    assert not find_remedy(plan(replace(wanted, device_bytes=smallest)))
    assert plan(replace(wanted, device_bytes=2 * smallest)).fits
    assert find_remedy(plan(replace(wanted, device_bytes=smallest - GIB)))
