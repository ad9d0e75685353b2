"""``art runs`` and ``art show``, over histories written by hand."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art.cli import app
from art.cli.runs import find_histories, find_model


@pytest.fixture
def art_path(tmp_path: Path) -> Path:
    for name, rewards in {"pupil": [-0.3, 0.1, 0.6], "other": [0.0]}.items():
        directory = tmp_path / ".art" / "demo" / "seed-1" / "games" / "models" / name
        directory.mkdir(parents=True)
        rows = [
            {"step": i + 1, "train/reward": reward, "loss/entropy": 1.0 - i / 4} for i, reward in enumerate(rewards)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / "history.jsonl").write_text(text + '{"step": 4, "train/rew')  # killed in mid-write
    return tmp_path / ".art"


def test_histories_are_found_at_any_depth(art_path: Path) -> None:
    other, pupil = find_histories(art_path)
    assert (other.title, pupil.title) == ("games/other", "games/pupil")
    assert pupil.steps == 3
    assert pupil.series("train/reward") == {1: -0.3, 2: 0.1, 3: 0.6}
    assert pupil.metrics() == ["loss/entropy", "train/reward"]


def test_runs_lists_every_model(art_path: Path) -> None:
    result = CliRunner().invoke(app, ["runs", "--path", str(art_path)])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["games/other", "1", "+0.000", "▁"]
    assert lines[2].split() == ["games/pupil", "3", "+0.600", "▁▄█"]


def test_no_run_says_how_to_get_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["runs", "--path", str(tmp_path)])
    assert result.exit_code == 0
    assert "art demo" in result.stdout


@pytest.mark.parametrize("name", ["pupil", "games/pupil"])
def test_show_draws_rewards_and_losses(art_path: Path, name: str) -> None:
    result = CliRunner().invoke(app, ["show", name, "--path", str(art_path)])
    assert result.exit_code == 0
    assert "games/pupil, 3 steps" in result.stdout
    assert ["train/reward", "-0.3", "0.6", "0.6", "▁▄█"] in [line.split() for line in result.stdout.splitlines()]
    assert ["loss/entropy", "1", "0.5", "█▅▁"] in [line.split() for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("pupil", ("games", "pupil", None)),
        ("pupil@2", ("games", "pupil", 2)),
        ("games/pupil@2", ("games", "pupil", 2)),
        ("elsewhere/model", ("elsewhere", "model", None)),
    ],
)
def test_a_model_needs_its_project_only_where_it_is_not_known(art_path: Path, target: str, found: object) -> None:
    assert find_model(target, art_path, "MODEL", local=False) == found


def test_a_model_that_was_logged_elsewhere_needs_its_project(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["delete", "far", "--yes", "--backend", "http://gpu-box", "--path", str(tmp_path)])
    assert result.exit_code == 1
    assert "Write MODEL as PROJECT/NAME" in result.stderr


def test_a_model_of_another_directory_names_it(art_path: Path) -> None:
    home = art_path / "demo/seed-1"
    assert find_model("pupil@2", home, "MODEL", local=True) == ("games", "pupil", 2)
    result = CliRunner().invoke(app, ["delete", "pupil", "--yes", "--path", str(art_path)])
    assert result.exit_code == 1
    assert f"pass --path {home}" in result.stderr
    assert (home / "games/models/pupil/history.jsonl").exists()


def test_a_step_may_stand_in_the_name_or_behind_it(art_path: Path) -> None:
    shown = [
        CliRunner().invoke(app, ["show", *words, "--path", str(art_path)]).stderr
        for words in (["pupil@9"], ["pupil", "9"])
    ]
    assert shown[0] == shown[1]
    assert "No rollouts were logged at step 9" in shown[0]
    twice = CliRunner().invoke(app, ["show", "pupil@9", "9", "--path", str(art_path)])
    assert twice.exit_code == 2


def test_an_unknown_model_or_metric_lists_the_known_ones(art_path: Path) -> None:
    result = CliRunner().invoke(app, ["show", "nobody", "--path", str(art_path)])
    assert result.exit_code == 1
    assert "games/other, games/pupil" in result.stderr
    result = CliRunner().invoke(app, ["show", "pupil", "--metric", "train/nothing", "--path", str(art_path)])
    assert result.exit_code == 1
    assert "games/pupil has no metric 'train/nothing'. Nearest of its 2: train/reward" in result.stderr
