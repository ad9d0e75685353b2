"""Tic-tac-toe: the rules, a seeded random opponent, and what a game is worth. Pure; no model in sight.

The agent plays X and moves first. A board is a string of nine squares in reading order; a free square holds its own
number, so the grid that the agent sees also lists the answers it may give.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

EMPTY_BOARD = "123456789"
AGENT, OPPONENT = "X", "O"

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class Outcome(StrEnum):
    """How a game ended, seen by the agent."""

    WIN = "win"
    ILLEGAL = "illegal"
    """The agent's answer was not the number of a free square."""
    DRAW = "draw"
    LOSS = "loss"


def free_squares(board: str) -> list[int]:
    """The numbers (1 to 9) of the free squares, ascending."""
    return [int(square) for square in board if square.isdigit()]


def place(board: str, square: int, mark: str) -> str:
    """The board after ``mark`` takes the free square with this number.

    Raises:
        ValueError: The square is not free.
    """
    if square not in free_squares(board):
        raise ValueError(f"Square {square} is not free on {board!r}.")
    return board[: square - 1] + mark + board[square:]


def winner(board: str) -> str | None:
    """The mark that fills a line, if one does."""
    for a, b, c in LINES:
        if board[a] == board[b] == board[c]:
            return board[a]
    return None


def grid(board: str) -> str:
    """The board as three rows of text, such as ``X|2|3``."""
    return "\n".join("|".join(board[row : row + 3]) for row in (0, 3, 6))


def parse_move(answer: str, board: str) -> int | None:
    """The free square that an answer names; ``None`` when it is anything but one free number."""
    text = answer.strip()
    if len(text) == 1 and text in EMPTY_BOARD and text in board:
        return int(text)
    return None


def reward(outcome: Outcome, legal_moves: int) -> float:
    """The reward of a finished game, from -0.5 to 1.

    An illegal move ends the game below every legal ending, but each legal move before it counts: without that, a model
    that seldom gets to the end of a game would see no difference between its attempts.
    """
    match outcome:
        case Outcome.WIN:
            return 1.0
        case Outcome.DRAW:
            return 0.5
        case Outcome.LOSS:
            return 0.0
        case Outcome.ILLEGAL:
            return -0.5 + 0.1 * legal_moves


Opponent = Callable[[str, random.Random], int]
"""(board, its random numbers) → the square that O takes."""


def play_random_square(board: str, chance: random.Random) -> int:
    """An opponent that takes any free square."""
    return chance.choice(free_squares(board))


@dataclass
class Game:
    """One game in progress. Games of one seed face the same opponent: it draws the same random numbers."""

    seed: int
    opponent: Opponent = play_random_square
    board: str = EMPTY_BOARD
    outcome: Outcome | None = None
    """``None`` while the game goes on."""
    legal_moves: int = 0
    """Legal moves made by the agent."""
    boards: list[str] = field(default_factory=lambda: [EMPTY_BOARD])
    """The board before each of the agent's moves, and the last one."""
    answers: list[str] = field(default_factory=list[str])
    """The agent's answers, word for word."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    @property
    def reward(self) -> float:
        """See ``reward``.

        Raises:
            ValueError: The game goes on.
        """
        if self.outcome is None:
            raise ValueError("The game is not over.")
        return reward(self.outcome, self.legal_moves)

    def answer(self, text: str) -> None:
        """Play the agent's answer, and the opponent's move after it.

        Raises:
            ValueError: The game is over.
        """
        if self.outcome is not None:
            raise ValueError("The game is over.")
        self.answers.append(text)
        square = parse_move(text, self.board)
        if square is None:
            self.outcome = Outcome.ILLEGAL
            return
        self.legal_moves += 1
        self.board = place(self.board, square, AGENT)
        if winner(self.board):
            self.outcome = Outcome.WIN
        elif not free_squares(self.board):
            self.outcome = Outcome.DRAW
        else:
            # Agent and opponent alternate from an empty board of nine squares: the opponent never makes the last move.
            self.board = place(self.board, self.opponent(self.board, self._chance), OPPONENT)
            if winner(self.board):
                self.outcome = Outcome.LOSS
        self.boards.append(self.board)


def play_at_random(seed: int, agent_seed: int, opponent: Opponent = play_random_square) -> Game:
    """A game in which the agent picks free squares at random: the yardstick of a player who only knows the rules."""
    game, agent = Game(seed, opponent), random.Random(agent_seed)
    while game.outcome is None:
        game.answer(str(agent.choice(free_squares(game.board))))
    return game
