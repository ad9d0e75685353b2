"""The game 2048: boards of any size, seeded tiles, its own score. Pure; no model in sight.

A board is a tuple of rows; 0 is a free cell. A move slides all tiles; two equal ones that meet become one of twice the value, once
per move, and that value is added to the score. After a move that changed something, a 2 (or, one time in ten, a 4) appears on a free
cell.
"""

import random
from dataclasses import dataclass, field

from art.experiment import Score

Board = tuple[tuple[int, ...], ...]
Row = tuple[int, ...]

DIRECTIONS = ("left", "right", "up", "down")
SHARE_OF_FOURS = 0.1


@dataclass(frozen=True)
class Rules:
    """How long a game is, and what counts as a perfect one."""

    size: int = 4
    moves: int = 200
    """Answers after which the game ends."""
    goal: int = 3000
    """The score that is worth a reward of 1."""


SHORT = Rules(size=3, moves=8, goal=40)
LONG = Rules()


def slide_row(row: Row) -> tuple[Row, int]:
    """A row after a slide to the left, and what it scored."""
    tiles = [tile for tile in row if tile]
    merged: list[int] = []
    score = 0
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tile += tiles.pop(0)
            score += tile
        merged.append(tile)
    return (*merged, *[0] * (len(row) - len(merged))), score


def slide(board: Board, direction: str) -> tuple[Board, int]:
    """A board after a slide, without a new tile, and what it scored.

    Raises:
        ValueError: No such direction.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"{direction!r} is not one of {', '.join(DIRECTIONS)}.")
    rows = tuple(zip(*board, strict=True)) if direction in ("up", "down") else board
    backwards = direction in ("right", "down")
    slid = [slide_row(row[::-1] if backwards else row) for row in rows]
    moved = tuple(row[::-1] if backwards else row for row, _ in slid)
    score = sum(points for _, points in slid)
    return (tuple(zip(*moved, strict=True)) if direction in ("up", "down") else moved), score


def useful_moves(board: Board) -> list[str]:
    """Directions that change the board."""
    return [direction for direction in DIRECTIONS if slide(board, direction)[0] != board]


def grid(board: Board) -> str:
    """The board as lines of text, such as ``2|.|4``."""
    return "\n".join("|".join(str(tile) if tile else "." for tile in row) for row in board)


@dataclass
class Game:
    """One game in progress. Games of one seed begin with the same tiles, and draw the same random numbers."""

    seed: int
    rules: Rules = LONG
    score: int = 0
    answers: int = 0
    wasted: int = 0
    """Answers that changed nothing."""
    invalid: bool = False
    """Whether an answer that is no direction ended the game."""
    board: Board = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self.board = ((0,) * self.rules.size,) * self.rules.size
        for _ in range(2):
            self._add_tile()

    @property
    def is_over(self) -> bool:
        return self.invalid or self.answers >= self.rules.moves or not useful_moves(self.board)

    @property
    def reward(self) -> float:
        """The score so far, as a share of the goal: 0 to 1."""
        return min(1.0, self.score / self.rules.goal)

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "score": float(self.score),
            "largest_tile": float(max(map(max, self.board))),
            "wasted": float(self.wasted),
            "invalid": float(self.invalid),
        }

    def answer(self, text: str) -> None:
        """Play an answer. A direction that changes nothing is spent; anything else ends the game.

        Raises:
            ValueError: The game is over.
        """
        if self.is_over:
            raise ValueError("The game is over.")
        self.answers += 1
        direction = text.strip().lower()
        if direction not in DIRECTIONS:
            self.invalid = True
            return
        board, score = slide(self.board, direction)
        if board == self.board:
            self.wasted += 1
            return
        self.board = board
        self.score += score
        self._add_tile()

    def _add_tile(self) -> None:
        free = [(y, x) for y, row in enumerate(self.board) for x, tile in enumerate(row) if not tile]
        y, x = self._chance.choice(free)
        tile = 4 if self._chance.random() < SHARE_OF_FOURS else 2
        row = (*self.board[y][:x], tile, *self.board[y][x + 1 :])
        self.board = (*self.board[:y], row, *self.board[y + 1 :])


def score_random_player(seed: int, rules: Rules) -> Score:
    """A scripted agent that makes any useful move."""
    chance, game = random.Random(f"player {seed}"), Game(seed, rules)
    while not game.is_over:
        game.answer(chance.choice(useful_moves(game.board)))
    return Score(game.reward, game.metrics)


def score_greedy_player(seed: int, rules: Rules) -> Score:
    """A scripted agent that takes the move with the highest score now; of equal ones, the first."""
    game = Game(seed, rules)
    while not game.is_over:
        game.answer(max(useful_moves(game.board), key=lambda direction: slide(game.board, direction)[1]))
    return Score(game.reward, game.metrics)
