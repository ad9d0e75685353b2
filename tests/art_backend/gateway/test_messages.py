"""Anthropic messages through the official SDK."""

import asyncio

import anthropic
import httpx
import pytest

HELLO = [{"role": "user", "content": "Weather?"}]
TOOLS = [{"name": "weather", "description": "Tells it", "input_schema": {"type": "object", "properties": {}}}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Zürich", "days": 1.0}}</tool_call>'


def connect(gateway, info, **options):
    url = f"{gateway.url}/r/{info.id}"
    return anthropic.AsyncAnthropic(base_url=url, api_key=info.api_key, **{"max_retries": 0, **options})


async def ask(client, *, stream, **options):
    options = {"model": "m", "max_tokens": 200, **options}
    if not stream:
        return await client.messages.create(**options)
    async with client.messages.stream(**options) as events:
        async for _ in events:
            pass
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_using_conversation_is_one_row(gateway, stream):
    info = gateway.rollout()
    client = connect(gateway, info)
    gateway.engine.say(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}", "Sunny.", "Bye.")
    options = {"stream": stream, "system": [{"type": "text", "text": "Be brief."}], "tools": TOOLS}
    first = await ask(client, messages=HELLO, **options)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    thinking, text, use = first.content
    assert (thinking.thinking, text.text, use.input) == ("hm", "Let me see.", {"city": "Zürich", "days": 1.0})
    assert (first.stop_reason, first.role, first.model) == ("tool_use", "assistant", "m")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "sunny"}]}
    messages = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = await ask(client, messages=messages, **options)
    messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "Bye"}]
    third = await ask(client, messages=messages, **options)
    assert (third.content[0].text, third.stop_reason) == ("Bye.", "end_turn")
    call = gateway.engine.calls[-1]
    assert (third.usage.input_tokens, third.usage.output_tokens) == (len(call.fed), len(call.returned))
    assert len(gateway.captures.rows(info.id).rows) == 1
    gateway.check(info.id)
    count = await client.messages.count_tokens(model="m", messages=messages, system="Be brief.", tools=TOOLS)
    assert count.input_tokens == len(call.fed)
    assert len(gateway.turns(info.id)) == 3


BILLING = "x-anthropic-billing-header: cc_version=2.1.{0}; cc_entrypoint=cli; cch={0:05x};"
PROMPT = "You are an agent."
SYSTEMS = {
    "a block of its own": lambda header: [{"type": "text", "text": header}, {"type": "text", "text": PROMPT}],
    "behind another block": lambda header: [{"type": "text", "text": PROMPT}, {"type": "text", "text": header}],
    "the first line of a block": lambda header: [{"type": "text", "text": f"{header}\n\n{PROMPT}"}],
    "the first line of a string": lambda header: f"{header}\n{PROMPT}",
}


@pytest.mark.parametrize("path", ["messages", "chat", "responses", "instructions"])
@pytest.mark.parametrize("place", SYSTEMS)
async def test_a_billing_header_is_no_part_of_the_prompt(gateway, path, place):
    """Claude Code sends another one with every call, and proxies carry it into other protocols."""
    info = gateway.rollout()
    ours, theirs = connect(gateway, info), gateway.client(info.api_key)
    gateway.engine.say("one", "two", "three")
    messages = list(HELLO)
    for n in range(3):
        system = SYSTEMS[place](BILLING.format(n))
        message = {"role": "system", "content": system}
        if path == "messages":
            answer = await ask(ours, stream=False, system=system, messages=messages)
            count = await ours.messages.count_tokens(model="m", system=system, messages=messages)
            assert count.input_tokens == answer.usage.input_tokens
            said = answer.content[0].text
        elif path == "chat":
            answer = await theirs.chat.completions.create(model="m", messages=[message, *messages])
            said = answer.choices[0].message.content
        elif path == "responses":
            said = (await theirs.responses.create(model="m", input=[message, *messages])).output_text
        else:
            text = system if isinstance(system, str) else "\n".join(block["text"] for block in system)
            if not text.startswith("x-"):
                return
            said = (await theirs.responses.create(model="m", input=messages, instructions=text)).output_text
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    fed = gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    assert "billing" not in fed and fed.count(PROMPT) == 1
    assert len(gateway.captures.rows(info.id).rows) == 1
    gateway.check(info.id)


