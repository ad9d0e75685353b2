"""Deduction puzzles with one solution: who did it, where, when and with what.

Every suspect is in one room at each hour, never two in the same one; every weapon lies in a room of its own. The crime happened in a
room at an hour: the culprit is who was there then, the weapon what lies there. A puzzle is a list of true clues from which exactly one
crime follows. A constraint solver checks that, and clues that it can do without are removed.
"""

import hashlib
import operator
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from constraint import AllDifferentConstraint, OptimizedBacktrackingSolver, Problem

from art.experiment import Score

SUSPECTS: tuple[str, ...] = ("Ann", "Ben", "Cleo", "Dan")
ROOMS: tuple[str, ...] = ("attic", "barn", "cellar", "den")
HOURS: tuple[str, ...] = ("one", "two", "three", "four")
WEAPONS: tuple[str, ...] = ("axe", "bow", "club", "dart")

PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))

QUESTIONS = ("who", "where", "when", "what")
Answer = tuple[str, str, str, str]
"""Suspect, room, hour, weapon."""


@dataclass(frozen=True)
class Clue:
    """A true statement. ``kind`` says about what:

    - ``crime``: the crime's ``question`` has (or, negated, has not) the value ``a``;
    - ``seen``: suspect ``a`` was (not) in room ``b`` at hour ``c``;
    - ``lies``: weapon ``a`` lies (not) in room ``b``;
    - ``before``: the crime happened before hour ``a``;
    - ``same``: whoever was in room ``a`` at hour ``b`` was in room ``c`` at the next hour.
    """

    kind: str
    a: str
    b: str = ""
    c: str = ""
    negated: bool = False

    def __str__(self) -> str:
        no = "not " if self.negated else ""
        match self.kind:
            case "crime" if self.a in SUSPECTS:
                return f"{self.a} did {'not do ' if self.negated else ''}it."
            case "crime" if self.a in ROOMS:
                return f"It was {no}in the {self.a}."
            case "crime" if self.a in HOURS:
                return f"It was {no}at {self.a}."
            case "crime":
                return f"It was {no}the {self.a}."
            case "seen":
                return f"{self.a} was {no}in the {self.b} at {self.c}."
            case "lies":
                return f"The {self.a} is {no}in the {self.b}."
            case "before":
                return f"It was before {self.a}."
            case "same":
                return f"Whoever was in the {self.a} at {self.b} was in the {self.c} an hour later."
            case _:
                raise ValueError(f"{self.kind!r} is no kind of clue.")


@dataclass(frozen=True)
class Level:
    """How hard puzzles are."""

    name: str
    size: int
    """Suspects, rooms, hours and weapons, each."""
    kinds: tuple[str, ...]
    """Kinds of clues, in the order in which they are tried: those of one kind before those of the next."""
    positive_share: float
    """Of the clues on the crime itself: how many say what was, rather than what was not."""


LEVELS = {
    "easy": Level("easy", 3, ("crime",), 0.5),
    "medium": Level("medium", 3, ("seen", "lies", "crime"), 0.0),
    "hard": Level("hard", 4, ("same", "before", "seen", "lies", "crime"), 0.0),
}


@dataclass(frozen=True)
class Puzzle:
    """Clues, and the crime that follows from them."""

    level: Level
    clues: tuple[Clue, ...]
    solution: Answer

    @property
    def text(self) -> str:
        """What the solver of the puzzle is shown."""
        return "\n".join(map(str, self.clues))

    @property
    def is_for_validation(self) -> bool:
        """Decided by a digest of the clues, whatever their order and the seed: half of all puzzles are."""
        digest = hashlib.sha256("\n".join(sorted(map(str, self.clues))).encode()).digest()
        return digest[0] % 2 == 0


@dataclass(frozen=True)
class World:
    """What happened."""

    rooms: dict[tuple[str, str], str]
    """By suspect and hour."""
    places: dict[str, str]
    """Rooms by weapon."""
    crime: Answer

    def allows(self, clue: Clue) -> bool:
        """Whether a clue is true here."""
        who, where, when, what = self.crime
        match clue.kind:
            case "crime":
                found = clue.a in (who, where, when, what)
            case "seen":
                found = self.rooms[clue.a, clue.c] == clue.b
            case "lies":
                found = self.places[clue.a] == clue.b
            case "before":
                found = HOURS.index(when) < HOURS.index(clue.a)
            case _:
                later = HOURS[HOURS.index(clue.b) + 1]
                found = any(
                    room == clue.a and self.rooms[suspect, later] == clue.c
                    for (suspect, hour), room in self.rooms.items()
                    if hour == clue.b
                )
        return found != clue.negated


