"""Going through a dataset in shuffled batches, from any step on."""

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class DatasetBatch(Generic[T]):
    """The scenarios of one training step.

    >>> [(batch.step, batch.epoch) for batch in iterate_dataset(["a", "b"], num_epochs=2, groups_per_step=2, use_tqdm=False)]
    [(0, 0), (1, 1)]
    """

    items: list[T]
    step: int
    """Counted over all epochs, from 0."""
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: Sequence[T], groups_per_step: int = 1, num_epochs: int = 1, initial_step: int = 0, use_tqdm: bool = True
) -> Generator[DatasetBatch[T]]:
    """Yield batches; each epoch is shuffled in its own way, the same in every run.

    Args:
        groups_per_step: Items per batch; the last batch of an epoch may be shorter.
        initial_step: Steps before this one are skipped, for resuming.
        use_tqdm: Show a progress bar.

    >>> for batch in iterate_dataset(["a", "b", "c"], groups_per_step=2, use_tqdm=False):
    ...     print(batch.step, len(batch.items))
    0 2
    1 1
    """
    per_epoch = math.ceil(len(dataset) / groups_per_step)
    bar = None
    if use_tqdm and dataset:
        from tqdm import tqdm

        bar = tqdm(total=per_epoch * num_epochs, initial=initial_step, desc="steps", disable=None)
    try:
        for epoch in range(num_epochs):
            order = list(range(len(dataset)))
            random.Random(epoch).shuffle(order)
            for epoch_step in range(per_epoch):
                step = epoch * per_epoch + epoch_step
                if step < initial_step:
                    continue
                chosen = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
                yield DatasetBatch([dataset[index] for index in chosen], step, epoch, epoch_step)
                if bar is not None:
                    bar.update(1)
    finally:
        if bar is not None:
            bar.close()
