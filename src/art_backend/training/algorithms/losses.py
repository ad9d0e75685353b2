"""Policy losses as compositions: ratio level × surrogate, over per-token weights that hold the reduction.

All tensors have shape [N], one entry per trained token of a pack; ``weights`` are those of the whole optimiser step, so
losses of packs add up to the step's loss however the step is cut. With

    π      the policy that is trained
    π_e    what the engine sampled from: its reported log-probabilities
    π_s    the policy at the start of the step, computed by the trainer (= π, detached, when the step has one update)

a token's objective is

    w · surrogate(ρ, A),   w = min(π_s/π_e, cap), detached        with the correction (the default)
                           ρ = π/π_s
    surrogate(ρ, A),       ρ = π/π_e                              without (``importance_cap=None``)

w is truncated importance sampling over tokens (Espeholt et al. 2018, arXiv:1802.01561; for the gap between trainer and engine:
Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"). Keeping w apart from the
clipped ratio (Hilton et al. 2021, arXiv:2110.00641) means that a rounding gap can neither trip the clip nor be applied twice.

The loss of a step is Σ weight · (−objective + kl_coef · k3 − entropy_coef · H), with H the entropy of the token's distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

TokenLoss = Callable[["TokenBatch"], Tensor]
"""A loss of the user's: the trained tokens of a pack → loss of each, [N]. Weights and reduction are the trainer's."""

RatioLevel = Literal["token", "sequence"]
Surrogate = Callable[[Tensor, Tensor, Tensor, float, float], Tensor]
"""(ratio, new log-probability, advantage, lower range, upper range) → objective to maximise; all tensors [N]."""

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before ``exp``: e^20 is far outside of every clip range, and finite."""

MIN_LOGPROB = -1e6
"""Log-probabilities below this, −inf among them, count as this: a difference of two is then never NaN."""


@dataclass(slots=True)
class TokenBatch:
    """The trained tokens of one pack. All tensors are [N] and float32 except ``sequences`` (int64)."""

    logprobs: Tensor
    """log π; carries the gradient."""
    engine_logprobs: Tensor
    """log π_e."""
    advantages: Tensor
    weights: Tensor
    """Weight of the token in the step's loss: 1 / denominator. A token of weight 0 has no influence, whatever its values."""
    sequences: Tensor
    """Index of the row that the token belongs to: what a sequence-level ratio is the mean over."""
    start_logprobs: Tensor | None = None
    """log π_s; ``None`` while the policy is still the one of the step's start."""
    reference_logprobs: Tensor | None = None
    """log-probability under the reference, for the KL term."""
    entropy: Tensor | None = None
    """H of the distribution that predicts the token, in nats; carries the gradient. ``None`` without an entropy term."""


@dataclass(slots=True)
class PolicyLoss:
    """The loss of one pack (scalar, with gradient) and sums over its tokens for metrics (detached)."""

    loss: Tensor
    policy: float
    """The surrogate part of the loss."""
    kl_reference: float
    """Σ k3 over trained tokens, neither weighed nor scaled."""
    clipped_low: int
    """Tokens whose gradient the lower range stopped."""
    clipped_high: int


