"""Tool calls, and what real frameworks were seen to do to them on their way back."""

import json

import pytest

HELLO = [{"role": "user", "content": "Weather?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "$schema": "x"},
            "strict": None,
        },
    }
]
SAID = ' Let me check. \n<tool_call>\n{"name": "weather", "arguments": {"city":  "Z\\u00fcrich",\n "days": 1.0}}\n</tool_call>'


def rewrite(message, how):
    """Each of these was logged from a framework."""
    message = message.model_dump(exclude_none=True)
    call = message["tool_calls"][0]
    arguments = json.loads(call["function"]["arguments"])
    if how == "arguments re-dumped":
        call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=True)
    elif how == "floats lost":
        call["function"]["arguments"] = json.dumps({**arguments, "days": 1}, separators=(",", ":"))
    elif how == "arguments replaced":
        call["function"]["arguments"] = "{}"
    elif how == "text dropped":
        message["content"] = None
    elif how == "keys added":
        message |= {"provider_specific_fields": {}, "name": "model", "function_call": None, "audio": None}
        call["index"] = 0
    elif how == "reasoning invented":
        message["reasoning_content"] = "hm"
    return message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "how",
    ["verbatim", "arguments re-dumped", "floats lost", "arguments replaced", "text dropped", "keys added", "reasoning invented"],
)  # fmt: skip
async def test_a_rewritten_call_is_recognised(gateway, how, stream):
    client, rollout = gateway.new_client()
    gateway.engine.say(SAID, "Sunny.")
    if stream:
        async with client.chat.completions.stream(model="m", messages=HELLO, tools=TOOLS) as events:
            async for _ in events:
                pass
            answer = await events.get_final_completion()
    else:
        answer = await client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == " Let me check."
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Zürich", "days": 1.0}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny", "name": "weather"}
    messages = [*HELLO, rewrite(choice.message, how), result]
    last = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    assert last.choices[0].message.content == "Sunny."
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


async def test_edited_words_beside_a_call_are_an_edit(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say(SAID, "Sunny.")
    answer = await client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    message = {**answer.choices[0].message.model_dump(exclude_none=True), "content": "I will not check."}
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    await client.chat.completions.create(model="m", messages=[*HELLO, message, result], tools=TOOLS)
    assert len(gateway.captures.rows(rollout).rows) == 2
    gateway.check(rollout)


async def test_parallel_calls_and_a_reply_by_the_user(gateway):
    client, rollout = gateway.new_client()
    one = '<tool_call>{"name": "weather", "arguments": {"city": "%s"}}</tool_call>'
    gateway.engine.say(one % "A" + "\n" + one % "B", "Same.", "Bye.")
    answer = await client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    calls = answer.choices[0].message.tool_calls
    assert len({call.id for call in calls}) == 2
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "sunny"}]} for call in calls
    ]
    messages = [*HELLO, answer.choices[0].message, *results]
    second = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    messages += [second.choices[0].message, {"role": "user", "content": "Bye"}]
    await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


async def test_other_tools_are_another_conversation(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("a", "b", "c")
    await client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    messages = [*HELLO, {"role": "assistant", "content": "a"}, {"role": "user", "content": "?"}]
    await client.chat.completions.create(model="m", messages=messages)
    assert len(gateway.captures.rows(rollout).rows) == 2
    await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    assert len(gateway.captures.rows(rollout).rows) == 2
    gateway.check(rollout)


async def test_tool_choice_none_keeps_the_prompt_and_gives_text(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("a", SAID)
    await client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS, tool_choice="auto")
    messages = [*HELLO, {"role": "assistant", "content": "a"}, {"role": "user", "content": "?"}]
    answer = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.content == SAID
    assert len(gateway.captures.rows(rollout).rows) == 1
