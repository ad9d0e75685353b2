"""``python -m examples.temporal_clue.train``."""

import art
from art.experiment import Example, Run, Settings, training_command

from .environment import LEVELS, puzzles
from .rollout import solve

SMALL = Settings(steps=32, groups_per_step=16, group_size=8, learning_rate=3e-4)
FULL = Settings(
    base_model="Qwen/Qwen2.5-7B-Instruct",
    steps=200,
    groups_per_step=32,
    group_size=16,
    learning_rate=1e-5,
    max_sequence_length=2048,
)
EXAMPLE = Example("temporal-clue", SMALL, FULL, variants=tuple(LEVELS), variant_option="--level")


async def train(run: Run) -> None:
    """Train a model to find out who did it, where, when and with what."""
    level = LEVELS[str(run.variant)]
    async with run.open_backend() as backend:
        model = run.make_model()
        await model.register(backend)
        await art.train(model, solve, puzzles(level, run.seed, validation=False), **run.loop_options)


if __name__ == "__main__":
    training_command(EXAMPLE, train)
