"""The calls of a trajectory by protocol, as the SDKs of both vendors make them."""

import json
import re
import warnings
from datetime import datetime

import anthropic
import openai
import pytest
from anthropic.types import Message
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from tests.art.conftest import serving

import art
from art.capture import async_http_client, http_client
from art.rollouts.references import build_train_groups


def reference(turn):
    return {"turn": turn, "rollout": "ro_1", "policy_version": 0}


MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "hm, yes", "signature": "s"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"x": [1, 2]}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 5},
    "art": reference("t-message"),
}
DELTAS = [
    (
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        [("thinking", "hm, "), ("thinking", "yes"), ("signature", "s")],
    ),
    (1, {"type": "text", "text": ""}, [("text", "Hel"), ("text", "lo")]),
    (
        2,
        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
        [("partial_json", '{"x": '), ("partial_json", "[1, 2]}")],
    ),
]
KINDS = {
    "thinking": "thinking_delta",
    "text": "text_delta",
    "partial_json": "input_json_delta",
    "signature": "signature_delta",
}


def message_events():
    begun = {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 0}}
    del begun["art"]
    yield {"type": "message_start", "message": begun}
    yield {"type": "ping"}
    for index, block, pieces in DELTAS:
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for name, piece in pieces:
            yield {"type": "content_block_delta", "index": index, "delta": {"type": KINDS[name], name: piece}}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": "tool_use", "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}, "art": MESSAGE["art"]}
    yield {"type": "message_stop"}


def text_completion(text, index=0, finish="stop", **extra):
    choice = {"index": index, "text": text, "finish_reason": finish, "logprobs": None, **extra}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def logprobs(*tokens):
    return {
        "tokens": list(tokens),
        "token_logprobs": [-0.5] * len(tokens),
        "text_offset": [0] * len(tokens),
        "top_logprobs": None,
    }


TEXT_EVENTS = [
    text_completion("Hel", finish=None, logprobs=logprobs("Hel")),
    text_completion("other", index=1, finish="length"),
    text_completion("lo", finish="stop", logprobs=logprobs("lo"), art=reference("t-text")),
]
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "art": reference("t-response"),
}


def events(items, ended=True):
    lines = [f"event: {item.get('type', 'x')}\ndata: {json.dumps(item)}\n\n" for item in items]
    return StreamingResponse(iter([*lines, *(["data: [DONE]\n\n"] if ended else [])]), media_type="text/event-stream")


@pytest.fixture(scope="module")
def endpoint():
    app = FastAPI()

    @app.post("/v1/messages")
    async def messages(request: Request):
        return events(message_events(), ended=False) if (await request.json()).get("stream") else MESSAGE

    @app.post("/v1/completions")
    async def completions(request: Request):
        if (await request.json()).get("stream"):
            return events(TEXT_EVENTS)
        return text_completion("Hello", art=reference("t-text"))

    @app.post("/v1/responses")
    async def responses(request: Request):
        if (await request.json()).get("stream"):
            ended = {"type": "response.completed", "sequence_number": 1, "response": RESPONSE}
            return events([ended], ended=False)
        return RESPONSE

    @app.post("/v1/chat/completions")
    async def chat(request: Request):
        body = await request.json()
        match body["model"]:
            case "no json":
                return PlainTextResponse("hello")
            case "no chat":
                return {"something": "else"}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
        choice["art"] = reference("t-chat")
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "served", "choices": [choice]}

    @app.post("/v1/embeddings")
    async def embeddings():
        return {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}

    with serving(app) as url:
        yield url


USER = [{"role": "user", "content": "q"}]


def turns(trajectory):
    groups, _ = build_train_groups([art.TrajectoryGroup([trajectory])])
    return groups[0].trajectories[0].turns


async def test_messages_of_anthropic_are_recorded_plain_and_streamed(endpoint):
    client = anthropic.AsyncAnthropic(base_url=endpoint, api_key="k", http_client=async_http_client())
    ask = {"model": "m", "max_tokens": 9, "messages": USER}
    async with client:
        with art.Trajectory() as t:
            await client.messages.create(**ask)
            async with client.messages.stream(**ask) as stream:
                assert (await stream.get_final_message()).content[1].text == "Hello"
            with anthropic.Anthropic(base_url=endpoint, api_key="k", http_client=http_client()) as sync_client:
                for _ in sync_client.messages.create(**ask, stream=True):
                    pass
    plain, *streamed = (exchange.response for exchange in t.exchanges.messages)
    assert isinstance(plain, Message)
    assert len(streamed) == 2
    for response in streamed:
        assert response.model_dump() == plain.model_dump()
    assert plain.content[2].input == {"x": [1, 2]}
    assert plain.model_extra["art"]["turn"] == "t-message"
    assert (t.messages_and_choices, turns(t)) == ([], ["t-message"])


async def test_an_unfinished_or_failed_stream_of_messages_is_left_out(endpoint):
    client = anthropic.AsyncAnthropic(base_url=endpoint, api_key="k", http_client=async_http_client())
    async with client:
        with art.Trajectory() as t:
            stream = await client.messages.create(model="m", max_tokens=9, messages=USER, stream=True)
            await stream.close()
    assert not t.exchanges


