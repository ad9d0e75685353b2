"""The named algorithms: each is an advantage, a ratio level, a surrogate and a reduction. docs/algorithms.md has the formulas."""

from dataclasses import dataclass
from typing import Literal

from art.wire import Algorithm
from art_backend.training.advantages import AdvantageFunction, group_relative
from art_backend.training.losses import RatioLevel, Surrogate, clipped

Reduction = Literal["trajectory", "sequence", "token", "constant"]
"""What the step's loss is a mean over.

``trajectory``: each trajectory's tokens, then trajectories. ``sequence``: each row's tokens, then rows. ``token``: all trained
tokens of the step. ``constant``: a sum, divided by trajectories × the model's maximum sequence length.
"""


@dataclass(frozen=True, slots=True)
class Preset:
    """One algorithm."""

    advantage: AdvantageFunction
    level: RatioLevel
    surrogate: Surrogate
    reduction: Reduction
    epsilon: float
    """The ratio is clipped below at 1 − epsilon …"""
    epsilon_high: float
    """… and above at 1 + epsilon_high."""


PRESETS: dict[Algorithm, Preset] = {
    Algorithm.GRPO: Preset(group_relative, "token", clipped, "trajectory", 0.2, 0.2),
    Algorithm.DAPO: Preset(group_relative, "token", clipped, "token", 0.2, 0.28),
}
