"""``python -m examples.tic_tac_toe.train``."""

from functools import partial

import art
from art.experiment import Example, Run, Settings, training_command, training_seeds

from .environment import OPPONENTS
from .rollout import play, play_group, split_sides

SMALL = Settings(steps=16, groups_per_step=16, group_size=8, learning_rate=3e-4)
FULL = Settings(
    base_model="Qwen/Qwen2.5-1.5B-Instruct",
    steps=60,
    groups_per_step=32,
    group_size=16,
    learning_rate=5e-5,
    episodes=1000,
)
EXAMPLE = Example("tic-tac-toe", SMALL, FULL, variants=(*OPPONENTS, "self"), variant_option="--opponent")


async def train(run: Run) -> None:
    """Train a model at tic-tac-toe, against a random opponent, a perfect one, or itself."""
    async with run.open_backend() as backend:
        model = run.make_model()
        await model.register(backend)
        if run.variant == "self":
            await train_both_sides(run, model, backend)
            return
        await art.train(
            model, partial(play, opponent=OPPONENTS[str(run.variant)]), training_seeds(run.seed), **run.loop_options
        )


async def train_both_sides(run: Run, model: art.TrainableModel, backend: art.RemoteBackend) -> None:
    """Self-play: the explicit form of the loop, because a game gives trajectories to two groups."""
    settings = run.settings
    for step in range(await model.get_step(), run.last_step):
        seeds = training_seeds(run.seed)[step * settings.groups_per_step : (step + 1) * settings.groups_per_step]
        groups = await art.gather_trajectory_groups(
            (play_group(model, seed, settings.group_size) for seed in seeds), after_each=split_sides
        )
        result = await backend.train(model, groups, learning_rate=settings.learning_rate)
        await model.log(groups, split="train", step=result.step, metrics=result.metrics)
        rewards = [trajectory.reward for group in groups for trajectory in group]
        print(f"step {result.step} of {run.last_step}: reward {sum(rewards) / len(rewards):+.3f}", flush=True)


if __name__ == "__main__":
    training_command(EXAMPLE, train)