@pytest.mark.parametrize("stream", [False, True])
async def test_blocks_of_all_kinds_come_back(gateway, stream):
    """Tools that say what they are, system text as a string, results that are errors, reasoning that was taken out."""
    info = gateway.rollout()
    client = connect(gateway, info)
    gateway.engine.say(f"<think>\nhm\n</think>\n\n{CALL}", "No weather.")
    options = {"stream": stream, "system": "Be brief.", "tools": [{"type": "custom", **TOOLS[0]}]}
    first = await ask(client, messages=HELLO, **options)
    thinking, use = first.content
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "no such city", "is_error": True}
    said = [thinking, {"type": "redacted_thinking", "data": "x"}, use]
    messages = [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    assert (await ask(client, messages=messages, **options)).content[0].text == "No weather."
    assert "no such city" in gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    assert len(gateway.captures.rows(info.id).rows) == 1
    gateway.check(info.id)


async def test_numbers_in_calls_are_sent_as_they_were_sampled(gateway):
    """Also those that 64 bits do not hold."""
    info = gateway.rollout()
    number = "123456789012345678901234567890"
    gateway.engine.say(CALL.replace("1.0", number))
    body = {"model": "m", "max_tokens": 200, "messages": HELLO, "tools": TOOLS}
    async with httpx.AsyncClient(base_url=gateway.url, headers={"x-api-key": info.api_key}) as http:
        assert number in (await http.post("/v1/messages", json=body)).text


async def test_answers_refer_to_their_turns(gateway):
    info = gateway.rollout()
    client = connect(gateway, info)
    gateway.model.step = 2
    message = await ask(client, stream=False, messages=HELLO)
    assert message.model_extra["art"] == {"turn": gateway.turns(info.id)[0].id, "rollout": info.id, "policy_version": 2}
    events = [
        event async for event in await client.messages.create(model="m", max_tokens=9, messages=HELLO, stream=True)
    ]
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    assert events[-2].model_extra["art"]["turn"] == gateway.turns(info.id)[1].id


@pytest.mark.parametrize("stream", [False, True])
async def test_reasons_for_stopping(gateway, stream):
    info = gateway.rollout()
    client = connect(gateway, info)
    gateway.engine.say("one two three", "one two three")
    cut = await ask(client, stream=stream, messages=HELLO, max_tokens=4)
    assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", "one ")
    stopped = await ask(client, stream=stream, messages=HELLO, stop_sequences=["two", "x"])
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", "two", "one ")
    filling = "x" * (gateway.model.max_sequence_length - 50)
    gateway.engine.say("one two three" * 10)
    full = await ask(client, stream=stream, messages=[{"role": "user", "content": filling}])
    assert (full.stop_reason, full.content[0].text[:4]) == ("model_context_window_exceeded", "one ")
    assert not gateway.captures.get(info.id).truncated
    over = await ask(client, stream=stream, messages=[{"role": "user", "content": "x" * 3000}])
    assert (over.stop_reason, over.content) == ("model_context_window_exceeded", [])
    assert gateway.captures.get(info.id).truncated
    gateway.check(info.id)


async def test_a_conversation_may_change_its_protocol(gateway):
    info = gateway.rollout()
    gateway.engine.say("one", "two")
    await ask(connect(gateway, info), stream=False, messages=HELLO)
    messages = [*HELLO, {"role": "assistant", "content": "one"}, {"role": "user", "content": "?"}]
    await gateway.client(info.api_key).chat.completions.create(model="m", messages=messages)
    assert len(gateway.captures.rows(info.id).rows) == 1


async def test_the_tool_runner_falls_back_from_threads(gateway):
    """The SDK's runner keeps the history on the server where it can; told that it cannot, it sends the whole of it."""
    info = gateway.rollout()

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Tell the weather.

        Args:
            city: Where.
        """
        return f"sunny in {city}"

    gateway.engine.say('<tool_call>{"name": "weather", "arguments": {"city": "A"}}</tool_call>', "Sunny.")
    runner = connect(gateway, info).beta.messages.tool_runner(
        model="m", max_tokens=200, messages=HELLO, tools=[weather]
    )
    message = await runner.until_done()
    assert message.content[0].text == "Sunny."
    assert "sunny in A" in gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    assert len(gateway.captures.rows(info.id).rows) == 1
    gateway.check(info.id)


async def test_errors_have_anthropics_shape(gateway):
    info = gateway.rollout()
    client = connect(gateway, info, max_retries=2)
    good = {"model": "m", "max_tokens": 9, "messages": HELLO}
    image = {"role": "user", "content": [{"type": "image", "source": {}}]}
    use = {"type": "tool_use", "id": "x", "name": "w", "input": '{"city": "Z'}
    cases = [
        ({**good, "messages": []}, "messages"),
        ({**good, "messages": [{"role": "robot", "content": ""}]}, "messages.0.role"),
        ({**good, "messages": [image]}, "messages.0.content.0.type"),
        ({**good, "messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({**good, "messages": [{"role": "assistant", "content": [use]}]}, "messages.0.content.0.input"),
        ({**good, "tools": [{"type": "oracle_20250305", "name": "w"}]}, "tools.0.type"),
        ({**good, "tools": [{"name": "w"}]}, "tools.0.input_schema"),
        ({**good, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({**good, "extra_body": {"temperature": 9}}, "temperature"),
        ({**good, "stop_sequences": [1]}, "stop_sequences"),
        ({**good, "system": 3}, "system"),
    ]
    for body, name in cases:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(**body)
        assert caught.value.body["type"] == "error"
        assert caught.value.body["error"]["type"] == "invalid_request_error"
        assert name in caught.value.body["error"]["message"]
    async with httpx.AsyncClient(base_url=gateway.url, headers={"x-api-key": info.api_key}) as http:
        answer = await http.post("/v1/messages?beta=true", json={"model": "m", "messages": HELLO})
        assert (answer.status_code, "max_tokens" in answer.json()["error"]["message"]) == (400, True)
        assert (await http.post("/v1/v1/messages", json=good)).status_code == 200
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(**{**good, "model": "claude"})
    with pytest.raises(anthropic.AuthenticationError):
        await anthropic.AsyncAnthropic(base_url=gateway.url, api_key="no", max_retries=0).messages.create(**good)


async def test_an_error_in_a_stream_is_an_event(gateway):
    client = connect(gateway, gateway.rollout())
    gateway.engine.fail(0)
    with pytest.raises(anthropic.APIStatusError, match="scripted death"):
        await ask(client, stream=True, messages=HELLO)


async def test_a_held_stream_is_kept_alive(gateway):
    client = connect(gateway, gateway.rollout(), timeout=2.0)
    gateway.engine.hold()
    asking = asyncio.create_task(ask(client, stream=True, messages=HELLO))
    await asyncio.sleep(2.5)
    gateway.engine.release()
    assert (await asking).stop_reason == "end_turn"
