"""Reward models: what a worker is asked and what it answers, one JSON object per line.

Conversations are lists of plain chat messages.
"""

from typing import Any, Literal

from pydantic import Field

from art.wire.base import Wire

Conversation = list[dict[str, Any]]


class PreferencePair(Wire):
    """Two answers to the same task, one better than the other."""

    chosen: Conversation
    rejected: Conversation
    group: str | None = None
    """The task. All pairs of one task fall on the same side of the held-out split; ``None``: the first message."""


class ScoredExample(Wire):
    """One conversation and its score, such as a user's thumbs up or down: 1 or 0."""

    messages: Conversation
    score: float = Field(allow_inf_nan=False)
    group: str | None = None
    """Examples are compared within their group; those without one are compared with each other."""


class TrainReward(Wire):
    """Train a reward model and save it."""

    op: Literal["train"] = "train"
    base_model: str
    output: str
    """A directory that does not exist yet."""
    pairs: list[PreferencePair] = []
    examples: list[ScoredExample] = []
    learning_rate: float = Field(1e-5, gt=0)
    epochs: int = Field(1, ge=1)
    batch_size: int = Field(8, ge=1)
    max_length: int = Field(2048, ge=8)
    """Tokens. Pairs with a longer conversation are left out and counted."""
    held_out: float = Field(0.2, gt=0, lt=1)
    """Fraction of the tasks held out: half calibrates the scores, the other half is for the report."""
    lora_rank: int | None = Field(None, ge=1)
    """``None`` trains all weights."""
    seed: int = 0


class LoadReward(Wire):
    """Load a saved reward model."""

    op: Literal["load"] = "load"
    path: str


class ScoreConversations(Wire):
    """Score conversations with the model that is loaded."""

    op: Literal["score"] = "score"
    conversations: list[Conversation]
    batch_tokens: int = Field(16384, ge=1)
    """Padded tokens per forward pass."""


class CalibrationBin(Wire):
    """Held-out pairs, by the model's confidence."""

    predicted: float
    """Mean predicted probability, 0.5 or more, that the preferred answer is the better one."""
    observed: float
    """How often it was."""
    count: int


class RewardReport(Wire):
    """Quality of a reward model on held-out pairs."""

    trained_pairs: int
    calibration_pairs: int
    held_out_pairs: int
    overlong_pairs: int
    """Pairs left out because a conversation was longer than ``max_length``."""
    accuracy: float
    """Share of held-out pairs in which the better answer scores higher."""
    accuracy_low: float
    accuracy_high: float
    """Wilson's 95 % interval of ``accuracy``."""
    log_loss: float
    """Mean −log P(better answer is preferred), in nats; 0.693 is guessing."""
    brier: float
    """Mean (1 − P)²; 0.25 is guessing."""
    calibration_error: float
    """Mean gap of ``predicted`` and ``observed``, weighted by count."""
    temperature: float
    """Divides the raw scores, so that sigmoid(a − b) is the probability that ``a`` is better than ``b``."""
    bins: list[CalibrationBin]


class RewardReady(Wire):
    """The answer to ``train`` and ``load``."""

    path: str
    report: RewardReport


class Scores(Wire):
    """The answer to ``score``: one calibrated score per conversation, in order."""

    scores: list[float]


class RewardFailure(Wire):
    """The answer on failure."""

    error: str
    """What happened and how to fix it."""
