"""Answers that the caller begins: the model continues the text, which is context, and the conversation stays one row."""

import anthropic
import openai
import pytest
from tests.art_backend.gateway.conftest import start_gateway
from tests.art_backend.gateway.test_messages import ask, connect
from tests.support.tiny import build_tiny_tokenizer

GO = {"role": "user", "content": "Go"}
BEGUN = {"role": "assistant", "content": "{"}
WAYS = {
    "continue_final_message": ([GO, BEGUN], {"continue_final_message": True, "add_generation_prompt": False}),
    "continue_final_message alone": ([GO, BEGUN], {"continue_final_message": True}),
    "prefix": ([GO, {**BEGUN, "prefix": True}], {}),
}


async def say(gateway, info, way, stream):
    """The words and the reason of an answer, in one of the ways of beginning it."""
    if way == "messages":
        answer = await ask(connect(gateway, info), stream=stream, messages=[GO, BEGUN])
        return "".join(block.text for block in answer.content), answer.stop_reason, answer.usage.output_tokens
    messages, fields = WAYS[way]
    answer = await gateway.client(info.api_key).chat.completions.create(
        model="m", messages=messages, stream=stream, extra_body=fields
    )
    if not stream:
        choice = answer.choices[0]
        return choice.message.content, choice.finish_reason, answer.usage.completion_tokens
    chunks = [chunk.choices[0] async for chunk in answer]
    return "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason, None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["messages", *WAYS])
async def test_the_prompt_ends_with_the_beginning_and_the_answer_continues_it(gateway, way, stream):
    info = gateway.rollout()
    gateway.engine.say('"a": 1}', "Bye.")
    said, reason, _ = await say(gateway, info, way, stream)
    assert (said, reason) == ('"a": 1}', "end_turn" if way == "messages" else "stop")
    first = gateway.engine.calls[-1].fed
    assert first == [*gateway.renderer.render([GO]), *gateway.renderer.encode("{")]
    (turn,) = gateway.turns(info.id)
    assert turn.message["content"] == '{"a": 1}'
    gateway.captures._recent.clear()  # also after a restart
    gateway.captures._in_use.clear()
    history = [GO, {"role": "assistant", "content": '{"a": 1}'}, {"role": "user", "content": "?"}]
    await gateway.client(info.api_key).chat.completions.create(model="m", messages=history)
    (row,) = gateway.captures.rows(info.id).rows
    assert row.token_ids[: len(first)] == first and not any(row.sampled[: len(first)])
    gateway.check(info.id)


async def test_equal_beginnings_share_a_prompt_and_others_do_not(gateway):
    info = gateway.rollout()
    gateway.engine.say("one", "two", "three")
    client = gateway.client(info.api_key)
    for messages in ([GO, BEGUN], [GO, BEGUN], [GO, {**BEGUN, "content": "["}]):
        await client.chat.completions.create(model="m", messages=messages, extra_body={"continue_final_message": True})
    await client.chat.completions.create(model="m", messages=[GO])
    assert len(gateway.captures.tree(info.id).prompts) == 3
    gateway.check(info.id)


async def test_a_beginning_after_earlier_turns_extends_them(gateway):
    info = gateway.rollout()
    client = connect(gateway, info)
    gateway.engine.say("one", "wo", "three")
    messages = [GO]
    messages.append({"role": "assistant", "content": (await ask(client, stream=False, messages=messages)).content})
    messages += [GO, {"role": "assistant", "content": [{"type": "text", "text": "t"}]}]
    await ask(client, stream=False, messages=messages)
    messages[-1] = {"role": "assistant", "content": "two"}
    await ask(client, stream=False, messages=[*messages, GO])
    assert len(gateway.captures.rows(info.id).rows) == 1
    gateway.check(info.id)


async def test_without_a_sign_the_last_message_is_closed(gateway):
    """As chat completions have it, where messages of the assistant may stand anywhere."""
    client, _ = gateway.new_client()
    await client.chat.completions.create(model="m", messages=[GO, BEGUN], extra_body={"add_generation_prompt": True})
    assert gateway.engine.calls[-1].fed == gateway.renderer.render([GO, BEGUN])


async def test_reasoning_that_the_prompt_opens_is_closed_before_the_beginning(tmp_path):
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n"
    )
    assert "<think>" in tokenizer.chat_template
    async with start_gateway(tmp_path, tokenizer) as gateway:
        info = gateway.rollout()
        gateway.engine.say('"a": 1}')
        said, *_ = await say(gateway, info, "messages", stream=False)
        assert said == '"a": 1}'
        assert gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed).endswith("<think>\n\n</think>\n\n{")


CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CONTRADICTIONS = [
    ([GO], {"continue_final_message": True}, "continue_final_message"),
    ([GO, {"role": "assistant", "tool_calls": [CALL]}], {"continue_final_message": True}, "continue_final_message"),
    ([GO, {**BEGUN, "reasoning_content": "hm"}], {"continue_final_message": True}, "continue_final_message"),
    ([{**GO, "prefix": True}], {}, "messages.0"),
    ([GO, {**BEGUN, "prefix": True}, GO], {}, "messages.1.prefix"),
    ([GO, BEGUN], {"add_generation_prompt": False}, "add_generation_prompt"),
    ([GO, BEGUN], {"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ([GO, BEGUN], {"continue_final_message": "yes"}, "continue_final_message"),
    ([GO, BEGUN], {"continue_final_message": True, "guided_regex": "a"}, "guided_regex"),
    ([GO, {**BEGUN, "content": "<|im_end|>"}], {"continue_final_message": True}, "messages"),
]


@pytest.mark.parametrize(("messages", "fields", "param"), CONTRADICTIONS)
async def test_contradictions_are_named(gateway, messages, fields, param):
    client, _ = gateway.new_client()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="m", messages=messages, extra_body=fields)
    assert caught.value.param == param
    assert gateway.engine.calls == []


async def test_an_answer_does_not_begin_with_a_call(gateway):
    use = {"type": "tool_use", "id": "x", "name": "f", "input": {}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.1: "):
        await ask(
            connect(gateway, gateway.rollout()), stream=False, messages=[GO, {"role": "assistant", "content": [use]}]
        )
