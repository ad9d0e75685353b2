"""Losses and their gradients against hand-computed values, and their behaviour at the extremes."""

import math

import pytest
import torch

from art_backend.training.algorithms.losses import (
    TokenBatch,
    clipped,
    clipped_importance,
    importance_weights,
    k3,
    log_ratio_to,
    policy_loss,
    shape_advantages,
)


def loss_of(new, engine, advantages, weights=None, *, start=None, sequences=None, reference=None, **options):
    """(PolicyLoss, gradient of the loss with respect to the new log-probabilities)"""
    logprobs = torch.tensor(new, requires_grad=True)
    n = len(new)
    result = policy_loss(
        TokenBatch(
            logprobs=logprobs,
            engine_logprobs=torch.tensor(engine),
            advantages=torch.tensor(advantages),
            weights=torch.tensor(weights or [1.0] * n),
            sequences=torch.tensor(sequences or [0] * n),
            start_logprobs=None if start is None else torch.tensor(start),
            reference_logprobs=None if reference is None else torch.tensor(reference),
        ),
        **{
            "level": "token",
            "surrogate": clipped,
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "importance_cap": 2.0,
            "kl_coef": 0.0,
            **options,
        },
    )
    result.loss.backward()
    return result, logprobs.grad.tolist()


LN = math.log


def test_on_policy_gradient_is_minus_advantage_times_weight():
    result, grad = loss_of([-1.0, -2.0], [-1.0, -2.0], [1.5, -0.5], [0.25, 0.5])
    assert result.loss.item() == pytest.approx(-(0.25 * 1.5 - 0.5 * 0.5))
    assert grad == pytest.approx([-0.25 * 1.5, 0.5 * 0.5])


def test_the_correction_weighs_a_token_by_trainer_over_engine_up_to_the_cap():
    # π/π_e = 1.5 and 3: the second is cut at the cap of 2. The gap never reaches the clip.
    result, grad = loss_of([LN(0.3), LN(0.3)], [LN(0.2), LN(0.1)], [1.0, 1.0])
    assert grad == pytest.approx([-1.5, -2.0])
    assert result.loss.item() == pytest.approx(-3.5)
    assert result.clipped_high == 0


def test_without_the_correction_the_engine_is_the_old_policy():
    # ρ = 1.5 > 1.28 with A > 0: clipped. ρ = 0.5 < 0.8 with A < 0: clipped. Both lose their gradient.
    # ρ = 1.5 with A < 0 and ρ = 0.5 with A > 0 keep it: the gradient is −ρ·A.
    new = [LN(0.3), LN(0.1), LN(0.3), LN(0.1)]
    result, grad = loss_of(new, [LN(0.2)] * 4, [1.0, -1.0, -1.0, 1.0], importance_cap=None)
    assert grad == pytest.approx([0.0, 0.0, 1.5, -0.5])
    assert result.loss.item() == pytest.approx(-(1.28 - 0.8 - 1.5 + 0.5))
    assert (result.clipped_low, result.clipped_high) == (1, 1)


def test_later_updates_clip_against_the_start_of_the_step_and_keep_its_correction():
    # π_s/π_e = 1.25; ρ = π/π_s = 1.1 (inside the range): gradient −1.25·1.1·A.
    result, grad = loss_of([LN(0.275)], [LN(0.2)], [2.0], start=[LN(0.25)])
    assert grad == pytest.approx([-1.25 * 1.1 * 2])
    assert result.loss.item() == pytest.approx(-1.25 * 1.1 * 2)
    _, grad = loss_of([LN(0.5)], [LN(0.2)], [2.0], start=[LN(0.25)])  # ρ = 2
    assert grad == [0.0]


def test_clipped_importance_keeps_the_gradient_of_clipped_tokens():
    # ρ = 3 is clipped to 1.28; the gradient is −1.28·A instead of nothing.
    result, grad = loss_of([LN(0.6)], [LN(0.2)], [1.0], surrogate=clipped_importance, importance_cap=None)
    assert grad == pytest.approx([-1.28])
    assert result.loss.item() == pytest.approx(-1.28 * LN(0.6))


