"""Finished runs to draw and to report."""

import random
from collections.abc import Callable

import pytest

from art.demo.game import Game, free_squares
from art.demo.records import Evaluation, Results, RunConfig, SampleGame, StepRecord
from art.demo.run import GAP, score_random_player
from art.demo.statistics import score_of


def play_noisily(seed: int, legal_share: float) -> Game:
    """A game by a player who answers nonsense in ``1 - legal_share`` of its turns."""
    agent, game = random.Random(seed), Game(seed)
    while game.outcome is None:
        game.answer(str(agent.choice(free_squares(game.board))) if agent.random() < legal_share else "X|")
    return game


def evaluate(step: int, legal_share: float, games: int = 200) -> Evaluation:
    played = [play_noisily(seed, legal_share) for seed in range(games)]
    first = played[0]
    sample = SampleGame(
        seed=first.seed, outcome=str(first.outcome), reward=first.reward, boards=first.boards, answers=first.answers
    )
    return Evaluation(step=step, score=score_of(played), seconds=20.0, sample=sample)


@pytest.fixture
def make_results() -> Callable[..., Results]:
    def make(seed: int = 1, after_legal_share: float = 1.0, steps: int = 3) -> Results:
        records = [
            StepRecord(
                step=step,
                score=score_of(play_noisily(1000 * step + i, step / steps) for i in range(32)),
                gather_s=10.0,
                train_s=20.0,
                sampled_tokens=500,
                metrics={GAP: 0.01 * step},
            )
            for step in range(1, steps + 1)
        ]
        return Results(
            config=RunConfig(
                seed=seed,
                groups=8,
                group_size=4,
                learning_rate=3e-4,
                episodes=200,
                base_model="HuggingFaceTB/SmolLM2-135M-Instruct",
                model_name="tic-tac-toe-abcdef",
            ),
            before=evaluate(0, 0.4),
            after=evaluate(steps, after_legal_share),
            random_player=score_random_player(200),
            steps=records,
            training_s=90.0,
            total_s=140.0,
            peak_memory_bytes=4_200_000_000,
            max_logprob_gap=0.01,
            checkpoint="/somewhere/checkpoints/0003",
            finished_at=1.0,
        )

    return make
