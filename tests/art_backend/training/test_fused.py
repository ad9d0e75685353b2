"""Modules that keep less: the forward pass bit for bit as it was, the gradient as autograd's, and less kept."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen3Config

from art.wire import LoraSpec
from art_backend.training.policy import adapter as policy_module
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.policy.fused import FrozenRmsNorm, SwiGluMlp, fuse
from art_backend.training.rows.packing import plain_pack


@pytest.fixture(params=["llama", "qwen2", "qwen3"])
def model_path(request, base_path, tmp_path):
    if request.param == "llama":
        return base_path
    torch.manual_seed(3)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    config = (Qwen2Config if request.param == "qwen2" else Qwen3Config)(**sizes, **heads)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def make_policy(path, precision, fused, monkeypatch, targets=None):
    with monkeypatch.context() as patch:
        if not fused:
            patch.setattr(policy_module, "fuse", lambda model: None)
        policy = AdapterPolicy(path, LoraSpec(rank=4, alpha=8, target_modules=targets), precision=precision)
    torch.manual_seed(2)
    policy.weights.copy_(torch.randn_like(policy.weights) * 0.05)
    policy.publish_weights()
    return policy


def run(policy):
    """(final hidden states, gradient, bytes kept for the backward pass)"""
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = policy.forward(plain_pack(np.arange(1, 60)))
    torch.manual_seed(4)
    (hidden.float() * torch.randn(hidden.shape)).sum().backward()
    return hidden.detach(), policy.gradient.clone(), sum(kept.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("targets", [None, ["q_proj", "up_proj"]], ids=["all layers", "some layers"])
def test_every_bit_of_the_forward_pass_and_the_gradient(model_path, precision, targets, monkeypatch):
    hidden, gradient, kept = run(make_policy(model_path, precision, False, monkeypatch, targets))
    fused_hidden, fused_gradient, fused_kept = run(make_policy(model_path, precision, True, monkeypatch, targets))
    assert torch.equal(fused_hidden, hidden)
    tolerance = 1e-5 if precision == "float32" else 0.03
    assert (fused_gradient - gradient).norm() < tolerance * gradient.norm()
    if precision == "bfloat16":  # weights are kept, too: they are most of so small a model
        assert fused_kept < (0.8 if targets is None else 0.95) * kept


def test_the_adapter_switches_off_as_ever(model_path, monkeypatch):
    fused, plain = (make_policy(model_path, "float32", kind, monkeypatch) for kind in (True, False))
    pack = plain_pack(np.arange(1, 30))
    outputs = []
    for policy in (fused, plain):
        with policy.as_reference(None):
            outputs.append(policy.forward(pack))
    assert torch.equal(*outputs)
    assert list(fused.model.state_dict()) == list(plain.model.state_dict())


def test_only_modules_whose_arithmetic_is_known_are_replaced(base_path):
    model = AutoModelForCausalLM.from_pretrained(base_path)
    other = copy.deepcopy(model)
    fuse(model)
    assert sum(isinstance(m, FrozenRmsNorm) for m in model.modules()) == 5
    assert sum(isinstance(m, SwiGluMlp) for m in model.modules()) == 2
    config = AutoConfig.from_pretrained(base_path, hidden_act="gelu")
    gelu = AutoModelForCausalLM.from_config(config)
    fuse(gelu)
    assert not any(isinstance(m, SwiGluMlp) for m in gelu.modules())
    assert not any(isinstance(m, FrozenRmsNorm) for m in other.modules())
