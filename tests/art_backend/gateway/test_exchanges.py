"""What an open trajectory keeps of calls in each of OpenAI's protocols, and what training takes of it."""

import openai
import pytest

import art
from art.rollouts.references import build_train_groups


@pytest.fixture
async def client(gateway):
    info = gateway.rollout()
    http = art.capture.async_http_client()
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=info.api_key, http_client=http) as recording:
        yield recording


async def test_calls_of_each_protocol_are_kept_and_trained_once(gateway, client):
    gateway.engine.say("one", "two", "three", "four", "five")
    hello = [{"role": "user", "content": "Hello"}]
    assert not art.Trajectory().exchanges
    with art.Trajectory(reward=1.0) as trajectory:
        await client.chat.completions.create(model="m", messages=hello)
        async for _ in await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
        ):
            pass
        await client.completions.create(model="m", prompt="Once", max_tokens=8)
        await client.responses.create(model="m", input="What?")
        async for _ in await client.responses.create(model="m", input="And?", stream=True):
            pass
        with art.no_capture():
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "unseen"}])
    kept = trajectory.exchanges
    assert kept
    assert [exchange.response.choices[0].message.content for exchange in kept.chat_completions] == ["one", "two"]
    assert [exchange.response.choices[0].text for exchange in kept.completions] == ["three"]
    assert [exchange.response.output_text for exchange in kept.responses] == ["four", "five"]
    first = kept.chat_completions[0]
    assert (first.request["messages"], first.request.root["model"], first.model) == (hello, "m", "m")
    assert first.start_time <= first.end_time

    ((group,), _) = build_train_groups([art.TrajectoryGroup([trajectory])])
    (sent,) = group.trajectories
    shown = {turn.id for turn in gateway.turns(gateway.captures.find_rollout(sent.turns[0]))}
    assert len(sent.turns) == len(set(sent.turns)) == 5
    assert len(shown) == 6
    assert set(sent.turns) < shown
