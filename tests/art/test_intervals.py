"""Intervals, against values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.logs.statistics import Interval, share_interval


def test_wilson_interval_by_hand() -> None:
    """10 of 100, z = 1.96: centre (0.1 + 0.019207) / 1.038415, half width 0.059658: 0.0552 to 0.1744."""
    share = share_interval(10, 100)
    assert (share.value, share.low, share.high) == pytest.approx((0.1, 0.0552, 0.1744), abs=5e-5)


def test_wilson_interval_at_the_edges() -> None:
    """0 of n: 0 to z² / (n + z²)."""
    none, all_of_them = share_interval(0, 200), share_interval(200, 200)
    edge = 1.96**2 / (200 + 1.96**2)
    assert (none.low, none.high) == pytest.approx((0.0, edge), abs=1e-5)
    assert (all_of_them.low, all_of_them.high) == pytest.approx((1 - edge, 1.0), abs=1e-5)


@given(n=st.integers(1, 5_000), data=st.data())
def test_a_share_lies_within_its_interval(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    share = share_interval(hits, n)
    assert 0 <= share.low <= share.value <= share.high <= 1
    mirrored = share_interval(n - hits, n)
    assert mirrored.low == pytest.approx(1 - share.high, abs=1e-9)


@pytest.mark.parametrize(("hits", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_impossible_shares_are_refused(hits: int, n: int) -> None:
    with pytest.raises(ValueError, match="is not a fraction"):
        share_interval(hits, n)


def test_intervals_touch_when_they_share_a_point() -> None:
    low, middle, high = (Interval(a, a, b) for a, b in ((0.0, 0.2), (0.2, 0.4), (0.5, 0.6)))
    assert low.touches(middle)
    assert middle.touches(low)
    assert not low.touches(high)
    assert not high.touches(middle)
