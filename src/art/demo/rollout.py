"""The agent: plays one game of tic-tac-toe by chatting with the model. The only client it knows is OpenAI's."""

from typing import Any

import art
from art.demo.game import Game, Opponent, Outcome, grid, play_random_square

EXAMPLE_BOARD, EXAMPLE_ANSWER = "1O3XX6O89", "6"
MAX_TOKENS = 2
"""A digit and the end of the message."""


def opening_messages() -> list[dict[str, Any]]:
    """The chat before the game: the rules in a line, and one worked example.

    Without the example, a model this small answers with sentences instead of numbers.
    """
    return [
        {"role": "system", "content": "You play tic-tac-toe as X. Reply with the number of a free square."},
        {"role": "user", "content": grid(EXAMPLE_BOARD)},
        {"role": "assistant", "content": EXAMPLE_ANSWER},
    ]


async def play(
    model: "art.TrainableModel[Any, Any]",
    seed: int,
    *,
    step: int | None = None,
    opponent: Opponent = play_random_square,
) -> "art.Trajectory":
    """Play one game against the opponent of this seed, and score it.

    Args:
        step: The policy version that plays; ``None`` follows the latest.

    Raises:
        art.errors.ARTError, openai.APIError: The service failed. A bad answer of the model is no error: it ends the
            game.
    """
    game = Game(seed, opponent)
    messages = opening_messages()
    async with model.rollout(step=step) as rollout:
        client = rollout.openai_client()
        while game.outcome is None:
            # The conversation only ever grows, so that a whole game becomes one row of training data.
            messages.append({"role": "user", "content": grid(game.board)})
            completion = await client.chat.completions.create(
                model=model.get_inference_name(step),
                messages=messages,  # pyright: ignore[reportArgumentType]
                max_tokens=MAX_TOKENS,
                temperature=1.0,
            )
            answer = completion.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": answer})
            game.answer(answer)
        return rollout.trajectory(
            reward=game.reward,
            messages_and_choices=messages,
            metrics={
                **{outcome.value: float(game.outcome is outcome) for outcome in Outcome},
                "legal_moves": game.legal_moves,
            },
            metadata={"seed": seed, "outcome": game.outcome, "boards": game.boards, "answers": game.answers},
        )
