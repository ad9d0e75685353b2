"""The learning rate of a step. A step's number is all that it depends on, so resuming needs no state."""

import math

from art.wire import Schedule, TrainOptions
from art_backend.errors import BadRequestError


def learning_rate(options: TrainOptions, step: int) -> float:
    """The rate of training step ``step`` (1, 2, …), with W = ``warmup_steps`` and T = ``total_steps``.

    Rising: rate · step / W while step ≤ W. Then, with p = (step − W − 1) / (T − W): linear rate · (1 − p), cosine
    rate · (1 + cos πp) / 2 (Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5). The last step is not wasted on a rate of zero.

    Raises:
        BadRequestError: A schedule that falls has ended before this step.
    """
    warmup, total = options.warmup_steps, options.total_steps
    if step <= warmup:
        return options.learning_rate * step / warmup
    if options.schedule is Schedule.CONSTANT or total is None:
        return options.learning_rate
    if step > total:
        raise BadRequestError(
            f"Step {step} is past the end of the {options.schedule.value} schedule (total_steps={total}). "
            'Raise total_steps, or choose schedule="constant".',
            param="options.total_steps",
        )
    p = (step - warmup - 1) / (total - warmup)
    falling = 1 - p if options.schedule is Schedule.LINEAR else (1 + math.cos(math.pi * p)) / 2
    return options.learning_rate * falling
