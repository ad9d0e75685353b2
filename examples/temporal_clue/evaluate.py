"""``python -m examples.temporal_clue.evaluate``."""

from itertools import islice

from art.experiment import Results, Run, compare, evaluation_command

from .environment import LEVELS, puzzles, score_guess, score_reader
from .rollout import solve
from .train import EXAMPLE


async def evaluate(run: Run) -> Results:
    """Compare the base model, the trained one and two scripted ones on puzzles that no training ever shows."""
    held_out = list(islice(puzzles(LEVELS[str(run.variant)], 0, validation=True), run.settings.episodes))
    return await compare(run, solve, held_out, {"guessing": score_guess, "reading without deducing": score_reader})


if __name__ == "__main__":
    evaluation_command(EXAMPLE, evaluate)
