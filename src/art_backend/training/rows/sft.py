"""Supervised fine-tuning: examples become batches of rows, and the loss is the mean of −log π over a batch's tokens.

It uses the trainer's packing, precision, optimiser and checkpoints; only the loss differs from reinforcement learning.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from art.wire import TokenRow
from art_backend.errors import BadRequestError
from art_backend.training.rows.batch import OverlongRule, check_row, training_row
from art_backend.training.rows.packing import TrainingRow
from art_backend.training.types import SftInput


@dataclass(slots=True)
class SftBatch:
    """What one update learns."""

    rows: list[TrainingRow]
    learning_rate: float


@dataclass(slots=True)
class SftPlan:
    """All updates of one call, and what it leaves out."""

    batches: list[SftBatch]
    metrics: dict[str, float]
    reason: str | None
    """Why there is nothing to learn, if there is nothing."""
    warnings: list[str] = field(default_factory=list[str])

    def rows(self) -> Iterator[TrainingRow]:
        for batch in self.batches:
            yield from batch.rows


def build_plan(step: SftInput, *, vocabulary: int, max_length: int) -> SftPlan:
    """Check the examples and cut them into batches, in their order.

    A token weighs 1 / (trained tokens of its batch). A batch whose examples are all left out makes no update.

    Raises:
        BadRequestError: A value is wrong; ``param`` is its path.
    """
    options = step.options
    size = options.batch_size
    starts = range(0, len(step.examples), size)
    rates = options.learning_rates * len(starts) if len(options.learning_rates) == 1 else options.learning_rates
    if len(rates) != len(starts):
        raise BadRequestError(
            f"options.learning_rates has {len(rates)} entries; {len(step.examples)} examples in batches of {size} are "
            f"{len(starts)} batches. Give one rate per batch, or a single one.",
            param="options.learning_rates",
        )
    overlong = OverlongRule(options.overlong, max_length)
    batches: list[SftBatch] = []
    learned = 0
    for start, rate in zip(starts, rates, strict=True):
        rows: list[TrainingRow] = []
        for i, example in enumerate(step.examples[start : start + size], start):
            found = _rows_of(example, f"examples.{i}", overlong, vocabulary)
            learned += bool(found)
            rows += found
        tokens = sum(int(row.trained.sum()) for row in rows)
        for row in rows:
            row.weight = 1 / tokens
        if rows:
            batches.append(SftBatch(rows, rate))
    metrics = {
        "data/step_num_examples": float(len(step.examples)),
        "data/step_num_examples_trained": float(learned),
        "data/step_num_overlong": float(overlong.count),
    }
    reason = None if batches else "Every example was longer than the model's maximum sequence length, or empty."
    return SftPlan(batches, metrics, reason, overlong.warnings("examples"))


def _rows_of(example: list[TokenRow], where: str, overlong: OverlongRule, vocabulary: int) -> list[TrainingRow]:
    if not example:
        raise BadRequestError(f"{where} has no token to learn.", param=where)
    for r, row in enumerate(example):
        check_row(row, f"{where}.rows.{r}", vocabulary)
    # what is imitated is to be said freely, whatever structure and temperature it was sampled under
    kept = [row.model_copy(update={"structures": [], "temperature": 1.0}) for row in overlong.apply(example, where)]
    return [training_row(row, advantage=1.0) for row in kept if any(row.sampled)]
