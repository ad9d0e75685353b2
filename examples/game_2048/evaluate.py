"""``python -m examples.game_2048.evaluate``."""

from functools import partial

from art.experiment import Results, Run, compare, evaluation_command

from .environment import score_greedy_player, score_random_player
from .rollout import play
from .train import EXAMPLE, RULES


async def evaluate(run: Run) -> Results:
    """Compare the base model, the trained one, a random player and a greedy one on games that were never trained on."""
    rules = RULES[run.form]
    return await compare(
        run,
        partial(play, rules=rules),
        range(run.settings.episodes),
        {
            "random useful moves": partial(score_random_player, rules=rules),
            "greedy": partial(score_greedy_player, rules=rules),
        },
    )


if __name__ == "__main__":
    evaluation_command(EXAMPLE, evaluate)
