"""``trainer="trl"``: the same update as ours, the same checkpoints, and clear words where it cannot follow."""

import dataclasses

import pytest
import safetensors.torch
import torch

from art.wire import Algorithm, LoraSpec, TrainOptions
from art_backend.errors import BadRequestError
from art_backend.store.checkpoints import CheckpointStore
from art_backend.training import trl
from art_backend.training.trainer import Trainer
from art_backend.training.types import ModelSetup, ScoredTrajectory, StepInput

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def setup(tiny_model_path, tmp_path):
    return ModelSetup(
        base_path=tiny_model_path,
        lora=LoraSpec(rank=4, alpha=8),
        max_sequence_length=64,
        checkpoints=tmp_path / "checkpoints",
        precision="float32",
    )


@pytest.fixture
def groups(make_groups, make_row):
    """Groups of unequal size; one trajectory has two rows, and one observes tokens between those that it samples."""
    groups = make_groups()
    groups[0].append(ScoredTrajectory(0.8, [make_row([5, 6, 7], [8, 9]), make_row([5, 6], [3, 4, 9])]))
    row = make_row([5, 6], [8, 9, 10, 11, 12, 13])
    row.sampled[4:6] = [False, False]
    groups[1].append(ScoredTrajectory(0.1, [row]))
    return groups


def step_of(groups, step=1, **options):
    return StepInput(groups, TrainOptions(**{"learning_rate": 1e-2, **options}), step)


def moments(output):
    return safetensors.torch.load_file(output.checkpoint / "optimizer.safetensors")["exp_avg"]


@pytest.mark.parametrize("algorithm", [Algorithm.DAPO, Algorithm.DR_GRPO, Algorithm.GSPO, Algorithm.CISPO])
@pytest.mark.parametrize(
    "options", [{"importance_cap": None}, {"importance_cap": 1.5}, {"importance_cap": 1.5, "epochs": 2}]
)
def test_the_update_is_the_same_as_ours(setup, groups, tmp_path, algorithm, options):
    """The engine's log-probabilities are far from the policy's, in both directions."""
    for at, row in enumerate(row for group in groups for trajectory in group for row in trajectory.rows):
        row.logprobs = [logprob - at % 3 for logprob in row.logprobs]
    outputs = []
    for kind in ("art", "trl"):
        here = dataclasses.replace(setup, checkpoints=tmp_path / kind)
        seen: list[tuple[int, int]] = []
        step = step_of(groups, trainer=kind, algorithm=algorithm, max_grad_norm=1e9, **options)
        outputs.append(Trainer(here).train(step, lambda done, total, seen=seen: seen.append((done, total))))
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == pytest.approx(seen[-1][1], rel=0.2)
    ours, theirs = outputs
    size = moments(ours).abs().max().item()
    assert size > 2e-5
    torch.testing.assert_close(moments(theirs), moments(ours), rtol=1e-3, atol=1e-3 * size)
    for name in ("loss/policy", "loss/grad_norm"):  # TRL's entropy is a mean of means over rows
        assert theirs.metrics[name] == pytest.approx(ours.metrics[name], rel=1e-3, abs=1e-6)
    for name in ("data/step_trainer_tokens", "data/step_num_trajectories_trained", "reward/mean", "loss/learning_rate"):
        assert theirs.metrics[name] == ours.metrics[name]
    assert theirs.canaries[0].token_ids == ours.canaries[0].token_ids


def test_each_goes_on_from_the_other_s_checkpoint(setup, groups):
    trainer = Trainer(setup)
    outputs = [trainer.train(step_of(groups, i + 1, trainer=kind)) for i, kind in enumerate(("trl", "art", "trl"))]
    assert all(output.trained for output in outputs)
    steps = [safetensors.torch.load_file(o.checkpoint / "optimizer.safetensors")["step"].item() for o in outputs]
    assert steps == [1, 2, 3]
    assert CheckpointStore(setup.checkpoints).verify(3)
    assert outputs[2].metrics["reward/mean"] == outputs[0].metrics["reward/mean"]


def test_epochs_without_a_signal_and_a_single_row(setup, make_row):
    row = make_row([1, 2], [3, 4])
    trainer = Trainer(setup)
    flat = trainer.train(step_of([[ScoredTrajectory(1.0, [row])] * 2], trainer="trl"))
    assert not flat.trained
    # One row left of two: the other is too long. Its reward still counts.
    long = make_row([1] * 90, [3, 4])
    pair = [[ScoredTrajectory(1.0, [row]), ScoredTrajectory(0.0, [long])]]
    output = trainer.train(step_of(pair, 2, trainer="trl", epochs=2))
    assert output.metrics["data/step_num_gradient_steps"] == 2
    assert output.metrics["data/step_trainer_tokens"] == 4
    assert output.canaries[0].logprob != output.canaries[0].previous_logprob


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"kl_coef": 0.1}, "kl_coef"),
        ({"entropy_coef": 0.1}, "entropy_coef"),
        ({"minibatches": 2}, "minibatches"),
        ({"negative_advantage_cap": 2.0}, "negative_advantage_cap beside importance_cap"),
        ({"algorithm": "cispo", "negative_advantage_cap": 2.0}, "negative_advantage_cap"),
        ({"algorithm": "cispo", "epsilon": 0.2}, "epsilon"),
    ],
)
def test_what_it_cannot_honour_is_refused(setup, groups, options, name):
    with pytest.raises(BadRequestError, match=f"does not support {name}.*trainer='art'") as caught:
        Trainer(setup).train(step_of(groups, trainer="trl", **options))
    assert caught.value.param == f"options.{name.split()[0]}"


def test_without_trl_one_line_says_what_to_install(setup, groups, monkeypatch):
    monkeypatch.setattr(trl, "find_spec", lambda name: None)
    trainer = Trainer(setup)
    with pytest.raises(BadRequestError, match=r"pip install 'art-trainer\[trl\]'"):
        trainer.train(step_of(groups, trainer="trl"))
    assert trainer.train(step_of(groups)).trained
