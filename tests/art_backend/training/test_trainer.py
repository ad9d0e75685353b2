"""One step: what it changes, what it reports, and that it depends on nothing that it should not."""

import dataclasses
import json

import pytest
import safetensors.torch
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from art.wire import Algorithm, LoraSpec, TrainOptions
from art_backend.errors import (
    BadRequestError,
    ConflictError,
    ModelNotAvailableError,
    StorageFailedError,
    TrainerFailedError,
)
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training import learner
from art_backend.training.learner import Learner
from art_backend.training.trainer import Trainer
from art_backend.training.types import ScoredTrajectory, StepInput


def step_of(groups, step=1, **options):
    return StepInput(groups=groups, options=TrainOptions(**{"learning_rate": 1e-2, **options}), step=step)


def weights_of(checkpoint):
    return safetensors.torch.load_file(checkpoint / "adapter_model.safetensors")


def all_tensors(checkpoint):
    return {**weights_of(checkpoint), **safetensors.torch.load_file(checkpoint / "optimizer.safetensors")}


def published(base_path, checkpoint):
    """The checkpoint as anybody loads it."""
    base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
    return PeftModel.from_pretrained(base, checkpoint).eval()


def logprobs_under(model, row):
    """Log-probability of each sampled token of a row."""
    with torch.no_grad():
        log_p = torch.log_softmax(model(torch.tensor([row.token_ids])).logits[0] / row.temperature, -1)
    return [log_p[t - 1, row.token_ids[t]].item() for t, sampled in enumerate(row.sampled) if sampled]


@pytest.fixture
def honest(base_path, make_groups):
    """Groups whose log-probabilities are the base model's own."""
    model = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32).eval()
    groups = make_groups()
    for group in groups:
        for trajectory in group:
            for row in trajectory.rows:
                row.logprobs[len(row.token_ids) - sum(row.sampled) :] = logprobs_under(model, row)
    return groups


def test_a_step_makes_good_tokens_likelier_and_bad_ones_less_likely(setup, honest, base_path):
    output = Trainer(setup).train(step_of(honest))
    assert output.trained
    assert output.checkpoint == setup.checkpoints / "0001"
    model = published(base_path, output.checkpoint)
    for worst, best, _ in honest:
        assert sum(logprobs_under(model, best.rows[0])) > sum(best.rows[0].logprobs)
        assert sum(logprobs_under(model, worst.rows[0])) < sum(worst.rows[0].logprobs)


def test_metrics_of_a_step_on_its_own_samples(setup, honest):
    seen = []
    output = Trainer(setup).train(
        step_of(honest, micro_batch_tokens=16), lambda done, total: seen.append((done, total))
    )
    metrics = output.metrics
    assert metrics["offpolicy/logprob_gap_max"] < 1e-5
    assert metrics["offpolicy/ess"] == pytest.approx(1)
    assert metrics["data/step_trainer_tokens"] == 24
    assert metrics["data/step_row_tokens"] == 6 * 9 + 24
    # Each row without its last token, the 9-token prompts once for each pack of 16 tokens: 4, 2 and 3 more tokens.
    assert metrics["data/step_packed_tokens"] == seen[-1][0] == seen[-1][1]
    assert metrics["data/packing_ratio"] > 1
    assert metrics["loss/learning_rate"] == 1e-2
    assert 0 < metrics["loss/entropy"] < 4.2
    assert metrics["loss/grad_norm"] > 0
    assert metrics["loss/clip_fraction_high"] == 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    json.dumps(metrics, allow_nan=False)


def test_every_measure_is_there(setup, honest):
    metrics = Trainer(setup).train(step_of(honest, kl_coef=0.1)).metrics
    expected = {
        "reward": ["mean", "std_dev"],
        "data": [
            *(f"step_num_groups_{name}" for name in ("submitted", "trainable", "dropped", "stale")),
            *(f"step_num_trajectories{end}" for end in ("", "_trained", "_without_tokens")),
            *("step_num_overlong", "rows_per_trajectory"),
            *("step_trainer_tokens", "step_row_tokens", "step_packed_tokens", "packing_ratio"),
            *("step_num_gradient_steps", "step_num_gradient_steps_skipped", "step_recomputed_tokens"),
        ],
        "loss": [
            *("policy", "entropy", "kl_reference", "clip_fraction_low", "clip_fraction_high"),
            *("grad_norm", "learning_rate"),
        ],
        "offpolicy": [
            *("logprob_gap_mean", "logprob_gap_max", "logprob_gap_row_max", "kl", "ess"),
        ],
        "throughput": ["trainer_tok_per_s", "trainer_packed_tok_per_s", "trainer_peak_memory_mb"],
        "time": ["step_train_s", "step_save_s"],
    }
    assert {f"{section}/{name}" for section, names in expected.items() for name in names} == metrics.keys()
    assert metrics["data/step_num_gradient_steps"] == 1
    assert metrics["throughput/trainer_peak_memory_mb"] > 50


