"""``python -m examples.tic_tac_toe.evaluate``."""

from functools import partial

from art.experiment import Results, Run, compare, evaluation_command

from .environment import OPPONENTS, score_perfect_player, score_random_player
from .rollout import play
from .train import EXAMPLE


async def evaluate(run: Run) -> Results:
    """Compare the base model, the trained one, a random player and a perfect one on games that were never trained on.

    The model that played itself meets the random opponent.
    """
    opponent = OPPONENTS["random" if run.variant == "self" else str(run.variant)]
    return await compare(
        run,
        partial(play, opponent=opponent),
        range(run.settings.episodes),
        {
            "random moves": partial(score_random_player, opponent=opponent),
            "perfect play": partial(score_perfect_player, opponent=opponent),
        },
    )


if __name__ == "__main__":
    evaluation_command(EXAMPLE, evaluate)
