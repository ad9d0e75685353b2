"""Full fine-tuning: every weight learns, the checkpoint is a whole model, and resuming is exact."""

import dataclasses
import json

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from art.wire import SftOptions, TrainOptions
from art_backend.errors import BadRequestError, ModelNotAvailableError, StorageFailedError
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training.trainer import Trainer
from art_backend.training.types import SftInput, StepInput


@pytest.fixture
def full(setup):
    return dataclasses.replace(setup, full_finetune=True)


def sft(conversations, step=1, rate=1e-3, **options):
    return SftInput(conversations, SftOptions(learning_rates=[rate], **options), step)


def load(checkpoint):
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def tensors(checkpoint):
    return {
        f"{file}:{name}": tensor
        for file in ("model.safetensors", "optimizer.safetensors")
        for name, tensor in safetensors.torch.load_file(checkpoint / file).items()
    }


@pytest.fixture
def lesson(make_row):
    row = make_row([1, 2, 3], [10, 20, 30, 40])
    return [row.model_copy(update={"logprobs": None})]


def test_the_gradient_of_every_weight_is_that_of_plain_transformers(full, base_path, lesson):
    """Head and embedding are one weight here, so its gradient is the sum of both uses."""
    output = Trainer(full).train(sft([lesson], rate=0.0, max_grad_norm=1e9))
    model = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32).eval()
    (row,) = lesson
    ids = torch.tensor([row.token_ids])
    labels = torch.where(torch.tensor([row.sampled]), ids, -100)
    model(ids, labels=labels).loss.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    found = tensors(output.checkpoint)["optimizer.safetensors:exp_avg"] / 0.1
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    assert output.metrics["loss/sft"] == pytest.approx(model(ids, labels=labels).loss.item(), abs=1e-5)


def test_untied_heads_get_a_gradient_too(full, base_path, lesson, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
    config = model.config
    config.tie_word_embeddings = False
    untied = type(model)(config)
    untied.save_pretrained(tmp_path / "untied")
    here = dataclasses.replace(full, base_path=tmp_path / "untied")
    checkpoint = Trainer(here).train(sft([lesson])).checkpoint
    before = safetensors.torch.load_file(tmp_path / "untied" / "model.safetensors")
    after = safetensors.torch.load_file(checkpoint / "model.safetensors")
    assert before.keys() == after.keys()
    assert not torch.equal(before["lm_head.weight"], after["lm_head.weight"])


def test_a_checkpoint_is_a_whole_model_that_has_learned_by_heart(full, lesson):
    output = Trainer(full).train(sft([lesson] * 60, rate=3e-3))
    assert output.metrics["loss/sft_last_batch"] < 0.05 < output.metrics["loss/sft_first_batch"]
    model = load(output.checkpoint)
    (row,) = lesson
    said = model.generate(torch.tensor([row.token_ids[:3]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert said[0].tolist() == row.token_ids
    for canary in output.canaries:
        with torch.no_grad():
            answer = torch.log_softmax(model(torch.tensor([canary.token_ids])).logits[0, -1], -1).max().item()
        assert canary.logprob == pytest.approx(answer, abs=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_restarted_trainer_goes_on_bit_for_bit(full, make_groups, lesson, tmp_path, precision):
    runs = []
    for name, restart in (("straight", False), ("restarted", True)):
        here = dataclasses.replace(full, checkpoints=tmp_path / name, precision=precision)
        trainer = Trainer(here)
        for step in range(1, 5):
            trainer = Trainer(here) if restart else trainer
            work = StepInput(make_groups(step), TrainOptions(learning_rate=1e-3), step)
            output = trainer.train(work if step % 2 else sft([lesson], step))
        runs.append(tensors(output.checkpoint))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    weights = runs[0]["model.safetensors:model.embed_tokens.weight"]
    assert weights.dtype == torch.float32
    assert not torch.equal(weights, weights.bfloat16().float()), "steps smaller than bfloat16 resolves are kept"


def test_the_reference_of_the_kl_is_the_base_model(full, make_groups):
    trainer = Trainer(full)
    first = trainer.train(StepInput(make_groups(), TrainOptions(learning_rate=1e-2, kl_coef=0.1), 1))
    assert first.metrics["loss/kl_reference"] == pytest.approx(0, abs=1e-6)
    second = trainer.train(StepInput(make_groups(), TrainOptions(learning_rate=1e-2, kl_coef=0.1), 2))
    assert second.metrics["loss/kl_reference"] > 1e-4


def test_another_model_and_damage_are_told(full, base_path, lesson, tmp_path):
    trainer = Trainer(full)
    checkpoint = trainer.train(sft([lesson])).checkpoint
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["dtype"] == "float32"
    with pytest.raises(ModelNotAvailableError, match="holds no adapter"):
        Trainer(dataclasses.replace(full, full_finetune=False)).train(sft([lesson], 2))
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(StorageFailedError, match=r"step 1 is damaged.*model\.safetensors"):
        Trainer(full).train(sft([lesson], 2))
    assert CheckpointStore(full.checkpoints).steps() == [1]


def test_trl_is_not_for_whole_models_or_unknown_log_probabilities(full, setup, make_groups):
    groups = make_groups()
    with pytest.raises(BadRequestError, match="trainer='trl' trains adapters"):
        Trainer(full).train(StepInput(groups, TrainOptions(trainer="trl"), 1))
    for group in groups:
        for trajectory in group:
            trajectory.rows = [row.model_copy(update={"logprobs": None}) for row in trajectory.rows]
    with pytest.raises(BadRequestError, match="needs the log-probabilities"):
        Trainer(setup).train(StepInput(groups, TrainOptions(trainer="trl"), 1))
