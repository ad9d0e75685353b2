"""Chat completions through the official SDK."""

import contextlib
import json
import sqlite3
from types import SimpleNamespace

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from tests.art_backend.gateway.conftest import MODEL_KEY, SERVICE_KEY
from tests.support.scripted_engine import logprob_of
from tests.support.waiting import until

from art_backend.gateway.dialects.chat import write_events
from art_backend.tokens.parse import ParsedMessage
from art_backend.tokens.tool_calls import ParsedToolCall

HELLO = [{"role": "user", "content": "Hello"}]


async def test_an_append_only_conversation_is_one_row(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("Hi.", "Fine, äöü 😀!", "Bye")
    messages = list(HELLO)
    for question in ("How are you?", "Bye", None):
        answer = await client.chat.completions.create(model="m", messages=messages)
        messages += [answer.choices[0].message, {"role": "user", "content": question}]
    assert [m.content for m in messages[1::2]] == ["Hi.", "Fine, äöü 😀!", "Bye"]
    assert answer.choices[0].finish_reason == "stop"
    gateway.check(rollout)
    (row,) = gateway.captures.rows(rollout).rows
    assert gateway.renderer.detokenizer.decode(row.token_ids).count("assistant\n") == 3
    assert sum(row.sampled) == sum(len(call.returned) for call in gateway.engine.calls)


async def test_choices_refer_to_their_turns(gateway):
    client, rollout = gateway.new_client()
    gateway.model.step = 7
    answer = await client.chat.completions.create(model="m", messages=HELLO, n=3)
    references = [choice.model_extra["art"] for choice in answer.choices]
    assert {r["turn"] for r in references} == {turn.id for turn in gateway.turns(rollout)}
    assert all(r["rollout"] == rollout and r["policy_version"] == 7 for r in references)
    assert len(gateway.captures.rows(rollout).rows) == 3
    assert len(gateway.captures.tree(rollout).prompts) == 1
    gateway.check(rollout)


async def test_a_truncated_completion_is_bridged(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("A long answer", "Done")
    first = await client.chat.completions.create(model="m", messages=HELLO, max_tokens=6)
    assert (first.choices[0].finish_reason, first.choices[0].message.content) == ("length", "A long")
    messages = [*HELLO, first.choices[0].message, {"role": "user", "content": "Go on"}]
    await client.chat.completions.create(model="m", messages=messages)
    (row,) = gateway.captures.rows(rollout).rows
    assert row.token_ids.count(2) == 4  # each message is closed, the cut one by an observed token
    closed = row.token_ids.index(2, row.token_ids.index(2) + 1)
    assert not row.sampled[closed] and row.sampled[closed - 1]
    gateway.check(rollout)


@pytest.mark.parametrize("content", [None, "", [], "missing"])
async def test_an_empty_message_is_recognised_in_any_spelling(gateway, content):
    client, rollout = gateway.new_client()
    gateway.engine.say("", "More")
    await client.chat.completions.create(model="m", messages=HELLO)
    message = {"role": "assistant"} if content == "missing" else {"role": "assistant", "content": content}
    await client.chat.completions.create(model="m", messages=[*HELLO, message, {"role": "user", "content": "?"}])
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


async def test_text_parts_stray_keys_and_names_do_not_matter(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("a b", "c")
    await client.chat.completions.create(model="m", messages=HELLO)
    parts = [{"type": "text", "text": "a", "role": "x"}, {"type": "text", "text": " b", "annotations": []}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}], "name": "user"},
        {"role": "assistant", "content": parts, "refusal": None, "provider_specific_fields": {"art": 1}},
        {"role": "user", "content": "?"},
    ]
    await client.chat.completions.create(model="m", messages=messages)
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


async def test_an_edited_history_forks_and_nothing_is_lost(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("one", "two", "three")
    await client.chat.completions.create(model="m", messages=HELLO)
    more = {"role": "user", "content": "?"}
    await client.chat.completions.create(model="m", messages=[*HELLO, {"role": "assistant", "content": "one"}, more])
    await client.chat.completions.create(model="m", messages=[*HELLO, {"role": "assistant", "content": "ONE"}, more])
    assert len(gateway.turns(rollout)) == 3
    assert len(gateway.captures.rows(rollout).rows) == 2
    gateway.check(rollout)


async def test_streams_read_like_whole_answers(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("Grüße 😀 to all", "x")
    gateway.engine.token_delay_s = 0.02  # tokens that come together may be sent on together
    state = ChatCompletionStreamState()
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    ]
    for chunk in chunks:
        state.handle_chunk(chunk)
    answer = state.get_final_completion()
    assert answer.choices[0].message.content == "Grüße 😀 to all"
    assert len(chunks) > 4
    assert all("\ufffd" not in (c.choices[0].delta.content or "") for c in chunks if c.choices)
    ending = next(c.choices[0] for c in chunks if c.choices and c.choices[0].finish_reason)
    assert ending.model_extra["art"]["turn"] == gateway.turns(rollout)[0].id
    call = gateway.engine.calls[0]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(call.fed), len(call.returned))
    messages = [*HELLO, answer.choices[0].message, {"role": "user", "content": "?"}]
    await client.chat.completions.create(model="m", messages=messages)
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


