"""The report of a reward model, against values worked out by hand."""

import math

import pytest

from art_backend.rewards.report import build_report, fit_temperature, wilson

COUNTS = {"trained_pairs": 10, "calibration_pairs": 4, "overlong_pairs": 1}


def test_the_report_of_four_pairs():
    # P(better) is 3/4 three times and 1/4 once: margins of log 3, at temperature 2.
    margin = 2 * math.log(3)
    report = build_report([margin, margin, margin, -margin], 2.0, COUNTS)
    assert (report.held_out_pairs, report.trained_pairs, report.overlong_pairs) == (4, 10, 1)
    assert report.accuracy == 0.75
    assert report.log_loss == pytest.approx((3 * math.log(4 / 3) + math.log(4)) / 4)
    assert report.brier == pytest.approx((3 * (1 / 4) ** 2 + (3 / 4) ** 2) / 4)
    assert sum(b.count for b in report.bins) == 4
    assert all(b.predicted == pytest.approx(0.75) for b in report.bins)
    assert report.accuracy_low < 0.75 < report.accuracy_high


def test_wilson_interval():
    # Newcombe (1998), table I: 81 of 263.
    low, high = wilson(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_the_temperature_makes_confidence_match_accuracy():
    # Margins of ±10 with three quarters right: the best logit is log 3. Of many pairs, the added mistake counts little.
    margins = [10.0] * 3000 + [-10.0] * 1000
    assert 10 / fit_temperature(margins) == pytest.approx(math.log(3), rel=0.01)


def test_a_few_pairs_without_a_mistake_do_not_make_certain():
    # Four right pairs and the added mistake: the best probability is 4/5.
    temperature = fit_temperature([8.0] * 4)
    assert 8 / temperature == pytest.approx(math.log(4), rel=0.01)