def make_puzzle(level: Level, chance: random.Random) -> Puzzle:
    """A random world, and enough of what is true in it."""
    suspects, rooms, hours, weapons = (names[: level.size] for names in (SUSPECTS, ROOMS, HOURS, WEAPONS))
    where_at = {
        (suspect, hour): room
        for hour in hours
        for suspect, room in zip(suspects, chance.sample(rooms, level.size), strict=True)
    }
    places = dict(zip(weapons, chance.sample(rooms, level.size), strict=True))
    hour, room = chance.choice(hours), chance.choice(rooms)
    who = next(suspect for suspect in suspects if where_at[suspect, hour] == room)
    what = next(weapon for weapon in weapons if places[weapon] == room)
    world = World(where_at, places, (who, room, hour, what))
    needed: list[Clue] = []
    for clue in candidates(level, world, chance):
        needed.append(clue)
        if clue.kind == "crime" and is_unique(level, needed, world.crime):
            break
    # What is said of the crime itself goes first, so that it has to be found from the rest.
    for clue in sorted(needed, key=lambda one: level.kinds.index(one.kind), reverse=True):
        without = [other for other in needed if other != clue]
        if is_unique(level, without, world.crime):
            needed = without
    chance.shuffle(needed)
    return Puzzle(level, tuple(needed), world.crime)


def candidates(level: Level, world: World, chance: random.Random) -> list[Clue]:
    """Clues that are true, in random order within their kind. Together they always have one solution."""
    found: list[Clue] = []
    for kind in level.kinds:
        true = [clue for clue in _all_clues(level, kind) if world.allows(clue)]
        chance.shuffle(true)
        if kind == "crime":
            # Of each question, either what was or what was not, so that the answer is told or has to be found.
            told = {value: chance.random() < level.positive_share for value in world.crime}
            asked = {
                value: answer for names in _names(level) for value in names for answer in world.crime if answer in names
            }
            true = [clue for clue in true if clue.negated != told[asked[clue.a]]]
        elif kind in ("same", "before"):
            true = true[:2]  # they take part, and leave the rest to be found
        found += true
    return found


def is_unique(level: Level, clues: Sequence[Clue], crime: Answer) -> bool:
    """Whether no other crime fits the clues."""
    return all(
        find_world(level, clues, (question, answer)) is None for question, answer in zip(QUESTIONS, crime, strict=True)
    )


def find_world(level: Level, clues: Sequence[Clue], except_for: tuple[str, str] | None = None) -> Answer | None:
    """A crime that fits the clues, by a search of the solver; ``None`` if there is none.

    Args:
        except_for: A question, and an answer to it that does not count.
    """
    problem, values = Problem(OptimizedBacktrackingSolver()), _names(level)
    for question, names in zip(QUESTIONS, values, strict=True):
        excluded = except_for[1] if except_for is not None and except_for[0] == question else None
        problem.addVariable(question, [name for name in names if name != excluded])
    suspects, rooms, hours, weapons = values
    for hour in hours:
        places_of_hour = [(suspect, hour) for suspect in suspects]
        problem.addVariables(places_of_hour, list(rooms))
        problem.addConstraint(AllDifferentConstraint(), places_of_hour)
        for suspect in suspects:
            problem.addConstraint(
                lambda who, where, when, room, suspect=suspect, hour=hour: (
                    when != hour or (who == suspect) == (where == room)
                ),
                ["who", "where", "when", (suspect, hour)],
            )
    problem.addVariables(list(weapons), list(rooms))
    problem.addConstraint(AllDifferentConstraint(), list(weapons))
    for weapon in weapons:
        problem.addConstraint(
            lambda what, where, room, weapon=weapon: (what == weapon) == (where == room), ["what", "where", weapon]
        )
    for clue in clues:
        _add_clue(problem, clue, suspects)
    solution = problem.getSolution()
    if solution is None:
        return None
    who, where, when, what = (solution[question] for question in QUESTIONS)
    return who, where, when, what


