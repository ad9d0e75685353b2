"""Puzzles: what clues mean, one solution each (by the solver, and by trying every world), splits and scores."""

import itertools
import random
from itertools import islice

import pytest
from examples.temporal_clue.environment import (
    HOURS,
    LEVELS,
    ROOMS,
    SUSPECTS,
    WEAPONS,
    Clue,
    Level,
    World,
    find_world,
    make_puzzle,
    puzzles,
    score,
    score_guess,
    score_reader,
)
from examples.temporal_clue.rollout import EXAMPLE, instructions

TINY = Level("medium", 2, ("same", "seen", "lies", "crime"), 0.0)


def every_world(size):
    """All worlds of a size."""
    suspects, rooms, hours, weapons = (names[:size] for names in (SUSPECTS, ROOMS, HOURS, WEAPONS))
    orders = list(itertools.permutations(rooms))
    for by_hour in itertools.product(orders, repeat=size):
        at = {(s, h): r for h, order in zip(hours, by_hour, strict=True) for s, r in zip(suspects, order, strict=True)}
        for order in orders:
            places = dict(zip(weapons, order, strict=True))
            for hour, room in itertools.product(hours, rooms):
                who = next(s for s in suspects if at[s, hour] == room)
                what = next(w for w in weapons if places[w] == room)
                yield World(at, places, (who, room, hour, what))


@pytest.mark.parametrize(
    "level", [TINY, LEVELS["easy"], LEVELS["medium"]], ids=lambda level: f"{level.name}-{level.size}"
)
def test_puzzles_have_one_solution_by_trying_every_world(level):
    worlds = list(every_world(level.size))
    for seed in range(3):
        puzzle = make_puzzle(level, random.Random(seed))
        fitting = {world.crime for world in worlds if all(map(world.allows, puzzle.clues))}
        assert fitting == {puzzle.solution}
        for clue in puzzle.clues:
            fewer = [other for other in puzzle.clues if other != clue]
            assert len({world.crime for world in worlds if all(map(world.allows, fewer))}) > 1, f"{clue} is not needed"


def test_the_solver_agrees_with_every_world_on_random_clues():
    chance, worlds = random.Random(1), list(every_world(2))
    for _ in range(40):
        clues = [
            chance.choice(
                [
                    Clue("crime", chance.choice(["Ann", "barn", "two", "axe"]), negated=chance.random() < 0.5),
                    Clue("seen", "Ben", "attic", chance.choice(["one", "two"]), chance.random() < 0.5),
                    Clue("lies", "bow", "barn", negated=chance.random() < 0.5),
                    Clue("same", "attic", "one", chance.choice(["attic", "barn"])),
                    Clue("before", "two"),
                ]
            )
            for _ in range(4)
        ]
        crimes = {world.crime for world in worlds if all(map(world.allows, clues))}
        found = find_world(TINY, clues)
        assert found in crimes if crimes else found is None
        if crimes:
            assert find_world(TINY, clues, ("who", found[0])) in {c for c in crimes if c[0] != found[0]} | {None}


def test_hard_puzzles_have_one_solution():
    puzzle = next(puzzles(LEVELS["hard"], 3, validation=False))
    assert find_world(puzzle.level, puzzle.clues) == puzzle.solution
    for question, answer in zip(("who", "where", "when", "what"), puzzle.solution, strict=True):
        assert find_world(puzzle.level, puzzle.clues, (question, answer)) is None
    kinds = {clue.kind for clue in puzzle.clues}
    assert {"seen", "lies"} & kinds, "it has to be deduced"


def test_splits_share_no_puzzle_whatever_the_seed():
    level = LEVELS["easy"]
    training = [puzzle for seed in (1, 2) for puzzle in islice(puzzles(level, seed, validation=False), 100)]
    validation = list(islice(puzzles(level, 0, validation=True), 40))
    assert {frozenset(p.clues) for p in training}.isdisjoint({frozenset(p.clues) for p in validation})
    assert len({p.clues for p in validation}) == 40
    again = list(islice(puzzles(level, 0, validation=True), 40))
    assert [p.text for p in again] == [p.text for p in validation]
    shuffled = puzzles(level, 0, validation=True)
    puzzle = next(shuffled)
    assert type(puzzle)(level, puzzle.clues[::-1], puzzle.solution).is_for_validation, "the order does not matter"


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("Ben cellar two club", 1),
        ("It was Ben, in the cellar at two, with the club.", 1),
        ("Ben cellar one club", 0.75),
        ("Ann barn one axe", 0),
        ("cellar Ben", 0.5),
        ("Ann or Ben, cellar, two, club", 0.75),
        ("Ann Ben Cleo attic barn cellar one two three axe bow club", 0),
        ("ben bentwo clubs", 0),
        ("", 0),
    ],
)
def test_scores_by_hand(answer, reward):
    found = score(EXAMPLE, answer)
    assert found.reward == reward
    assert found.metrics["solved"] == (reward == 1)


def test_the_worked_example_is_a_puzzle():
    assert find_world(EXAMPLE.level, EXAMPLE.clues) == EXAMPLE.solution
    assert EXAMPLE.text.splitlines()[:2] == ["It was not the axe.", "Ben did it."]
    assert "when (one or two or three)" in instructions(EXAMPLE.level)


def test_scripted_players():
    easy, medium = (list(islice(puzzles(LEVELS[name], 0, validation=True), 20)) for name in ("easy", "medium"))
    assert all(score_reader(puzzle).reward == 1 for puzzle in easy), "easy ones tell or exclude"
    assert sum(score_reader(puzzle).reward for puzzle in medium) / 20 < 0.9, "others have to be deduced"
    assert 0.2 < sum(score_guess(puzzle).reward for puzzle in easy + medium) / 40 < 0.5
