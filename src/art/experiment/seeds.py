"""Seeds of episodes that are trained on, apart from those that are tested on."""

TRAINING_SEEDS_FROM = 1_000_000_000
"""Held-out episodes have the seeds below; no training episode has one of theirs."""
SEEDS_PER_RUN = 1_000_000


def training_seeds(seed: int) -> range:
    """The seeds of a run's training episodes, in order; runs of other seeds have others.

    >>> training_seeds(1)[0], training_seeds(2)[0]
    (1001000000, 1002000000)
    """
    first = TRAINING_SEEDS_FROM + seed * SEEDS_PER_RUN
    return range(first, first + SEEDS_PER_RUN)
