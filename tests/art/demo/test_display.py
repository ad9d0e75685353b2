"""What the demo shows, on a terminal of 80 columns and in a log file."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from art.demo.display import Display, clock, draw_game, mean_interval, percent_interval, shorten, sparkline
from art.demo.game import Outcome
from art.demo.records import Results, RunDirectory, SampleGame
from art.demo.run import DemoOptions, seconds_left, show_results
from art.demo.statistics import Estimate


def display_on(*, terminal: bool) -> tuple[Display, io.StringIO]:
    out = io.StringIO()
    return Display(Console(file=out, width=80, force_terminal=terminal, highlight=False)), out


def test_small_texts() -> None:
    assert clock(125.4) == "2:05"
    assert clock(59.6) == "1:00"
    assert percent_interval(Estimate(value=0.03, low=0.012, high=0.064)) == "3 % (1–6)"
    assert mean_interval(Estimate(value=-0.4, low=-0.45, high=-0.35)) == "-0.40 ± 0.05"
    assert sparkline([-0.5, 0.25, 1.0, 7.0, -7.0], -0.5, 1.0) == "▁▅██▁"
    assert shorten("What a") == "What…"
    assert shorten("\x1b[2J") == "'\\x1…"


def test_a_finished_run_fits_80_columns(tmp_path: Path, make_results: Callable[..., Results]) -> None:
    pytest.importorskip("matplotlib")
    display, out = display_on(terminal=False)
    results = make_results()
    display.steps_header()
    for i, record in enumerate(results.steps):
        display.step_row(record, seconds_left(results.steps[: i + 1], 3, results.config))
    show_results(results, RunDirectory(tmp_path), DemoOptions(output=tmp_path), display)
    text = out.getvalue()
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines() if str(tmp_path) not in line)
    for part in (
        "held-out games",
        "random player",
        "Reward per step",
        "checkpoint  /somewhere",
        "art serve",
        "--seed 2",
    ):
        assert part in text
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_every_board_of_a_game_is_drawn() -> None:
    boards = ["123456789", "X2345678O", "XX34O678O", "XXX4O678O"]
    game = SampleGame(seed=1, outcome=Outcome.WIN, reward=1.0, boards=boards, answers=["1", "2", "3"])
    text = draw_game(game).plain
    assert text.count("→") == 3
    assert text.count("X") == 0 + 1 + 2 + 3
    assert text.endswith("win, reward +1.0")


def test_off_a_terminal_only_what_is_announced_is_said() -> None:
    display, out = display_on(terminal=False)
    with display.stage("evaluating", 3, announce=True) as count:
        count()
    with display.stage("step 1", 3) as count:
        count()
    assert out.getvalue() == "evaluating …\n"


def test_on_a_terminal_messages_of_the_library_stay_and_the_bar_goes() -> None:
    display, out = display_on(terminal=True)
    stderr = sys.stderr
    with display.stage("playing", 2) as count:
        assert not sys.stderr.isatty()
        print("warning: something to know", file=sys.stderr)
        count()
    assert sys.stderr is stderr
    assert "warning: something to know\n" in out.getvalue()


def test_time_left_counts_steps_and_the_last_evaluation(make_results: Callable[..., Results]) -> None:
    """Two steps of 30 s are left, and 200 games at 10 s per 32."""
    results = make_results()
    assert seconds_left(results.steps[:1], 3, results.config) == pytest.approx(2 * 30 + 10 * 200 / 32)
