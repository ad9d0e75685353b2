"""Retries, clients that leave, held requests, and engines that fail."""

import asyncio
import contextlib
import json
import re
from functools import partial

import httpx
import openai
import pytest
from tests.art_backend.gateway.conftest import MODEL_KEY
from tests.art_backend.gateway.test_bad_input import PROTOCOLS
from tests.support.waiting import until

from art_backend.errors import EngineFailedError
from art_backend.gateway import retries
from art_backend.gateway.answers import Answer
from art_backend.gateway.app import KEEP_ALIVE_S
from art_backend.gateway.retries import MAX_BYTES, RetryWindow
from art_backend.serving.policies import Gate

HELLO = [{"role": "user", "content": "Hello"}]
RETRY = {"x-stainless-retry-count": "1"}
BREAK = {"x-break": "made"}


@contextlib.asynccontextmanager
async def ask(gateway, info, path, body, headers=None):
    """An answer to any protocol's request, to be read."""
    headers = {"x-api-key": info.api_key, **(headers or {})}
    async with (
        httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=30) as http,
        http.stream("POST", f"/v1/{path}", json=body) as answer,
    ):
        yield answer


async def repeat(gateway, key, headers=None, stream=False, path="chat/completions"):
    """Ask the same as everyone; the id of the turn that answers, or ``None`` where the connection breaks."""
    body = {"model": "m", **PROTOCOLS[path][1], "stream": stream}
    async with httpx.AsyncClient(
        base_url=gateway.url, headers={"x-api-key": key, **(headers or {})}, timeout=30
    ) as http:
        answer = await http.post(f"/v1/{path}", json=body)
    found = re.search(rb'"turn":"(\w+)"', answer.content)
    return found and found[1].decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PROTOCOLS)
async def test_an_answer_that_was_not_delivered_is_repeated_once(gateway, path, stream):
    info = gateway.rollout()
    ask_again = partial(repeat, gateway, info.api_key, stream=stream, path=path)
    assert await ask_again(BREAK) is None
    (lost,) = gateway.turns(info.id)
    assert await ask_again({**RETRY, "x-break": "now"}) is None
    assert await ask_again(RETRY) == lost.id, "a repetition that breaks is repeated"
    assert len(gateway.engine.calls) == 1
    assert await ask_again(RETRY) != lost.id
    assert await ask_again() != lost.id
    assert len(gateway.turns(info.id)) == len(gateway.engine.calls) == 3
    gateway.check(info.id)


@pytest.mark.parametrize("kind", ["model", "rollout"])
@pytest.mark.parametrize("stream", [False, True])
async def test_no_turn_is_given_to_two_of_many_that_ask_the_same(gateway, stream, kind):
    """Eight equal requests, three of them broken, and five retries: each gets a turn of its own."""
    key = MODEL_KEY if kind == "model" else gateway.rollout().api_key
    ask_again = partial(repeat, gateway, key, stream=stream)
    delivered = await asyncio.gather(*(ask_again() for _ in range(5)))
    for _ in range(3):
        assert await ask_again(BREAK) is None
    calls = len(gateway.engine.calls)
    assert calls == 8
    retried = await asyncio.gather(*(ask_again(RETRY) for _ in range(5)))
    assert len({*delivered, *retried}) == 10 and None not in retried
    assert len(gateway.engine.calls) == calls + 2, "three were there already"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_beside_the_same_request_in_flight_is_a_new_sample(gateway, stream):
    """It may be another agent's."""
    client, rollout = gateway.new_client()
    gateway.engine.hold()
    asking = [asyncio.create_task(repeat(gateway, client.api_key, headers, stream)) for headers in (None, RETRY)]
    await until(lambda: gateway.engine.waiting == 2)
    gateway.engine.release()
    assert len({*await asyncio.gather(*asking)}) == len(gateway.turns(rollout)) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PROTOCOLS)
async def test_an_idempotency_key_names_one_answer(gateway, path, stream):
    """As often as it is asked for, with a retry header or without, and whether it was delivered or not."""
    info = gateway.rollout()
    ask_again = partial(repeat, gateway, info.api_key, stream=stream, path=path)
    key = {"Idempotency-Key": "one"}
    assert await ask_again({**key, **BREAK}) is None
    (turn,) = gateway.turns(info.id)
    for headers in (key, key, {**key, **RETRY}):
        assert await ask_again(headers) == turn.id
    assert await ask_again({"Idempotency-Key": "two"}) != turn.id
    assert await repeat(gateway, gateway.rollout().api_key, key, stream, path) != turn.id, "another caller's key"
    assert len(gateway.turns(info.id)) == 2
    async with ask(gateway, info, path, {"model": "m", **PROTOCOLS[path][1], "user": "x"}, key) as answer:
        assert answer.status_code == 409 and b"Idempotency-Key" in await answer.aread()


