"""Supervised fine-tuning: the loss, its batches, and that a model learns by heart what it is given."""

import dataclasses

import pytest
import safetensors.torch
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from art.wire import SftOptions, TrainOptions
from art_backend.errors import BadRequestError
from art_backend.training.trainer import Trainer
from art_backend.training.types import SftInput, StepInput


def sft(conversations, step=1, rates=(1e-2,), **options):
    return SftInput(conversations, SftOptions(learning_rates=list(rates), **options), step)


def tensors_of(checkpoint):
    return {
        **safetensors.torch.load_file(checkpoint / "adapter_model.safetensors"),
        **safetensors.torch.load_file(checkpoint / "optimizer.safetensors"),
    }


def load(base_path, checkpoint, **options):
    base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
    return PeftModel.from_pretrained(base, checkpoint, **options).eval()


def losses_under(model, row):
    """−log π of each learned token of a row, the slow and obvious way."""
    log_p = torch.log_softmax(model(torch.tensor([row.token_ids])).logits[0], -1)
    return [-log_p[t - 1, row.token_ids[t]] for t, learned in enumerate(row.sampled) if learned]


@pytest.fixture
def make_conversation(make_row):
    def make(prompt, answer):
        row = make_row(prompt, answer)
        return [row.model_copy(update={"logprobs": None})]

    return make


@pytest.fixture
def conversations(make_conversation):
    return [
        make_conversation([1, 2, 3], [4, 5]),
        make_conversation([1, 2, 9], [7, 7, 8, 2]),
        make_conversation([6, 5, 4, 3], [2]),
    ]


def test_loss_and_gradient_are_those_of_the_mean_over_the_batch(setup, base_path, conversations):
    """At a learning rate of 0 the adapter stays, and Adam's first moment is a tenth of the gradient."""
    output = Trainer(setup).train(sft(conversations[:2], rates=[0.0], max_grad_norm=1e9))
    model = load(base_path, output.checkpoint, is_trainable=True)
    losses = torch.stack([loss for (row,) in conversations[:2] for loss in losses_under(model, row)])
    assert losses.numel() == 6
    assert output.metrics["loss/sft"] == pytest.approx(losses.mean().item(), abs=1e-5)
    losses.mean().backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(tensors_of(output.checkpoint)["exp_avg"] / 0.1, expected, rtol=1e-3, atol=1e-6)
    assert output.metrics["loss/grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-4)


def test_batches_are_cut_in_order_and_each_makes_an_update(setup, base_path, conversations):
    rates = [1e-2, 1e-3]
    output = Trainer(setup).train(sft(conversations, rates=rates))
    metrics = output.metrics
    assert metrics["data/step_num_gradient_steps"] == 2
    assert metrics["data/step_trainer_tokens"] == 2 + 4 + 1
    assert metrics["data/step_num_examples_trained"] == 3
    assert metrics["loss/learning_rate"] == 1e-3
    base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32).eval()
    first = torch.stack([loss for (row,) in conversations[:2] for loss in losses_under(base, row)]).mean()
    assert metrics["loss/sft_first_batch"] == pytest.approx(first.item(), abs=1e-5)
    # The same, as two calls: the optimiser goes on where it stood.
    again = dataclasses.replace(setup, checkpoints=setup.checkpoints.parent / "again")
    trainer = Trainer(again)
    trainer.train(sft(conversations[:2], rates=rates[:1]))
    two_calls = tensors_of(trainer.train(sft(conversations[2:], step=2, rates=rates[1:])).checkpoint)
    one_call = tensors_of(output.checkpoint)
    assert all(torch.equal(one_call[name], two_calls[name]) for name in one_call if name != "rng_state")


def test_the_cut_into_micro_batches_does_not_change_the_update(setup, conversations, tmp_path):
    results = [
        tensors_of(
            Trainer(dataclasses.replace(setup, checkpoints=tmp_path / str(budget)))
            .train(sft(conversations, batch_size=3, micro_batch_tokens=budget))
            .checkpoint
        )
        for budget in (16, 10_000)
    ]
    torch.testing.assert_close(results[0]["exp_avg"], results[1]["exp_avg"], rtol=1e-4, atol=1e-7)


def test_a_tiny_model_learns_by_heart(setup, base_path, make_conversation):
    lessons = [make_conversation([1, 2, 3], [10, 20, 30, 40]), make_conversation([3, 2, 1], [40, 30, 20, 10])]
    output = Trainer(setup).train(sft(lessons * 40, rates=[3e-2]))
    # Its last norm and its head are frozen, so this is about as sure as it can become.
    assert output.metrics["loss/sft_last_batch"] < 0.2
    assert output.metrics["loss/sft_first_batch"] > 3
    model = load(base_path, output.checkpoint)
    for (row,) in lessons:
        said = model.generate(
            input_ids=torch.tensor([row.token_ids[:3]]), max_new_tokens=4, do_sample=False, pad_token_id=0
        )
        assert said[0].tolist() == row.token_ids
    moved = [abs(c.logprob - c.previous_logprob) for c in output.canaries]
    assert moved
    assert max(moved) > 0.1


def test_a_restarted_trainer_goes_on_bit_for_bit_between_both_kinds_of_step(
    setup, conversations, make_groups, tmp_path
):
    work = [
        lambda step: sft(conversations, step, rates=[1e-2, 5e-3]),
        lambda step: StepInput(make_groups(), TrainOptions(learning_rate=1e-2), step),
        lambda step: sft(conversations[::-1], step),
    ]
    runs = []
    for name, restart in (("straight", False), ("restarted", True)):
        here = dataclasses.replace(setup, checkpoints=tmp_path / name)
        trainer = Trainer(here)
        for step, make in enumerate(work, 1):
            trainer = Trainer(here) if restart else trainer
            output = trainer.train(make(step))
        runs.append(tensors_of(output.checkpoint))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_long_conversations_are_left_out_and_counted(setup, conversations, make_conversation):
    long = make_conversation(list(range(1, 60)), [3] * 10)
    output = Trainer(setup).train(sft([long, *conversations], rates=[1e-2, 1e-3]))
    assert output.metrics["data/step_num_overlong"] == 1
    assert output.metrics["data/step_num_examples_trained"] == 3
    assert "1 examples were left out" in output.warnings[0]
    nothing = Trainer(setup).train(sft([long], step=2))
    assert not nothing.trained
    assert "longer than" in nothing.reason
    with pytest.raises(BadRequestError, match=r"examples\.1 has a row of 69 tokens"):
        Trainer(setup).train(sft([conversations[0], long], step=3, overlong="error"))


def test_one_rate_per_batch(setup, conversations):
    with pytest.raises(BadRequestError, match=r"learning_rates has 3 entries; 3 examples in batches of 2 are 2"):
        Trainer(setup).train(sft(conversations, rates=[1e-3] * 3))
