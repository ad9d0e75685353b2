import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

import art
from art.logs.parquet import read_trajectory_groups_parquet, write_trajectory_groups_parquet
from art.trajectories import History

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def round_trip(groups, tmp_path):
    path = tmp_path / "deep" / "0001.parquet"
    write_trajectory_groups_parquet(groups, path)
    return read_trajectory_groups_parquet(str(path)), pq.read_table(path)


def test_columns_and_rows(tmp_path, make_choice):
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": "grüße 🎲"},
            make_choice(content=None, message={"tool_calls": [CALL]}),
            {"role": "tool", "content": "4", "tool_call_id": "c"},
            {
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "dict choice"},
                "logprobs": {"content": []},
            },
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
        ],
        tools=[{"type": "function", "function": {"name": "f"}}],
        reward=0.25,
        metrics={"i": 1, "f": 0.5, "b": True},
        metadata={"n": None, "s": "x"},
        logs=["line"],
        initial_policy_version=3,
        additional_histories=[History(messages_and_choices=[{"role": "user", "content": "sub"}, make_choice("s")])],
    )
    group = art.TrajectoryGroup(
        [trajectory, art.Trajectory()], metadata={"scenario_id": 1}, metrics={"g": 2}, logs=["gl"]
    )
    (read,), table = round_trip([group], tmp_path)
    assert table.schema.names[:10] == [
        "group_index",
        "group_metadata",
        "group_metrics",
        "group_logs",
        "reward",
        "metrics",
        "metadata",
        "tools",
        "logs",
        "messages",
    ]
    assert [str(field.type) for field in table.schema][:5] == [
        "int64",
        "string",
        "string",
        "list<element: string>",
        "double",
    ]
    row, empty = table.to_pylist()
    assert json.loads(row["metrics"]) == {"i": 1, "f": 0.5, "b": True}
    assert [m["trainable"] for m in row["messages"]] == [False, True, False, True, False]
    assert json.loads(row["messages"][1]["tool_calls"]) == [CALL]
    assert (empty["metrics"], empty["logs"], empty["messages"]) == (None, None, [])
    again, second = read.trajectories
    assert again.messages_and_choices == [
        {"role": "user", "content": "grüße 🎲"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "assistant", "content": "dict choice"},
        {"role": "user", "content": '[{"type": "text", "text": "x"}]'},
    ]
    assert (again.tools, again.reward, again.logs, again.initial_policy_version) == (
        trajectory.tools,
        0.25,
        ["line"],
        3,
    )
    assert [type(value) for value in again.metrics.values()] == [int, float, bool]
    assert again.metadata == {"n": None, "s": "x"}
    assert again.additional_histories[0].messages_and_choices == [
        {"role": "user", "content": "sub"},
        {"role": "assistant", "content": "s"},
    ]
    assert (second.metrics, second.logs) == ({}, [])
    assert (read.metadata, read.metrics, read.logs) == ({"scenario_id": 1}, {"g": 2}, ["gl"])


def test_the_schema_in_full(tmp_path):
    _, table = round_trip([], tmp_path)
    types = {field.name: str(field.type) for field in table.schema}
    text, lines = "string", "list<element: string>"
    assert list(types.items())[:9] == [
        *(("group_index", "int64"), ("group_metadata", text), ("group_metrics", text), ("group_logs", lines)),
        *(("reward", "double"), ("metrics", text), ("metadata", text), ("tools", text), ("logs", lines)),
    ]
    message = (
        "role: string, content: string, tool_calls: string, tool_call_id: string, trainable: bool, reasoning: string"
    )
    assert types["messages"] == f"list<element: struct<{message}>>"
    assert all(field.nullable for field in table.schema)


def test_files_are_compressed_by_zstd(tmp_path):
    round_trip([art.TrajectoryGroup([art.Trajectory()])], tmp_path)
    row_group = pq.ParquetFile(tmp_path / "deep/0001.parquet").metadata.row_group(0)
    assert {row_group.column(i).compression for i in range(row_group.num_columns)} == {"ZSTD"}


