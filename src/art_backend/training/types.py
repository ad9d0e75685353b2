"""Input and output of a training step."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from art.wire import LoraSpec, SftOptions, TokenRow, TrainOptions

Precision = Literal["auto", "bfloat16", "float32"]


@dataclass(slots=True)
class ScoredTrajectory:
    """One trajectory, ready to train: its reward and the rows that hold its sampled tokens, each exactly once."""

    reward: float
    rows: list[TokenRow]


@dataclass(slots=True)
class ModelSetup:
    """Everything that the trainer needs to load a model."""

    base_path: Path
    """Directory with the base model's Hugging Face files."""
    lora: LoraSpec
    max_sequence_length: int
    checkpoints: Path
    """Directory that holds one directory per step."""
    precision: Precision = "auto"
    """Type of the computation; ``auto`` takes bfloat16 where the hardware multiplies it faster."""
    full_finetune: bool = False
    """Whether all weights are trained instead of an adapter."""
    user_code: Path | None = None
    """Directory whose modules may define advantages and losses; ``None``: no user code is loaded."""


@dataclass(slots=True)
class StepInput:
    """One call of train."""

    groups: list[list[ScoredTrajectory]]
    options: TrainOptions
    step: int
    """The policy version that this step makes; training starts from version ``step - 1``."""
    warnings: list[str] = field(default_factory=list[str])
    """One sentence for each reason why something was left out before it reached the trainer."""


@dataclass(slots=True)
class SftInput:
    """One call of supervised fine-tuning."""

    examples: list[list[TokenRow]]
    """The rows of each example, in the order in which they are learned."""
    options: SftOptions
    step: int
    """As for ``StepInput``. However many updates it takes, the call makes one version."""


AnyInput = StepInput | SftInput


@dataclass(slots=True)
class Canary:
    """A prompt with a known log-probability, to verify which weights an engine serves.

    After ``token_ids``, the greedy token of the new weights has log-probability ``logprob`` at temperature 1; under the
    previous weights the greedy token's was ``previous_logprob``.
    """

    token_ids: list[int]
    logprob: float
    previous_logprob: float


@dataclass(slots=True)
class StepOutput:
    """The result of one step. ``trained`` is False if no weight changed; ``reason`` then says why."""

    step: int
    trained: bool
    reason: str | None
    metrics: dict[str, float]
    warnings: list[str]
    checkpoint: Path
    canaries: list[Canary] = field(default_factory=list[Canary])
