"""The table and the plot of several runs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from art.demo.report import render_table, shortfalls
from art.experiment import Results
from art.logs.statistics import Interval

MakeResults = Callable[..., Results]


def test_the_table_has_a_row_per_seed_in_order_and_then_the_mean(make_results: MakeResults) -> None:
    runs = [make_results(seed=seed) for seed in (3, 1)]
    lines = render_table(runs).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:6]] == ["1", "3", "**mean**", "random legal moves"]
    assert len({line.count("|") for line in lines[:6]}) == 1
    after = runs[0].player("trained")
    assert f"{after.metrics['win'].value:.0%}".replace("%", " %") in lines[4]
    assert f"{after.reward.value:+.2f} ± {after.reward.high - after.reward.value:.2f}" in lines[2]
    assert lines[-1].startswith("200 held-out games")


def test_one_run_needs_no_mean(make_results: MakeResults) -> None:
    assert "mean" not in render_table([make_results()])
    with pytest.raises(ValueError, match="at least one run"):
        render_table([])


def test_a_run_that_learned_has_no_shortfall(make_results: MakeResults) -> None:
    assert shortfalls(make_results()) == []


def test_every_bar_is_checked(make_results: MakeResults) -> None:
    run = make_results(after_legal_share=0.4)
    run.max_logprob_gap = 0.5
    lacks = shortfalls(run)
    for part in (
        "illegal games, not below 5%",
        "wins, not above 50%",
        "of reward before",
        "of wins before",
        "gap 0.5000",
    ):
        assert sum(part in lack for lack in lacks) == 1


def test_touching_intervals_are_a_shortfall_even_above_the_bars(make_results: MakeResults) -> None:
    run = make_results()
    touching = run.player("trained").metrics["win"].low
    run.player("base model").metrics["win"] = Interval(0.4, 0.3, touching)
    assert shortfalls(run) == ["the intervals of wins before and after touch"]


def run_report(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "art.demo.report", *arguments], text=True, capture_output=True, check=False
    )


def test_the_command_prints_the_table_and_draws_the_plot(tmp_path: Path, make_results: MakeResults) -> None:
    pytest.importorskip("matplotlib")
    for seed in (1, 2):
        make_results(seed=seed).write(tmp_path / str(seed) / "results.json")
    plot = tmp_path / "plots" / "all.png"
    finished = run_report(str(tmp_path / "1"), str(tmp_path / "2"), "--plot", str(plot), "--check")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("| seed |")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_check_fails_for_a_run_that_did_not_learn(tmp_path: Path, make_results: MakeResults) -> None:
    make_results(seed=4, after_legal_share=0.5).write(tmp_path / "results.json")
    finished = run_report(str(tmp_path), "--check")
    assert finished.returncode == 1
    assert "seed 4:" in finished.stderr
    assert run_report(str(tmp_path)).returncode == 0


def test_a_directory_without_results_is_one_clear_line(tmp_path: Path) -> None:
    finished = run_report(str(tmp_path))
    assert finished.returncode == 1
    assert "no finished run" in finished.stderr
    assert "Traceback" not in finished.stderr
