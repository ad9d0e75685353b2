"""The named algorithms: each is an advantage, a ratio level, a surrogate and a reduction. docs/algorithms.md has the formulas."""

from dataclasses import dataclass
from typing import Literal

from art.wire import Algorithm, TrainOptions
from art_backend.training.algorithms.advantages import (
    AdvantageFunction,
    batch_normalised,
    group_relative,
    leave_one_out,
    mean_centred,
)
from art_backend.training.algorithms.losses import RatioLevel, Surrogate, clipped, clipped_importance

Reduction = Literal["trajectory", "sequence", "token", "constant"]
"""The unit that the step's loss is a mean over.

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
    Algorithm.DR_GRPO: Preset(mean_centred, "token", clipped, "constant", 0.2, 0.2),
    Algorithm.GSPO: Preset(group_relative, "sequence", clipped, "sequence", 3e-4, 4e-4),
    Algorithm.CISPO: Preset(group_relative, "token", clipped_importance, "token", 1.0, 4.0),
    Algorithm.RLOO: Preset(leave_one_out, "token", clipped, "token", 0.2, 0.2),
    Algorithm.REINFORCE_PLUS_PLUS: Preset(batch_normalised, "token", clipped, "token", 0.2, 0.2),
}


def clip_ranges(options: TrainOptions) -> tuple[float, float]:
    """The lower and the upper clip range: the options', else the algorithm's own.

    A lower range alone also sets the upper one where the algorithm's two are equal.
    """
    preset = PRESETS[options.algorithm]
    low = preset.epsilon if options.epsilon is None else options.epsilon
    if options.epsilon_high is not None:
        return low, options.epsilon_high
    return low, low if preset.epsilon == preset.epsilon_high else preset.epsilon_high