async def test_several_choices_stream_side_by_side(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("abc", "def")
    texts, endings = {0: "", 1: ""}, {}
    async for chunk in await client.chat.completions.create(model="m", messages=HELLO, n=2, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            endings[choice.index] = choice.model_extra["art"]["turn"]
    assert sorted(texts.values()) == ["abc", "def"]
    said = {turn.id: turn.message["content"] for turn in gateway.turns(rollout)}
    assert {index: said[turn] for index, turn in endings.items()} == texts
    gateway.check(rollout)


async def test_choices_begin_in_their_order_whichever_speaks_first():
    """The SDK's accumulator puts a choice where it first appears, and looks for it by its index."""

    class OutOfOrder:
        plan = SimpleNamespace(logprobs=False)
        call = SimpleNamespace(choices=4, include_usage=False, model_name="m", plan=plan, aliases={})

        async def follow(self):
            for index, text in ((2, "c"), (0, "a"), (3, "d"), (2, "C"), (1, "b")):
                yield index, SimpleNamespace(message=ParsedMessage(text), ids=[])

    state = ChatCompletionStreamState()
    async for event in write_events(OutOfOrder()):
        if b"[DONE]" not in event:
            state.handle_chunk(ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: ")))
    choices = state.current_completion_snapshot.choices
    assert [(one.index, one.message.role, one.message.content) for one in choices] == [
        (0, "assistant", "a"),
        (1, "assistant", "b"),
        (2, "assistant", "cC"),
        (3, "assistant", "d"),
    ]


async def test_a_chunk_holds_one_kind_of_news():
    """However much of an answer comes at once: AutoGen's client drops the calls of a chunk that has words too."""

    class AtOnce:
        plan = SimpleNamespace(logprobs=True)
        call = SimpleNamespace(choices=1, include_usage=False, model_name="m", plan=plan, aliases={})
        model = SimpleNamespace(renderer=SimpleNamespace(detokenizer=SimpleNamespace(token_bytes=lambda _: b"x")))

        async def follow(self):
            message = ParsedMessage(
                "Let me look.", "Hm.", [ParsedToolCall("look", "{}", "a"), ParsedToolCall("go", "{}", "b")]
            )
            yield 0, SimpleNamespace(message=message, ids=[7], logprobs=[-0.5], top_logprobs=[[]])

    events = [
        json.loads(event.removeprefix(b"data: ")) async for event in write_events(AtOnce()) if b"[DONE]" not in event
    ]
    choices = [event["choices"][0] for event in events]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm."},
        {"content": "Let me look."},
        {
            "tool_calls": [
                {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                {"index": 1, "id": "b", "type": "function", "function": {"name": "go", "arguments": "{}"}},
            ]
        },
    ]
    logprobs = [choice["logprobs"] for choice in choices]
    assert [one and [entry["logprob"] for entry in one["content"]] for one in logprobs] == [None, [-0.5], None, None]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_those_of_the_engine(gateway, stream):
    client, _ = gateway.new_client()
    gateway.engine.say("é!")
    options = {"model": "m", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    if stream:
        content = [
            entry
            async for chunk in await client.chat.completions.create(**options, stream=True)
            if chunk.choices[0].logprobs
            for entry in chunk.choices[0].logprobs.content
        ]
    else:
        content = (await client.chat.completions.create(**options)).choices[0].logprobs.content
    ids = gateway.engine.calls[0].returned
    assert [entry.logprob for entry in content] == [logprob_of(t, i) for i, t in enumerate(ids)]
    assert bytes(byte for entry in content for byte in entry.bytes) == "é!<|im_end|>".encode()
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    assert content[0].top_logprobs[0].logprob == content[0].logprob


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_text_but_keeps_the_sampled_ids(gateway, stream):
    client, rollout = gateway.new_client()
    gateway.engine.token_delay_s = 0.01
    gateway.engine.say("Thought: x\nObservation: " + "never " * 40, "Next")
    options = {"model": "m", "messages": HELLO, "stop": ["Observation:", "unseen"]}
    if stream:
        stream = await client.chat.completions.create(**options, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    else:
        answer = await client.chat.completions.create(**options)
        text = answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
    assert text == "Thought: x\n"
    (turn,) = gateway.turns(rollout)
    assert gateway.renderer.detokenizer.decode(turn.ids) == "Thought: x\nObservation:"
    await until(lambda: not gateway.engine.calls[0].running)
    assert gateway.engine.calls[0].cancelled, "the engine goes on after the stop string"
    messages = [*HELLO, {"role": "assistant", "content": text}, {"role": "user", "content": "?"}]
    await client.chat.completions.create(model="m", messages=messages)
    (row,) = gateway.captures.rows(rollout).rows
    assert gateway.renderer.detokenizer.decode(row.token_ids).count("Observation:") == 1


async def test_settings_that_cannot_be_trained_are_named(gateway):
    client, rollout = gateway.new_client()
    for options in ({"top_p": 0.9}, {"temperature": 0}, {"temperature": 0.5}, {"presence_penalty": 0.1}):
        await client.chat.completions.create(model="m", messages=HELLO, **options)
    sent = gateway.engine.calls[1].params
    assert sent["temperature"] == 0, "zero is a value"
    rows = gateway.captures.rows(rollout)
    assert [row.temperature for row in rows.rows] == [0.5]
    assert ["top_p=0.9" in rows.untrainable_turns[0], "temperature=0" in rows.untrainable_turns[1]] == [True, True]
    assert "presence_penalty=0.1" in rows.untrainable_turns[2]


async def test_huge_limits_are_clamped_and_unknown_fields_ignored(gateway):
    client, _ = gateway.new_client()
    await client.chat.completions.create(
        model="m",
        messages=HELLO,
        max_completion_tokens=128_000,
        store=True,
        metadata={"a": "b"},
        parallel_tool_calls=True,
        extra_body={"include": [], "text": {}, "reasoning": {"effort": "none"}, "thread": 1},
    )
    call = gateway.engine.calls[0]
    assert call.params["max_tokens"] == gateway.model.max_sequence_length - len(call.fed)


async def test_a_prompt_that_does_not_fit_ends_the_episode_as_truncated(gateway):
    client, rollout = gateway.new_client()
    for size in (2000, 400_000):
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * size}])
        assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("length", "")
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "x" * 2000}], stream=True
    )
    assert [chunk.choices[0].finish_reason async for chunk in stream] == [None, "length"]
    assert gateway.engine.calls == []
    assert gateway.captures.get(rollout).truncated
    await client.chat.completions.create(model="m", messages=HELLO)
    gateway.check(rollout)


