import asyncio
import copy
import json
from datetime import datetime

import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import ValidationError

import art
from art.trajectories import PydanticException, get_messages


def test_messages_and_choices_pass_untouched(make_choice):
    odd = {"role": "assistant", "finish_reason": "stop", "message": {"x": object()}, "index": "0"}
    choice = make_choice()
    trajectory = art.Trajectory(messages_and_choices=[odd, choice], tools=[{"type": "odd", "more": 1}])
    assert trajectory.messages_and_choices[0] is odd
    assert trajectory.messages_and_choices[1] is choice
    assert trajectory.tools == [{"type": "odd", "more": 1}]


def test_what_is_neither_message_nor_choice_is_refused():
    with pytest.raises(ValidationError, match="expected a message dict or a sampled Choice, got str"):
        art.Trajectory(messages_and_choices=["hello"])


def test_messages_of_choices_and_dicts(make_choice):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None}
    messages = get_messages(
        [
            {"role": "user", "content": "q"},
            make_choice(content=None, message={"tool_calls": [call]}),
            asked,
            make_choice(content="a"),
            ChatCompletionMessage(role="assistant", content="b"),
        ]
    )
    assert messages[0] == {"role": "user", "content": "q"}
    assert messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert messages[2] == {"role": "assistant", "content": ""}
    assert messages[3] == {"role": "assistant", "content": "a"}
    assert messages[4] == {"role": "assistant", "content": "b"}
    assert asked["content"] is None


def test_a_trajectory_begins_empty():
    before = datetime.now()
    trajectory = art.Trajectory()
    assert (trajectory.messages_and_choices, trajectory.tools, trajectory.additional_histories) == ([], None, [])
    assert (trajectory.reward, trajectory.initial_policy_version, trajectory.final_policy_version) == (0.0, None, None)
    assert (trajectory.metrics, trajectory.metadata, trajectory.logs) == ({}, {}, [])
    assert before <= trajectory.start_time <= datetime.now()
    assert not trajectory.exchanges
    assert trajectory.metrics is not art.Trajectory().metrics


def test_messages_are_copies_and_lists_without_calls_are_left_out(make_choice):
    given = {"role": "tool", "tool_call_id": "c", "name": "f"}
    history = art.trajectories.History(messages_and_choices=[given, make_choice("x", message={"tool_calls": []})])
    assert history.messages() == [{**given, "content": ""}, {"role": "assistant", "content": "x"}]
    assert history.tools is None
    history.messages()[0]["content"] = "changed"
    assert "content" not in given


def test_for_logging_marks_what_was_sampled(make_choice):
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "q"}, make_choice("a")], reward=0.5)
    trajectory.log("line")
    logged = trajectory.for_logging()
    assert [m["trainable"] for m in logged["messages"]] == [False, True]
    assert logged["messages"][1] == {"role": "assistant", "content": "a", "trainable": True}
    assert (logged["metrics"], logged["metadata"], logged["initial_policy_version"]) == ({}, {}, None)
    assert (logged["reward"], logged["logs"], logged["tools"], logged["final_policy_version"]) == (
        0.5,
        ["line"],
        None,
        None,
    )
    json.dumps(logged)


async def test_durations(monkeypatch):
    trajectory = art.Trajectory()
    with pytest.raises(RuntimeError, match="inside"):
        async with trajectory.track_duration("tool"):
            raise RuntimeError("inside")
    first = trajectory.metrics["tool_duration"]
    async with trajectory.track_duration("tool"):
        await asyncio.sleep(0.01)
    assert trajectory.metrics["tool_duration"] >= first + 0.009
    assert trajectory.finish() is trajectory
    assert trajectory.metrics["duration"] >= trajectory.metrics["tool_duration"]


def test_text_of_a_trajectory_is_short(make_choice):
    trajectory = art.Trajectory(messages_and_choices=[make_choice("long text")], reward=1, metadata={"a": 1})
    assert "long text" not in str(trajectory)
    assert "reward=1.0" in str(trajectory)
    assert "'a': 1" in str(trajectory)


