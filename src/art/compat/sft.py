"""Supervised fine-tuning: learning rates, datasets and files, resumable at any batch."""

import itertools
import json
import math
import random
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from art.trajectories import Trajectory
from art.types import TrainSFTConfig

if TYPE_CHECKING:
    from art import dev
    from art.model import TrainableModel

Schedule = Literal["linear", "cosine", "constant"]


class SFTChunk(NamedTuple):
    """Consecutive batches of one epoch, with the learning rate of each."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    """Number of the first batch, over all epochs, from 0."""
    epoch: int
    epoch_step: int
    """Number of the first batch within the epoch."""


def create_lr_schedule(
    total_steps: int, peak_lr: float, method: Schedule = "linear", warmup_steps: int = 0, min_lr: float = 0.0
) -> list[float]:
    """One learning rate per step: a linear warm-up to ``peak_lr``, then a decay to ``min_lr`` at the last step.

    Raises:
        ValueError: An unknown method.
    """
    if method not in ("linear", "cosine", "constant"):
        raise ValueError(f"method must be linear, cosine or constant, not {method!r}.")
    decay_steps = total_steps - warmup_steps
    rates: list[float] = []
    for step in range(max(total_steps, 0)):
        if step < warmup_steps:
            rates.append(min_lr + (peak_lr - min_lr) * (step + 1) / warmup_steps)
            continue
        progress = (step - warmup_steps) / (decay_steps - 1) if decay_steps > 1 else 0.0
        shape = {"linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress)), "constant": 1.0}[method]
        rates.append(min_lr + (peak_lr - min_lr) * shape)
    return rates


def create_sft_dataset_iterator(
    trajectories: Sequence[Trajectory],
    chunk_size: int = 10,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
    show_progress: bool = True,
) -> Generator[SFTChunk]:
    """Yield chunks for ``model.train_sft``; a chunk never spans two epochs.

    Args:
        chunk_size: Batches per chunk.
        initial_step: Chunks that end at or before this batch are skipped, for resuming.

    Raises:
        ValueError: ``chunk_size`` is below 1.

    >>> lessons = [art.Trajectory() for _ in range(8)]
    >>> for chunk in create_sft_dataset_iterator(lessons, chunk_size=2, batch_size=2, show_progress=False):
    ...     print(chunk.step, len(chunk.trajectories))
    0 4
    2 4
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}.")
    per_epoch = math.ceil(len(trajectories) / batch_size)
    total = per_epoch * epochs
    rates = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))
    bar = None
    if show_progress and total:
        from tqdm import tqdm

        bar = tqdm(total=total, initial=min(initial_step, total), desc="batches", disable=None)
    try:
        for epoch in range(epochs):
            order = list(trajectories)
            if shuffle:
                random.Random(seed + epoch).shuffle(order)
            for first in range(0, per_epoch, chunk_size):
                step, end = epoch * per_epoch + first, epoch * per_epoch + min(first + chunk_size, per_epoch)
                if end <= initial_step:
                    continue
                config = TrainSFTConfig(learning_rate=rates[step:end], batch_size=batch_size)
                chosen = order[first * batch_size : (first + chunk_size) * batch_size]
                yield SFTChunk(chosen, config, step, epoch, first)
                if bar is not None:
                    bar.update(end - max(step, initial_step))
    finally:
        if bar is not None:
            bar.close()


def get_file_row_count(path: str | Path) -> int:
    """Number of lines that are not blank."""
    with Path(path).open(encoding="utf-8") as rows:
        return sum(1 for line in rows if line.strip())


def iterate_file(
    file_path: str | Path, epochs: int = 1, shuffle_buffer_size: int = 10000, seed: int = 42, initial_skip: int = 0
) -> Iterator[Trajectory]:
    """Stream the conversations of a JSONL file, ``{"messages": […], "tools"?: […]}`` per line.

    Args:
        shuffle_buffer_size: Conversations that are held to shuffle; the order is the same in every run.
        initial_skip: Conversations to leave out at the beginning, over all epochs.

    Raises:
        ValueError: Not a ``.jsonl`` file, or a line that cannot be read; the message names it.
    """
    if Path(file_path).suffix != ".jsonl":
        raise ValueError(f"{file_path} must be a .jsonl file.")
    return itertools.islice(_iterate_epochs(Path(file_path), epochs, shuffle_buffer_size, seed), initial_skip, None)


def _iterate_epochs(path: Path, epochs: int, buffer_size: int, seed: int) -> Generator[Trajectory]:
    for epoch in range(epochs):
        rng = random.Random(seed + epoch)
        buffer: list[Trajectory] = []
        for trajectory in _read(path):
            if len(buffer) < buffer_size:
                buffer.append(trajectory)
                continue
            if not buffer:
                yield trajectory
                continue
            index = rng.randrange(len(buffer))
            buffer[index], drawn = trajectory, buffer[index]
            yield drawn
        rng.shuffle(buffer)
        yield from buffer


def _read(path: Path) -> Generator[Trajectory]:
    with path.open(encoding="utf-8") as rows:
        for number, line in enumerate(rows, 1):
            if not line.strip():
                continue
            try:
                row: dict[str, Any] = json.loads(line)
                yield Trajectory(messages_and_choices=row["messages"], tools=row.get("tools"))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f'{path}:{number} is not {{"messages": […]}}: {error!r}') from error


async def train_sft_from_file(
    model: "TrainableModel[Any, Any]",
    file_path: str | Path,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    initial_step: int = 0,
    final_step: int | None = None,
    _config: "dev.TrainSFTConfig | None" = None,
    verbose: bool = False,
    shuffle_buffer_size: int = 10000,
) -> None:
    """Fine-tune on the batches from ``initial_step`` to before ``final_step`` of a file, in one call.

    The learning rates are those of the whole schedule, so a run may be cut into several calls.

    >>> lesson = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\\n'
    >>> _ = Path("lessons.jsonl").write_text(lesson * 2)
    >>> await train_sft_from_file(model, "lessons.jsonl", batch_size=2)
    """
    total = math.ceil(get_file_row_count(file_path) * epochs / batch_size)
    final = total if final_step is None else min(final_step, total)
    if final <= initial_step:
        return
    rates = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))
    stream = iterate_file(file_path, epochs, shuffle_buffer_size, initial_skip=initial_step * batch_size)
    chosen = list(itertools.islice(stream, (final - initial_step) * batch_size))
    config = TrainSFTConfig(learning_rate=rates[initial_step:final], batch_size=batch_size)
    await model.train_sft(chosen, config, _config, verbose)
