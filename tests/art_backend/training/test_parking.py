"""Leaving a device and coming back, with the CPU in the part of the device: storages behave alike there."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.tiny import build_tiny_model

from art.wire import LoraSpec
from art_backend.training.learner import Learner, Parking
from art_backend.training.optimizers import FlatAdamW
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.policy.full import FullPolicy
from art_backend.training.rows.packing import plain_pack
from art_backend.training.state import TrainerState


def test_tensors_stay_the_objects_that_they_were():
    frozen = torch.arange(6.0)
    tied = frozen[2:]
    changing = torch.zeros(4, requires_grad=True)
    view = changing.detach()[1:3]
    parking = Parking()
    for step in (1, 2):
        parking.leave([frozen, tied], [changing])
        parking.leave([frozen, tied], [changing])
        assert frozen.untyped_storage().nbytes() == changing.untyped_storage().nbytes() == 0
        parking.come_back()
        parking.come_back()
        assert frozen.tolist() == [0, 1, 2, 3, 4, 5]
        assert tied.tolist() == [2, 3, 4, 5]
        with torch.no_grad():
            changing.add_(1)
        assert view.tolist() == [step, step]


def test_memory_that_belongs_to_a_file_is_refused_before_anything_is_moved(tmp_path):
    save_file({"mapped": torch.ones(2, 3)}, tmp_path / "file.safetensors")
    mapped, own = load_file(tmp_path / "file.safetensors")["mapped"], torch.ones(4)
    parking = Parking()
    with pytest.raises(ValueError, match=r"shape \[2, 3\] cannot leave the cpu.*Clone it"):
        parking.leave([own, mapped], [])
    parking.come_back()
    assert own.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_model_trains_on_as_if_it_had_never_left(precision, full, tmp_path):
    """Three updates with a rest after each give the same weights as three without, to the last bit.

    The file is float32: computing in it converts nothing, so the weights would be views of the mapped file.
    """
    path = build_tiny_model(tmp_path / "base")
    assert torch.equal(_train(path, full, precision, rest=True), _train(path, full, precision, rest=False))


def _train(path, full, precision, rest):
    if full:
        policy = FullPolicy(path, precision=precision)
    else:
        policy = AdapterPolicy(path, LoraSpec(rank=4), precision=precision)
    learner = Learner(policy, FlatAdamW(policy.weights), TrainerState(step=0, base_model="b"))
    pack = plain_pack(torch.arange(20).numpy())
    for _ in range(3):
        policy.gradient.zero_()
        policy.forward(pack).float().square().mean().backward()
        learner.optimizer.step(policy.gradient, learning_rate=1e-2, betas=(0.9, 0.99), weight_decay=0.0)
        policy.publish_weights()
        if rest:
            frozen, changing = policy.device_tensors()
            parking = Parking()
            parking.leave(frozen, [*changing, *learner.optimizer.device_tensors()])
            assert not any(t.untyped_storage().nbytes() for t in (*policy._base.parameters(), policy.weights))
            parking.come_back()
    return policy.weights