def test_sequence_level_ratio_is_the_geometric_mean_over_the_row():
    # Row 0: ratios 1.21 and 1 → 1.1. Row 1: 1. Gradient of a row's tokens: −w·s·A/|row| each.
    new = [LN(0.121), LN(0.3), LN(0.5)]
    old = [LN(0.1), LN(0.3), LN(0.5)]
    result, grad = loss_of(
        new, old, [1.0, 1.0, -1.0], [0.25, 0.25, 0.5], sequences=[0, 0, 1], level="sequence", importance_cap=None
    )
    assert grad == pytest.approx([-0.275, -0.275, 0.5])
    assert result.loss.item() == pytest.approx(-(0.5 * 1.1 - 0.5))


def test_k3_is_zero_at_the_reference_positive_elsewhere_and_exact():
    # π_ref/π = 2: 2 − ln 2 − 1
    values = k3(torch.tensor([LN(0.2), LN(0.4)]), torch.tensor([LN(0.2), LN(0.2)]))
    assert values.tolist() == pytest.approx([0.0, 1 - LN(2)], abs=1e-6)
    result, grad = loss_of([LN(0.2)], [LN(0.2)], [0.0], [0.5], reference=[LN(0.4)], kl_coef=0.1)
    assert result.loss.item() == pytest.approx(0.1 * 0.5 * (1 - LN(2)))
    assert result.kl_reference == pytest.approx(1 - LN(2))
    assert grad == pytest.approx([0.1 * 0.5 * (1 - 2)])  # d k3/d log π = 1 − π_ref/π


def test_the_negative_cap_bounds_how_hard_a_bad_token_is_pushed_away():
    # π/π_e = 3 with A < 0 has no bound in the clip: gradient −ρA = 3. Capped at 2 it is gone, and the loss is −2A.
    # The good token beside it is as before: ρ = 1.1 inside the range.
    new, engine = [LN(0.3), LN(0.11)], [LN(0.1), LN(0.1)]
    _, grad = loss_of(new, engine, [-1.0, 1.0], importance_cap=None)
    assert grad == pytest.approx([3.0, -1.1])
    result, grad = loss_of(new, engine, [-1.0, 1.0], importance_cap=None, negative_advantage_cap=2.0)
    assert grad == pytest.approx([0.0, -1.1])
    assert result.loss.item() == pytest.approx(2.0 - 1.1)


def test_the_negative_cap_bounds_the_correction_without_stopping_the_first_update():
    # w = min(3, 4) = 3 for both; the bad token's is capped at 1.5 and keeps its gradient, since ρ = 1.
    _, grad = loss_of([LN(0.3)] * 2, [LN(0.1)] * 2, [-1.0, 1.0], importance_cap=4.0, negative_advantage_cap=1.5)
    assert grad == pytest.approx([1.5, -3.0])
    # A later update: w = 1.25, ρ = 1.2 · w is 1.5 and passes; at 1.3 it does not.
    for ratio, expected in ((1.19, 1.25 * 1.19), (1.3, 0.0)):
        _, grad = loss_of(
            [LN(0.25 * ratio)], [LN(0.2)], [-1.0], start=[LN(0.25)], negative_advantage_cap=1.5, epsilon_high=10.0
        )
        assert grad == pytest.approx([expected])


def test_entropy_is_rewarded_in_proportion_to_the_weight():
    entropy = torch.tensor([1.5, 0.25], requires_grad=True)
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    fixed = torch.tensor([-1.0, -1.0])
    batch = TokenBatch(logprobs, fixed, torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.25]), torch.tensor([0, 0]))
    batch.entropy = entropy
    result = policy_loss(
        batch,
        level="token",
        surrogate=clipped,
        epsilon=0.2,
        epsilon_high=0.2,
        importance_cap=2.0,
        kl_coef=0.0,
        entropy_coef=0.1,
    )
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-0.5 - 0.1 * (0.5 * 1.5 + 0.25 * 0.25))
    assert result.policy == pytest.approx(-0.5)
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([-0.05, -0.025])


