"""Options of a step, seen from outside: what each does to the update, and how each fails."""

import copy
import dataclasses

import pytest
import safetensors.torch
import torch

from art.wire import SftOptions, TrainOptions
from art_backend.errors import BadRequestError
from art_backend.training import update
from art_backend.training.algorithms.presets import clip_ranges
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.rows.packing import plain_pack
from art_backend.training.trainer import Trainer
from art_backend.training.types import SftInput, StepInput


def step_of(groups, step=1, **options):
    return StepInput(groups=groups, options=TrainOptions(**{"learning_rate": 1e-2, **options}), step=step)


def moments(output):
    return safetensors.torch.load_file(output.checkpoint / "optimizer.safetensors")


def adapter(output):
    return safetensors.torch.load_file(output.checkpoint / "adapter_model.safetensors")


@pytest.fixture
def run(setup, tmp_path):
    """``run(groups, …)`` trains one step under a fresh directory; ``before`` steps come first."""
    made = []

    def run(groups, before=(), **options):
        made.append(None)
        here = dataclasses.replace(setup, checkpoints=tmp_path / f"run{len(made)}")
        trainer = Trainer(here)
        for i, batch in enumerate(before):
            trainer.train(step_of(batch, i + 1))
        return trainer.train(step_of(groups, len(before) + 1, **options))

    return run


def test_checkpointing_recomputes_the_same_gradient(run, make_groups):
    plain, recomputed = run(make_groups()), run(make_groups(), gradient_checkpointing=True)
    assert torch.equal(moments(plain)["exp_avg"], moments(recomputed)["exp_avg"])


def test_checkpointing_keeps_less_for_the_backward_pass(setup, base_path):
    policy = AdapterPolicy(base_path, setup.lora, precision="float32")
    pack = plain_pack(torch.arange(1, 60).numpy())

    def kept():
        sizes = {}

        def pack_hook(tensor):
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda tensor: tensor):
            hidden = policy.forward(pack)
        assert hidden.requires_grad
        return sum(sizes.values())

    before = kept()
    policy.set_checkpointing(True)
    assert kept() < before / 3
    policy.set_checkpointing(False)
    assert kept() > 0.9 * before


def test_every_epoch_takes_its_minibatches(run, make_groups):
    output = run(make_groups(), epochs=3, minibatches=2)
    assert output.metrics["data/step_num_gradient_steps"] == 6
    assert output.metrics["data/step_trainer_tokens"] == 3 * 24
    assert output.metrics["offpolicy/ess"] > 0


def test_a_second_epoch_is_measured_against_the_start_of_the_step(run, make_groups):
    """The gap to the engine is the same in every epoch, although the weights have moved in between."""
    once, thrice = run(make_groups()), run(make_groups(), epochs=3)
    assert thrice.metrics["offpolicy/logprob_gap_mean"] == pytest.approx(once.metrics["offpolicy/logprob_gap_mean"])
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"
    assert not torch.equal(adapter(once)[name], adapter(thrice)[name])


def test_the_rate_follows_the_schedule(run, make_groups):
    options = {"schedule": "linear", "total_steps": 4, "warmup_steps": 1}
    output = run(make_groups(), before=[make_groups(1), make_groups(2)], **options)
    assert output.metrics["loss/learning_rate"] == pytest.approx(1e-2 * 2 / 3)


def test_kl_to_the_base_model_is_nothing_before_training_and_something_after(run, make_groups):
    assert run(make_groups(), kl_coef=0.1).metrics["loss/kl_reference"] == 0
    assert run(make_groups(), before=[make_groups()], kl_coef=0.1).metrics["loss/kl_reference"] > 0


@pytest.mark.parametrize("place", ["loss", "advantage"])
def test_the_reference_may_be_a_named_step(run, make_groups, place):
    """With the version that training starts from as the reference, KL is zero and changes nothing."""
    before = [make_groups(1), make_groups(2)]
    plain = run(make_groups(), before=before)
    named = run(make_groups(), before=before, kl_coef=0.5, kl_reference_step=2, kl_in=place)
    other = run(make_groups(), before=before, kl_coef=0.5, kl_reference_step=1, kl_in=place)
    assert named.metrics["loss/kl_reference"] == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(moments(named)["exp_avg"], moments(plain)["exp_avg"], rtol=1e-5, atol=1e-8)
    assert other.metrics["loss/kl_reference"] > 0
    assert not torch.allclose(moments(other)["exp_avg"], moments(plain)["exp_avg"], rtol=1e-3, atol=1e-8)


