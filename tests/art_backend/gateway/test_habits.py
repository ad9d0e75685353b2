"""Habits of real agent frameworks, as they were logged: what they send besides, and how they rewrite what they got."""

import httpx
import pytest
from tests.art_backend.gateway.test_bad_input import PROTOCOLS

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "title": "F",
    "properties": {"a": {"type": "string", "title": "A", "nullable": True, "default": None}},
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": False}}
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"


async def say(client, messages, **options):
    answer = await client.chat.completions.create(model="m", messages=messages, **options)
    return answer.choices[0].message


def rows(gateway, rollout):
    gateway.check(rollout)
    return gateway.captures.rows(rollout).rows


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
@pytest.mark.parametrize("path", PROTOCOLS)
async def test_fields_headers_and_queries_that_nobody_here_knows(gateway, path, header):
    info = gateway.rollout()
    key = f"Bearer {info.api_key}" if header == "authorization" else info.api_key
    headers = {
        header: key,
        "anthropic-version": "2099-01-01",
        "anthropic-beta": "anything-2099",
        "x-stainless-lang": "x",
    }
    strange = {
        "store": True, "metadata": {"a": "b"}, "user": "me", "service_tier": "auto", "parallel_tool_calls": True,
        "stream_options": None, "reasoning": {"effort": "none"}, "text": {"verbosity": "low"}, "extra": [1], "logit_bias": {},
        "prediction": None, "tools": [], "tool_choice": None,
    }  # fmt: skip
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers) as http:
        for prefix in ("/v1", f"/r/{info.id}/v1"):
            answer = await http.post(f"{prefix}/{path}?beta=true", json={"model": "m", **PROTOCOLS[path][1], **strange})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == "m"
    assert len(gateway.turns(info.id)) == 2


@pytest.mark.parametrize("path", PROTOCOLS)
async def test_a_limit_beyond_the_context_is_cut_to_it(gateway, path):
    info = gateway.rollout()
    names = ["max_output_tokens"] if path == "responses" else ["max_tokens"]
    names += ["max_completion_tokens"] if path == "chat/completions" else []
    async with httpx.AsyncClient(base_url=gateway.url, headers={"x-api-key": info.api_key}) as http:
        for name in names:
            answer = await http.post(f"/v1/{path}", json={"model": "m", **PROTOCOLS[path][1], name: 128_000})
            assert answer.status_code == 200, answer.text
            call = gateway.engine.calls[-1]
            assert call.params["max_tokens"] == gateway.model.max_sequence_length - len(call.fed)


async def test_a_temperature_is_recorded_whether_it_was_sent_or_not(gateway):
    client, rollout = gateway.new_client()
    await say(client, HELLO)
    for temperature in (0.1, 0):
        await say(client, HELLO, temperature=temperature)
    assert [turn.sampling["temperature"] for turn in gateway.turns(rollout)] == [1.0, 0.1, 0.0]


async def test_usage_in_a_stream_comes_only_where_it_is_asked_for(gateway):
    client, _ = gateway.new_client()
    for options, counts in (({}, 0), ({"stream_options": {"include_usage": True}}, 1)):
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True, **options)
        assert sum([chunk.usage is not None async for chunk in stream]) == counts


ODD_HISTORIES = {
    "a system message in the middle": [*HELLO, {"role": "system", "content": "note"}, *HELLO],
    "a developer who comes later": [
        *HELLO,
        {"role": "assistant", "content": "x"},
        {"role": "developer", "content": "d"},
    ],
    "the same role twice": [
        *HELLO,
        *HELLO,
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": "y"},
    ],
    "a call without a result": [
        *HELLO,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}],
        },
        *HELLO,
    ],
    "a result without a call": [{"role": "tool", "content": "sunny", "tool_call_id": "c", "name": "f"}, *HELLO],
    "a function's result": [*HELLO, {"role": "function", "name": "f", "content": "sunny"}],
    "stray keys in any order": [
        {"name": "n", "content": [{"text": "a", "type": "text", "cache_control": {}}], "role": "user", "id": 7},
        {
            "refusal": None,
            "audio": None,
            "annotations": [],
            "role": "assistant",
            "content": None,
            "function_call": None,
        },
        *HELLO,
    ],
    "arguments as an object": [
        *HELLO,
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "c"},
    ],
}


