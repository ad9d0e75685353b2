"""Finished runs to draw and to report."""

import random
from collections.abc import Callable

import pytest

from art.demo.game import Game, Outcome, free_squares
from art.demo.run import play_randomly
from art.experiment.comparison import Score, summarise
from art.experiment.results import Player, Results, StepReward


def play_noisily(seed: int, legal_share: float) -> Score:
    """A game by a player who answers nonsense in ``1 - legal_share`` of its turns."""
    agent, game = random.Random(seed), Game(seed)
    while game.outcome is None:
        game.answer(str(agent.choice(free_squares(game.board))) if agent.random() < legal_share else "X|")
    return Score(game.reward, {outcome.value: float(game.outcome is outcome) for outcome in Outcome})


def play_many(name: str, step: int, legal_share: float, games: range = range(200)) -> Player:
    return summarise(name, step, [play_noisily(seed, legal_share) for seed in games])


@pytest.fixture
def make_results() -> Callable[..., Results]:
    def make(seed: int = 1, after_legal_share: float = 1.0, steps: int = 3) -> Results:
        trained = [
            play_many("", step, step / steps, range(1000 * step, 1000 * step + 32)) for step in range(1, steps + 1)
        ]
        return Results(
            example="tic-tac-toe",
            variant=None,
            form="demo",
            seed=seed,
            base_model="HuggingFaceTB/SmolLM2-135M-Instruct",
            step=steps,
            warm_up=0,
            players=[
                play_many("base model", 0, 0.4),
                play_many("trained", steps, after_legal_share),
                play_randomly(200),
            ],
            steps=[
                StepReward(
                    step=i,
                    reward=one.reward.value,
                    metrics={name: share.value for name, share in one.metrics.items()},
                )
                for i, one in enumerate(trained, 1)
            ],
            training_s=90.0,
            evaluation_s=20.0,
            peak_memory_bytes=4_200_000_000,
            max_logprob_gap=0.01,
            checkpoint="/somewhere/checkpoints/0003",
        )

    return make
