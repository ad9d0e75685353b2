"""The agent: it reads a puzzle and answers in one message."""

from typing import Any

import art

from .environment import HOURS, LEVELS, ROOMS, SUSPECTS, WEAPONS, Clue, Level, Puzzle, score

MAX_TOKENS = 16
"""Four words and the end of the message."""

EXAMPLE = Puzzle(
    LEVELS["easy"],
    (
        Clue("crime", "axe", negated=True),
        Clue("crime", "Ben"),
        Clue("crime", "two"),
        Clue("crime", "attic", negated=True),
        Clue("crime", "bow", negated=True),
        Clue("crime", "barn", negated=True),
    ),
    ("Ben", "cellar", "two", "club"),
)


def instructions(level: Level) -> str:
    """The task, with the names that answers are made of."""
    choices = [" or ".join(names[: level.size]) for names in (SUSPECTS, ROOMS, HOURS, WEAPONS)]
    return f"Solve the puzzle. Reply with four words: who ({choices[0]}), where ({choices[1]}), when ({choices[2]}), with what ({choices[3]})."


async def solve(model: art.TrainableModel, puzzle: Puzzle, *, step: int | None = None) -> art.Trajectory:
    """Let the model answer a puzzle, after one that is solved, and score the answer.

    Args:
        step: The policy version that answers; ``None`` follows the latest.
    """
    messages: list[Any] = [
        {"role": "system", "content": instructions(puzzle.level)},
        {"role": "user", "content": EXAMPLE.text},
        {"role": "assistant", "content": " ".join(EXAMPLE.solution)},
        {"role": "user", "content": puzzle.text},
    ]
    async with model.rollout(step=step) as rollout:
        completion = await rollout.openai_client().chat.completions.create(
            model=model.get_inference_name(step), messages=messages, max_tokens=MAX_TOKENS, temperature=1.0
        )
        choice = completion.choices[0]
        found = score(puzzle, choice.message.content or "")
        return rollout.trajectory(
            reward=found.reward, messages_and_choices=[*messages, choice], metrics=dict(found.metrics)
        )
