"""Every named algorithm: its loss on a batch worked out by hand, and that it learns."""

import dataclasses
import math

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from art.wire import Algorithm, LoraSpec, TokenRow, TrainOptions
from art_backend.training.algorithms.losses import TokenBatch, policy_loss
from art_backend.training.algorithms.presets import PRESETS
from art_backend.training.rows.batch import build_batch, weigh
from art_backend.training.rows.packing import pack_rows
from art_backend.training.rows.targets import read_targets
from art_backend.training.trainer import Trainer
from art_backend.training.types import ScoredTrajectory, StepInput

MAX_LENGTH = 10

# Two trajectories of one group: reward 0 with one trained token, reward 2 with three; engine log-probabilities −1.
# Mean 1, deviation 1: A = ∓1 (to 1e-6), leave-one-out ∓2. The batch is the group, so batch-normalised is ∓1 too.
# The gradient with respect to each token's log-probability, on policy, is −weight · A:
GRADIENTS = {
    Algorithm.GRPO: (1 / 2, -1 / 6),  # 1/(2 trajectories · its tokens)
    Algorithm.DAPO: (1 / 4, -1 / 4),  # 1/(4 tokens)
    Algorithm.DR_GRPO: (1 / 20, -1 / 20),  # 1/(2 trajectories · maximum length 10)
    Algorithm.GSPO: (1 / 2, -1 / 6),  # 1/(2 rows) · 1/(its tokens), from the geometric mean
    Algorithm.CISPO: (1 / 4, -1 / 4),
    Algorithm.RLOO: (2 / 4, -2 / 4),
    Algorithm.REINFORCE_PLUS_PLUS: (1 / 4, -1 / 4),
}


# Off policy, without the correction: every token is 1.5 times as likely as when it was sampled. The good tokens (A > 0) are
# beyond every upper clip range but CISPO's, so they count 1 + ε_high and have no gradient; the bad one counts 1.5 · A.
# The loss is −Σ weight · objective.
L = math.log(1.5) - 1  # log-probability under the new policy
OFF_POLICY = {
    Algorithm.GRPO: (0.5 * 1.5 - 0.5 * 1.2, 1.5 / 2, 0),
    Algorithm.DAPO: ((1.5 - 3 * 1.28) / 4, 1.5 / 4, 0),
    Algorithm.DR_GRPO: ((1.5 - 3 * 1.2) / 20, 1.5 / 20, 0),
    Algorithm.GSPO: (0.5 * 1.5 - 0.5 * 1.0004, 1.5 / 2, 0),
    Algorithm.CISPO: (-(-1.5 * L + 3 * 1.5 * L) / 4, 1.5 / 4, -1.5 / 4),
    Algorithm.RLOO: (2 * (1.5 - 3 * 1.2) / 4, 2 * 1.5 / 4, 0),
    Algorithm.REINFORCE_PLUS_PLUS: ((1.5 - 3 * 1.2) / 4, 1.5 / 4, 0),
}
"""Loss, and the gradient with respect to the log-probability of the bad token and of each good one."""


def loss_by(algorithm, make_row, new, *, importance_cap, engine=-1.0, masked=None):
    """The loss of the two trajectories, and its gradient by row.

    Args:
        new: Log-probability of every token under the policy.
        masked: Add a token of weight 0 to the bad trajectory, with this for every number of it.
    """
    options = TrainOptions(algorithm=algorithm)
    bad, good = (ScoredTrajectory(r, [make_row([1], ids, -1.0)]) for r, ids in ((0, [2]), (2, [3, 4, 5])))
    preset = PRESETS[algorithm]
    batch = build_batch(StepInput([[bad, good]], options, 1), vocabulary=61, max_length=MAX_LENGTH)
    (pack,) = pack_rows(weigh(batch.members, preset.reduction, MAX_LENGTH), 100)
    targets = read_targets(pack, torch.device("cpu"))
    columns = [torch.full((4,), new), torch.full((4,), engine), targets.advantages, targets.weights, targets.rows]
    if masked is not None:
        extra = [masked, masked, masked, 0.0, 0]
        columns = [torch.cat([c, torch.tensor([v], dtype=c.dtype)]) for c, v in zip(columns, extra, strict=True)]
    logprobs = columns[0].requires_grad_()
    loss = policy_loss(
        TokenBatch(*columns),
        level=preset.level,
        surrogate=preset.surrogate,
        epsilon=preset.epsilon,
        epsilon_high=preset.epsilon_high,
        importance_cap=importance_cap,
        kl_coef=0.0,
    )
    loss.loss.backward()
    assert logprobs.grad is not None
    gradient = logprobs.grad.tolist()
    if masked is not None:
        assert gradient.pop() == 0.0
    by_row = dict(zip(targets.rows.tolist(), gradient, strict=True))
    assert len(set(gradient)) == len(set(by_row.values())), "the same for each token of a row"
    return loss.loss.item(), by_row[0], by_row[1]


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_on_policy_gradients_by_hand(make_row, algorithm):
    _, *gradient = loss_by(algorithm, make_row, -1.0, importance_cap=2.0)
    assert gradient == pytest.approx(GRADIENTS[algorithm], rel=1e-5)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_off_policy_loss_and_gradient_by_hand(make_row, algorithm):
    assert loss_by(algorithm, make_row, L, importance_cap=None) == pytest.approx(OFF_POLICY[algorithm], rel=1e-4)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("importance_cap", [2.0, None])