def test_metric_types_survive():
    trajectory = art.Trajectory(
        metrics={"i": 1, "b": True, "f": 1.0}, metadata={"n": None, "s": "1", "l": [1, {"x": 2}]}
    )
    again = art.Trajectory.model_validate_json(trajectory.model_dump_json())
    assert [type(v) for v in again.metrics.values()] == [int, bool, float]
    assert again.metadata == trajectory.metadata
    assert "start_time" not in trajectory.model_dump()


def test_group_of_trajectories_and_exceptions():
    members = [art.Trajectory(reward=i) for i in range(2)]
    stored = PydanticException(type="T", message="m", traceback="")
    group = art.TrajectoryGroup(
        (m for m in [members[0], ValueError("bad"), members[1]]),
        exceptions=[KeyError("k"), stored],
        metadata={"a": 1},
        metrics={"m": 2},
        logs=["l"],
    )
    assert group.trajectories[0] is members[0]
    assert group.trajectories[1] is members[1]
    assert [(e.type, e.message) for e in group.exceptions] == [
        ("<class 'ValueError'>", "bad"),
        ("<class 'KeyError'>", "'k'"),
        ("T", "m"),
    ]
    assert "ValueError: bad" in group.exceptions[0].traceback
    assert list(group) == members
    assert len(group) == 2
    assert (group.metadata, group.metrics, group.logs) == ({"a": 1}, {"m": 2}, ["l"])
    assert not art.TrajectoryGroup([])


def test_group_round_trips():
    group = art.TrajectoryGroup([art.Trajectory(reward=1), ValueError("x")], metadata={"scenario_id": "s"}, logs=["l"])
    for again in (
        art.TrajectoryGroup.model_validate(group.model_dump()),
        art.TrajectoryGroup.model_validate_json(group.model_dump_json()),
    ):
        assert [t.reward for t in again] == [1.0]
        assert again.exceptions == group.exceptions
        assert (again.metadata, again.logs) == (group.metadata, group.logs)


def test_copies_of_a_group():
    group = art.TrajectoryGroup(
        [art.Trajectory(reward=1, metrics={"m": 1}), ValueError("x")], metadata={"a": [1]}, logs=["l"]
    )
    shallow = copy.copy(group)
    shallow.trajectories.append(art.Trajectory())
    shallow.metadata["b"] = 1
    shallow.log("more")
    shallow.metrics["m"] = 1
    shallow.exceptions.clear()
    assert (len(group.exceptions), group.metrics) == (1, {})
    assert (len(group), group.metadata, group.logs) == (1, {"a": [1]}, ["l"])
    assert shallow.trajectories[0] is group.trajectories[0]
    memo = {}
    deep = copy.deepcopy(group, memo)
    assert deep.trajectories[0] is not group.trajectories[0]
    assert deep.trajectories[0].metrics == group.trajectories[0].metrics
    assert deep.trajectories[0].metrics is not group.trajectories[0].metrics
    assert deep.metadata["a"] is not group.metadata["a"]
    assert deep.exceptions[0].message == "x"
    assert memo[id(group)] is deep
    assert copy.deepcopy(group, memo) is deep


async def test_awaiting_a_group_keeps_the_order_and_mixes():
    async def member(reward, delay):
        await asyncio.sleep(delay)
        return art.Trajectory(reward=reward)

    pending = art.TrajectoryGroup([member(0, 0.02), art.Trajectory(reward=1), member(2, 0)], metadata={"a": 1})
    assert not isinstance(pending, art.TrajectoryGroup)
    assert pending._num_trajectories == 3
    group = await pending
    assert [t.reward for t in group] == [0, 1, 2]
    assert group.metadata == {"a": 1}


async def test_awaiting_a_group_outside_of_gathering_raises_the_first_failure():
    cancelled = asyncio.Event()

    async def fails():
        raise ValueError("rollout")

    async def hangs():
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(ValueError, match="rollout"):
        await art.TrajectoryGroup([hangs(), fails()])
    assert cancelled.is_set()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_is_never_kept_as_a_failed_run(error):
    async def ends():
        raise error

    async def gather():
        await art.gather_trajectory_groups([art.TrajectoryGroup([ends()])], max_exceptions=10)

    with pytest.raises(error):
        asyncio.run(gather())


async def test_cancellation_inside_a_group_is_never_swallowed():
    async def cancelled():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await art.gather_trajectory_groups([art.TrajectoryGroup([cancelled()])], max_exceptions=10)
