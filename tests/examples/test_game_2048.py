"""The rules of 2048 against hand-computed boards and an obvious slower version, seeds and rewards."""

import pytest
from examples.game_2048.environment import (
    DIRECTIONS,
    LONG,
    SHORT,
    Game,
    Rules,
    grid,
    score_greedy_player,
    score_random_player,
    slide,
    slide_row,
    useful_moves,
)
from examples.game_2048.rollout import EXAMPLES, opening_messages
from hypothesis import given
from hypothesis import strategies as st

rows = st.lists(st.sampled_from([0, 2, 4, 8]), min_size=3, max_size=5)
boards = st.lists(st.tuples(*[st.sampled_from([0, 0, 2, 2, 4, 8])] * 4), min_size=4, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("row", "after", "score"),
    [
        ((2, 2, 0, 0), (4, 0, 0, 0), 4),
        ((0, 2, 0, 2), (4, 0, 0, 0), 4),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),
        ((2, 4, 2, 4), (2, 4, 2, 4), 0),
        ((8, 8, 16, 0), (16, 16, 0, 0), 16),
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
    ],
)
def test_rows_by_hand(row, after, score):
    assert slide_row(row) == (after, score)


@given(rows)
def test_rows_as_the_obvious_version_does_it(row):
    tiles, score, i = [tile for tile in row if tile], 0, 0
    while i + 1 < len(tiles):
        if tiles[i] == tiles[i + 1]:
            tiles[i : i + 2] = [2 * tiles[i]]
            score += tiles[i]
        i += 1
    assert slide_row(tuple(row)) == ((*tiles, *[0] * (len(row) - len(tiles))), score)


@given(boards)
def test_slides_keep_the_sum_and_are_mirror_images(board):
    for direction in DIRECTIONS:
        assert sum(map(sum, slide(board, direction)[0])) == sum(map(sum, board))
    mirrored = tuple(row[::-1] for row in board)
    turned = tuple(zip(*board, strict=True))
    left, score = slide(board, "left")
    assert slide(mirrored, "right") == (tuple(row[::-1] for row in left), score)
    assert slide(turned, "up") == (tuple(zip(*left, strict=True)), score)
    assert set(useful_moves(board)) == {one for one in DIRECTIONS if slide(board, one)[0] != board}


def test_an_unknown_direction_is_named():
    with pytest.raises(ValueError, match="'north' is not one of left, right, up, down"):
        slide(((2, 0), (0, 0)), "north")


def test_games_of_a_seed_are_the_same():
    first, again, other = Game(7, SHORT), Game(7, SHORT), Game(8, SHORT)
    boards_of_first, boards_of_again = [], []
    for game, seen in ((first, boards_of_first), (again, boards_of_again)):
        while not game.is_over:
            game.answer(useful_moves(game.board)[0])
            seen.append(game.board)
    assert boards_of_first == boards_of_again
    assert first.score == again.score
    assert other.board != Game(7, SHORT).board


@pytest.mark.parametrize("text", ["", "north", "left right", "left.", "l", "1"])
def test_anything_but_a_direction_ends_the_game(text):
    game = Game(1, SHORT)
    game.answer(text)
    assert game.invalid
    assert game.is_over
    assert game.reward == 0
    with pytest.raises(ValueError, match="over"):
        game.answer("left")


def test_a_move_that_changes_nothing_is_spent():
    game = Game(1, Rules(size=3, moves=2, goal=40))
    game.board = ((2, 0, 0), (4, 0, 0), (2, 0, 0))
    game.answer(" Left\n")
    assert (game.wasted, game.answers, game.score) == (1, 1, 0)
    assert game.board == ((2, 0, 0), (4, 0, 0), (2, 0, 0))
    game.answer("right")
    assert sum(1 for tile in sum(game.board, ()) if tile) == 4, "a new tile came"
    assert game.is_over, "two answers were all"


def test_a_full_board_without_neighbours_is_the_end():
    game = Game(1, SHORT)
    game.board = ((2, 4, 2), (4, 2, 4), (2, 4, 2))
    assert game.is_over


def test_rewards_are_bounded_and_greed_pays():
    scripted = {
        player: [player(seed, SHORT) for seed in range(200)] for player in (score_random_player, score_greedy_player)
    }
    assert all(0 <= score.reward <= 1 for scores in scripted.values() for score in scores)
    means = [sum(score.reward for score in scores) / 200 for scores in scripted.values()]
    assert means[1] > means[0] + 0.05
    game = Game(1, SHORT)
    game.score = 10_000
    assert game.reward == 1


def test_tiles():
    tiles = [tile for seed in range(500) for row in Game(seed).board for tile in row if tile]
    assert len(tiles) == 1000
    assert 0.05 < tiles.count(4) / 1000 < 0.15


def test_the_worked_example_is_a_good_move():
    assert grid(EXAMPLES[SHORT]) == "2|.|2\n4|.|.\n8|.|."
    for rules, board in EXAMPLES.items():
        assert len(board) == rules.size
        assert slide(board, opening_messages(rules)[-1]["content"])[1] == max(
            slide(board, one)[1] for one in DIRECTIONS
        )
    assert LONG.size == 4
