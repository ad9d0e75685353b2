"""Each proven kind of model, packed: log-probabilities and gradients are those of transformers and PEFT, row by row."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.art_backend.engines.conftest import CONFIGS, SPECIAL_IDS
from tests.support.tiny import build_tiny_tokenizer, save_random_model
from transformers import AutoModelForCausalLM, Lfm2Config

from art.wire import LoraSpec
from art_backend.errors import ModelNotAvailableError
from art_backend.planning import architecture
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.policy.full import FullPolicy
from art_backend.training.policy.proof import prove
from art_backend.training.rows.packing import TrainingRow, pack_rows
from art_backend.training.rows.targets import read_targets

KINDS = [*architecture.PROVEN, "windowed"]
LORA = LoraSpec(rank=4, alpha=8)
STEM, LENGTHS = 40, (3, 30, 50)
"""Longer than the windows of the models that have some."""


@pytest.fixture
def save(tmp_path):
    def save(config):
        return save_random_model(tmp_path / "base", config, build_tiny_tokenizer(), seed=3, rough=True)

    return save


def rows():
    """Rows with a common stem, of which two share more."""
    draw = np.random.default_rng(0)
    stem = draw.integers(3, 250, STEM)
    first, *others = [np.concatenate([stem, draw.integers(3, 250, n)]) for n in LENGTHS]
    return [first, *others, np.concatenate([others[0], draw.integers(3, 250, 4)])]


def by_trees(policy, ids):
    """Sum of the log-probabilities from the stem on, weighted by row, and its gradient."""
    packed = [
        TrainingRow(row, np.arange(row.size) >= STEM, np.zeros(row.size), 0.7, i - 1.3, 1.0)
        for i, row in enumerate(ids)
    ]
    packs = pack_rows(packed, 10_000)
    assert [len(pack.branches) for pack in packs] == [4]
    targets = read_targets(packs[0], policy.device)
    logprobs = targets.logprobs(policy.forward(packs[0]), policy.head).logprobs
    (logprobs * targets.advantages).sum().backward()
    sums = torch.zeros(len(ids)).index_add_(0, targets.rows, logprobs.detach())
    return sums, policy.gradient.clone()


def by_rows(model, ids):
    """The same sums by plain calls; gradients are left in the model."""
    sums = []
    for i, row in enumerate(ids):
        logits = model(torch.from_numpy(row)[None]).logits[0, STEM - 1 : -1]
        logprobs = torch.log_softmax(logits / 0.7, -1).gather(1, torch.from_numpy(row[STEM:])[:, None]).sum()
        (logprobs * (i - 1.3)).backward()
        sums.append(logprobs.detach())
    return torch.stack(sums)


def plain(path):
    """The model as transformers computes it, by the attention that its authors wrote."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    ("kind", "attention"),
    [*((kind, "branches") for kind in KINDS), *((kind, "dense") for kind in KINDS if kind != "gemma2")],
)
def test_an_adapter_on_a_tree_learns_what_peft_learns_row_by_row(kind, attention, save):
    path = save(CONFIGS[kind])
    policy = AdapterPolicy(path, LORA, precision="float32", attention=attention)
    torch.manual_seed(1)
    policy.weights.copy_(torch.randn_like(policy.weights) * 0.1)
    policy.publish_weights()
    model = get_peft_model(plain(path), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    theirs = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert theirs.keys() == policy._parameters.keys()
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(policy._parameters[name])
    sums, gradient = by_trees(policy, rows())
    torch.testing.assert_close(sums, by_rows(model, rows()), rtol=1e-5, atol=1e-4)
    expected = torch.cat([theirs[name].grad.flatten() for name in policy._parameters])
    assert (gradient - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "granite"])
def test_all_weights_on_a_tree_learn_what_they_learn_row_by_row(kind, save):
    path = save(CONFIGS[kind])
    policy, model = FullPolicy(path, precision="float32"), plain(path)
    sums, gradient = by_trees(policy, rows())
    torch.testing.assert_close(sums, by_rows(model, rows()), rtol=1e-5, atol=1e-4)
    expected = torch.cat([dict(model.named_parameters())[name].grad.flatten() for name in policy._parameters])
    assert (gradient - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_proves_itself(kind, precision, save):
    policy = AdapterPolicy(save(CONFIGS[kind]), LORA, precision=precision)
    prove(policy, kind)
    assert not policy.gradient.any()


def test_a_state_that_runs_along_the_tokens_is_refused(save):
    policy = AdapterPolicy(save(CONFIGS["llama"]), LORA, precision="float32")
    policy._base.get_decoder().norm.register_forward_hook(lambda module, given, output: output + output.cumsum(1) / 50)
    with pytest.raises(
        ModelNotAvailableError, match=r"'it' cannot be trained: two rows packed as a tree differ .* nat a token"
    ):
        prove(policy, "it")


def test_logits_that_the_trainer_computes_otherwise_are_refused(save):
    policy = AdapterPolicy(save(CONFIGS["granite"]), LORA, precision="float32")
    policy.head = replace(policy.head, scale=1.0)
    with pytest.raises(ModelNotAvailableError, match="its logits change in an unknown way"):
        prove(policy, "it")


def test_sdpa_would_ignore_a_cap(save):
    # transformers refuses it as well in its newer releases
    with pytest.raises(
        ModelNotAvailableError, match=r"SDPA has no soft-capped attention|does not support an attention"
    ):
        AdapterPolicy(save(CONFIGS["gemma2"]), LORA, precision="float32", attention="dense")


def test_layers_of_an_unknown_type_are_refused_as_the_model_is_loaded(save, monkeypatch):
    monkeypatch.setattr("art_backend.training.policy.base.check_proven", lambda directory, name: None)
    config = Lfm2Config(
        **SPECIAL_IDS,
        vocab_size=259,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    with pytest.raises(ModelNotAvailableError, match="layers of conv do not follow a tree"):
        AdapterPolicy(save(config), LORA, precision="float32")
