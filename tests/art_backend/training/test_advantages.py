"""Advantages against hand-computed values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_backend.training.algorithms.advantages import (
    batch_normalised,
    group_relative,
    has_signal,
    leave_one_out,
    mean_centred,
)

# Rewards 0, 1, 2: mean 1, population variance 2/3.
STD = np.sqrt(2 / 3)


def rewards(*groups):
    return [np.array(group, np.float64) for group in groups]


def test_group_relative_divides_by_the_population_deviation():
    (a,) = group_relative(rewards([0, 1, 2]), True)
    assert a == pytest.approx([-1 / (STD + 1e-6), 0, 1 / (STD + 1e-6)])


def test_group_relative_unscaled_keeps_the_size_of_a_reward():
    assert group_relative(rewards([0, 1, 2]), False)[0] == pytest.approx([-1, 0, 1])
    assert mean_centred(rewards([0, 10, 20]), True)[0] == pytest.approx([-10, 0, 10])


def test_leave_one_out_compares_with_the_mean_of_the_others():
    (a,) = leave_one_out(rewards([0, 1, 5]), True)
    assert a == pytest.approx([0 - 3, 1 - 2.5, 5 - 0.5])


def test_batch_normalised_ignores_groups():
    a = batch_normalised(rewards([0, 0], [2, 2]), True)
    assert [list(x) for x in a] == [pytest.approx([-1 / (1 + 1e-6)] * 2), pytest.approx([1 / (1 + 1e-6)] * 2)]
    assert batch_normalised([], True) == []


@pytest.mark.parametrize("function", [group_relative, mean_centred, leave_one_out])
def test_equal_rewards_and_single_members_give_exact_zeros(function):
    # 0.1 three times has the mean 0.10000000000000002: rounding must not become a signal.
    for group in ([0.1, 0.1, 0.1], [5.0], [1e9, 1e9]):
        assert not function(rewards(group), True)[0].any()


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12))
def test_group_relative_is_centred_finite_and_keeps_the_order(values):
    (a,) = group_relative(rewards(values), True)
    assert np.isfinite(a).all()
    assert a.sum() == pytest.approx(0, abs=1e-6)
    if has_signal(np.array(values)):
        order = np.argsort(values, kind="stable")
        assert (np.diff(a[order]) >= 0).all()


@pytest.mark.parametrize("function", [group_relative, mean_centred, leave_one_out, batch_normalised])
def test_rewards_at_the_end_of_the_number_range_are_told_apart(function):
    """Their squares, and their difference, are beyond float64."""
    with np.errstate(over="ignore"):
        low, middle, high = function(rewards([-1e308, 0.0, 1e308]), True)[0]
    assert low < middle == 0 < high
    assert np.isfinite([low, high]).all()
    if function in (group_relative, batch_normalised):
        assert high == pytest.approx(np.sqrt(3 / 2))