async def test_the_first_of_two_readers_may_leave(gateway, monkeypatch):
    read, reading = [], Answer.reading
    monkeypatch.setattr(Answer, "reading", lambda answer: (read.append(answer), reading(answer))[1])
    client, rollout = gateway.new_client()
    gateway.engine.hold()
    options = {"model": "m", "messages": HELLO, "extra_headers": {"Idempotency-Key": "k"}}
    first = asyncio.create_task(client.chat.completions.create(**options))
    await until(lambda: gateway.engine.waiting == 1)
    second = asyncio.create_task(client.chat.completions.create(**options))
    await until(lambda: len(read) == 2)
    first.cancel()
    await until(lambda: read[0]._readers == 1)
    gateway.engine.release()
    assert (await second).choices[0].model_extra["art"]["turn"] == gateway.turns(rollout)[0].id
    assert not gateway.engine.calls[0].cancelled


async def test_an_idempotency_key_whose_answer_failed_asks_again(gateway):
    client, rollout = gateway.new_client()
    options = {"model": "m", "messages": HELLO, "extra_headers": {"Idempotency-Key": "k"}}
    gateway.engine.fail(500)
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(**options)
    gateway.engine.hold()
    left = asyncio.create_task(client.chat.completions.create(**options))
    await until(lambda: gateway.engine.waiting == 1)
    left.cancel()
    await until(lambda: gateway.engine.calls[-1].cancelled)
    gateway.engine.release()
    await client.chat.completions.create(**options)
    assert len(gateway.turns(rollout)) == 1


async def test_the_sdk_repeats_its_headers_when_it_retries(quiet_gateway):
    client, rollout = quiet_gateway.new_client(max_retries=1)
    quiet_gateway.engine.fail(500)
    options = {"model": "m", "messages": HELLO, "extra_headers": {"Idempotency-Key": "k"}}
    first, second = [await client.chat.completions.create(**options) for _ in range(2)]
    assert first.choices[0].model_extra["art"] == second.choices[0].model_extra["art"]
    assert len(quiet_gateway.turns(rollout)) == 1


async def test_the_sdk_times_out_and_its_retry_leaves_no_ghost(quiet_gateway):
    gateway = quiet_gateway
    client, rollout = gateway.new_client(max_retries=1, timeout=1.5)
    gateway.engine.hold()
    asking = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO, stream=True))
    await until(lambda: len(gateway.engine.calls) == 2)
    gateway.engine.release()
    async for _ in await asking:
        pass
    assert [call.cancelled for call in gateway.engine.calls] == [True, False]
    assert len(gateway.turns(rollout)) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PROTOCOLS)
async def test_a_client_that_leaves_frees_the_engine_and_leaves_nothing(gateway, path, stream):
    info = gateway.rollout()
    gateway.engine.token_delay_s = 0.02
    gateway.engine.emit([70] * 1000)
    body = {"model": "m", **PROTOCOLS[path][1], "stream": stream}
    limit = {"responses": "max_output_tokens"}.get(path, "max_tokens")

    async def leave():
        async with ask(gateway, info, path, {**body, limit: 1000}) as answer:
            await answer.aread()

    asking = asyncio.create_task(leave())
    await until(lambda: gateway.engine.waiting == 1 and len(gateway.engine.calls[0].returned) > 2)
    asking.cancel()
    await until(lambda: gateway.engine.calls[0].cancelled)
    assert gateway.turns(info.id) == []
    assert gateway.captures.tree(info.id).prompts == {}
    gateway.engine.token_delay_s = 0
    async with ask(gateway, info, path, body) as answer:
        assert answer.status_code == 200 and await answer.aread()
    gateway.check(info.id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PROTOCOLS)
async def test_held_requests_hear_something(gateway, path, stream):
    """White space before JSON and comments in a stream, which clients skip."""
    info = gateway.rollout()
    gateway.engine.hold()
    body = {"model": "m", **PROTOCOLS[path][1], "stream": stream}
    async with ask(gateway, info, path, body) as answer:
        assert answer.status_code == 200
        parts = answer.aiter_raw()
        for _ in range(2):
            assert await anext(parts) == (b": keep-alive\n\n" if stream else b" ")
        gateway.engine.release()
        rest = b"".join([part async for part in parts])
    if stream:
        assert rest.rstrip().splitlines()[-1].startswith(b"data: ")
    else:
        assert json.loads(rest)["art" if path in ("responses", "messages") else "choices"]
    assert len(gateway.turns(info.id)) == 1


async def test_the_sdk_skips_signs_of_life(gateway):
    client, _ = gateway.new_client()
    for stream in (False, True):
        gateway.engine.hold()
        asking = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO, stream=stream))
        await asyncio.sleep(0.4)
        gateway.engine.release()
        answer = await asking
        if stream:
            answer = [chunk async for chunk in answer][-1]
        assert answer.choices[0].finish_reason == "stop"
    assert KEEP_ALIVE_S <= 30, "clients give up after 60 s of silence"


