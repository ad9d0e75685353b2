"""Intervals, against values computed by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.demo.game import Game, Outcome
from art.demo.statistics import Estimate, estimate_mean, estimate_share, score_games, score_of


def test_wilson_interval_by_hand() -> None:
    """10 of 100, z = 1.96: centre (0.1 + 0.019207) / 1.038415, half width 0.059658: 0.0552 to 0.1744."""
    share = estimate_share(10, 100)
    assert (share.value, share.low, share.high) == pytest.approx((0.1, 0.0552, 0.1744), abs=5e-5)


def test_wilson_interval_at_the_edges() -> None:
    """0 of n: 0 to z² / (n + z²)."""
    none, all_of_them = estimate_share(0, 200), estimate_share(200, 200)
    edge = 1.96**2 / (200 + 1.96**2)
    assert (none.low, none.high) == pytest.approx((0.0, edge), abs=1e-5)
    assert (all_of_them.low, all_of_them.high) == pytest.approx((1 - edge, 1.0), abs=1e-5)


@given(n=st.integers(1, 5_000), data=st.data())
def test_a_share_lies_within_its_interval(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    share = estimate_share(hits, n)
    assert 0 <= share.low <= share.value <= share.high <= 1
    mirrored = estimate_share(n - hits, n)
    assert mirrored.low == pytest.approx(1 - share.high, abs=1e-9)


@pytest.mark.parametrize(("hits", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_impossible_shares_are_refused(hits: int, n: int) -> None:
    with pytest.raises(ValueError, match="is not a share"):
        estimate_share(hits, n)


def test_mean_interval_by_hand() -> None:
    """Values 0, 0, 1, 1: mean 0.5, sample variance 1/3, standard error sqrt(1/12)."""
    mean = estimate_mean([0.0, 0.0, 1.0, 1.0])
    half = 1.95996 * math.sqrt(1 / 12)
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-5)


def test_the_mean_of_one_value_is_a_point_and_of_none_an_error() -> None:
    assert estimate_mean([0.25]) == Estimate(value=0.25, low=0.25, high=0.25)
    with pytest.raises(ValueError, match="no values"):
        estimate_mean([])


def test_intervals_touch_when_they_share_a_point() -> None:
    low, middle, high = (Estimate(value=a, low=a, high=b) for a, b in ((0.0, 0.2), (0.2, 0.4), (0.5, 0.6)))
    assert low.touches(middle)
    assert middle.touches(low)
    assert not low.touches(high)
    assert not high.touches(middle)


def test_scores_count_each_outcome() -> None:
    score = score_games(
        [(Outcome.WIN, 1.0, 3), (Outcome.WIN, 1.0, 4), (Outcome.DRAW, 0.5, 5), (Outcome.ILLEGAL, -0.5, 0)]
    )
    assert score.games == 4
    assert (score.wins.value, score.draws.value, score.losses.value, score.illegal.value) == (0.5, 0.25, 0.0, 0.25)
    assert score.reward.value == 0.5
    assert score.legal_moves == 3.0


def test_a_score_of_games_leaves_unfinished_ones_out() -> None:
    lost, going = Game(1), Game(2)
    lost.answer("nonsense")
    assert score_of([lost, going]).games == 1
