"""Calls as older scripts write them: they work, or the error says what to write."""

from types import SimpleNamespace

import pytest

import art
from art.guided_completion import get_guided_completion_params
from art.logs.parquet import read_trajectory_groups_parquet, write_trajectory_groups_parquet
from art.trajectories import get_messages
from art.utils.litellm import convert_litellm_choice_to_openai


async def test_a_training_step(service, tmp_path, make_choice):
    backend = art.RemoteBackend(service.url, "service-key")
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path), report_metrics=[])
    await model.register(backend)
    for turn in ("a", "b"):
        group = art.TrajectoryGroup([art.Trajectory(messages_and_choices=[make_choice(turn=turn)], reward=1.0)])
        if turn == "a":
            await backend.train(model, trajectory_groups=[group])
        else:
            with pytest.warns(DeprecationWarning, match=r"backend\.train"):
                await model.train(trajectory_groups=[group])
    assert [request.groups[0].trajectories[0].turns for request in service.train_requests] == [["a"], ["b"]]


async def test_trajectories(tmp_path):
    question = {"role": "user", "content": "q"}
    assert get_messages(messages_and_choices=[question]) == [question]
    trajectory = art.Trajectory(reward=0.5)
    async with trajectory.track_duration(metric_name="agent"):
        pass
    assert trajectory.metrics["agent_duration"] >= 0
    groups = [art.TrajectoryGroup([trajectory])]
    write_trajectory_groups_parquet(trajectory_groups=groups, path=tmp_path / "groups.parquet")
    ((read,),) = read_trajectory_groups_parquet(tmp_path / "groups.parquet")
    assert read.reward == 0.5


def test_choices_of_litellm():
    message = SimpleNamespace(role="assistant", content="Hi.", tool_calls=None)
    choice = SimpleNamespace(index=0, finish_reason="stop", message=message)
    assert convert_litellm_choice_to_openai(litellm_choice=choice).message.content == "Hi."


def test_the_triple_of_a_guided_completion():
    texts, tool_choice, tools = get_guided_completion_params(completion="yes")
    assert (texts, tool_choice, tools) == (["yes"], None, None)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    params = get_guided_completion_params({"content": None, "tool_calls": [call]}, [])
    texts, tool_choice, tools = params
    assert (texts, tool_choice, tools) == (None, params["tool_choice"], params["tools"])
    assert dict(**params) == dict(params) == {"tool_choice": tool_choice, "tools": tools}
