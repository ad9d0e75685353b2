"""What every kind of policy does: computing with other weights for a while, and the size of its gradient."""

import pytest
import torch
from tests.support.largest import LargestResult

from art.wire import LoraSpec
from art_backend.errors import ModelNotAvailableError
from art_backend.training.policy import base as module
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.policy.full import FullPolicy
from art_backend.training.rows.packing import plain_pack


@pytest.fixture(params=["adapter", "whole"])
def make(request, base_path):
    def make(**options):
        if request.param == "whole":
            return FullPolicy(base_path, **options)
        return AdapterPolicy(base_path, LoraSpec(rank=4, alpha=8), **options)

    return make


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_reference_weights_compute_for_a_while_and_the_others_stay(make, tmp_path, precision):
    pack = plain_pack(torch.arange(1, 9).numpy())
    policy = make(precision=precision)
    with torch.no_grad():
        start = policy.forward(pack)
        policy.weights += 0.1
        policy.publish_weights()
        reference = policy.forward(pack)
        policy.save(tmp_path)
        policy.weights += 0.1
        policy.publish_weights()
        present, weights = policy.forward(pack), policy.weights.clone()
        for directory, expected in ((tmp_path, reference), (None, start)):
            with LargestResult() as made, policy.as_reference(directory):
                assert torch.equal(policy.weights, weights)
                assert torch.equal(policy.forward(pack), expected)
            assert made.numbers < policy.weights.numel()
            assert torch.equal(policy.forward(pack), present)
    assert not torch.equal(present, reference)
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    (tmp_path / "adapter_model.safetensors").unlink(missing_ok=True)
    with pytest.raises(ModelNotAvailableError), policy.as_reference(tmp_path):
        pass
    with torch.no_grad():
        assert torch.equal(policy.forward(pack), present)


def test_the_norm_of_the_gradient_is_added_up_in_parts(make, monkeypatch):
    policy = make(precision="float32")
    policy.gradient.copy_(torch.randn(policy.gradient.numel(), generator=torch.Generator().manual_seed(0)))
    exact = policy.gradient.double().norm().item()
    assert policy.gradient_norm() == exact
    monkeypatch.setattr(module, "NORM_PART", 1000)
    with LargestResult() as made:
        assert policy.gradient_norm() == pytest.approx(exact, rel=1e-14)
    assert made.numbers <= 1000 < policy.gradient.numel()
    for wrong in (float("nan"), float("inf")):
        policy.gradient[-1] = wrong
        assert policy.gradient_norm() == pytest.approx(wrong, nan_ok=True)
