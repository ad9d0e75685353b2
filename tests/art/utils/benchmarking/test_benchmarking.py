"""From logged trajectories to data frames and charts."""

import json

import pytest

import art
from art.utils.benchmarking.aggregate_trajectories import load_aggregated_trajectories, load_latest_metrics
from art.utils.benchmarking.charts import percentage_comparison_bar_chart, training_progress_chart
from art.utils.benchmarking.filter_model_split import filter_rename_model_split
from art.utils.benchmarking.load_trajectories import load_trajectories
from art.utils.benchmarking.types import BenchmarkModelKey


def trajectory(reward, **metrics):
    messages = [{"role": "user", "content": "hi"}]
    return art.Trajectory(
        messages_and_choices=messages, reward=reward, metrics=metrics, metadata={"n": 1, "who": "x"}, logs=["l"]
    )


@pytest.fixture
async def path(tmp_path):
    learner = art.Model(name="learner", project="p", base_path=str(tmp_path))
    for step, rewards in ((0, [0.0, 0.5]), (3, [0.5, 1.0])):
        groups = [
            art.TrajectoryGroup([trajectory(r, won=r == 1)], metrics={"hard": 1}, metadata={"g": "a"}) for r in rewards
        ]
        await learner.log(groups, split="val", step=step)
    prompted = art.Model(name="prompted", project="p", base_path=str(tmp_path))
    await prompted.log([trajectory(0.25), ValueError("x")], split="val")
    await prompted.log([trajectory(0.75)], split="test")
    (tmp_path / "p/models/learner/trajectories/val/0009.parquet").write_text("broken")
    (tmp_path / "p/models/learner/trajectories/val/notes.parquet").write_text("no step")
    return str(tmp_path)


async def test_every_trajectory_is_a_row(path, tmp_path, capsys):
    frame = await load_trajectories("p", art_path=path)
    assert frame.columns[:3] == ["model", "split", "step"]
    rows = frame.sort("group_number").to_dicts()
    assert [(r["model"], r["split"], r["step"], r["reward"], r["group_number"]) for r in rows] == [
        ("learner", "val", 0, 0.0, 1),
        ("learner", "val", 0, 0.5, 2),
        ("learner", "val", 3, 0.5, 3),
        ("learner", "val", 3, 1.0, 4),
        ("prompted", "test", 0, 0.75, 5),
        ("prompted", "val", 0, 0.25, 6),
    ]
    assert (rows[3]["metric_won"], rows[3]["group_metric_hard"], rows[4]["metric_won"]) == (1.0, 1.0, None)
    assert (rows[0]["metadata_n"], rows[0]["metadata_who"], rows[0]["group_metadata_g"]) == ("1", "x", "a")
    assert json.loads(rows[0]["messages"]) == [{"role": "user", "content": "hi"}]
    assert rows[0]["logs"] == ["l"]
    assert "0009.parquet cannot be read" in capsys.readouterr().err
    assert set((await load_trajectories("p", ["prompted"], art_path=path))["model"]) == {"prompted"}
    assert (await load_trajectories("nothing", art_path=path)).is_empty()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["p"], "loading creates nothing"


async def test_means_by_step_and_the_latest(path):
    frame = await load_aggregated_trajectories("p", art_path=path)
    found = {(r["model"], r["split"], r["step"]): (r["reward"], r["n_trajectories"]) for r in frame.to_dicts()}
    assert found == {
        ("learner", "val", 0): (0.25, 2),
        ("learner", "val", 3): (0.75, 2),
        ("prompted", "test", 0): (0.75, 1),
        ("prompted", "val", 0): (0.25, 1),
    }
    latest = await load_latest_metrics("p", art_path=path)
    assert [(r["model"], r["split"], r["step"]) for r in latest.to_dicts()] == [
        ("learner", "val", 3),
        ("prompted", "test", 0),
        ("prompted", "val", 0),
    ]


async def test_models_are_chosen_renamed_and_drawn(path):
    frame = await load_trajectories("p", art_path=path)
    keys = [BenchmarkModelKey("prompted", "Prompted", "test"), BenchmarkModelKey("learner", "Learner")]
    chosen = filter_rename_model_split(frame, keys)
    assert chosen["model"].unique(maintain_order=True).to_list() == ["Prompted", "Learner"]
    assert chosen.filter(chosen["model"] == "Prompted")["reward"].to_list() == [0.75]

    progress = training_progress_chart(frame, "reward", keys, title="Progress", perfect_score=1.0)
    lines = {line.get_label(): list(line.get_ydata()) for line in progress.axes[0].lines}
    assert lines == {"Prompted": [0.75, 0.75], "Learner": [0.25, 0.75], "perfect": [1.0, 1.0]}
    bars = percentage_comparison_bar_chart(frame, "reward", keys, num_decimals=1)
    assert [round(patch.get_height(), 6) for patch in bars.axes[0].patches] == [75.0, 75.0]
    assert [text.get_text() for text in bars.axes[0].texts] == ["75.0 %", "75.0 %"]
    with pytest.raises(ValueError, match="There is no metric 'nothing'"):
        training_progress_chart(frame, "nothing")