def _add_clue(problem: Problem, clue: Clue, suspects: Sequence[str]) -> None:
    match clue.kind:
        case "crime":
            names = (SUSPECTS, ROOMS, HOURS, WEAPONS)
            question = next(q for q, known in zip(QUESTIONS, names, strict=True) if clue.a in known)
            problem.addConstraint(lambda value: (value == clue.a) != clue.negated, [question])
        case "seen":
            problem.addConstraint(lambda room: (room == clue.b) != clue.negated, [(clue.a, clue.c)])
        case "lies":
            problem.addConstraint(lambda room: (room == clue.b) != clue.negated, [clue.a])
        case "before":
            problem.addConstraint(lambda when: HOURS.index(when) < HOURS.index(clue.a), ["when"])
        case _:
            later = HOURS[HOURS.index(clue.b) + 1]
            for suspect in suspects:
                problem.addConstraint(
                    lambda now, then: now != clue.a or then == clue.c, [(suspect, clue.b), (suspect, later)]
                )


@cache
def _names(level: Level) -> tuple[tuple[str, ...], ...]:
    return tuple(names[: level.size] for names in (SUSPECTS, ROOMS, HOURS, WEAPONS))


@cache
def _all_clues(level: Level, kind: str) -> tuple[Clue, ...]:
    suspects, rooms, hours, weapons = _names(level)
    match kind:
        case "crime":
            return tuple(
                Clue(kind, name, negated=no) for names in _names(level) for name in names for no in (False, True)
            )
        case "seen":
            return tuple(
                Clue(kind, s, r, h, no) for s in suspects for r in rooms for h in hours for no in (False, True)
            )
        case "lies":
            return tuple(Clue(kind, w, r, negated=no) for w in weapons for r in rooms for no in (False, True))
        case "before":
            return tuple(Clue(kind, hour) for hour in hours[1:])
        case _:
            return tuple(Clue(kind, a, hour, c) for hour in hours[:-1] for a in rooms for c in rooms)


def parse_answer(text: str) -> tuple[str | None, ...]:
    """The answer to each question: the one name of its kind in a text; ``None`` where there is none, or more than one."""
    words = set(text.translate(PUNCTUATION).split())
    named = [words.intersection(names) for names in (SUSPECTS, ROOMS, HOURS, WEAPONS)]
    return tuple(found.pop() if len(found) == 1 else None for found in named)


def score(puzzle: Puzzle, text: str) -> Score:
    """The share of the four questions that an answer gets right."""
    answers = parse_answer(text)
    share = sum(map(operator.eq, puzzle.solution, answers)) / len(QUESTIONS)
    answered = sum(answer is not None for answer in answers) / len(QUESTIONS)
    return Score(share, {"solved": float(share == 1), "answered": answered})


def puzzles(level: Level, seed: int, *, validation: bool) -> Iterator[Puzzle]:
    """Different puzzles of one kind, training or validation, for ever, in the same order for the same seed."""
    chance, seen = random.Random(f"{level.name} {seed}"), set[tuple[Clue, ...]]()
    while True:
        puzzle = make_puzzle(level, chance)
        if puzzle.is_for_validation == validation and puzzle.clues not in seen:
            seen.add(puzzle.clues)
            yield puzzle


def score_guess(puzzle: Puzzle) -> Score:
    """A scripted agent that guesses one of the names for each question."""
    chance = random.Random(puzzle.text)
    return score(puzzle, " ".join(chance.choice(names) for names in _names(puzzle.level)))


def score_reader(puzzle: Puzzle) -> Score:
    """A scripted agent that reads what is said of the crime itself, and guesses among what is left."""
    chance = random.Random(puzzle.text)
    told = {clue.a for clue in puzzle.clues if clue.kind == "crime" and not clue.negated}
    excluded = {clue.a for clue in puzzle.clues if clue.kind == "crime" and clue.negated}
    words = [
        next((name for name in names if name in told), None)
        or chance.choice([one for one in names if one not in excluded])
        for names in _names(puzzle.level)
    ]
    return score(puzzle, " ".join(words))
