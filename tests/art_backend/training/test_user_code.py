"""Advantages and losses that a user wrote: loaded from one directory only, checked, and trained with."""

import numpy as np
import pytest
import safetensors.torch
import torch

from art.wire import TrainOptions
from art_backend.errors import BadRequestError
from art_backend.training.algorithms.losses import TokenBatch
from art_backend.training.algorithms.user_code import load_advantage, load_loss
from art_backend.training.trainer import Trainer
from art_backend.training.types import StepInput

MODULE = '''
def best_of(rewards, scale):
    return [(r == r.max()).astype(float) for r in rewards]

def mean_centred(rewards, scale):
    return [(r - r.mean()) / (r.std() + 1e-6) for r in rewards]

def short(rewards, scale):
    return rewards[:1]

def infinite(rewards, scale):
    return [r / 0.0 for r in rewards]

def fails(*_):
    return {}["a"]

def clipped(batch):
    """What the default computes in a step of one update."""
    ratio = (batch.logprobs - batch.start_logprobs).exp()
    correction = (batch.start_logprobs - batch.engine_logprobs).exp().clamp(max=2)
    return -correction * ratio * batch.advantages

def scalar(batch):
    return batch.logprobs.sum()

def constant(batch):
    return batch.advantages

number = 3
'''


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    directory = tmp_path_factory.mktemp("code")
    (directory / "lessons").mkdir()
    (directory / "lessons" / "__init__.py").touch()
    (directory / "lessons" / "mine.py").write_text(MODULE)
    (directory / "broken_lesson.py").write_text("import no_such_package")
    (directory / "json.py").write_text("def loads(*_): ...")
    return directory


@pytest.fixture
def batch():
    values = torch.tensor([-1.0, -2.0])
    return TokenBatch(values.clone().requires_grad_(), values, values, values.abs(), torch.tensor([0, 0]))


def test_without_a_directory_nothing_is_loaded():
    with pytest.raises(BadRequestError, match="--user-code") as caught:
        load_loss("os:system", None)
    assert caught.value.param == "options.loss"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os:system", "no module 'os' in"),
        ("lessons.other:f", "no module 'lessons.other'"),
        ("broken_lesson:f", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("json:loads", "belongs to an installed package"),
        ("lessons.mine:missing", "has no function 'missing'"),
        ("lessons.mine:number", "has no function 'number'"),
    ],
)
def test_only_functions_of_the_directory_are_loaded(code, name, message):
    with pytest.raises(BadRequestError, match=message):
        load_advantage(name, code)


@pytest.mark.parametrize(
    ("name", "message"), [("short", "shapes"), ("infinite", "of group 0"), ("fails", "raised KeyError: 'a'")]
)
def test_what_an_advantage_returns_is_checked(code, name, message):
    rewards = [np.array([0.0, 1.0]), np.array([1.0, 2.0])]
    with np.errstate(all="ignore"), pytest.raises(BadRequestError, match=message) as caught:
        load_advantage(f"lessons.mine:{name}", code)(rewards, True)
    assert caught.value.param == "options.advantage"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scalar", r"loss of each of the 2 tokens; it returned shape \(\)"),
        ("constant", "does not depend"),
        ("fails", "KeyError"),
    ],
)
def test_what_a_loss_returns_is_checked(code, batch, name, message):
    with pytest.raises(BadRequestError, match=message) as caught:
        load_loss(f"lessons.mine:{name}", code)(batch)
    assert caught.value.param == "options.loss"


def test_one_s_own_grpo_trains_like_the_preset(setup, make_groups, code, tmp_path):
    setup.user_code = code
    own = {"advantage": "lessons.mine:mean_centred", "loss": "lessons.mine:clipped"}
    weights = []
    for name, options in (("own", own), ("preset", {})):
        setup.checkpoints = tmp_path / name
        output = Trainer(setup).train(StepInput(make_groups(), TrainOptions(learning_rate=1e-2, **options), 1))
        weights.append(safetensors.torch.load_file(output.checkpoint / "optimizer.safetensors")["exp_avg"])
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-8)


def test_one_s_own_advantage_decides_which_groups_have_a_signal(setup, make_groups, code):
    setup.user_code = code
    groups = make_groups()
    for trajectory in groups[0]:
        trajectory.reward = 1.0  # equal rewards: no signal for the preset, one for this advantage
    output = Trainer(setup).train(
        StepInput(groups, TrainOptions(learning_rate=1e-2, advantage="lessons.mine:best_of"), 1)
    )
    assert output.metrics["data/step_num_groups_trainable"] == 2
