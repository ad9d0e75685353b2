"""Means, shares and their 95 % intervals. Pure."""

import math
from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from art.demo.game import Game, Outcome

Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


class Estimate(BaseModel):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def touches(self, other: "Estimate") -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high


def estimate_share(hits: int, n: int) -> Estimate:
    """The share ``hits / n`` with the score interval of Wilson 1927, which is sound near 0 and 1 too.

    Raises:
        ValueError: ``n`` is not positive, or ``hits`` is not between 0 and ``n``.
    """
    if n <= 0 or not 0 <= hits <= n:
        raise ValueError(f"{hits} of {n} is not a share.")
    share = hits / n
    scale = 1 + Z95**2 / n
    centre = (share + Z95**2 / (2 * n)) / scale
    half = Z95 / scale * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    # At the edges one bound is exact; rounding must not push it past the value.
    return Estimate(value=share, low=max(0.0, min(share, centre - half)), high=min(1.0, max(share, centre + half)))


def estimate_mean(values: Sequence[float]) -> Estimate:
    """The mean with its normal 95 % interval, from the sample's standard deviation; one value gives a point.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("There is no mean of no values.")
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else 0.0
    half = Z95 * math.sqrt(variance / n)
    return Estimate(value=mean, low=mean - half, high=mean + half)


class Score(BaseModel):
    """How well a player does over many games."""

    games: int
    reward: Estimate
    wins: Estimate
    draws: Estimate
    losses: Estimate
    illegal: Estimate
    legal_moves: float
    """Legal moves per game."""


def score_games(games: Iterable[tuple[Outcome, float, int]]) -> Score:
    """Summarise finished games, each given as outcome, reward and number of legal moves."""
    finished = list(games)
    n = len(finished)

    def share(outcome: Outcome) -> Estimate:
        return estimate_share(sum(one == outcome for one, _, _ in finished), n)

    return Score(
        games=n,
        reward=estimate_mean([reward for _, reward, _ in finished]),
        wins=share(Outcome.WIN),
        draws=share(Outcome.DRAW),
        losses=share(Outcome.LOSS),
        illegal=share(Outcome.ILLEGAL),
        legal_moves=math.fsum(moves for _, _, moves in finished) / n,
    )


def score_of(games: Iterable[Game]) -> Score:
    """Summarise games that were played to their end."""
    return score_games((game.outcome, game.reward, game.legal_moves) for game in games if game.outcome is not None)
