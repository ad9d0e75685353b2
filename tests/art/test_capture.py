import json

import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion import Choice
from tests.art.conftest import serving

import art
from art.capture import http_client
from art.openai import consume_chat_completion_stream, consume_sync_chat_completion_stream


async def test_yielding():
    inner, outer = art.Trajectory(reward=1), art.Trajectory(reward=2)

    async def nested():
        art.yield_trajectory(inner)

    async def agent():
        assert await art.capture_yielded_trajectory(nested()) is inner
        art.yield_trajectory(outer)

    async def silent():
        pass

    assert await art.capture_yielded_trajectory(agent()) is outer
    with pytest.raises(RuntimeError, match="No trajectory yielded"):
        await art.capture_yielded_trajectory(silent())


def chunk(delta, finish=None, index=0, usage=None, **extra):
    choice = {"index": index, "delta": delta, "finish_reason": finish, **extra}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


CHUNKS = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "think "}),
    chunk({"reasoning": "more"}),
    chunk(
        {"content": "Hel"},
        logprobs={"content": [{"token": "Hel", "logprob": -0.5, "top_logprobs": []}], "refusal": None},
    ),
    chunk(
        {"content": "lo"},
        logprobs={"content": [{"token": "lo", "logprob": -0.25, "top_logprobs": []}], "refusal": None},
    ),
    chunk(
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x"'}}]}
    ),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
    chunk({}, finish="tool_calls", art={"turn": "t9", "rollout": "r", "policy_version": 2}),
]


def check_assembled(choice):
    assert (choice.message.content, choice.message.refusal, choice.finish_reason) == ("Hello", None, "tool_calls")
    assert choice.message.model_extra["reasoning"] == "think more"
    assert [entry.token for entry in choice.logprobs.content] == ["Hel", "lo"]
    call = choice.message.tool_calls[0]
    assert (call.id, call.function.name, call.function.arguments) == ("a", "f", '{"x":1}')
    assert choice.model_extra["art"]["turn"] == "t9"


def test_a_stream_is_put_together():
    chunks = [ChatCompletionChunk.model_validate(one) for one in CHUNKS]
    check_assembled(consume_sync_chat_completion_stream(iter(chunks)).choices[0])
    empty = consume_sync_chat_completion_stream(iter(chunks[:1])).choices[0]
    assert (empty.message.content, empty.finish_reason) == (None, "stop")
    with pytest.raises(ValueError, match="no chunk"):
        consume_sync_chat_completion_stream([])


