import math
import statistics

import pytest
from benchmarks.overlap import MODES, Run, compare_runs, draw, latency, sigma


def test_waits_have_the_stated_mean_and_tail():
    """Of a log-normal: mean exp(μ + σ²/2), 99th percentile exp(μ + 2.326 σ)."""
    mu = -(sigma() ** 2) / 2
    assert math.exp(mu + sigma() * statistics.NormalDist().inv_cdf(0.99)) == pytest.approx(8)
    waits = [latency(1, scenario, 0, 0) for scenario in range(4000)]
    assert statistics.fmean(waits) == pytest.approx(1, abs=0.1)
    assert latency(1, 2, 3, 4) == latency(1, 2, 3, 4) != latency(1, 2, 4, 3)


def make_run(mode, seconds, reward, idle):
    shares = {"busy": 0.9 - idle, "idle": idle, "paused": 0.1}
    timeline = [[second, 0.5, 0.3, 0.2] for second in range(1, 5)]
    return Run(mode, 1, seconds, 0.1, reward, shares, 2.0, 0.7, 5.0, timeline)


def test_the_verdicts_and_the_picture(tmp_path):
    synchronous, one, two = MODES
    runs = [make_run(synchronous, 100, 0.50, 0.5), make_run(one, 40, 0.49, 0.1), make_run(two, 60, 0.3, 0.2)]
    rows = {row.name: row for row in compare_runs(runs)}
    assert rows[f"{one}: speed"].ratio == pytest.approx(2.5)
    assert [rows[f"{one}: {what}"].ok for what in ("speed", "final reward", "idle for environments")] == [True] * 3
    assert [rows[f"{two}: {what}"].ok for what in ("speed", "final reward", "idle for environments")] == [False] * 3
    draw(runs, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