@pytest.mark.parametrize("history", ODD_HISTORIES)
async def test_odd_histories_are_answered_and_go_on_in_one_row(gateway, history):
    client, rollout = gateway.new_client()
    gateway.engine.say("one", "two")
    messages = list(ODD_HISTORIES[history])
    messages.append(await say(client, messages, tools=[TOOL]))
    await say(client, [*messages, *HELLO], tools=[TOOL])
    assert len(rows(gateway, rollout)) == 1


@pytest.mark.parametrize("kept", [(True, False), (False, True), (False, False)])
async def test_reasoning_that_comes_back_in_one_place_and_not_in_another(gateway, kept):
    client, rollout = gateway.new_client()
    gateway.engine.say(THOUGHT + CALL, THOUGHT + "Sunny.", "Bye.")
    messages = list(HELLO)
    for keep in kept:
        answer = (await say(client, messages, tools=[TOOL])).model_dump(exclude_none=True)
        assert answer["reasoning_content"] == "hm"
        if not keep:
            del answer["reasoning_content"]
        messages.append(answer)
        if calls := answer.get("tool_calls"):
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny"})
    await say(client, [*messages, *HELLO], tools=[TOOL])
    assert len(rows(gateway, rollout)) == 1


async def test_calls_flattened_to_text_and_merged_roles_branch_off_what_is_the_same(gateway):
    """Stripped words with the calls spelled out behind them, and results merged into what the user said."""
    client, rollout = gateway.new_client()
    gateway.engine.say(" Let me look. \n" + CALL, "Sunny.", "Bye.")
    system = {"role": "system", "content": "You may call tools. " * 5}
    answer = await say(client, [system, *HELLO], tools=[TOOL])
    said = {"role": "assistant", "content": (answer.content or "").strip() + "\nCalling tools:\n[{'id': 'x'}]"}
    second = [system, *HELLO, said, {"role": "user", "content": "Observation:\nsunny"}]
    await say(client, second, tools=[TOOL])
    third = [*second[:-1], {"role": "user", "content": "Observation:\nsunny\nHurry up."}]
    await say(client, third, tools=[TOOL])
    assert len(rows(gateway, rollout)) == 3, "each turn is trained on its own branch"
    assert [turn.prompt.parent for turn in gateway.turns(rollout)] == [None] * 3


async def test_insertions_before_and_after_what_was_served(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("one", "two", "three")
    messages = [*HELLO, await say(client, HELLO)]
    note = {"role": "system", "content": "Validation failed."}
    messages += [note, {"role": "user", "content": "Again."}]
    messages.append(await say(client, messages))
    assert len(rows(gateway, rollout)) == 1, "what is inserted at the end extends the row"
    await say(client, [messages[0], note, *messages[1:], *HELLO])
    assert len(rows(gateway, rollout)) == 2, "what is inserted before it does not"


async def test_a_format_that_changes_between_turns_does_not_fork(gateway):
    """Required on the first turn and gone on the second; a format for the last answer."""
    client, rollout = gateway.new_client()
    gateway.engine.say(CALL, "Sunny.", '{"a": 1}')
    answer = await say(client, HELLO, tools=[TOOL], tool_choice="required")
    messages = [*HELLO, answer, {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "sunny"}]
    messages.append(await say(client, messages, tools=[TOOL]))
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    await say(client, [*messages, *HELLO], tools=[TOOL], response_format=form, tool_choice="none")
    (row,) = rows(gateway, rollout)
    assert len(row.structures) == 2
    sent = [call.params.get("structured_outputs") for call in gateway.engine.calls]
    assert [next(iter(structure)) if structure else None for structure in sent] == ["grammar", None, "json"]


async def test_tasks_sub_agents_and_restarts_are_roots_of_their_own(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("plan", "research", "write", "plan again")
    for system in ("planner", "researcher", "writer", "planner"):
        await say(client, [{"role": "system", "content": system}, *HELLO])
    assert len(rows(gateway, rollout)) == 4
    assert len(gateway.captures.tree(rollout).prompts) == 3, "a restart asks from the same prompt"


async def test_ids_of_calls_are_unique_in_a_rollout(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say(*[CALL + CALL] * 3)
    answers = [await say(client, HELLO, tools=[TOOL]) for _ in range(3)]
    ids = [call.id for answer in answers for call in answer.tool_calls]
    assert len(set(ids)) == 6
    rows(gateway, rollout)
