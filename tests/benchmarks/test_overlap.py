import json
import math
import statistics

import pytest
from benchmarks.overlap_environment import latency, letters, reward, sigma
from benchmarks.overlap_runs import BEGIN, END, MODES, TRL, Run, judge, noise_of, table, write_section

from benchmarks import overlap

SYNCHRONOUS, ONE, TWO = MODES


def test_waits_have_the_stated_mean_and_tail():
    """Of a log-normal: mean exp(μ + σ²/2), 99th percentile exp(μ + 2.326 σ)."""
    mu = -(sigma() ** 2) / 2
    assert math.exp(mu + sigma() * statistics.NormalDist().inv_cdf(0.99)) == pytest.approx(8)
    waits = [latency(1, scenario, 0, 0) for scenario in range(4000)]
    assert statistics.fmean(waits) == pytest.approx(1, abs=0.1)
    assert latency(1, 2, 3, 4) == latency(1, 2, 3, 4) != latency(1, 2, 4, 3)


def test_rewards_are_shares_of_what_may_be_said():
    assert reward(5 * letters("abC d12é")) == pytest.approx(3 / 24)


def make_run(mode, seconds, final, idle, seed=1):
    shares = {"busy": 0.9 - idle, "idle": idle, "paused": 0.1}
    timeline = [[second, 0.5, 0.3, 0.2] for second in range(1, 5)]
    return Run(mode, seed, seconds, 10, 10, 0.1, final, shares, 2.0, 0.7, 5.0, timeline)


RUNS = [
    Run(TRL, 1, 400.0, 10, 2, 0.1, None, {}),
    make_run(SYNCHRONOUS, 90, 0.50, 0.5),
    make_run(SYNCHRONOUS, 110, 0.52, 0.6, seed=2),
    make_run(ONE, 40, 0.49, 0.1),
    make_run(ONE, 44, 0.48, 0.12, seed=2),
    make_run(TWO, 60, 0.3, 0.2),
]


def test_the_verdicts():
    """Means: 100 s beside 42 s is 2.38 times the speed; rewards of 0.51 and 0.485 differ by less than the noise of 0.04."""
    rows = {row.name: row for row in judge(RUNS)}
    assert rows[f"{ONE}: time"].ratio == pytest.approx(100 / 42)
    assert [rows[f"{ONE}: {what}"].ok for what in ("time", "final reward", "idle for environments")] == [True] * 3
    assert [rows[f"{TWO}: {what}"].ok for what in ("time", "final reward", "idle for environments")] == [False] * 3
    assert noise_of([0.5, 0.5], [0.4, 0.6]) == pytest.approx(2 * math.sqrt(0.02))
    assert noise_of([0.5], [0.5]) == pytest.approx(0.04)


def test_the_table_has_means_and_spreads():
    heading, *lines = table(RUNS)
    assert [line[0] for line in lines] == [SYNCHRONOUS, ONE, TWO, TRL]
    found = {line[0]: dict(zip(heading, line, strict=True)) for line in lines}
    assert found[SYNCHRONOUS]["time"] == "100 s ± 14 s"
    assert found[ONE] | {"": ""} == {
        "": "", "time": "42 s ± 3 s", "speed": "2.4×", "busy": "79 % ± 1 %", "idle": "11 % ± 1 %", "paused": "10 % ± 0 %",
        "stale groups": "2 ± 0", "mean age": "0.70 ± 0.00", "first reward": "0.10 ± 0.00", "final reward": "0.485 ± 0.007",
        "seeds": "2",
    }  # fmt: skip
    assert (found[TRL]["time"], found[TRL]["idle"]) == ("400 s (scaled)", "–")


def test_the_picture_and_the_page_are_made_from_what_was_kept(tmp_path, monkeypatch, capsys):
    (tmp_path / "efficiency.md").write_text(f"before\n{BEGIN}old figures\n{END}\nafter\n")
    results = overlap.Results(
        "Environments that take their time.", "python -m benchmarks.overlap", tmp_path / "runs.json"
    )
    for run in RUNS:
        results.add(run)
    assert len(json.loads((tmp_path / "runs.json").read_text())["runs"]) == len(RUNS)
    monkeypatch.setattr(overlap, "DOCS", tmp_path)
    overlap.write_report(tmp_path / "runs.json")
    page = (tmp_path / "efficiency.md").read_text()
    assert page.startswith("before\n") and page.endswith("\nafter\n") and "old figures" not in page
    assert "| synchronous | 100 s ± 14 s | 1.0× |" in page
    assert f"- {ONE}: time: 42 s; synchronous 100, 2.38× the speed. Target ≥ 2.2× the speed: **met**" in page
    assert f"- {TWO}: idle for environments: 0.2 share; synchronous 0.55. Target ≤ 0.15: **missed**" in page
    assert "2 of its steps were measured" in page
    assert (tmp_path / "images/efficiency.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="has no <!-- measured:begin -->"):
        write_section(tmp_path / "runs.json", "text")