async def test_requests_wait_while_the_policy_is_updated(quiet_gateway):
    gateway = quiet_gateway
    client, _ = gateway.new_client()
    gateway.model.gate = Gate(60)
    gateway.model.gate.close()
    asking = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
    await until(lambda: gateway.model.gate.meter.held == 1)
    gateway.model.step = 3
    gateway.model.gate.open()
    assert (await asking).choices[0].model_extra["art"]["policy_version"] == 3

    gateway.model.gate = Gate(0.1)
    gateway.model.gate.close()
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="m", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "10"
    assert "x-should-retry" not in caught.value.response.headers


async def test_every_protocol_is_told_when_to_come_back(quiet_gateway):
    gateway = quiet_gateway
    info = gateway.rollout()
    gateway.model.gate.close()

    async def wait(path, stream):
        async with ask(gateway, info, path, {"model": "m", **PROTOCOLS[path][1], "stream": stream}) as answer:
            error = json.loads(await answer.aread())["error"]
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
            assert error["type"] == "rate_limit_error" and "still being updated" in error["message"]

    await asyncio.gather(*(wait(path, stream) for path in PROTOCOLS for stream in (False, True)))
    assert gateway.engine.calls == [] == gateway.turns(info.id)


async def test_a_refused_request_that_is_retried_is_a_new_sample(quiet_gateway):
    gateway = quiet_gateway
    client, rollout = gateway.new_client()
    first = await client.chat.completions.create(model="m", messages=HELLO)
    gateway.model.gate.close()
    with pytest.raises(openai.RateLimitError):
        await client.chat.completions.create(model="m", messages=HELLO)
    gateway.model.gate.open()
    second = await client.chat.completions.create(model="m", messages=HELLO, extra_headers=RETRY)
    assert second.choices[0].model_extra["art"] != first.choices[0].model_extra["art"]
    assert len(gateway.turns(rollout)) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails_is_a_503_and_leaves_nothing(gateway, stream):
    client, rollout = gateway.new_client()
    gateway.engine.fail(500)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="m", messages=HELLO, stream=stream, n=1 if stream else 2)
    assert caught.value.status_code == 503
    assert gateway.turns(rollout) == []
    await client.chat.completions.create(model="m", messages=HELLO)
    gateway.check(rollout)


async def test_an_engine_that_dies_in_a_stream_is_told_in_the_stream(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.fail(0)
    with pytest.raises(openai.APIError, match="scripted death"):
        async for _ in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
            pass
    assert gateway.turns(rollout) == []


async def test_a_dead_engine_is_not_asked_again_when_that_is_useless(gateway):
    client, _ = gateway.new_client(max_retries=2)
    attempts = 0

    async def enter():
        nonlocal attempts
        attempts += 1
        raise EngineFailedError("The engine died 4 times in a row.", permanent=True)

    gateway.model.gate.enter = enter
    with pytest.raises(openai.InternalServerError, match="died 4 times"):
        await client.chat.completions.create(model="m", messages=HELLO)
    assert attempts == 1


async def test_concurrent_calls_on_one_rollout_are_all_captured(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.token_delay_s = 0.002

    async def agent(name):
        messages = [{"role": "user", "content": f"I am {name}"}]
        for _ in range(3):
            answer = await client.chat.completions.create(model="m", messages=messages)
            messages += [answer.choices[0].message, {"role": "user", "content": "On."}]

    await asyncio.gather(*(agent(name % 4) for name in range(8)))
    assert len(gateway.turns(rollout)) == 24
    gateway.check(rollout)


def test_the_window_forgets_what_is_old(monkeypatch):
    window: RetryWindow[str] = RetryWindow()
    for _ in range(2):
        window.lose(b"a", 1, "answer")
    window.name(b"k", b"a", 1, "named")
    assert window.find_lost(b"a") == "answer" and window.find_lost(b"b") is None
    assert window.find_named(b"k", b"a") == "named" and window.find_named(b"l", b"a") is None
    monkeypatch.setattr(retries, "WINDOW_S", -1.0)
    assert window.find_lost(b"a") is None is window.find_named(b"k", b"a")
    assert not window._kept and not window._size


def test_remembered_answers_are_bounded_by_the_bytes_of_their_requests():
    window: RetryWindow[int] = RetryWindow()
    for i in range(10):
        window.lose(bytes([i]), MAX_BYTES // 4, i)
        window.name(b"key" + bytes([i]), b"", MAX_BYTES // 8, i)
    assert window.find_lost(b"\x09") == 9
    assert window.find_lost(b"\x04") is None
    assert window._size <= MAX_BYTES
