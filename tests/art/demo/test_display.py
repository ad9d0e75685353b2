"""What the demo shows at its end, on a terminal of 80 columns and in a log file."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import art
from art.demo.game import Outcome
from art.demo.run import draw_game, find_game, shorten, show_mean, show_results, show_share
from art.experiment import Results, Run, Settings
from art.logs.parquet import write_trajectory_groups_parquet
from art.logs.statistics import Interval
from art.terminal import sparkline

BOARDS = ["123456789", "X2345678O", "XX34O678O", "XXX4O678O"]


def make_game(seed: int) -> art.Trajectory:
    metadata = {"seed": seed, "outcome": Outcome.WIN, "boards": BOARDS, "answers": ["1", "2", "3"]}
    return art.Trajectory(reward=1.0, metadata=metadata)


def make_run(directory: Path) -> Run:
    return Run("tic-tac-toe", "demo", 1, Settings(steps=3), directory, project="demo", shares_backend=True)


def test_small_texts() -> None:
    assert show_share(Interval(0.03, 0.012, 0.064)) == "3 % (1–6)"
    assert show_mean(Interval(-0.4, -0.45, -0.35)) == "-0.40 ± 0.05"
    assert sparkline([-0.5, 0.25, 1.0, 7.0, -7.0], -0.5, 1.0) == "▁▅██▁"
    assert shorten("What a") == "What…"
    assert shorten("\x1b[2J") == "'\\x1…"


def test_a_finished_run_fits_80_columns(tmp_path: Path, make_results: Callable[..., Results]) -> None:
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path)
    run.open()
    logged = tmp_path / "demo/models" / run.make_model().name / "trajectories/val"
    for step in (0, 3):
        write_trajectory_groups_parquet(
            [art.TrajectoryGroup([make_game(1)]), art.TrajectoryGroup([make_game(0)])], logged / f"{step:04d}.parquet"
        )
    out = io.StringIO()
    show_results(make_results(), run, Console(file=out, width=80, highlight=False))
    text = out.getvalue()
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines() if str(tmp_path) not in line)
    for part in (
        "held-out games",
        "random player",
        "Reward per step",
        "win, reward +1.0",
        "checkpoint  /somewhere",
        "art serve",
        "--seed 2",
    ):
        assert part in text
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_every_board_of_a_game_is_drawn() -> None:
    text = draw_game(make_game(1)).plain
    assert text.count("→") == 3
    assert text.count("X") == 0 + 1 + 2 + 3
    assert text.endswith("win, reward +1.0")


def test_a_game_that_was_not_logged_is_not_found(tmp_path: Path) -> None:
    assert find_game(make_run(tmp_path), 0) is None