def test_a_reference_that_is_not_there_is_named(run, make_groups):
    with pytest.raises(BadRequestError, match="no checkpoint of step 7") as caught:
        run(make_groups(), kl_coef=0.1, kl_reference_step=7)
    assert caught.value.param == "options.kl_reference_step"


def test_kl_in_the_advantage_uses_the_mean_of_the_whole_update(run, make_groups, monkeypatch):
    """However the update is cut into packs: the gradient is the same, and the shaping sums to zero."""
    seen = []
    add_gradient = update.add_gradient

    def spy(policy, work, *rest):
        seen.append(copy.deepcopy(work))
        add_gradient(policy, work, *rest)

    monkeypatch.setattr("art_backend.training.trainer.add_gradient", spy)
    before = [make_groups(1)]
    options = {"kl_coef": 0.5, "kl_in": "advantage"}
    outputs = []
    for budget in (16, 10_000):
        seen.clear()
        outputs.append(run(make_groups(), before=before, micro_batch_tokens=budget, **options))
        works = [work for work in seen if work.reference_logprobs is not None]
        assert (len(works) == 1) == (budget > 16)
        shaped = torch.cat([work.targets.advantages for work in works])
        kl = torch.cat([work.start_logprobs - work.reference_logprobs for work in works])
        assert kl.abs().max() > 1e-3
        # Tokens of one row have one advantage before shaping; what is left after taking the shaping off is that one.
        base = shaped - 0.5 * (kl.mean() - kl)
        assert len({round(v, 4) for v in base.tolist()}) == 3
    torch.testing.assert_close(moments(outputs[0])["exp_avg"], moments(outputs[1])["exp_avg"], rtol=1e-4, atol=1e-7)


def test_an_entropy_bonus_makes_the_distribution_flatter(setup, make_groups, tmp_path):
    entropies = []
    for coef in (0.0, 0.5):
        trainer = Trainer(dataclasses.replace(setup, checkpoints=tmp_path / str(coef)))
        for step in range(1, 5):
            output = trainer.train(step_of(make_groups(), step, entropy_coef=coef))
        entropies.append(output.metrics["loss/entropy"])
    assert entropies[1] > entropies[0] + 0.05


def test_the_8_bit_optimiser_needs_a_gpu(run, make_groups):
    with pytest.raises(BadRequestError, match=r"needs a CUDA device.*optimizer='adamw'") as caught:
        run(make_groups(), optimizer="paged_adamw_8bit")
    assert caught.value.param == "options.optimizer"


def test_a_row_longer_than_the_budget_is_trained_whole_and_told(run, make_groups, make_row):
    groups = make_groups()
    groups[0][0].rows[0] = make_row([1] * 30, [2, 3])
    output = run(groups, micro_batch_tokens=16)
    assert output.trained
    assert any("longer than micro_batch_tokens=16" in warning and "32" in warning for warning in output.warnings)
    assert not any("micro_batch_tokens" in warning for warning in run(make_groups(), micro_batch_tokens=16).warnings)


def test_a_long_lesson_is_learned_whole_and_told(setup, make_row):
    output = Trainer(setup).train(SftInput([[make_row([1] * 30, [2, 3])]], SftOptions(micro_batch_tokens=16), 1))
    assert output.metrics["data/step_trainer_tokens"] == 2
    assert any("longer than micro_batch_tokens=16" in warning and "32" in warning for warning in output.warnings)


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({}, (0.2, 0.28)),
        ({"epsilon_high": 0.4}, (0.2, 0.4)),
        ({"epsilon": 0.1}, (0.1, 0.28)),
        ({"algorithm": "grpo", "epsilon": 0.1}, (0.1, 0.1)),
        ({"algorithm": "grpo", "epsilon_high": 0.4}, (0.2, 0.4)),
        ({"algorithm": "gspo"}, (3e-4, 4e-4)),
        ({"epsilon": 0.0, "epsilon_high": 0.0}, (0.0, 0.0)),
    ],
)
def test_the_upper_clip_range_may_be_another_than_the_lower(options, ranges):
    assert clip_ranges(TrainOptions(**options)) == ranges


def test_rows_that_share_nothing_give_the_same_update(setup, make_groups, tmp_path):
    """As kernels need it that know causal attention alone."""
    outputs = []
    for kind in ("rows", "branches"):
        here = dataclasses.replace(setup, checkpoints=tmp_path / kind)
        outputs.append(Trainer(here, attention=kind).train(step_of(make_groups())))
    torch.testing.assert_close(moments(outputs[0])["exp_avg"], moments(outputs[1])["exp_avg"], rtol=1e-4, atol=1e-7)
    assert outputs[0].metrics["data/packing_ratio"] < outputs[1].metrics["data/packing_ratio"]
