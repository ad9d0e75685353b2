"""What is concluded from measured runs, and how it is told."""

import json

import pytest

from art.errors import ARTError
from art.experiment.comparison import estimate
from art.experiment.report import plot, table_of_players, table_of_runs
from art.experiment.results import Player, Results, StepReward
from art.logs.statistics import Interval


def player(name, step, value, *, half=0.05, **metrics):
    shares = {key: Interval(one, one, one) for key, one in metrics.items()}
    reward = Interval(value, value - half, value + half)
    return Player(name=name, step=step, episodes=200, failed=0, reward=reward, metrics=shares)


def make_results(base=0.1, trained=0.5, warm=None, **fields):
    players = [player("base model", 0, base, win=0.25)]
    if warm is not None:
        players.append(player("after warm-up", 1, warm))
    players += [player("trained", 9, trained, win=0.75), player("random moves", None, 0.3)]
    given = {
        "example": "game",
        "variant": None,
        "form": "small",
        "seed": 1,
        "base_model": "org/model",
        "step": 9,
    } | fields
    steps = [StepReward(step=1, reward=0.1), StepReward(step=9, reward=0.4)]
    return Results(
        **given, warm_up=0 if warm is None else 64, players=players, steps=steps, training_s=245.2, evaluation_s=59.9
    )


@pytest.mark.parametrize(
    ("base", "warm", "trained", "verdict"),
    [
        (0.1, None, 0.5, "learned"),
        (0.1, None, 0.19, "did not learn"),
        (0.5, None, 0.1, "got worse"),
        (0.1, 0.3, 0.5, "learned"),
        (0.1, 0.45, 0.5, "learned from the warm-up alone"),
        (0.1, 0.12, 0.15, "did not learn"),
    ],
)
def test_a_verdict_needs_intervals_apart(base, warm, trained, verdict):
    assert make_results(base, trained, warm).verdict == verdict


def test_intervals_of_shares_and_of_means():
    none_of_ten = estimate([0.0] * 10)
    assert (none_of_ten.value, none_of_ten.low) == (0, 0)
    assert none_of_ten.high == pytest.approx(0.2775, abs=1e-4), "Wilson's; Student's would be 0"
    mean = estimate([0.0, 0.5, 1.0])
    assert (mean.value, mean.high) == (0.5, pytest.approx(0.5 + 4.302652730 * 0.5 / 3**0.5))
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_tables_by_hand():
    assert table_of_players(make_results()).splitlines() == [
        "| player | episodes | reward | win |",
        "|---|---|---|---|",
        "| base model, step 0 | 200 | 0.10 [0.05, 0.15] | 0.25 [0.25, 0.25] |",
        "| trained, step 9 | 200 | 0.50 [0.45, 0.55] | 0.75 [0.75, 0.75] |",
        "| random moves | 200 | 0.30 [0.25, 0.35] |  |",
    ]
    rows = table_of_runs([make_results(seed=2, warm=0.2), make_results(variant="hard")]).splitlines()[2:]
    assert rows == [
        "| game | 2 | 0.10 [0.05, 0.15] | 0.20 [0.15, 0.25] | 0.50 [0.45, 0.55] | random moves 0.30 [0.25, 0.35] | learned | 9 | "
        "4:05 | 1:00 |",
        "| game (hard) | 1 | 0.10 [0.05, 0.15] | – | 0.50 [0.45, 0.55] | random moves 0.30 [0.25, 0.35] | learned | 9 | 4:05 | "
        "1:00 |",
    ]


def test_results_come_back_from_their_file_and_are_drawn(tmp_path):
    results = make_results()
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results
    plot([results, make_results(seed=2)], tmp_path / "plots/reward.png")
    assert (tmp_path / "plots/reward.png").read_bytes().startswith(b"\x89PNG")
    plot([results], tmp_path / "shares.png", ["win"])
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ARTError, match="evaluate the run first"):
        Results.read(tmp_path / "other.json")
    (tmp_path / "results.json").write_text(json.dumps({"example": "game"}))
    with pytest.raises(ARTError, match="holds no results"):
        Results.read(tmp_path / "results.json")