@pytest.mark.parametrize("masked", [float("nan"), float("inf"), float("-inf")])
def test_masked_positions_and_extreme_ratios_never_leak(make_row, algorithm, importance_cap, masked):
    plain = loss_by(algorithm, make_row, L, importance_cap=importance_cap)
    assert loss_by(algorithm, make_row, L, importance_cap=importance_cap, masked=masked) == plain
    for new, engine in ((float("-inf"), -1.0), (-1.0, float("-inf"))):
        found = loss_by(algorithm, make_row, new, engine=engine, importance_cap=importance_cap, masked=masked)
        assert all(math.isfinite(value) for value in found), found


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_equal_rewards_train_nothing(make_row, algorithm):
    groups = [[ScoredTrajectory(0.3, [make_row([1], [2])])] * 3] * 2
    batch = build_batch(StepInput(groups, TrainOptions(algorithm=algorithm), 1), vocabulary=61, max_length=MAX_LENGTH)
    assert batch.members == []
    assert batch.metrics["data/step_num_groups_dropped"] == 2


STEPS, GROUPS, MEMBERS = 12, 6, 8
LUCKY = 15
"""Reward is the share of sampled tokens below this; the vocabulary has 61."""


def play(model, generator):
    """Groups of two-turn games: an opening of four tokens, one sampled, one observed, one sampled."""
    groups = []
    for _ in range(GROUPS):
        opening = torch.randint(1, 61, (1, 4), generator=generator).expand(MEMBERS, -1)
        ids, logprobs = opening, torch.zeros(MEMBERS, 4)
        for turn in range(2):
            if turn:
                seen = torch.full((MEMBERS, 1), 7)
                ids, logprobs = torch.cat([ids, seen], 1), torch.cat([logprobs, torch.zeros(MEMBERS, 1)], 1)
            with torch.no_grad():
                log_p = torch.log_softmax(model(ids).logits[:, -1], -1)
            drawn = torch.multinomial(log_p.exp(), 1, generator=generator)
            ids, logprobs = torch.cat([ids, drawn], 1), torch.cat([logprobs, log_p.gather(1, drawn)], 1)
        sampled = [False] * 4 + [True, False, True]
        groups.append(
            [
                ScoredTrajectory(
                    ((row[4] < LUCKY).float() + (row[6] < LUCKY).float()).item() / 2,
                    [
                        TokenRow(
                            token_ids=row.tolist(),
                            sampled=sampled,
                            logprobs=old.tolist(),
                            policy_versions=[0 if s else -1 for s in sampled],
                            temperature=1.0,
                        )
                    ],
                )
                for row, old in zip(ids, logprobs, strict=True)
            ]
        )
    return groups


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_tiny_model_learns_a_two_turn_game(setup, base_path, algorithm):
    setup = dataclasses.replace(setup, lora=LoraSpec(rank=8, alpha=16))
    trainer = Trainer(setup)
    generator = torch.Generator().manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32).eval()
    options = TrainOptions(algorithm=algorithm, learning_rate=0.05)
    rewards = []
    for step in range(1, STEPS + 1):
        output = trainer.train(StepInput(play(model, generator), options, step))
        rewards.append(output.metrics["reward/mean"])
        base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, output.checkpoint).eval()
    assert rewards[0] < 0.45
    assert rewards[-1] > 0.85, rewards