def test_choices_of_other_packages_are_flattened(tmp_path):
    class Choices(BaseModel):
        finish_reason: str
        message: dict
        logprobs: dict | None = None

    message = {"role": "assistant", "content": "said", "tool_call_id": "not of a choice", "tool_calls": []}
    choice = Choices(finish_reason="stop", message=message, logprobs={"content": []})
    (read,), table = round_trip([art.TrajectoryGroup([art.Trajectory(messages_and_choices=[choice])])], tmp_path)
    (row,) = table.to_pylist()
    assert row["messages"] == [
        {
            **{"role": "assistant", "content": "said", "tool_calls": None, "tool_call_id": None},
            **{"trainable": True, "reasoning": None},
        }
    ]
    assert read.trajectories[0].messages_and_choices == [{"role": "assistant", "content": "said"}]


def test_reasoning_survives(tmp_path, make_choice):
    thought = make_choice("four", message={"reasoning_content": "two and two"})
    (read,), _ = round_trip([art.TrajectoryGroup([art.Trajectory(messages_and_choices=[thought])])], tmp_path)
    assert read.trajectories[0].messages_and_choices == [
        {"role": "assistant", "content": "four", "reasoning_content": "two and two"}
    ]


def test_groups_come_back_in_their_order_and_rows_without_anything_are_skipped(tmp_path):
    groups = [
        art.TrajectoryGroup([art.Trajectory(reward=r) for r in rewards], metadata={"n": n})
        for n, rewards in enumerate([(1, 2), (3,), (4,)])
    ]
    write_trajectory_groups_parquet(groups, tmp_path / "a.parquet")
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    rows[3] |= {"reward": None, "messages": None}
    shuffled = pa.Table.from_pylist([rows[i] for i in (3, 2, 1, 0)], schema=pq.read_schema(tmp_path / "a.parquet"))
    pq.write_table(shuffled, tmp_path / "b.parquet")
    read = read_trajectory_groups_parquet(tmp_path / "b.parquet")
    assert [[t.reward for t in group] for group in read] == [[2.0, 1.0], [3.0]], "in the file's order within a group"
    assert [group.metadata for group in read] == [{"n": 0}, {"n": 1}]
    assert [group.exceptions for group in read] == [[], []]


def test_failed_runs_survive(tmp_path):
    groups = [art.TrajectoryGroup([], exceptions=[ValueError("x")]), art.TrajectoryGroup([art.Trajectory(reward=1)])]
    read, _ = round_trip(groups, tmp_path)
    assert [len(group) for group in read] == [0, 1]
    assert read[0].exceptions == groups[0].exceptions


def test_nothing_is_a_file_with_columns(tmp_path):
    read, table = round_trip([], tmp_path)
    assert (read, table.num_rows) == ([], 0)
    assert "messages" in table.schema.names


def test_repetition_compresses(tmp_path):
    text = "abcdefghij" * 2000
    groups = [
        art.TrajectoryGroup(
            [art.Trajectory(messages_and_choices=[{"role": "user", "content": text}]) for _ in range(20)]
        )
    ]
    (read,), _ = round_trip(groups, tmp_path)
    assert read.trajectories[19].messages_and_choices[0]["content"] == text
    assert (tmp_path / "deep" / "0001.parquet").stat().st_size < 40_000


def test_files_of_fewer_columns_are_read(tmp_path):
    write_trajectory_groups_parquet([art.TrajectoryGroup([art.Trajectory(reward=2)])], tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet").select(["group_index", "reward", "messages"])
    pq.write_table(table, tmp_path / "b.parquet")
    assert [t.reward for g in read_trajectory_groups_parquet(tmp_path / "b.parquet") for t in g] == [2.0]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    write_trajectory_groups_parquet([art.TrajectoryGroup([art.Trajectory(reward=2)])], path)
    before = path.read_bytes()

    def full(*args, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        write_trajectory_groups_parquet([], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_half_a_surrogate_pair_is_stored_as_its_escape(tmp_path):
    half = json.loads('"smile \\ud83d!"')
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": half}],
        additional_histories=[History(messages_and_choices=[{"role": "user", "content": [{"text": half}]}])],
        metadata={half: [half]},
        logs=[half, "whole 😀"],
    )
    path = tmp_path / "0001.parquet"
    write_trajectory_groups_parquet([art.TrajectoryGroup([trajectory], metadata={"seen": half})], path)
    (group,) = read_trajectory_groups_parquet(path)
    (read,) = group.trajectories
    shown = "smile \\ud83d!"
    assert read.messages()[0]["content"] == shown
    assert read.logs == [shown, "whole 😀"]
    # what is stored as JSON comes back as it was
    assert (read.metadata, group.metadata) == ({half: [half]}, {"seen": half})
