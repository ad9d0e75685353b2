"""A model that begins as another one, or with an adapter from elsewhere."""

import json

import pytest
import safetensors.torch
import torch
from peft import LoraConfig, get_peft_model
from tests.support.tiny import build_tiny_model
from transformers import AutoModelForCausalLM

from art.wire import LoraSpec, RegisterModel, SftOptions, TokenRow
from art_backend.errors import (
    BadRequestError,
    ConflictError,
    ModelNotAvailableError,
    NotFoundError,
    ServiceError,
    StorageFailedError,
)
from art_backend.models.origins import begin
from art_backend.settings import Settings
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training.trainer import Trainer
from art_backend.training.types import ModelSetup, SftInput

LORA = LoraSpec(rank=4, alpha=8)
ROW = TokenRow(
    token_ids=[1, 2, 3, 4, 5],
    sampled=[False, False, True, True, True],
    logprobs=None,
    policy_versions=[-1] * 5,
    temperature=1.0,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny-base")


@pytest.fixture(scope="module")
def other_base(tmp_path_factory):
    return build_tiny_model(tmp_path_factory.mktemp("models") / "another", seed=1)


@pytest.fixture
def settings(tmp_path):
    return Settings(path=tmp_path / "art")


@pytest.fixture
def adapter(base, tmp_path):
    """A PEFT adapter as another program saves it."""
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def spec_of(base, name, init_adapter=None, lora=LORA):
    return RegisterModel(project="p", name=name, base_model=str(base), lora=lora, init_adapter=init_adapter)


def store_of(settings, name):
    return CheckpointStore(settings.checkpoints_dir("p", name))


def train(settings, base, name, steps):
    setup = ModelSetup(base, LORA, 64, settings.checkpoints_dir("p", name), precision="float32")
    trainer = Trainer(setup)
    for _ in range(steps):
        step = trainer._store.latest_step() + 1
        output = trainer.train(SftInput([[ROW]], SftOptions(learning_rates=[1e-2]), step))
    return output


def tensors(checkpoint):
    return {
        name: tensor
        for file in ("adapter_model.safetensors", "optimizer.safetensors")
        for name, tensor in safetensors.torch.load_file(checkpoint / file).items()
    }


def test_a_fork_goes_on_as_the_other_model_would_have(settings, base):
    train(settings, base, "parent", 2)
    known = [spec_of(base, "parent")]
    spec = spec_of(base, "child", "parent@2")
    begin(spec, base, settings, known)
    assert store_of(settings, "child").steps() == [2]
    assert store_of(settings, "child").verify(2)
    ours, theirs = train(settings, base, "child", 1), train(settings, base, "parent", 1)
    assert ours.step == theirs.step == 3
    ours, theirs = tensors(ours.checkpoint), tensors(theirs.checkpoint)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    begin(spec, base, settings, known)  # again, and with the parent gone on: harmless
    begin(spec_of(base, "child", "p/parent@latest"), base, settings, known)
    assert store_of(settings, "child").steps() == [2, 3]


def test_the_latest_step_and_an_earlier_one_can_be_forked(settings, base):
    train(settings, base, "parent", 3)
    begin(spec_of(base, "late", "p/parent@latest"), base, settings, [spec_of(base, "parent")])
    begin(spec_of(base, "early", "p/parent@1"), base, settings, [spec_of(base, "parent")])
    assert store_of(settings, "late").steps() == [3]
    assert store_of(settings, "early").steps() == [1]


def test_an_adapter_from_elsewhere_is_step_1_and_is_trained_further(settings, base, adapter):
    begin(spec_of(base, "m", str(adapter)), base, settings, [])
    first = store_of(settings, "m").verify(1)
    theirs = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    ours = safetensors.torch.load_file(first / "adapter_model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    second = train(settings, base, "m", 1)
    assert second.step == 2
    assert json.loads((second.checkpoint / "trainer.json").read_text())["optimizer_steps"] == 1
    moved = safetensors.torch.load_file(second.checkpoint / "adapter_model.safetensors")
    difference = max((moved[name] - theirs[name]).abs().max().item() for name in theirs)
    assert 0 < difference <= 0.0101, "one update of Adam, from where the adapter was"


def test_a_model_that_began_otherwise_is_not_begun_again(settings, base, adapter):
    train(settings, base, "m", 1)
    with pytest.raises(ConflictError, match=r"has checkpoints already \(steps \[1\]\) and began with its base model"):
        begin(spec_of(base, "m", str(adapter)), base, settings, [])


def refused(settings, base, spec, known, error, match):
    with pytest.raises(ServiceError, match=match) as caught:
        begin(spec, base, settings, known)
    assert isinstance(caught.value, error)
    assert store_of(settings, spec.name).steps() == []
    assert not (settings.model_dir("p", spec.name) / "origin.json").exists()


def test_another_base_model_or_shape_is_refused(settings, base, other_base, adapter):
    def refuse(spec, match, known=(), on=base):
        refused(settings, on, spec, known, ModelNotAvailableError, match)

    refuse(spec_of(other_base, "m", str(adapter)), "was trained on .*tiny-base, not on .*another", on=other_base)
    refuse(spec_of(base, "m", str(adapter), LoraSpec()), "has rank 4 and alpha 8; the model is registered with rank 16")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for change, match in (({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "must be LORA")):
        (adapter / "adapter_config.json").write_text(json.dumps(config | change))
        refuse(spec_of(base, "m", str(adapter)), match)
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    weights = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    name = next(name for name in weights if "q_proj.lora_A" in name)
    safetensors.torch.save_file(weights | {name: torch.zeros(4, 32)}, adapter / "adapter_model.safetensors")
    refuse(spec_of(base, "m", str(adapter)), r"q_proj\.lora_A\.weight has shape \[4, 32\], the layer \[64, 64\]")
    train(settings, base, "parent", 1)
    changed = other_base / "config.json"
    changed.write_text(json.dumps({**json.loads(changed.read_text()), "rms_norm_eps": 1e-5}))
    refuse(spec_of(other_base, "m", "parent@1"), "which is not the", [spec_of(base, "parent")], on=other_base)


def test_what_is_not_there_or_damaged_is_told(settings, base, adapter):
    parent = [spec_of(base, "parent")]
    refused(settings, base, spec_of(base, "m", "/no/such"), [], BadRequestError, "neither a directory")
    refused(
        settings, base, spec_of(base, "m", "nobody@1"), parent, NotFoundError, "no model p/nobody to fork. Models: p/p"
    )
    refused(settings, base, spec_of(base, "m", "parent@1"), parent, NotFoundError, "no checkpoint to fork")
    checkpoint = train(settings, base, "parent", 1).checkpoint
    refused(settings, base, spec_of(base, "m", "parent@7"), parent, NotFoundError, r"step 7. Steps: \[1\]")
    (checkpoint / "adapter_model.safetensors").write_bytes(b"x")
    refused(settings, base, spec_of(base, "m", "parent@1"), parent, StorageFailedError, "step 1 is damaged")
    (adapter / "adapter_model.safetensors").write_bytes(b"x")
    refused(settings, base, spec_of(base, "m", str(adapter)), [], StorageFailedError, "cannot be read")
