"""The page of results is made from what is kept, and is current."""

import subprocess
import sys
from pathlib import Path

from art.experiment.results import Player, Results, StepReward
from art.logs.statistics import Interval

ROOT = Path(__file__).parents[2]


def write(*arguments):
    command = [sys.executable, "-m", "examples.results", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)


def test_runs_become_a_page_with_plots(tmp_path):
    players = [
        Player(
            name=name, step=step, episodes=200, failed=0, reward=Interval(value, value - 0.1, value + 0.1), metrics={}
        )
        for name, step, value in (("base model", 0, 0.2), ("trained", 4, 0.3), ("random", None, 0.5))
    ]
    for seed in (1, 2):
        Results(
            example="game",
            variant=None,
            form="small",
            seed=seed,
            base_model="m",
            step=4,
            warm_up=0,
            players=players,
            steps=[StepReward(step=1, reward=0.2)],
            training_s=60,
            evaluation_s=30,
        ).write(tmp_path / f"runs/{seed}/results.json")
    done = write(tmp_path / "runs/1", tmp_path / "runs/2", "--kept", tmp_path / "kept", "--page", tmp_path / "PAGE.md")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "PAGE.md").read_text()
    assert page.count("| did not learn |") == 2, "what did not learn is told"
    assert "![Rewards of game](kept/game-small.png)" in page
    assert (tmp_path / "kept/game-small.png").exists()
    write("--kept", tmp_path / "kept", "--page", tmp_path / "again.md")
    assert (tmp_path / "again.md").read_text() == page


def test_the_page_in_the_repository_is_current(tmp_path):
    kept, page = ROOT / "examples/results", tmp_path / "RESULTS.md"
    for path in kept.glob("*"):
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / "results" / path.name).write_bytes(path.read_bytes())
    assert write("--kept", tmp_path / "results", "--page", page).returncode == 0
    assert page.read_text() == (ROOT / "examples/RESULTS.md").read_text()
