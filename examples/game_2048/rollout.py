"""The agent: it is shown the board and answers with a direction, again and again."""

from typing import Any

import art

from .environment import LONG, SHORT, Game, Rules, grid

WINDOW = 16
"""Answers after which the chat begins anew with the current board.

So the context has a bound however long the game is: the opening, and ``WINDOW`` boards with their answers. Within a window the chat
only grows, so that each is one row of training data; the rewards of all rows of a game are the game's.
"""
MAX_TOKENS = 3
"""A direction and the end of the message."""

EXAMPLES = {SHORT: ((2, 0, 2), (4, 0, 0), (8, 0, 0)), LONG: ((2, 0, 2, 0), (4, 0, 0, 0), (8, 0, 0, 2), (16, 4, 0, 0))}


def opening_messages(rules: Rules) -> list[Any]:
    """What stands in the chat before the board: the task in a line, and one worked example."""
    return [
        {"role": "system", "content": "You play 2048. Reply with left, right, up or down."},
        {"role": "user", "content": grid(EXAMPLES[rules])},
        {"role": "assistant", "content": "left"},
    ]


async def play(model: art.TrainableModel, seed: int, *, step: int | None = None, rules: Rules = LONG) -> art.Trajectory:
    """Play one game and score it.

    Args:
        step: The policy version that plays; ``None`` follows the latest.
    """
    game = Game(seed, rules)
    messages = opening_messages(rules)
    async with model.rollout(step=step) as rollout:
        client = rollout.openai_client()
        while not game.is_over:
            if game.answers and game.answers % WINDOW == 0:
                messages = opening_messages(rules)
            messages.append({"role": "user", "content": grid(game.board)})
            completion = await client.chat.completions.create(
                model=model.get_inference_name(step), messages=messages, max_tokens=MAX_TOKENS, temperature=1.0
            )
            answer = completion.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": answer})
            game.answer(answer)
        return rollout.trajectory(
            reward=game.reward, messages_and_choices=messages, metrics=game.metrics, metadata={"seed": seed}
        )