def test_a_policy_far_from_the_one_that_sampled_is_told(setup, honest):
    trainer = Trainer(setup)
    assert trainer.train(step_of(honest)).warnings == []
    for group in honest:
        group[0].rows[0].logprobs = [p and p - 5.0 for p in group[0].rows[0].logprobs]
    output = trainer.train(step_of(honest, 2))
    assert output.metrics["offpolicy/ess"] < 0.5
    assert any("effective sample size" in warning for warning in output.warnings)


def test_the_gap_is_measured_before_the_update(setup, honest):
    row = honest[0][0].rows[0]  # 3 sampled tokens
    row.logprobs[-1] -= 0.5
    metrics = Trainer(setup).train(step_of(honest)).metrics
    assert metrics["offpolicy/logprob_gap_max"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["offpolicy/logprob_gap_row_max"] == pytest.approx(0.5 / 3, abs=1e-4)
    assert metrics["offpolicy/logprob_gap_mean"] == pytest.approx(0.5 / 24, abs=1e-4)
    e = torch.tensor(0.5).exp().item()
    assert metrics["offpolicy/kl"] == pytest.approx((e - 1 - 0.5) / 24, abs=1e-4)
    assert metrics["offpolicy/ess"] == pytest.approx((23 + e) ** 2 / (24 * (23 + e**2)), abs=1e-4)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_the_cut_into_micro_batches_does_not_change_the_step(setup, make_groups, algorithm, kl_coef, tmp_path):
    results = []
    for i, budget in enumerate((16, 24, 10_000)):
        here = dataclasses.replace(setup, checkpoints=tmp_path / str(i))
        options = {"algorithm": algorithm, "kl_coef": kl_coef, "micro_batch_tokens": budget}
        # SGD-like comparison: Adam's first step would hide the size of the gradient, so compare its moments.
        results.append(all_tensors(Trainer(here).train(step_of(make_groups(), **options)).checkpoint))
    for other in results[1:]:
        torch.testing.assert_close(other["exp_avg"], results[0]["exp_avg"], rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(other["exp_avg_sq"], results[0]["exp_avg_sq"], rtol=1e-4, atol=1e-10)


def test_the_order_of_rows_does_not_change_the_step(setup, make_groups, tmp_path):
    groups = make_groups()
    turned = [list(reversed(group)) for group in reversed(groups)]
    results = [
        all_tensors(Trainer(dataclasses.replace(setup, checkpoints=tmp_path / str(i))).train(step_of(g)).checkpoint)
        for i, g in enumerate((groups, turned))
    ]
    torch.testing.assert_close(results[0]["exp_avg"], results[1]["exp_avg"], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("minibatches", [1, 3])
def test_two_and_two_steps_are_four_steps(setup, make_groups, tmp_path, minibatches):
    """A trainer started anew goes on bit for bit; so does one that released its memory."""
    batches = [make_groups(seed) for seed in range(4)]
    runs = []
    for name, restart in (("straight", False), ("restarted", True)):
        here = dataclasses.replace(setup, checkpoints=tmp_path / name)
        trainer = Trainer(here)
        outputs = []
        for i, batch in enumerate(batches):
            if restart and i == 2:
                trainer = Trainer(here)
            if restart and i == 3:
                trainer.release()
            outputs.append(trainer.train(step_of(batch, i + 1, minibatches=minibatches)))
        runs.append(outputs)
    for straight, restarted in zip(*runs, strict=True):
        ours, theirs = all_tensors(straight.checkpoint), all_tensors(restarted.checkpoint)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        timeless = [
            {k: v for k, v in o.metrics.items() if not k.startswith(("time/", "throughput/"))}
            for o in (straight, restarted)
        ]
        assert timeless[0] == timeless[1]
    assert runs[0][-1].metrics["data/step_num_gradient_steps"] == minibatches


def test_the_same_seed_gives_the_same_adapter_and_another_one_does_not(setup, make_groups, tmp_path):
    adapters = []
    for i, seed in enumerate((1, 1, 2)):
        here = dataclasses.replace(setup, checkpoints=tmp_path / str(i), lora=LoraSpec(rank=4, alpha=8, seed=seed))
        adapters.append(weights_of(Trainer(here).train(step_of(make_groups())).checkpoint))
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])
    assert any(not torch.equal(adapters[0][name], adapters[2][name]) for name in adapters[0])


def test_a_step_without_a_signal_copies_the_last_version(setup, make_groups, make_row):
    trainer = Trainer(setup)
    flat = [[ScoredTrajectory(1.0, [make_row([1, 2], [3])]) for _ in range(3)]]
    outputs = [
        trainer.train(step_of(groups, i + 1)) for i, groups in enumerate((flat, make_groups(), flat, make_groups()))
    ]
    assert [o.trained for o in outputs] == [False, True, False, True]
    empty = outputs[2]
    assert empty.reason is not None
    assert "all rewards are equal" in empty.reason
    assert empty.metrics["data/step_num_groups_trainable"] == 0
    assert empty.metrics["data/step_trainer_tokens"] == 0
    assert empty.metrics["data/step_num_gradient_steps"] == 0
    assert empty.canaries == []
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (outputs[1].checkpoint / name).stat().st_ino == (empty.checkpoint / name).stat().st_ino
    store = CheckpointStore(setup.checkpoints)
    assert all(store.verify(step) for step in (1, 2, 3, 4))
    assert json.loads((empty.checkpoint / "trainer.json").read_text())["step"] == 3


def test_the_first_step_without_a_signal_publishes_the_base_model(setup, make_row, base_path):
    flat = [[ScoredTrajectory(1.0, [make_row([1, 2], [3])]) for _ in range(2)]]
    output = Trainer(setup).train(step_of(flat))
    row = make_row([1, 2], [3, 4, 5])
    base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32).eval()
    assert logprobs_under(published(base_path, output.checkpoint), row) == pytest.approx(logprobs_under(base, row))


