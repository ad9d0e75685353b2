"""Supervised fine-tuning: examples become batches of rows, and the loss is the mean of −log π over a batch's tokens.

It uses the trainer's packing, precision, optimiser and checkpoints; only the loss differs from reinforcement learning.
"""

from art.wire import TokenRow
from art_backend.errors import BadRequestError
from art_backend.training.rows.batch import OverlongRule, StepPlan, Update, check_row, training_row
from art_backend.training.rows.packing import TrainingRow
from art_backend.training.types import SftInput


def plan_examples(step: SftInput, *, vocabulary: int, max_length: int) -> StepPlan:
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
    updates: list[Update] = []
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
            updates.append(Update(rows, rate))
    metrics = {
        "data/step_num_examples": float(len(step.examples)),
        "data/step_num_examples_trained": float(learned),
        "data/step_num_overlong": float(overlong.count),
    }
    reason = None if updates else "Every example was longer than the model's maximum sequence length, or empty."
    return StepPlan(updates, metrics, reason, overlong.warnings("examples"))


def _rows_of(example: list[TokenRow], where: str, overlong: OverlongRule, vocabulary: int) -> list[TrainingRow]:
    if not example:
        raise BadRequestError(f"{where} has no token to train.", param=where)
    for r, row in enumerate(example):
        check_row(row, f"{where}.rows.{r}", vocabulary)
    # what is imitated is to be said freely, whatever structure and temperature it was sampled under
    kept = [row.model_copy(update={"structures": [], "temperature": 1.0}) for row in overlong.apply(example, where)]
    return [training_row(row, advantage=1.0) for row in kept if any(row.sampled)]
