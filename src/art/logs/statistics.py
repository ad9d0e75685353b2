"""Means with 95 % confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Interval", "interval", "share_interval"]

_Z = 1.959963984540054
_T_OF_FEW = {1: 12.706204736, 2: 4.302652730, 3: 3.182446305}


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval; of a single value the bounds are infinite."""

    value: float
    low: float
    high: float

    def touches(self, other: "Interval") -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high


def interval(values: Sequence[float]) -> Interval | None:
    """Mean and Student's 95 % interval.

    >>> interval([0.0, 1.0]).value
    0.5
    """
    if not values:
        return None
    n, middle = len(values), mean(values)
    if n == 1:
        return Interval(middle, -math.inf, math.inf)
    variance = math.fsum((value - middle) ** 2 for value in values) / (n - 1)
    half = t_quantile(n - 1) * math.sqrt(variance / n)
    return Interval(middle, middle - half, middle + half)


def share_interval(hits: int, n: int) -> Interval:
    """The proportion ``hits / n`` with Wilson's score interval (1927), which also holds near 0 and 1.

    Raises:
        ValueError: ``n`` is not positive, or ``hits`` is not between 0 and ``n``.
    """
    if n <= 0 or not 0 <= hits <= n:
        raise ValueError(f"{hits} of {n} is not a fraction between 0 and 1.")
    share, scale = hits / n, 1 + _Z**2 / n
    centre = (share + _Z**2 / (2 * n)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
    # At the edges one bound is exact; rounding must not push it past the value.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution (expansion in 1/ν, Abramowitz and Stegun 26.7.5)."""
    if freedom in _T_OF_FEW:
        return _T_OF_FEW[freedom]
    z, v = _Z, float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v ** (i + 1) for i, term in enumerate(terms))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