def test_a_gradient_that_is_not_finite_is_skipped_and_three_in_a_row_are_an_error(setup, make_groups):
    trainer = Trainer(setup)
    good, bad = make_groups(), make_groups()
    for group in bad:
        group[0].reward = -1e300  # beyond float32
    trainer.train(step_of(good))
    options = {"scale_rewards": False}
    for step in (2, 3):
        output = trainer.train(step_of(bad, step, **options))
        assert not output.trained
        assert output.reason is not None
        assert "not finite" in output.reason
        assert output.metrics["data/step_num_gradient_steps_skipped"] == 1
        assert "1 of 1 updates were skipped" in output.warnings[-1]
    trainer = Trainer(setup)  # the count outlives the process
    with pytest.raises(TrainerFailedError, match="3 times in a row"):
        trainer.train(step_of(bad, 4, **options))
    assert weights_of(setup.checkpoints / "0003").keys() == weights_of(setup.checkpoints / "0001").keys()
    assert trainer.train(step_of(good, 4)).trained
    assert trainer.train(step_of(bad, 5, **options)).reason is not None  # counted from one again


def test_an_update_that_ruins_the_model_is_not_saved(setup, honest):
    trainer = Trainer(setup)
    with pytest.raises(TrainerFailedError, match="non-finite; nothing was saved"):
        trainer.train(step_of(honest, learning_rate=1e30))
    assert CheckpointStore(setup.checkpoints).latest_step() == 0
    assert trainer.train(step_of(honest)).trained


def test_canaries_are_what_the_published_adapter_answers(setup, honest, base_path):
    output = Trainer(setup).train(step_of(honest))
    after = published(base_path, output.checkpoint)
    before = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32).eval()
    assert 2 <= len(output.canaries) <= 9
    for canary in output.canaries:
        assert 8 <= len(canary.token_ids) <= 128
        with torch.no_grad():
            new, old = (
                torch.log_softmax(m(torch.tensor([canary.token_ids])).logits[0, -1], -1).max().item()
                for m in (after, before)
            )
        assert canary.logprob == pytest.approx(new, abs=1e-4)
        assert canary.previous_logprob == pytest.approx(old, abs=1e-4)
    moved = [abs(c.logprob - c.previous_logprob) for c in output.canaries]
    assert moved[0] == max(moved) > 0


def test_later_minibatches_see_the_start_of_the_step(setup, honest):
    metrics = Trainer(setup).train(step_of(honest, minibatches=2, learning_rate=0.05)).metrics
    assert metrics["data/step_num_gradient_steps"] == 2
    assert metrics["offpolicy/logprob_gap_max"] < 1e-5  # although the second update's ratios are not 1


def test_bad_input_changes_nothing(setup, make_groups):
    trainer = Trainer(setup)
    first = trainer.train(step_of(make_groups()))
    with pytest.raises(BadRequestError):
        trainer.train(step_of([[]], 2))
    with pytest.raises(ConflictError, match=r"latest checkpoint .* step 1"):
        trainer.train(step_of(make_groups(), 1))
    with pytest.raises(ConflictError):
        trainer.train(step_of(make_groups(), 3))
    assert trainer.train(step_of(make_groups(1), 2)).step == 2
    assert CheckpointStore(setup.checkpoints).verify(1) == first.checkpoint


