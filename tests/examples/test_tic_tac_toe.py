"""Opponents, openings and seeds of the tic-tac-toe example."""

import random

from examples.tic_tac_toe.environment import (
    open_at_random,
    play_perfectly,
    score_perfect_player,
    score_random_player,
    value_for_o,
)
from examples.tic_tac_toe.rollout import split_sides

import art
from art.demo.game import EMPTY_BOARD, Game, Outcome, free_squares, place, play_at_random, play_random_square, winner


def test_perfect_play_ends_in_a_draw():
    assert value_for_o(EMPTY_BOARD, "X") == 0
    assert all(score_perfect_player(seed, play_perfectly).reward == 0.5 for seed in range(10))


def test_the_perfect_opponent_wins_at_once_blocks_and_never_loses():
    assert play_perfectly("XX3OO6789", random.Random(0)) == 6, "it wins rather than blocks"
    assert play_perfectly("XX34O6789", random.Random(0)) == 3
    assert all(play_at_random(seed, seed, play_perfectly).outcome is not Outcome.WIN for seed in range(200))
    taken = {play_perfectly("1234X6789", random.Random(seed)) for seed in range(50)}
    assert taken == {1, 3, 7, 9}, "of equal squares, any"


def test_values_agree_with_every_game_from_a_late_board():
    def enumerate_value(board, mark):
        if (found := winner(board)) is not None:
            return 1 if found == "O" else -1
        values = [enumerate_value(place(board, s, mark), "XO".replace(mark, "")) for s in free_squares(board)]
        return (max if mark == "O" else min)(values) if values else 0

    for seed in range(30):
        board = open_at_random(seed)
        for mark in "XO":
            board = place(board, random.Random(seed).choice(free_squares(board)), mark)
        assert value_for_o(board, "X") == enumerate_value(board, "X")


def test_openings_and_games_of_a_seed():
    assert len(set(map(open_at_random, range(500)))) == 72, "every opening occurs"
    assert score_random_player(5, play_random_square) == score_random_player(5, play_random_square)
    assert Game(5).opponent is play_random_square


async def test_each_side_is_compared_with_its_own_kind():
    group = art.TrajectoryGroup(
        art.Trajectory(reward=reward, metadata={"side": side}) for reward, side in ((1, "X"), (0, "O"), (2, "X"))
    )
    x, o = await split_sides(group)
    assert [[one.reward for one in side] for side in (x, o)] == [[1, 2], [0]]
    assert len(await split_sides(art.TrajectoryGroup(group.trajectories[:1]))) == 1
