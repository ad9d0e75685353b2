"""Opponents for tic-tac-toe and the games of training and test. The rules are those of ``art.demo.game``."""

import random
from functools import cache

from art.demo.game import (
    AGENT,
    EMPTY_BOARD,
    OPPONENT,
    Game,
    Opponent,
    Outcome,
    free_squares,
    place,
    play_at_random,
    play_random_square,
    winner,
)
from art.experiment import Score

SWAP = str.maketrans("XO", "OX")


def play_perfectly(board: str, chance: random.Random) -> int:
    """An opponent that never loses: one of the best squares for O, by full search."""
    values = {square: value_for_o(place(board, square, OPPONENT), AGENT) for square in free_squares(board)}
    best = max(values.values())
    return chance.choice([square for square, value in values.items() if value == best])


@cache
def value_for_o(board: str, to_move: str) -> int:
    """What O gets if both play perfectly (minimax): 1 for a win, 0 for a draw, -1 for a loss."""
    if (mark := winner(board)) is not None:
        return 1 if mark == OPPONENT else -1
    if not (squares := free_squares(board)):
        return 0
    other = AGENT if to_move == OPPONENT else OPPONENT
    values = [value_for_o(place(board, square, to_move), other) for square in squares]
    return max(values) if to_move == OPPONENT else min(values)


OPPONENTS: dict[str, Opponent] = {"random": play_random_square, "minimax": play_perfectly}


def open_at_random(seed: int) -> str:
    """A board on which X and O have one random mark each, X to move: where self-play begins."""
    chance, board = random.Random(seed), EMPTY_BOARD
    for mark in (AGENT, OPPONENT):
        board = place(board, chance.choice(free_squares(board)), mark)
    return board


def score_random_player(seed: int, opponent: Opponent) -> Score:
    """A scripted agent that takes any free square."""
    return _score(play_at_random(seed, agent_seed=seed + 1_000_000, opponent=opponent))


def score_perfect_player(seed: int, opponent: Opponent) -> Score:
    """A scripted agent that never loses: it looks at the board from the other side."""
    game, chance = Game(seed, opponent), random.Random(f"player {seed}")
    while game.outcome is None:
        game.answer(str(play_perfectly(game.board.translate(SWAP), chance)))
    return _score(game)


def _score(game: Game) -> Score:
    return Score(game.reward, {"win": float(game.outcome is Outcome.WIN), "illegal": 0.0})