def clipped(ratio: Tensor, logprobs: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """min(ρ·A, clip(ρ, 1 − low, 1 + high)·A) (PPO, arXiv:1707.06347, eq. 7; apart ranges: DAPO, arXiv:2503.14476)."""
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def clipped_importance(ratio: Tensor, logprobs: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """clip(ρ, 1 − low, 1 + high), detached, · A · log π (CISPO, arXiv:2506.13585, eq. 4): no token loses its gradient."""
    return ratio.clamp(max(1 - low, 0.0), 1 + high).detach() * advantages * logprobs


def k3(reference_logprobs: Tensor, logprobs: Tensor) -> Tensor:
    """π_ref/π − log(π_ref/π) − 1 ≥ 0, an unbiased estimate of KL(π ‖ π_ref) (Schulman 2020, "Approximating KL divergence")."""
    log_ratio = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio.exp() - log_ratio - 1


def policy_loss(
    batch: TokenBatch,
    *,
    level: RatioLevel,
    surrogate: Surrogate,
    epsilon: float,
    epsilon_high: float,
    importance_cap: float | None,
    kl_coef: float,
    entropy_coef: float = 0.0,
    negative_advantage_cap: float | None = None,
    token_loss: TokenLoss | None = None,
) -> PolicyLoss:
    """Return the loss of one pack: Σ weight · (−w · surrogate + kl_coef · k3 − entropy_coef · H).

    Non-finite values at tokens of weight 0 reach neither the loss nor any gradient.

    Args:
        negative_advantage_cap: Largest w · ρ of a token with a negative advantage.
        token_loss: Stands in for −w · surrogate.
    """
    trained = batch.weights > 0

    def sane(values: Tensor) -> Tensor:
        return torch.where(trained, values, torch.zeros_like(values))

    def logs(values: Tensor) -> Tensor:
        return sane(values).clamp(min=MIN_LOGPROB)

    new, engine, advantages = logs(batch.logprobs), logs(batch.engine_logprobs), sane(batch.advantages)
    start = new.detach() if batch.start_logprobs is None else logs(batch.start_logprobs)
    if importance_cap is None:
        correction, old = torch.ones_like(new), engine
    else:
        correction, old = importance_weights(start, engine, importance_cap), start
    log_ratio = new - old
    if level == "sequence":
        log_ratio = _sequence_mean(log_ratio, batch.sequences, trained)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if negative_advantage_cap is not None:
        correction, ratio = _cap_negative(correction, ratio, advantages, negative_advantage_cap)
    weights = sane(batch.weights)
    if token_loss is None:
        policy = -(weights * correction * surrogate(ratio, new, advantages, epsilon, epsilon_high)).sum()
    else:
        seen = replace(
            batch, logprobs=new, engine_logprobs=engine, advantages=advantages, weights=weights, start_logprobs=start
        )
        policy = (weights * sane(token_loss(seen))).sum()
    loss = policy
    kl = torch.zeros_like(policy)
    if batch.reference_logprobs is not None:
        distance = sane(k3(logs(batch.reference_logprobs), new))
        kl, loss = distance.detach().sum(), loss + kl_coef * (weights * distance).sum()
    if batch.entropy is not None:
        loss = loss - entropy_coef * (weights * sane(batch.entropy)).sum()
    with torch.no_grad():
        low = trained & (ratio < 1 - epsilon) & (advantages < 0)
        high = trained & (ratio > 1 + epsilon_high) & (advantages > 0)
    return PolicyLoss(
        loss=loss,
        policy=policy.item(),
        kl_reference=kl.item(),
        clipped_low=int(low.sum()),
        clipped_high=int(high.sum()),
    )


def shape_advantages(advantages: Tensor, kl: Tensor, mean: float, coef: float) -> Tensor:
    """A + coef · (mean − kl): tokens that left the reference by more than the update's mean lose advantage, others gain; [N].

    The distance as a reward instead of a loss (Ouyang et al. 2022, arXiv:2203.02155, eq. 2), centred so that it moves no
    probability mass by itself.

    Args:
        advantages: [N]
        kl: [N]; log π_s − log π_ref.
        mean: Mean of ``kl`` over all tokens of the update.
    """
    return advantages + coef * (mean - kl)


def log_ratio_to(reference_logprobs: Tensor, start_logprobs: Tensor) -> Tensor:
    """log π_s − log π_ref, finite, clamped to ± ``MAX_LOG_RATIO``; shape [N]."""
    return (start_logprobs.clamp(min=MIN_LOGPROB) - reference_logprobs.clamp(min=MIN_LOGPROB)).clamp(
        -MAX_LOG_RATIO, MAX_LOG_RATIO
    )


def _cap_negative(correction: Tensor, ratio: Tensor, advantages: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Limit w · ρ to ``cap`` where A < 0; the clip of PPO has no such bound (dual clip, Ye et al. 2020, arXiv:1912.09729)."""
    negative = advantages < 0
    correction = torch.where(negative, correction.clamp(max=cap), correction)
    limit = cap / correction
    return correction, torch.where(negative & (ratio > limit), limit, ratio)


def importance_weights(start_logprobs: Tensor, engine_logprobs: Tensor, cap: float) -> Tensor:
    """min(π_s/π_e, cap), detached; shape [N]."""
    log_weight = (start_logprobs - engine_logprobs).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_weight.exp().clamp(max=cap)


def _sequence_mean(values: Tensor, sequences: Tensor, trained: Tensor) -> Tensor:
    """Mean of ``values`` over each sequence's trained tokens, given to each of its tokens (GSPO, arXiv:2507.18071, eq. 7)."""
    count = int(sequences.max()) + 1 if sequences.numel() else 0
    ones = trained.to(values.dtype)
    sums = values.new_zeros(count).index_add(0, sequences, values)
    counts = values.new_zeros(count).index_add(0, sequences, ones).clamp(min=1)
    return (sums / counts)[sequences]
