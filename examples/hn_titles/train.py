"""``python -m examples.hn_titles.train``."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from openai import AsyncOpenAI

import art
from art.errors import ARTError
from art.experiment import Example, Run, Settings, training_command
from art.rewards import RewardModel

from .environment import Story, load_stories, make_pairs, sample_stories, select
from .judge import Judge, ask_model, check_words
from .rollout import write_title

SMALL = Settings(steps=12, groups_per_step=16, group_size=8, learning_rate=3e-4)
FULL = Settings(
    base_model="Qwen/Qwen2.5-7B-Instruct",
    steps=100,
    groups_per_step=32,
    group_size=8,
    learning_rate=1e-5,
    max_staleness=1,
    max_sequence_length=4096,
)
EXAMPLE = Example("hn-titles", SMALL, FULL)
PAIRS = {"small": 400, "full": 20_000}
"""Pairs of titles that the reward model learns from."""


async def train(run: Run) -> None:
    """Train a reward model on titles and their votes, then a model that writes titles which it likes and which are true.

    The small form uses a generated sample; the full one a file of stories, HN_STORIES=PATH. A model that judges truth is named by
    JUDGE_MODEL; without one, a program checks words.
    """
    async with await open_reward_model(run) as reward_model, run.open_backend() as backend:
        model = run.make_model()
        await model.register(backend)
        await art.train(
            model,
            partial(write_title, reward_model=reward_model, judge=find_judge()),
            select(stories(run), "training"),
            **run.loop_options,
        )


async def open_reward_model(run: Run) -> RewardModel:
    """The run's reward model, trained the first time."""
    path = run.directory / "reward"
    if path.exists():
        return await RewardModel.load(path)
    pairs = make_pairs(select(stories(run), "reward"), PAIRS[run.form])
    print(f"{run.name}: training the reward model on {len(pairs)} pairs of titles", flush=True)
    reward_model = await RewardModel.train(
        run.settings.base_model,
        path,
        pairs=pairs,
        learning_rate=3e-5,
        epochs=2,
        max_length=128,
        held_out=0.4,
        seed=run.seed,
    )
    report = reward_model.report
    print(
        f"{report.accuracy:.0%} right ({report.accuracy_low:.0%} to {report.accuracy_high:.0%}) of held-out pairs",
        flush=True,
    )
    return reward_model


def stories(run: Run) -> Iterator[Story]:
    """The stories of a run, of all parts.

    Raises:
        ARTError: The full form needs a file, and none is named.
    """
    if run.form == "small":
        return sample_stories()
    path = os.environ.get("HN_STORIES")
    if path is None:
        raise ARTError("Name a .jsonl or .parquet file of stories: HN_STORIES=PATH.", 422)
    return load_stories(Path(path))


def find_judge() -> Judge:
    """The model that the environment names; without one, the program."""
    name = os.environ.get("JUDGE_MODEL")
    return check_words if name is None else ask_model(AsyncOpenAI(), name)


if __name__ == "__main__":
    training_command(EXAMPLE, train)
