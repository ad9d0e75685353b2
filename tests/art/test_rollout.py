"""What a rollout says was said, of the real gateway."""

import anthropic
import pytest
from tests.art_backend.gateway.conftest import start_gateway

import art
from art.rollouts.references import build_train_groups
from art.rollouts.rollout import Rollout, read_conversations

CALL = 'Hm.\n<tool_call>\n{"name": "f", "arguments": {"x":  1}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}}


@pytest.fixture
async def gateway(tmp_path):
    async with start_gateway(tmp_path) as running:
        yield running


@pytest.fixture
def rollout(gateway):
    info = gateway.rollout()

    async def read():
        """The gateway's own store, without the control API in between."""
        return read_conversations(gateway.captures.describe(info.id))

    return Rollout(info.id, f"{gateway.url}/v1", info.api_key, gateway.client(info.api_key), read)


def user(text):
    return {"role": "user", "content": text}


async def test_the_conversation_of_an_agent(gateway, rollout):
    gateway.engine.say(CALL, "Done.")
    client, messages = rollout.openai_client(), [user("Call f.")]
    first = (await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])).choices[0]
    call = first.message.tool_calls[0]
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "1"}]
    last = (await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])).choices[0]

    trajectory = await rollout.fill(rollout.trajectory(reward=1.0, metadata={"task": 7}))

    question, sampled, result, answer = trajectory.messages_and_choices
    assert (question["content"], result["tool_call_id"]) == ("Call f.", call.id)
    assert (sampled, answer) == (first, last), "as they were answered"
    assert (trajectory.tools, trajectory.additional_histories) == ([TOOL], [])
    assert (trajectory.reward, trajectory.metadata) == (1.0, {"task": 7})
    (group,), _ = build_train_groups([art.TrajectoryGroup([trajectory])])
    assert (group.trajectories[0].rollout, group.trajectories[0].turns) == (rollout.id, []), "trained once"


async def test_every_path_is_told(gateway, rollout):
    gateway.engine.say("one", "two", "three", "four", "five")
    client, opening = rollout.openai_client(), [user("a")]
    answer = await client.chat.completions.create(model="m", messages=opening)
    opening.append(answer.choices[0].message)
    for question in ("b", "c"):
        await client.chat.completions.create(model="m", messages=[*opening, user(question)])
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=rollout.api_key) as other:
        await other.messages.create(model="m", max_tokens=20, system="Be brief.", messages=[user("d")])
    await client.completions.create(model="m", prompt="e", max_tokens=20)

    trajectory = await rollout.fill(rollout.trajectory())

    paths = [trajectory, *trajectory.additional_histories]
    assert [[(m["role"], m["content"]) for m in path.messages()] for path in paths] == [
        [("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two")],
        [("user", "a"), ("assistant", "one"), ("user", "c"), ("assistant", "three")],
        [("system", "Be brief."), ("user", "d"), ("assistant", "four")],
        [("user", "e"), ("assistant", "five")],
    ]


async def test_nothing_was_said(rollout):
    trajectory = await rollout.fill(rollout.trajectory(messages_and_choices=[user("a plan")]))
    assert trajectory.messages_and_choices == []
