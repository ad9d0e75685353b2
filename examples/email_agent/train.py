"""``python -m examples.email_agent.train``."""

import os
from functools import partial

from openai import AsyncOpenAI

import art
from art.errors import ARTError
from art.experiment import Example, Run, Settings, training_command, training_seeds
from art.rewards import ruler_score_group
from art.rewards.ruler import Judge

from .agent import AGENTS
from .environment import tasks
from .rollout import find_answer, lesson

SMALL = Settings(
    steps=12,
    groups_per_step=8,
    group_size=8,
    learning_rate=3e-4,
    warm_up=48,
    max_sequence_length=1024,
)
FULL = Settings(
    base_model="Qwen/Qwen2.5-7B-Instruct",
    steps=100,
    groups_per_step=32,
    group_size=8,
    learning_rate=1e-5,
    max_staleness=1,
    max_sequence_length=4096,
)
RUBRIC = """\
- The agent was asked for a fact that stands in a mail. Only an answer that the mail it read supports is right.
- Of two right answers, the one with fewer calls is better.
- Without an answer, having read the mail that tells the fact is better than not."""
EXAMPLE = Example("email-agent", SMALL, FULL, variants=(*AGENTS, "ruler"), variant_option="--agent")


async def train(run: Run) -> None:
    """Train a model to find answers in a mailbox. The small model is shown scripted episodes first."""
    lessons = run.settings.warm_up
    async with run.open_backend() as backend:
        model = run.make_model()
        await model.register(backend)
        seeds = training_seeds(run.seed)
        find = partial(find_answer, agent="plain" if run.variant == "ruler" else str(run.variant))
        trials = list(tasks(seeds[-8:]))  # the run does not get that far
        await run.warm_up(model, [lesson(task) for task in tasks(seeds[:lessons])], find, trials)
        if run.variant == "ruler":
            await train_with_judge(run, model, backend, find_judge())
            return
        await art.train(model, find, tasks(seeds[lessons:]), **run.loop_options)


async def train_with_judge(
    run: Run, model: art.TrainableModel, backend: art.RemoteBackend, judge: Judge | tuple[AsyncOpenAI, str]
) -> None:
    """The explicit form of the loop, with the plain agent: a judge compares the runs of each group. Known answers are not used."""
    settings = run.settings
    for step in range(await model.get_step(), run.last_step):
        first = settings.warm_up + step * settings.groups_per_step
        seeds = training_seeds(run.seed)[first : first + settings.groups_per_step]
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(find_answer(model, task) for _ in range(settings.group_size))
                for task in tasks(seeds)
            ),
            after_each=lambda group: ruler_score_group(group, judge, rubric=RUBRIC),
        )
        result = await backend.train(model, groups, learning_rate=settings.learning_rate)
        await model.log(groups, split="train", step=result.step, metrics=result.metrics)
        rewards = [trajectory.reward for group in groups for trajectory in group]
        print(f"step {result.step} of {run.last_step}: reward {sum(rewards) / len(rewards):.3f}", flush=True)


def find_judge() -> tuple[AsyncOpenAI, str]:
    """The judge that the environment names.

    Raises:
        ARTError: It names none.
    """
    name = os.environ.get("JUDGE_MODEL")
    if name is None:
        raise ARTError(
            "Name the judge: JUDGE_MODEL=NAME, with OPENAI_API_KEY and, if it is not OpenAI's, OPENAI_BASE_URL.", 422
        )
    return AsyncOpenAI(), name


if __name__ == "__main__":
    training_command(EXAMPLE, train)
