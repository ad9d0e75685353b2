"""``python -m examples.game_2048.train``."""

from functools import partial

import art
from art.experiment import Example, Run, Settings, training_command, training_seeds

from .environment import LONG, SHORT
from .rollout import play

SMALL = Settings(steps=12, groups_per_step=16, group_size=8, learning_rate=3e-4)
FULL = Settings(
    base_model="Qwen/Qwen2.5-3B-Instruct",
    steps=80,
    groups_per_step=16,
    group_size=16,
    learning_rate=5e-5,
    max_staleness=1,
    max_sequence_length=2048,
)
EXAMPLE = Example("2048", SMALL, FULL)
RULES = {"small": SHORT, "full": LONG}


async def train(run: Run) -> None:
    """Train a model at 2048: eight moves on a 3×3 board in the small form, the real game in the full one."""
    async with run.open_backend() as backend:
        model = run.make_model()
        await model.register(backend)
        await art.train(model, partial(play, rules=RULES[run.form]), training_seeds(run.seed), **run.loop_options)


if __name__ == "__main__":
    training_command(EXAMPLE, train)