def test_what_else_a_stream_may_hold():
    def entry(token):
        return {"token": token, "logprob": -1.0, "bytes": None, "top_logprobs": []}

    def call(**fields):
        return {"tool_calls": [{"index": 0, **fields}]}

    pieces = [
        chunk({"refusal": ""}),
        chunk({"refusal": "I can"}, logprobs={"content": None, "refusal": [entry("I can")]}),
        chunk({"refusal": "not"}, logprobs={"content": None, "refusal": [entry("not")]}),
        chunk(call(id="a", function={"name": "first", "arguments": "{"})),
        chunk(call(id="b", function={"name": "second", "arguments": "}"})),
        {**chunk({}), "system_fingerprint": "one", "service_tier": "default"},
        {**chunk({}), "choices": [], "system_fingerprint": "two", "service_tier": "flex"}
        | {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
    ]
    completion = consume_sync_chat_completion_stream([ChatCompletionChunk.model_validate(one) for one in pieces])
    (choice,) = completion.choices
    assert (choice.message.refusal, choice.message.content) == ("I cannot", None)
    assert ([one.token for one in choice.logprobs.refusal], choice.logprobs.content) == (["I can", "not"], None)
    (made,) = choice.message.tool_calls
    assert (made.id, made.function.name, made.function.arguments) == ("b", "second", "{}")
    assert (completion.usage.total_tokens, completion.system_fingerprint, completion.service_tier) == (3, "two", "flex")


def test_a_sync_stream_may_be_left_early():
    taken = []

    def stream():
        try:
            for one in CHUNKS:
                yield ChatCompletionChunk.model_validate(one)
        finally:
            taken.append("closed")

    def enough(chunk, partial):
        taken.append(chunk)
        raise StopIteration

    consume_sync_chat_completion_stream(stream(), enough)
    assert taken[1:] == ["closed"]


async def test_a_stream_may_be_left_early():
    closed = []

    class Stream:
        async def __aiter__(self):
            for one in CHUNKS:
                yield ChatCompletionChunk.model_validate(one)

        async def close(self):
            closed.append(1)

    def enough(chunk, partial):
        if partial.choices[0].message.content == "Hel":
            raise StopIteration

    completion = await consume_chat_completion_stream(Stream(), enough)
    assert completion.choices[0].message.content == "Hel"
    assert closed == [1]


@pytest.fixture(scope="module")
def endpoint():
    """An endpoint that answers with the number of messages it got."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request):
        body = await request.json()
        if body["model"] == "broken":
            return JSONResponse({"error": {"message": "no"}}, 400)
        if body.get("stream"):
            lines = [f"data: {json.dumps(one)}\n\n" for one in CHUNKS]
            kind = "text/plain" if body["model"] == "mislabelled" else "text/event-stream"
            return StreamingResponse(iter([*lines, "data: [DONE]\n\n", "data: [DONE]\n\n"]), media_type=kind)
        message = {"role": "assistant", "content": f"answer {len(body['messages'])}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "art": {"turn": "t1"}, "more": 1}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    with serving(app) as url:
        yield f"{url}/v1"


@pytest.fixture
def model(endpoint, tmp_path):
    return art.Model(name="m", project="p", inference_base_url=endpoint, inference_api_key="k", base_path=str(tmp_path))


def user(text):
    return {"role": "user", "content": text}


async def test_calls_are_recorded_and_conversations_continued(model):
    client = model.openai_client()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]

    async def agent():
        messages = [user("one")]
        first = await client.chat.completions.create(model="m", messages=messages)
        messages += [{"role": "assistant", "content": first.choices[0].message.content}, user("two")]
        await client.chat.completions.create(model="m", messages=messages)
        await client.chat.completions.create(model="m", messages=[user("other")])
        await client.chat.completions.create(model="m", messages=messages[:1])
        await client.chat.completions.create(model="m", messages=messages, tools=tools)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="broken", messages=[user("x")])
        with pytest.warns(DeprecationWarning, match=r"write art\.current_trajectory"):
            art.auto_trajectory(required=True).reward = 0.5

    with pytest.warns(DeprecationWarning, match=r"write art\.trajectory"):
        trajectory = await art.capture_auto_trajectory(agent())
    assert trajectory.reward == 0.5
    assert "duration" in trajectory.metrics
    main, choice, second, answer = trajectory.messages_and_choices
    assert (main, second) == (user("one"), user("two"))
    assert isinstance(choice, Choice)
    assert choice.model_extra == {"art": {"turn": "t1"}, "more": 1}
    assert answer.message.content == "answer 3"
    other, shorter, with_tools = trajectory.additional_histories
    assert (len(other.messages_and_choices), other.tools) == (2, None)
    assert shorter.messages() == [user("one"), {"role": "assistant", "content": "answer 1"}]
    assert (with_tools.tools, len(with_tools.messages_and_choices)) == (tools, 4)
    with pytest.warns(DeprecationWarning):
        assert art.auto_trajectory() is None
    with pytest.warns(DeprecationWarning), pytest.raises(RuntimeError, match="No trajectory"):
        art.auto_trajectory(required=True)
    await client.close()


async def test_streams_are_recorded(model):
    client = model.openai_client()

    async def agent():
        stream = await client.chat.completions.create(model="m", messages=[user("q")], stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "Hello"

    trajectory = await art.trajectory(agent())
    check_assembled(trajectory.messages_and_choices[1])
    await client.close()


async def test_streams_are_recorded_whatever_they_are_labelled_and_where_they_are_left(model):
    client = model.openai_client()
    with art.Trajectory() as trajectory:
        async for _ in await client.chat.completions.create(model="mislabelled", messages=[user("q")], stream=True):
            pass
        left = await client.chat.completions.create(model="m", messages=[user("other")], stream=True)
        await anext(left)
        await left.close()
    check_assembled(trajectory.messages_and_choices[1])
    assert trajectory.additional_histories[0].messages_and_choices[0] == user("other")
    await client.close()


async def test_an_empty_history_takes_any_tools_and_keeps_them(model):
    client = model.openai_client()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    with art.Trajectory() as trajectory:
        await client.chat.completions.create(model="m", messages=[user("q")], tools=tools)
    assert (trajectory.tools, trajectory.additional_histories) == (tools, [])
    await client.close()


async def test_a_sync_client_of_the_users_own_is_recorded(endpoint):
    async def agent():
        with openai.OpenAI(base_url=endpoint, api_key="k", http_client=http_client()) as client:
            client.chat.completions.create(model="m", messages=[user("q")])
            for _ in client.chat.completions.create(model="m", messages=[user("other")], stream=True):
                pass

    trajectory = await art.trajectory(agent())
    assert trajectory.messages_and_choices[1].message.content == "answer 1"
    check_assembled(trajectory.additional_histories[0].messages_and_choices[1])


async def test_nothing_is_recorded_outside(model):
    client = model.openai_client()
    completion = await client.chat.completions.create(model="m", messages=[user("q")])
    assert completion.choices[0].message.content == "answer 1"
    await client.close()
