"""Advantages: how much better a trajectory did than was to be expected.

Every function takes the rewards of a whole step, one array per group of shape [members], and returns advantages of the
same shapes. A group of zeros carries no signal and is dropped before packing.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Rewards = Sequence[NDArray[np.float64]]
Advantages = list[NDArray[np.float64]]
AdvantageFunction = Callable[[Rewards, bool], Advantages]
"""(rewards per group, whether to divide by the standard deviation) → advantages per group."""

STD_EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""

LARGE = 1e100
"""Rewards beyond this are measured in units of the largest, since their squares would be beyond float64."""

EQUAL_WITHIN = 1e-12
"""Rewards that differ by no more than this are equal; rounding must not make a signal out of nothing."""


def has_signal(rewards: NDArray[np.float64]) -> bool:
    """Whether these rewards differ."""
    return rewards.size > 1 and float(rewards.max() - rewards.min()) > EQUAL_WITHIN


def group_relative(rewards: Rewards, scale: bool) -> Advantages:
    """A = r − mean, divided by (population std + ε) of the group when ``scale`` (GRPO, arXiv:2402.03300, §4.1.2)."""

    def of_group(r: NDArray[np.float64]) -> NDArray[np.float64]:
        if not has_signal(r):
            return np.zeros_like(r)
        largest = float(np.abs(r).max())
        unit = largest if largest > LARGE else 1.0
        small = r / unit
        centred = small - small.mean()
        return centred / (small.std() + STD_EPSILON / unit) if scale else centred * unit

    return [of_group(r) for r in rewards]


def mean_centred(rewards: Rewards, scale: bool) -> Advantages:
    """A = r − mean of the group, never scaled: the size of a reward keeps its meaning (Dr. GRPO, arXiv:2503.20783)."""
    return group_relative(rewards, scale=False)


def leave_one_out(rewards: Rewards, scale: bool) -> Advantages:
    """A = r − mean of the other members = n/(n−1) · (r − mean), never scaled (RLOO, arXiv:2402.14740)."""
    return [a * (a.size / max(a.size - 1, 1)) for a in group_relative(rewards, scale=False)]


def batch_normalised(rewards: Rewards, scale: bool) -> Advantages:
    """A = r − mean of the whole batch, divided by (its population std + ε) when ``scale`` (REINFORCE++, arXiv:2501.03262).

    Groups do not matter, so a group whose members all did equally well still learns from the others.
    """
    if not rewards:
        return []
    everything = group_relative([np.concatenate(list(rewards))], scale)[0]
    return np.split(everything, np.cumsum([r.size for r in rewards])[:-1])
