"""The agent: it reads an article and writes a title, which is scored by a reward model and a judge."""

import math
from typing import Any

import art
from art.rewards import RewardModel

from .environment import Story, as_conversation
from .judge import Judge

MAX_TOKENS = 32
EXAMPLE_ARTICLE = (
    "Tavo is a spreadsheet. A student in Bern wrote it in Java. In her tests it needs 25% less space than before."
)
EXAMPLE_TITLE = "Tavo, a spreadsheet from Bern"


async def write_title(
    model: art.TrainableModel, story: Story, *, step: int | None = None, reward_model: RewardModel, judge: Judge
) -> art.Trajectory:
    """Let the model title an article, after one worked example, and score the title.

    Args:
        step: The policy version that writes; ``None`` follows the latest.
    """
    messages: list[Any] = [
        {"role": "system", "content": "Write a title for the article, in one line."},
        {"role": "user", "content": EXAMPLE_ARTICLE},
        {"role": "assistant", "content": EXAMPLE_TITLE},
        {"role": "user", "content": story.article},
    ]
    async with model.rollout(step=step) as rollout:
        completion = await rollout.openai_client().chat.completions.create(
            model=model.get_inference_name(step), messages=messages, max_tokens=MAX_TOKENS, temperature=1.0
        )
        choice = completion.choices[0]
        reward, metrics = await score_title(story.article, choice.message.content or "", reward_model, judge)
        if choice.finish_reason == "length":  # it did not come to an end: no title
            reward = 0.0
        return rollout.trajectory(reward=reward, messages_and_choices=[*messages, choice], metrics=metrics)


async def score_title(
    article: str, title: str, reward_model: RewardModel, judge: Judge
) -> tuple[float, dict[str, float]]:
    """Popularity times truth, each from 0 to 1; a title of no or several lines is worth nothing."""
    title = title.strip()
    if not title or "\n" in title:
        return 0.0, {"popular": 0.0, "true": 0.0}
    (score,) = await reward_model.score([as_conversation(title)])
    popular, true = 1 / (1 + math.exp(-score)), await judge(article, title)
    return popular * true, {"popular": popular, "true": true}