def test_a_damaged_checkpoint_stops_the_trainer_with_advice(setup, make_groups):
    checkpoint = Trainer(setup).train(step_of(make_groups())).checkpoint
    with (checkpoint / "adapter_model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(StorageFailedError, match=r"step 1 is damaged.*adapter_model.*restart from the base model"):
        Trainer(setup).train(step_of(make_groups(), 2))
    assert CheckpointStore(setup.checkpoints).steps() == [1]
    checkpoint.rename(setup.checkpoints.parent / "damaged")  # as it advises
    assert Trainer(setup).train(step_of(make_groups(), 1)).trained
    second = Trainer(setup).train(step_of(make_groups(), 2)).checkpoint
    (second / "optimizer.safetensors").unlink()
    with pytest.raises(StorageFailedError, match=r"step 2 is damaged.*optimizer.*to continue from step 1"):
        Trainer(setup).train(step_of(make_groups(), 3))
    second.rename(setup.checkpoints.parent / "damaged too")
    assert Trainer(setup).train(step_of(make_groups(), 2)).trained


def test_a_refused_request_costs_no_loading_and_changes_nothing(setup, make_groups, tmp_path, monkeypatch):
    straight = Trainer(setup)
    expected = [straight.train(step_of(make_groups(step), step)).checkpoint for step in (1, 2)]
    trainer = Trainer(dataclasses.replace(setup, checkpoints=tmp_path / "refused"))
    first = trainer.train(step_of(make_groups(1), 1))
    opened = []
    monkeypatch.setattr(learner, "open_policy", lambda *given: opened.append(given))
    refused = [
        step_of([[]], 2),
        step_of(make_groups(2), 2, kl_coef=0.1, kl_reference_step=7),
        step_of(make_groups(2), 2, optimizer="paged_adamw_8bit"),
    ]
    for step in refused:
        with pytest.raises(BadRequestError):
            trainer.train(step)
    second = trainer.train(step_of(make_groups(2), 2))
    assert opened == []
    for ours, theirs in zip((first.checkpoint, second.checkpoint), expected, strict=True):
        a, b = all_tensors(ours), all_tensors(theirs)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_what_is_refused_after_the_first_update_is_loaded_again(setup, make_groups, tmp_path, monkeypatch):
    trainer = Trainer(setup)
    trainer.train(step_of(make_groups(1), 1))
    take = Learner.step

    def refuse(self, *arguments):
        take(self, *arguments)
        raise BadRequestError("a loss of the user's")

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "step", refuse)
        with pytest.raises(BadRequestError):
            trainer.train(step_of(make_groups(2), 2))
    again = trainer.train(step_of(make_groups(2), 2))
    straight = Trainer(dataclasses.replace(setup, checkpoints=tmp_path / "straight"))
    expected = [straight.train(step_of(make_groups(step), step)).checkpoint for step in (1, 2)]
    assert weights_of(again.checkpoint).keys() == weights_of(expected[1]).keys()
    assert all(
        torch.equal(value, weights_of(expected[1])[name]) for name, value in weights_of(again.checkpoint).items()
    )


def test_an_adapter_of_another_shape_or_base_is_refused(setup, make_groups, tmp_path, base_path):
    Trainer(setup).train(step_of(make_groups()))
    other = dataclasses.replace(setup, lora=LoraSpec(rank=8, alpha=8))
    with pytest.raises(ModelNotAvailableError, match="rank 4"):
        Trainer(other).train(step_of(make_groups(), 2))
    copy = tmp_path / "other"
    copy.mkdir()
    for file in base_path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    with pytest.raises(ModelNotAvailableError, match="another base model"):
        Trainer(dataclasses.replace(setup, base_path=copy)).train(step_of(make_groups(), 2))
    with pytest.raises(ModelNotAvailableError, match=r"config\.json is not a model configuration"):
        Trainer(dataclasses.replace(setup, base_path=tmp_path, checkpoints=tmp_path / "none")).train(
            step_of(make_groups())
        )


def test_unknown_log_probabilities_are_the_policys_own(setup, honest, tmp_path):
    """Leaving out what the trainer computes itself changes nothing, and is told."""
    known = Trainer(setup).train(step_of(honest, minibatches=2))
    for group in honest:
        for trajectory in group:
            trajectory.rows = [row.model_copy(update={"logprobs": None}) for row in trajectory.rows]
    there = dataclasses.replace(setup, checkpoints=tmp_path / "unknown")
    unknown = Trainer(there).train(step_of(honest, minibatches=2))
    ours, theirs = all_tensors(known.checkpoint), all_tensors(unknown.checkpoint)
    torch.testing.assert_close(ours["exp_avg"], theirs["exp_avg"], rtol=1e-4, atol=1e-7)
    assert (known.metrics["data/step_recomputed_tokens"], known.warnings) == (0, [])
    assert unknown.metrics["data/step_recomputed_tokens"] == 24
    assert "6 trajectories came without sampling log-probabilities" in unknown.warnings[0]
    assert "offpolicy/logprob_gap_mean" not in unknown.metrics, "there is nothing to compare with"
