"""Calls as every protocol carries them: cut short, without arguments, under ids that templates are particular about."""

import re
from typing import Any

import anthropic
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from tests.art_backend.gateway.conftest import start_gateway
from tests.art_backend.gateway.templates import MISTRAL, with_template

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
FUNCTION = {"name": "f", "description": "", "parameters": {"type": "object"}}
HELLO = [{"role": "user", "content": "Hello"}]
STREAM = pytest.mark.parametrize("stream", [False, True])


async def chat(gateway, info, *, stream: bool, required: bool = False, limit: int | None = None, messages: Any = HELLO):
    """The ids of the calls, and why the answer ended."""
    client = gateway.client(info.api_key)
    options: dict[str, Any] = {
        "model": "m",
        "messages": messages,
        "tools": [{"type": "function", "function": FUNCTION}],
    }
    options |= {"max_tokens": limit} if limit else {}
    options |= {"tool_choice": "required"} if required else {}
    if not stream:
        answer = await client.chat.completions.create(**options)
    else:
        state = ChatCompletionStreamState()
        async for chunk in await client.chat.completions.create(**options, stream=True):
            state.handle_chunk(chunk)
        answer = state.current_completion_snapshot
    (choice,) = answer.choices
    return [call.id for call in choice.message.tool_calls or ()], choice.finish_reason


async def responses(
    gateway, info, *, stream: bool, required: bool = False, limit: int | None = None, messages: Any = HELLO
):
    client = gateway.client(info.api_key)
    options: dict[str, Any] = {"model": "m", "input": messages, "tools": [{"type": "function", **FUNCTION}]}
    options |= {"max_output_tokens": limit} if limit else {}
    options |= {"tool_choice": "required"} if required else {}
    if stream:
        async with client.responses.stream(**options) as events:
            seen = [event async for event in events]
        answer = seen[-1].response
        assert seen[-1].type == f"response.{answer.status}"
    else:
        answer = await client.responses.create(**options)
    assert (answer.incomplete_details is not None) == (answer.status == "incomplete")
    return [item.call_id for item in answer.output if item.type == "function_call"], answer.status


async def messages(
    gateway, info, *, stream: bool, required: bool = False, limit: int | None = None, messages: Any = HELLO
):
    client = anthropic.AsyncAnthropic(base_url=gateway.url, api_key=info.api_key, max_retries=0)
    tool = {"name": "f", "description": "", "input_schema": FUNCTION["parameters"]}
    options: dict[str, Any] = {"model": "m", "messages": messages, "max_tokens": limit or 1000, "tools": [tool]}
    options |= {"tool_choice": {"type": "any"}} if required else {}
    if stream:
        async with client.messages.stream(**options) as events:
            answer = await events.get_final_message()
    else:
        answer = await client.messages.create(**options)
    return [block.id for block in answer.content if block.type == "tool_use"], answer.stop_reason


CUT = {chat: "length", responses: "incomplete", messages: "max_tokens"}
CALLED = {chat: "tool_calls", responses: "completed", messages: "tool_use"}
PROTOCOLS = pytest.mark.parametrize("ask", list(CUT))


@STREAM
@PROTOCOLS
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize(
    "said",
    [
        pytest.param(f"{CALL}\n{CALL[:30]}", id="half of a second call"),
        pytest.param(f"{CALL}\nand then I", id="words after a call"),
        pytest.param(f"{CALL}\n<tool_", id="half of a mark"),
        pytest.param(f"<think>\nhm\n</think>\n\n{CALL}{CALL[:-12]}", id="a call but for its end"),
        pytest.param(CALL, id="a whole call, and no end of turn"),
    ],
)
async def test_what_was_cut_after_a_call_says_so(gateway, said, ask, stream, required):
    info = gateway.rollout()
    gateway.engine.say(said + " and more")
    calls, reason = await ask(gateway, info, stream=stream, required=required, limit=len(gateway.renderer.encode(said)))
    assert calls and reason == CUT[ask]
    (turn,) = gateway.turns(info.id)
    assert turn.finish_reason == "length" and turn.message["tool_calls"]
    gateway.check(info.id)


@STREAM
@PROTOCOLS
async def test_calls_that_the_model_ended_are_calls(gateway, ask, stream):
    info = gateway.rollout()
    gateway.engine.say(f"{CALL}\n{CALL}")
    calls, reason = await ask(gateway, info, stream=stream)
    assert (len(calls), reason) == (2, CALLED[ask])
    assert gateway.turns(info.id)[0].finish_reason == "tool_calls"


@STREAM
@PROTOCOLS
async def test_ids_are_nine_letters_and_digits(gateway, ask, stream):
    info = gateway.rollout()
    gateway.engine.say(*["\n".join([CALL] * 10)] * 3)
    seen = [call_id for _ in range(3) for call_id in (await ask(gateway, info, stream=stream))[0]]
    assert len(set(seen)) == 30
    assert all(re.fullmatch("[A-Za-z0-9]{9}", call_id) for call_id in seen)


def history(ask, call_id, arguments) -> list[dict[str, Any]]:
    """A conversation with a call, in the protocol's own spelling."""
    if ask is chat:
        call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": call_id, "content": "ok"}
        return [*HELLO, {"role": "assistant", "tool_calls": [call]}, result]
    if ask is responses:
        call = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments}
        return [*HELLO, call, {"type": "function_call_output", "call_id": call_id, "output": "ok"}]
    use = {"type": "tool_use", "id": call_id, "name": "f", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": "ok"}
    return [*HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


@PROTOCOLS
@pytest.mark.parametrize("arguments", ["", " ", "null", "{}", None])
async def test_no_arguments_are_no_arguments(gateway, ask, arguments):
    if ask is responses and arguments is None:
        arguments = " \n"  # the protocol has no null there
    info = gateway.rollout()
    await ask(gateway, info, stream=False, messages=history(ask, "c1", arguments))
    prompt = gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    assert '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' in prompt


@pytest.mark.parametrize("ask", [chat, responses])
async def test_malformed_arguments_stay_visible(gateway, ask):
    info = gateway.rollout()
    await ask(gateway, info, stream=False, messages=history(ask, "c1", '{"a": '))
    assert '{\\"a\\": ' in gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)


@PROTOCOLS
@pytest.mark.parametrize("call_id", ["call_0123456789abcdef01234567", "toolu_1", "", "abcdefgh9", "ächtzehn9"])
async def test_given_ids_are_fitted_to_templates_that_demand_short_ones(tmp_path, ask, call_id):
    async with start_gateway(tmp_path, tokenizer=with_template(MISTRAL)) as gateway:
        info = gateway.rollout()
        await ask(gateway, info, stream=False, messages=history(ask, call_id, "{}" if ask is not messages else {}))
        prompt = gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
        shown = re.findall(r'"(?:id|call_id)": "([A-Za-z0-9]{9})"', prompt)
        assert len(shown) == 2 and shown[0] == shown[1]
        assert (shown[0] == call_id) == (call_id == "abcdefgh9")
