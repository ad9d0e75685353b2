"""OpenAI responses through the official SDK."""

import json

import agents
import openai
import pytest
from tests.art_backend.gateway.conftest import MODEL_KEY, SERVICE_KEY, check_rows, start_gateway

TOOLS = [
    {"type": "function", "name": "weather", "description": "Tells it", "parameters": {"type": "object"}, "strict": True}
]
SAID = (
    "<think>\nhm\n</think>\n\nLet me see.\n"
    '<tool_call>{"name": "weather", "arguments": {"city":  "Zürich", "days": 1.0}}</tool_call>\n'
    '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
)


async def ask(client, *, stream=False, **options):
    if not stream:
        return await client.responses.create(model="m", **options)
    async with client.responses.stream(model="m", **options) as events:
        seen = [event async for event in events]
        numbers = [event.sequence_number for event in seen if hasattr(event, "sequence_number")]
        assert numbers == list(range(len(numbers)))
        assert seen[-1].type == f"response.{seen[-1].response.status}"
        return seen[-1].response


def results(response):
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in response.output
        if item.type == "function_call"
    ]


def compacted(items):
    """As agents that parse and dump arguments, and keep neither ids nor reasoning text, send it back."""
    sent = []
    for item in items:
        if item.type == "message":
            sent.append({"role": "assistant", "content": item.content[0].text})
        elif item.type == "function_call":
            arguments = json.dumps(json.loads(item.arguments), separators=(",", ":"))
            call = {"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": arguments}
            sent.append(call)
    return sent


