"""Completions through the official SDK: text and ids."""

import sys
from array import array
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from tests.support.scripted_engine import logprob_of

from art_backend.tokens.tree import PlainText, Tree, Turn


async def test_a_text_that_grows_keeps_the_served_ids(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.emit(gateway.renderer.encode(" there is"))  # cut by max_tokens: no end of turn
    gateway.engine.say(" a way.")
    first = await client.completions.create(model="m", prompt="Where", max_tokens=9)
    assert (first.choices[0].text, first.choices[0].finish_reason) == (" there is", "length")
    second = await client.completions.create(model="m", prompt=f"Where{first.choices[0].text} will")
    assert (second.choices[0].text, second.choices[0].finish_reason) == (" a way.", "stop")
    assert gateway.engine.calls[1].params["max_tokens"] == 16, "the protocol's default"
    (row,) = gateway.captures.rows(rollout).rows
    assert gateway.renderer.detokenizer.decode(row.token_ids) == "Where there is will a way."
    assert second.choices[0].model_extra["art"]["turn"] == gateway.turns(rollout)[1].id
    gateway.check(rollout)


async def test_text_after_an_ended_turn_leaves_the_end_behind(gateway):
    """The caller's text has no end-of-turn token, so the engine is not fed one."""
    client, rollout = gateway.new_client()
    gateway.engine.say("One.", "Two.")
    await client.completions.create(model="m", prompt="Count: ")
    await client.completions.create(model="m", prompt="Count: One. ")
    assert gateway.engine.calls[1].fed == gateway.renderer.encode("Count: One. ")
    assert len(gateway.captures.rows(rollout).rows) == 2
    gateway.check(rollout)


async def test_a_stop_string_that_the_caller_writes_is_found_again(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say("Thought\nObservation: made up", "Done")
    first = await client.completions.create(model="m", prompt="Q\n", stop=["Observation:"], max_tokens=99)
    assert first.choices[0].text == "Thought\n"
    prompt = f"Q\n{first.choices[0].text}Observation: sunny\n"
    await client.completions.create(model="m", prompt=prompt)
    (row,) = gateway.captures.rows(rollout).rows
    assert gateway.renderer.detokenizer.decode(row.token_ids) == prompt + "Done"
    gateway.check(rollout)


async def test_prompts_of_ids_are_served_as_they_are(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.emit([70, 71, 2])
    first = await client.completions.create(model="m", prompt=[5, 6, 7])
    ids = first.choices[0].model_extra["token_ids"]
    assert ids == [70, 71, 2]
    await client.completions.create(model="m", prompt=[5, 6, 7, *ids, 9])
    await client.completions.create(model="m", prompt=[5, 6, 7, *ids[:-1], 9])
    assert [call.fed for call in gateway.engine.calls] == [[5, 6, 7], [5, 6, 7, 70, 71, 2, 9], [5, 6, 7, 70, 71, 9]]
    assert len(gateway.captures.rows(rollout).rows) == 2
    gateway.check(rollout)


async def test_several_prompts_and_choices(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.choose = lambda call: [*call.fed[:1], 2]
    answer = await client.completions.create(model="m", prompt=["ab", "cd"], n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["aba", "aba", "cdc", "cdc"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 4 and answer.usage.completion_tokens == 8
    assert len(gateway.captures.tree(rollout).prompts) == 2
    gateway.check(rollout)
    texts = [""] * 2
    async for chunk in await client.completions.create(model="m", prompt=[[70], [71]], stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [gateway.renderer.detokenizer.decode([i]) for i in (70, 71)]
    gateway.check(rollout)


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_have_the_old_shape(gateway, stream):
    client, _ = gateway.new_client()
    gateway.engine.say("é<think>")
    answer = await client.completions.create(model="m", prompt="x", logprobs=2, max_tokens=20, stream=stream)
    choices = [chunk.choices[0] async for chunk in answer] if stream else [answer.choices[0]]
    assert "".join(choice.text for choice in choices) == "é<think>"
    found = [choice.logprobs for choice in choices if choice.logprobs]
    ids = gateway.engine.calls[0].returned
    assert [x for one in found for x in one.token_logprobs] == [logprob_of(t, i) for i, t in enumerate(ids)]
    tokens = [x for one in found for x in one.tokens]
    assert tokens[:3] == ["bytes:\\xc3", "bytes:\\xa9", "<"]
    assert all(len(top) == 2 for one in found for top in one.top_logprobs)


async def test_a_prompt_without_room_is_truncated(gateway):
    client, rollout = gateway.new_client()
    answer = await client.completions.create(model="m", prompt="x" * 3000)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "length")
    assert gateway.captures.get(rollout).truncated


async def test_bad_prompts_are_named(gateway):
    client, _ = gateway.new_client()
    for options, param in (
        ({"prompt": None}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [1, "a"]}, "prompt"), ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"), ({"prompt": [True]}, "prompt"), ({"prompt": [99_999]}, "prompt"), ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"), ({"prompt": "x", "logprobs": True}, "logprobs"), ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "echo": 1}, "echo"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="m", **options)
        assert caught.value.param == param, options


async def test_text_of_a_restarted_service_goes_on(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.emit([70] * 20)
    first = await client.completions.create(model="m", prompt="Where", max_tokens=3)
    gateway.captures._recent.clear()
    gateway.captures._in_use.clear()
    await client.completions.create(model="m", prompt=f"Where{first.choices[0].text}!")
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


def test_a_text_is_placed_while_another_thread_commits():
    tree, text = Tree(), PlainText(b"text", b"x", lambda text, beginning: [1])
    base = tree.place_text(text)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            commits = pool.submit(_commit_texts, tree, base, 20_000)
            while not commits.done():
                assert tree.known_text(text) == 0
            commits.result()
    finally:
        sys.setswitchinterval(interval)


def _commit_texts(tree, prompt, number):
    for end in range(2, number):
        message = {"role": "completion", "content": "", "end": end, "silent": 0}
        tree.add(Turn(str(end), prompt, array("i"), array("d"), end.to_bytes(16), message, 0, {}, None, "stop"))