def test_kl_in_the_advantage_has_mean_zero_and_moves_advantage_from_far_tokens_to_near_ones():
    # log π_s − log π_ref = ln 2, 0, −ln 2 … of an update whose mean is ln 2 / 3.
    start, reference = torch.tensor([LN(0.4), LN(0.2), LN(0.4)]), torch.tensor([LN(0.2), LN(0.2), LN(0.4)])
    kl = log_ratio_to(reference, start)
    assert kl.tolist() == pytest.approx([LN(2), 0.0, 0.0])
    shaped = shape_advantages(torch.tensor([1.0, 1.0, -1.0]), kl, float(kl.mean()), 0.3)
    assert shaped.tolist() == pytest.approx([1 - 0.2 * LN(2), 1 + 0.1 * LN(2), -1 + 0.1 * LN(2)])
    extreme = log_ratio_to(
        torch.tensor([float("-inf"), -1.0, float("-inf")]), torch.tensor([-1.0, float("-inf"), float("-inf")])
    )
    assert extreme.tolist() == [20.0, -20.0, 0.0]


def test_a_loss_of_one_s_own_is_weighed_and_reduced_like_the_others():
    def own(batch):
        return -(batch.logprobs - batch.start_logprobs + 3) * batch.advantages

    result, grad = loss_of([-1.0, -2.0], [-1.0, -9.0], [1.5, -0.5], [0.25, 0.5], token_loss=own)
    assert grad == pytest.approx([-0.25 * 1.5, 0.5 * 0.5])
    assert result.policy == pytest.approx(-3 * (0.25 * 1.5 - 0.5 * 0.5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("importance_cap", [2.0, None])
def test_no_option_lets_a_token_of_weight_zero_leak(bad, importance_cap):
    options = {"negative_advantage_cap": 2.0, "kl_coef": 0.1, "importance_cap": importance_cap}
    options["token_loss"] = lambda batch: -(batch.logprobs - batch.engine_logprobs).exp() * batch.advantages
    for left_out in ((), ("token_loss",)):
        chosen = {k: v for k, v in options.items() if k not in left_out}
        expected, expected_grad = loss_of([-1.0], [-1.5], [-1.0], reference=[-1.2], **chosen)
        result, grad = loss_of([-1.0, bad], [-1.5, bad], [-1.0, bad], [1.0, 0.0], reference=[-1.2, bad], **chosen)
        assert result.loss.item() == expected.loss.item()
        assert result.kl_reference == expected.kl_reference
        assert grad == [*expected_grad, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_nothing_leaks_from_a_token_of_weight_zero(bad, level):
    expected, expected_grad = loss_of([-1.0], [-1.1], [1.0], level=level)
    result, grad = loss_of(
        [-1.0, bad], [-1.1, bad], [1.0, bad], [1.0, 0.0], sequences=[0, 0], level=level, reference=[-1.0, bad]
    )
    assert result.loss.item() == expected.loss.item()
    assert grad == [*expected_grad, 0.0]


@pytest.mark.parametrize("negative_cap", [1.5, None])
@pytest.mark.parametrize("cap", [2.0, None])
@pytest.mark.parametrize("new, engine", [(-1e4, -0.1), (-0.1, -1e4), (float("-inf"), -0.1), (-0.1, float("-inf"))])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_give_finite_gradients(cap, negative_cap, new, engine, advantage):
    options = {"importance_cap": cap, "negative_advantage_cap": negative_cap}
    result, grad = loss_of([new], [engine], [advantage], **options)
    assert math.isfinite(result.loss.item())
    assert math.isfinite(grad[0])


def test_a_pack_without_trained_tokens_has_loss_zero():
    result, grad = loss_of([-1.0], [-1.0], [3.0], [0.0])
    assert result.loss.item() == 0.0
    assert grad == [0.0]


def test_importance_weights_carry_no_gradient():
    start = torch.tensor([0.0], requires_grad=True)
    assert not importance_weights(start, torch.tensor([-0.5]), 2.0).requires_grad
