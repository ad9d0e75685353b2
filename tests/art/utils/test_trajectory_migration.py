import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import art
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from art.utils.trajectory_migration import (
    MigrationResult,
    auto_migrate_on_register,
    deserialize_trajectory_groups,
    dict_to_history,
    dict_to_trajectory,
    dict_to_trajectory_group,
    history_to_dict,
    message_or_choice_to_dict,
    migrate_all_models,
    migrate_jsonl_to_parquet,
    migrate_model_dir,
    serialize_trajectory_groups,
    trajectory_group_to_dict,
    trajectory_to_dict,
)


@pytest.fixture
def groups(make_choice):
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "q"}, make_choice("a" * 5000)],
        reward=0.5,
        metrics={"m": 1},
        logs=["l"],
    )
    return [art.TrajectoryGroup([trajectory, trajectory])]


@pytest.fixture
def source(tmp_path, groups):
    path = tmp_path / "p/models/m/trajectories/train/0001.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(serialize_trajectory_groups(groups))
    return path


def test_a_file(source):
    estimate = migrate_jsonl_to_parquet(source, dry_run=True)
    assert (estimate.files_migrated, estimate.bytes_after) == (1, source.stat().st_size // 25)
    result = migrate_jsonl_to_parquet(source, delete_original=False)
    assert source.exists()
    assert (result.files_migrated, result.bytes_before) == (1, source.stat().st_size)
    assert result.compression_ratio > 1
    (group,) = read_trajectory_groups_parquet(source.with_suffix(".parquet"))
    assert group.trajectories[1].messages_and_choices[1] == {"role": "assistant", "content": "a" * 5000}
    assert (group.trajectories[0].metrics, group.trajectories[0].logs) == ({"m": 1}, ["l"])
    migrate_jsonl_to_parquet(source)
    assert not source.exists()


@pytest.mark.parametrize("content", ["{broken", '{"other": 1}', "- just\n- yaml"])
def test_a_file_that_cannot_be_read_stays(source, content):
    source.write_text(content)
    result = migrate_jsonl_to_parquet(source)
    assert (result.files_migrated, len(result.errors)) == (0, 1)
    assert str(source) in result.errors[0]
    assert [path.name for path in source.parent.iterdir()] == ["0001.jsonl"]


def test_what_is_skipped(tmp_path):
    assert migrate_jsonl_to_parquet(tmp_path / "none.jsonl").errors == [f"{tmp_path / 'none.jsonl'}: no such file"]
    (tmp_path / "a.txt").touch()
    assert migrate_jsonl_to_parquet(tmp_path / "a.txt").files_skipped == 1
    (tmp_path / "empty.jsonl").touch()
    assert migrate_jsonl_to_parquet(tmp_path / "empty.jsonl").files_migrated == 1
    assert read_trajectory_groups_parquet(tmp_path / "empty.parquet") == []


def test_groups_without_trajectories_give_a_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"trajectories": []}\n')
    assert migrate_jsonl_to_parquet(tmp_path / "a.jsonl").files_migrated == 1
    assert read_trajectory_groups_parquet(tmp_path / "a.parquet") == []


def test_the_schema_of_files_that_were_migrated_elsewhere_is_read(tmp_path, groups):
    migrate_jsonl_to_parquet(write(tmp_path / "a.jsonl", groups))
    table = pq.read_table(tmp_path / "a.parquet")
    old = ["history"]
    histories = json.dumps([{"messages_and_choices": [{"role": "user", "content": h}], "tools": None} for h in old])
    columns = ["group_index", "reward", "metrics", "metadata", "tools", "logs", "messages"]
    table = table.select(columns).add_column(6, "additional_histories", pa.array([histories] * table.num_rows))
    pq.write_table(table, tmp_path / "b.parquet")
    (group,) = read_trajectory_groups_parquet(tmp_path / "b.parquet")
    assert [t.reward for t in group] == [0.5, 0.5]
    assert group.trajectories[0].additional_histories[0].messages() == [{"role": "user", "content": "history"}]
    assert (group.metadata, group.metrics, group.logs) == ({}, {}, [])


def write(path, groups):
    path.write_text(serialize_trajectory_groups(groups))
    return path


def test_dicts_and_back(make_choice):
    history = art.trajectories.History(messages_and_choices=[make_choice("sub")], tools=[{"type": "function"}])
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "q"}, make_choice("a")],
        additional_histories=[history],
        metadata={"m": 1},
        logs=["l"],
    )
    group = art.TrajectoryGroup([trajectory], metadata={"scenario_id": "s"}, metrics={"g": 1}, logs=["gl"])
    again = dict_to_trajectory_group(json.loads(json.dumps(trajectory_group_to_dict(group))))
    (twin,) = again.trajectories
    assert twin.messages() == trajectory.messages()
    assert isinstance(twin.messages_and_choices[1], type(trajectory.messages_and_choices[1]))
    assert twin.additional_histories[0].messages() == history.messages()
    assert (twin.additional_histories[0].tools, twin.metadata, twin.logs) == (history.tools, {"m": 1}, ["l"])
    assert dict_to_history(history_to_dict(history)).messages() == history.messages()
    assert dict_to_trajectory(trajectory_to_dict(trajectory)).metadata == {"m": 1}


def test_directories(source, tmp_path, capsys):
    seen = []
    assert migrate_model_dir(tmp_path, progress_callback=seen.append) == MigrationResult()
    result = migrate_all_models(tmp_path, "p", dry_run=True, progress_callback=seen.append)
    assert (result.files_migrated, seen) == (1, [source])
    source.with_name("0002.jsonl").write_text("{broken")
    result = auto_migrate_on_register(source.parents[2])
    assert (result.files_migrated, len(result.errors)) == (1, 1)
    assert "0002.jsonl" in capsys.readouterr().out


def test_results_add_up():
    total = MigrationResult(1, 2, 100, 10, ["a"]) + MigrationResult(1, 0, 20, 2, ["b"])
    assert total == MigrationResult(2, 2, 120, 12, ["a", "b"])
    assert (total.compression_ratio, total.space_saved, MigrationResult().compression_ratio) == (10.0, 108, 0.0)


def test_text_formats(groups, make_choice):
    yaml = pytest.importorskip("yaml")
    line = json.loads(serialize_trajectory_groups(groups))
    for text in (serialize_trajectory_groups(groups), yaml.safe_dump([line])):
        (group,) = deserialize_trajectory_groups(text)
        choice = group.trajectories[0].messages_and_choices[1]
        assert choice.message.content == "a" * 5000
        assert choice.model_extra["art"]["turn"] == "t1"
    given = {"role": "user", "content": "x", "logprobs": 1}
    assert message_or_choice_to_dict(given) == {"role": "user", "content": "x"}
    assert given["logprobs"] == 1
