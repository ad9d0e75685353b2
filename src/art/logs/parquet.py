"""Trajectories on disk: one Parquet file per step and split, one row per trajectory.

Parquet holds Unicode alone. Half of a surrogate pair, as broken JSON escapes leave it in a string, is stored as its escape, such as
``\\ud83d``.
"""

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from art.logs.files import replacing
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup, is_choice

__all__ = ["read_trajectory_groups_parquet", "write_trajectory_groups_parquet"]


def message_row(item: Any) -> dict[str, Any]:
    """One message as a row's struct: ``role, content, tool_calls, tool_call_id, trainable, reasoning``. Log-probabilities are
    left out."""
    fields = cast(Mapping[str, Any], item.model_dump(mode="json") if isinstance(item, BaseModel) else item)
    sampled = is_choice(item)
    message = cast(Mapping[str, Any], fields.get("message") or {}) if sampled else fields
    content = message.get("content")
    calls = message.get("tool_calls")
    return {
        "role": message.get("role", "assistant" if sampled else None),
        "content": content if content is None or isinstance(content, str) else json.dumps(content, default=_jsonable),
        "tool_calls": json.dumps(calls, default=_jsonable) if calls else None,
        "tool_call_id": None if sampled else message.get("tool_call_id"),
        "trainable": sampled,
        "reasoning": message.get("reasoning_content") or message.get("reasoning"),
    }


def write_trajectory_groups_parquet(trajectory_groups: Iterable[TrajectoryGroup], path: str | Path) -> None:
    """Write groups to a file, which appears as a whole.

    Raises:
        OSError: The file could not be written; an older one is as before.
    """
    pa, pq = _arrow()
    rows = [_as_unicode(row) for index, group in enumerate(trajectory_groups) for row in _group_rows(index, group)]
    table = pa.Table.from_pylist(rows, schema=schema())
    with replacing(Path(path)) as partial:
        pq.write_table(table, partial, compression="zstd")


def read_trajectory_groups_parquet(path: str | Path) -> list[TrajectoryGroup]:
    """Read groups back, by ascending ``group_index``. Messages are plain dicts. Missing columns are tolerated.

    >>> write_trajectory_groups_parquet([art.TrajectoryGroup([art.Trajectory(reward=1.0)])], "groups.parquet")
    >>> [t.reward for group in read_trajectory_groups_parquet("groups.parquet") for t in group]
    [1.0]
    """
    _, pq = _arrow()
    groups: dict[int, TrajectoryGroup] = {}
    rows = cast(list[dict[str, Any]], pq.read_table(path).to_pylist())
    for row in rows:
        index = row.get("group_index") or 0
        has_trajectory = row.get("reward") is not None or row.get("messages") is not None
        if not has_trajectory and row.get("exceptions") is None and not row.get("empty_group"):
            continue
        if index not in groups:
            groups[index] = TrajectoryGroup(
                [],
                exceptions=[PydanticException(**one) for one in _loads(row.get("exceptions"), [])],
                metadata=_loads(row.get("group_metadata"), {}),
                metrics=_loads(row.get("group_metrics"), {}),
                logs=row.get("group_logs") or [],
            )
        if has_trajectory:
            groups[index].trajectories.append(_trajectory(row))
    return [groups[index] for index in sorted(groups)]


def schema() -> Any:
    """The ``pyarrow.Schema`` of a file; all columns are nullable."""
    pa, _ = _arrow()
    strings = pa.list_(pa.string())
    message = pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("tool_calls", pa.string()),
            ("tool_call_id", pa.string()),
            ("trainable", pa.bool_()),
            ("reasoning", pa.string()),
        ]
    )
    return pa.schema(
        [
            ("group_index", pa.int64()),
            ("group_metadata", pa.string()),
            ("group_metrics", pa.string()),
            ("group_logs", strings),
            ("reward", pa.float64()),
            ("metrics", pa.string()),
            ("metadata", pa.string()),
            ("tools", pa.string()),
            ("logs", strings),
            ("messages", pa.list_(message)),
            ("additional_histories", pa.string()),
            ("initial_policy_version", pa.int64()),
            ("final_policy_version", pa.int64()),
            ("rollout_id", pa.string()),
            ("exceptions", pa.string()),
            ("empty_group", pa.bool_()),
        ]
    )


def _arrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``: loaded when first needed, since they take a while; they have no types."""
    return import_module("pyarrow"), import_module("pyarrow.parquet")


def _group_rows(index: int, group: TrajectoryGroup) -> list[dict[str, Any]]:
    shared = {
        "group_index": index,
        "group_metadata": _dumps(group.metadata),
        "group_metrics": _dumps(group.metrics),
        "group_logs": group.logs or None,
        "exceptions": _dumps([error.model_dump() for error in group.exceptions]),
    }
    if not group.trajectories:
        return (
            [{**shared, "empty_group": True}]
            if group.exceptions or group.metadata or group.metrics or group.logs
            else []
        )
    return [{**shared, **_trajectory_row(trajectory)} for trajectory in group.trajectories]


def _as_unicode(value: Any) -> Any:
    """The same value; in its strings, lone surrogates are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _as_unicode(one) for key, one in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_as_unicode(one) for one in cast(list[Any], value)]
    return value


def _trajectory_row(trajectory: Trajectory) -> dict[str, Any]:
    histories = [
        {"messages": [message_row(item) for item in history.messages_and_choices], "tools": history.tools}
        for history in trajectory.additional_histories
    ]
    return {
        "reward": trajectory.reward,
        "metrics": _dumps(trajectory.metrics),
        "metadata": _dumps(trajectory.metadata),
        "tools": _dumps(trajectory.tools),
        "logs": trajectory.logs or None,
        "messages": [message_row(item) for item in trajectory.messages_and_choices],
        "additional_histories": _dumps(histories),
        "initial_policy_version": trajectory.initial_policy_version,
        "final_policy_version": trajectory.final_policy_version,
        "rollout_id": trajectory.rollout_id,
    }


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    return Trajectory(
        messages_and_choices=_messages(row.get("messages")),
        tools=_loads(row.get("tools"), None),
        additional_histories=[_history(one) for one in _loads(row.get("additional_histories"), [])],
        reward=row.get("reward") or 0.0,
        rollout_id=row.get("rollout_id"),
        initial_policy_version=row.get("initial_policy_version"),
        final_policy_version=row.get("final_policy_version"),
        metrics=_loads(row.get("metrics"), {}),
        metadata=_loads(row.get("metadata"), {}),
        logs=row.get("logs") or [],
    )


def _history(stored: Mapping[str, Any]) -> History:
    # Migrated files hold the histories as they were in the old format.
    messages = stored.get("messages")
    if messages is None:
        messages = [message_row(item) for item in stored.get("messages_and_choices", [])]
    return History(messages_and_choices=_messages(messages), tools=stored.get("tools"))


def _messages(stored: list[dict[str, Any]] | None) -> list[Any]:
    messages: list[dict[str, Any]] = []
    for one in stored or []:
        message: dict[str, Any] = {"role": one["role"], "content": one["content"]}
        if one.get("tool_calls"):
            message["tool_calls"] = json.loads(one["tool_calls"])
        if one.get("tool_call_id"):
            message["tool_call_id"] = one["tool_call_id"]
        if one.get("reasoning"):
            message["reasoning_content"] = one["reasoning"]
        messages.append(message)
    return messages


def _dumps(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False, default=_jsonable) if value else None


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return str(value)


def _loads(text: str | None, default: Any) -> Any:
    return json.loads(text) if text else default