@pytest.mark.parametrize("size", [2000, 400_000])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("key", ["rollout", "model"])
async def test_what_did_not_fit_says_that_nothing_was_sampled(gateway, key, stream, size):
    """So that a trajectory that holds the choice is not taken for one of another endpoint."""
    client, rollout = gateway.new_client() if key == "rollout" else (gateway.client(MODEL_KEY), None)
    answer = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "x" * size}], stream=stream
    )
    last = [chunk async for chunk in answer][-1] if stream else answer
    assert last.choices[0].model_extra["art"] == {"turn": None, "rollout": rollout, "policy_version": 0}


async def test_the_service_key_is_not_captured(gateway):
    answer = await gateway.client(SERVICE_KEY).chat.completions.create(model="m", messages=HELLO)
    assert answer.choices[0].model_extra["art"] is None


async def test_a_rollout_in_the_url_needs_its_own_key_or_the_services(gateway):
    info, other = gateway.rollout(), gateway.rollout()
    for key in (info.api_key, SERVICE_KEY):
        await gateway.client(key, rollout=info.id).chat.completions.create(model="m", messages=HELLO)
    assert len(gateway.turns(info.id)) == 2
    for key in (other.api_key, MODEL_KEY, "nonsense"):
        with pytest.raises(openai.AuthenticationError):
            await gateway.client(key, rollout=info.id).chat.completions.create(model="m", messages=HELLO)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_is_on_disk_before_the_end_of_its_answer(gateway, tmp_path, stream):
    """As another process sees it; a stream's words come before, since it is not a turn yet."""
    client, rollout = gateway.new_client()
    gateway.engine.token_delay_s = 0.02
    gateway.engine.say("some words")

    def stored():
        with contextlib.closing(sqlite3.connect(tmp_path / "art.db")) as other:
            return [row[0] for row in other.execute("SELECT id FROM turns WHERE rollout = ?", (rollout,))]

    answer = await client.chat.completions.create(model="m", messages=HELLO, stream=stream)
    if stream:
        assert stored() == []
        async for chunk in answer:
            if chunk.choices[0].finish_reason:
                assert stored() == [chunk.choices[0].model_extra["art"]["turn"]]
                break
    assert len(stored()) == 1


async def test_a_seed_makes_a_request_repeatable_and_not_its_choices_the_same(gateway):
    client, _ = gateway.new_client()
    for seed in (5, 5, None):
        options = {} if seed is None else {"seed": seed}
        await client.chat.completions.create(model="m", messages=HELLO, n=2, **options)
    assert [call.params.get("seed") for call in gateway.engine.calls] == [5, 6, 5, 6, None, None]


async def test_a_restart_between_turns_loses_nothing(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("one", "two")
    await client.chat.completions.create(model="m", messages=HELLO)
    before = gateway.captures.rows(rollout)
    gateway.captures._recent.clear()  # all that a restart forgets
    gateway.captures._in_use.clear()
    assert gateway.captures.rows(rollout) == before
    messages = [*HELLO, {"role": "assistant", "content": "one"}, {"role": "user", "content": "?"}]
    await client.chat.completions.create(model="m", messages=messages)
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)