async def test_without_the_package_of_a_protocol_a_warning_says_so(endpoint, monkeypatch):
    client = anthropic.AsyncAnthropic(base_url=endpoint, api_key="k", http_client=async_http_client())
    async with client:
        with art.Trajectory() as t:
            monkeypatch.setitem(__import__("sys").modules, "anthropic.types", None)
            with pytest.warns(UserWarning, match="install anthropic"):
                await client.messages.create(model="m", max_tokens=9, messages=USER)
    assert not t.exchanges


@pytest.fixture
async def client(endpoint):
    async with openai.AsyncOpenAI(base_url=f"{endpoint}/v1", api_key="k", http_client=async_http_client()) as made:
        yield made


async def test_text_completions_are_recorded_plain_and_streamed(client):
    with art.Trajectory() as t:
        await client.completions.create(model="m", prompt="p")
        async for _ in await client.completions.create(model="m", prompt="p", n=2, stream=True):
            pass
    plain, streamed = (exchange.response for exchange in t.exchanges.completions)
    assert isinstance(plain, Completion)
    assert plain.choices[0].text == "Hello"
    assert [(c.index, c.text, c.finish_reason) for c in streamed.choices] == [
        (0, "Hello", "stop"),
        (1, "other", "length"),
    ]
    assert (streamed.choices[0].logprobs.tokens, streamed.choices[1].logprobs) == (["Hel", "lo"], None)
    assert turns(t) == ["t-text"]


async def test_responses_are_recorded_plain_and_streamed(client):
    with art.Trajectory() as t:
        await client.responses.create(model="m", input="q")
        async for _ in await client.responses.create(model="m", input="q", stream=True):
            pass
    assert [type(exchange.response) for exchange in t.exchanges.responses] == [Response, Response]
    assert turns(t) == ["t-response"]


async def test_an_exchange_is_what_was_sent_and_answered(client):
    before = datetime.now()
    with art.Trajectory() as t:
        assert not t.exchanges
        await client.chat.completions.create(model="asked", messages=USER, temperature=0.5)
        await client.embeddings.create(model="m", input="x")
    (exchange,) = t.exchanges.chat_completions
    assert exchange.request["messages"] == exchange.request.root["messages"] == USER
    assert (exchange.request["temperature"], exchange.request.get("top_p")) == (0.5, None)
    assert isinstance(exchange.response, ChatCompletion)
    assert (exchange.model, exchange.response.model) == ("asked", "served")
    assert before <= exchange.start_time <= exchange.end_time <= datetime.now()
    assert bool(t.exchanges)
    assert "exchanges" not in t.model_dump()


async def test_a_chat_call_stands_in_both_and_is_trained_once(client):
    with art.Trajectory(reward=1.0) as t:
        await client.chat.completions.create(model="m", messages=USER)
    assert len(t.exchanges.chat_completions) == 1
    assert t.messages_and_choices[1] == t.exchanges.chat_completions[0].response.choices[0]
    assert turns(t) == ["t-chat"]


async def test_the_innermost_scope_records(client):
    async def ask():
        await client.chat.completions.create(model="m", messages=USER)

    with art.Trajectory() as outer:
        with art.Trajectory() as inner:
            await ask()
        with art.no_capture():
            await ask()
            with art.Trajectory() as hidden:
                await ask()
        await art.trajectory_group([art.trajectory(ask())])
    assert [len(t.exchanges.chat_completions) for t in (outer, inner, hidden)] == [0, 1, 1]


async def test_what_is_no_chat_completion_is_left_out(client):
    with art.Trajectory() as t:
        for name in ("no json", "no chat"):
            await client.chat.completions.with_raw_response.create(model=name, messages=USER)
    assert not t.exchanges
    assert t.messages_and_choices == []


SILENCE = r"No model call was recorded.*model\.openai_client\(\).*build their own clients.*model\.rollout\(\)"


async def test_a_scope_that_saw_no_call_says_how_calls_are_seen(endpoint):
    async def agent():
        async with openai.AsyncOpenAI(base_url=f"{endpoint}/v1", api_key="k") as plain:
            await plain.chat.completions.create(model="m", messages=USER)

    async def one_call():
        return await art.trajectory(agent())

    async def old_name():
        return await art.capture_auto_trajectory(agent())

    async def block():
        with art.Trajectory() as t:
            await agent()
        return t

    async def async_block():
        async with art.Trajectory() as t:
            await agent()
        return t

    for form in (one_call, old_name, block, async_block):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                assert not (await form()).exchanges
        told = [warning for warning in caught if warning.category is UserWarning]
        assert len(told) == 1, "once for each place"
        assert re.search(SILENCE, str(told[0].message))
        assert (told[0].filename == __file__) == (form in (block, async_block)), "where the block stands"


async def test_a_scope_that_recorded_or_failed_or_holds_others_says_nothing(client):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with art.Trajectory():
            await client.embeddings.create(model="m", input="x")
            with art.Trajectory():
                await client.chat.completions.create(model="m", messages=USER)
        with art.Trajectory(rollout_id="captured where its calls arrive"):
            pass
        with pytest.raises(KeyError), art.Trajectory():
            raise KeyError