ECHOES = {
    "verbatim": lambda items: items,
    "dumped": lambda items: [item.model_dump() for item in items],
    "compacted": compacted,
    "references": lambda items: [{"type": "item_reference", "id": item.id} for item in items],
    "calls only": lambda items: [item for item in items if item.type == "function_call"],
    "reasoning without text": lambda items: [
        {"type": "reasoning", "id": item.id, "summary": []} if item.type == "reasoning" else item for item in items
    ],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", ECHOES)
async def test_a_tool_using_conversation_is_one_row(gateway, echo, stream):
    client, rollout = gateway.new_client()
    gateway.engine.say(SAID, "Sunny.", "Bye.")
    options = {"instructions": "Be brief.", "tools": TOOLS, "stream": stream}
    first = await ask(client, input="Weather?", **options)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert first.output[0].content[0].text == "hm" and first.output_text == "Let me see."
    assert json.loads(first.output[2].arguments) == {"city": "Zürich", "days": 1.0}
    items = [{"role": "user", "content": "Weather?"}, *ECHOES[echo](first.output), *results(first)]
    second = await ask(client, input=items, **options)
    assert second.output_text == "Sunny."
    items += [*ECHOES["verbatim"](second.output), {"role": "user", "content": [{"type": "input_text", "text": "Bye"}]}]
    third = await ask(client, input=items, **options)
    assert (third.output_text, third.status) == ("Bye.", "completed")
    call = gateway.engine.calls[-1]
    assert (third.usage.input_tokens, third.usage.output_tokens) == (len(call.fed), len(call.returned))
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_previous_response_is_continued(gateway, stream):
    client, rollout = gateway.new_client()
    gateway.engine.say(SAID, "Sunny.", "Sunny!", "Bye.")
    options = {"instructions": "Be brief.", "tools": TOOLS, "stream": stream}
    first = await ask(client, input="Weather?", **options)
    second = await ask(client, input=results(first), previous_response_id=first.id, **options)
    assert second.output_text == "Sunny."
    gateway.captures._recent.clear()  # also after a restart
    gateway.captures._in_use.clear()
    await ask(client, input=results(first), previous_response_id=first.id, **options)
    await ask(client, input="Bye", previous_response_id=second.id, **options)
    assert len(gateway.captures.rows(rollout).rows) == 2, "one for each way to go on"
    fed = gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    assert fed.count("Be brief.") == 1 and "Weather?" in fed and "Sunny." in fed
    gateway.check(rollout)
    gateway.engine.say("Adieu.")
    await ask(client, input="Bye", previous_response_id=second.id, tools=TOOLS, stream=stream)
    assert "Be brief." not in gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    gateway.check(rollout)


@pytest.mark.parametrize("key", ["rollout", "model"])
async def test_conversations_outlive_a_restart(tmp_path, key):
    """Stored responses are told again, and ``previous_response_id`` goes on from the exact ids."""
    async with start_gateway(tmp_path) as first:
        info = first.rollout()
        api_key = info.api_key if key == "rollout" else MODEL_KEY
        first.engine.say(SAID)
        options = {"instructions": "Be brief.", "tools": TOOLS, "metadata": {"a": "b"}}
        before = await ask(first.client(api_key), input="Weather?", **options)
    async with start_gateway(tmp_path) as second:
        second.engine.say("Sunny.")
        client = second.client(api_key)
        told = await client.responses.retrieve(before.id)
        assert told.model_dump() == before.model_dump()
        after = await ask(client, input=results(before), previous_response_id=before.id, **options)
        assert after.output_text == "Sunny."
        rollout = after.model_extra["art"]["rollout"]
        assert rollout == before.model_extra["art"]["rollout"]
        rows = second.captures.rows(rollout).rows
        assert len(rows) == 1, "the second turn extends the ids of the first"
        check_rows(rows, second.turns(rollout))


async def test_stored_responses(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say(SAID, "Sunny.")
    first = await ask(
        client, input="Weather?", tools=TOOLS, instructions="Be brief.", include=["reasoning.encrypted_content"]
    )
    second = await ask(client, input=results(first), tools=TOOLS, previous_response_id=first.id)
    told = await client.responses.retrieve(second.id, include=["message.output_text.logprobs"])
    (turn,) = (turn for turn in gateway.turns(rollout) if second.id.endswith(turn.id))
    assert [entry.logprob for entry in told.output[0].content[0].logprobs] == turn.logprobs.tolist()
    assert told.previous_response_id == first.id
    events = [event async for event in await client.responses.retrieve(first.id, stream=True)]
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert events[-1].response.output == first.output

    count = await client.responses.input_tokens.count(
        model="m", input="Weather?", instructions="Be brief.", tools=TOOLS
    )
    assert count.input_tokens == first.usage.input_tokens

    await client.responses.delete(first.id)
    unstored = await ask(client, input="Hello", store=False)
    stranger, _ = gateway.new_client()
    for who, response in (
        (client, first),
        (client, unstored),
        (stranger, second),
        (gateway.client(SERVICE_KEY), second),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await who.responses.retrieve(response.id)
        assert caught.value.param == "response_id"
    with pytest.raises(openai.BadRequestError, match="from the first") as caught:
        await client.responses.retrieve(second.id, stream=True, starting_after=2)
    assert caught.value.param == "starting_after"
    assert len(gateway.turns(rollout)) == 3, "a response that was deleted leaves its turn"
    gateway.check(rollout)


async def test_responses_of_others_are_unknown(gateway):
    client, _ = gateway.new_client()
    other, _ = gateway.new_client()
    first = await ask(client, input="Hello")
    own = await ask(gateway.client(MODEL_KEY), input="Hello")
    await ask(gateway.client(MODEL_KEY), input="And?", previous_response_id=own.id)
    for stranger in (other, gateway.client(MODEL_KEY), gateway.client(SERVICE_KEY)):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(stranger, input="And?", previous_response_id=first.id)
        assert caught.value.param == "previous_response_id"
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(stranger, input=[{"type": "item_reference", "id": first.output[0].id}])
        assert caught.value.param == "input.0.id"
    with pytest.raises(openai.BadRequestError):
        await ask(client, input="And?", previous_response_id=own.id)


async def test_responses_refer_to_their_turns_and_repeat_the_request(gateway):
    client, rollout = gateway.new_client()
    response = await ask(
        client,
        input="Hello",
        instructions="x",
        metadata={"a": "b"},
        temperature=0.5,
        store=False,
        text={"verbosity": "low"},
        reasoning={"effort": "low"},
        include=["message.output_text.logprobs"],
        top_logprobs=1,
        extra_body={"unknown": 1},
    )
    (turn,) = gateway.turns(rollout)
    assert response.model_extra["art"] == {"turn": turn.id, "rollout": rollout, "policy_version": 0}
    assert (response.instructions, response.metadata, response.temperature) == ("x", {"a": "b"}, 0.5)
    assert [entry.logprob for entry in response.output[0].content[0].logprobs] == turn.logprobs.tolist()


@pytest.mark.parametrize("stream", [False, True])
async def test_incomplete_responses(gateway, stream):
    client, rollout = gateway.new_client()
    gateway.engine.say("one two", "")
    cut = await ask(client, input="Count", max_output_tokens=3, stream=stream)
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", "one")
    empty = await ask(client, input="Nothing", stream=stream)
    assert [item.type for item in empty.output] == ["message"] and empty.output_text == ""
    gateway.check(rollout)


async def test_a_prompt_beyond_the_context_is_an_error_that_clients_know(gateway):
    """OpenAI's SDK, LangChain and litellm know its code in a 400; Codex in the event that ends a stream."""
    client, rollout = gateway.new_client()
    gateway.engine.say("one", "two")
    await ask(client, input="Hello")
    for _ in range(2):
        with pytest.raises(openai.BadRequestError, match="exceeds the context window of this model") as caught:
            await ask(client, input="x" * 3000)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        assert caught.value.response.headers["x-should-retry"] == "false"
    assert gateway.captures.get(rollout).truncated
    failed = await ask(client, input="x" * 3000, stream=True)
    assert (failed.status, failed.error.code, failed.output) == ("failed", "context_length_exceeded", [])
    assert (await ask(client, input="Hello again")).output_text == "two", "the rollout goes on"
    assert len(gateway.turns(rollout)) == 2
    gateway.check(rollout)


async def test_agents_of_the_agents_sdk_end_on_a_prompt_beyond_the_context(gateway):
    client, rollout = gateway.new_client()
    agent = agents.Agent(name="a", model=agents.OpenAIResponsesModel("m", client), instructions="x" * 3000)
    with pytest.raises(openai.BadRequestError, match="context window"):
        await agents.Runner.run(agent, "Hello")
    with pytest.raises(Exception, match=r"context_length_exceeded|context window"):
        async for _ in agents.Runner.run_streamed(agent, "Hello").stream_events():
            pass
    assert gateway.engine.calls == [] and gateway.captures.get(rollout).truncated


async def test_bad_input_is_named(gateway):
    client, _ = gateway.new_client()
    user = {"role": "user", "content": "x"}
    cases = [
        ({}, "input"), ({"input": []}, "input"), ({"input": 3}, "input"), ({"input": [3]}, "input.0"),
        ({"input": [{"role": "robot", "content": ""}]}, "input.0.role"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type"),
        ({"input": [{"type": []}]}, "input.0.type"),
        ({"input": [user, {"type": "function_call", "name": "f", "call_id": "c"}]}, "input.1.arguments"),
        ({"input": [{"type": "function_call_output", "output": ""}]}, "input.0.call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "item_reference", "id": 3}]}, "input.0.id"),
        ({"input": [{"type": "item_reference", "id": "fc_t_" + "1" * 5000}]}, "input.0.id"),
        ({"input": "x", "tools": [{"type": "oracle"}]}, "tools.0.type"),
        ({"input": "x", "tools": [{"type": "custom"}]}, "tools.0.name"),
        ({"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [{}]}]}, "tools.0.tools.0.type"),
        ({"input": [user, {"type": "custom_tool_call", "name": "code", "input": "1"}]}, "input.1.call_id"),
        ({"input": [user, {"type": "custom_tool_call", "call_id": "c", "name": "code"}]}, "input.1.input"),
        ({"input": [user, {"type": "local_shell_call", "call_id": "c", "action": 3}]}, "input.1.action"),
        ({"input": [user, {"type": "shell_call_output", "call_id": "c", "output": [3]}]}, "input.1.output.0"),
        ({"input": [user, {"type": "additional_tools", "tools": [3]}]}, "input.1.tools.0"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools.0.name"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "x", "instructions": 3}, "instructions"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "include": "all"}, "include"),
        ({"input": "x", "previous_response_id": "resp_nope"}, "previous_response_id"),
    ]  # fmt: skip
    for body, param in cases:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="m", **{"input": openai.omit, "extra_body": body})
        assert caught.value.param == param, body
    assert gateway.engine.calls == []


async def test_an_error_in_a_stream_is_raised(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.fail(0)
    with pytest.raises(openai.APIError, match="scripted death"):
        async for _ in await client.responses.create(model="m", input="Hello", stream=True):
            pass
    assert gateway.turns(rollout) == []
