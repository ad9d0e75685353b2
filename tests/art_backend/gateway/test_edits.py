"""What an agent changed in its history is what the engine is fed; what frameworks only spell in another way is recognised."""

import pytest
from tests.art_backend.gateway.conftest import MODEL_KEY, start_gateway
from tests.support.tiny import build_tiny_tokenizer

from art_backend.gateway.dialects.chat_messages import read_messages

HELLO = [{"role": "user", "content": "?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER_TOOL = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
THOUGHT = "<think>\nprivate\n</think>\n\n"


def call(arguments, name="f", call_id: str | None = "call_1"):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if call_id is None else {**made, "id": call_id}


def history(*, said=None, calls=None, reasoning=None, result: object = "ok"):
    message = {"role": "assistant", "content": said, "reasoning_content": reasoning}
    if not calls:
        return [*HELLO, message, *HELLO]
    results = [{"role": "tool", "tool_call_id": one.get("id", ""), "content": result} for one in calls]
    return [*HELLO, {**message, "tool_calls": calls}, *results]


def fed(gateway):
    return gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)


async def ask(client, messages):
    answer = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL, OTHER_TOOL])
    return answer.choices[0].message


PAIRS = {
    "arguments": [history(calls=[call(f'{{"a": "{city}"}}')]) for city in ("Paris", "Rome")],
    "the function": [history(calls=[call("{}", name)]) for name in ("f", "g")],
    "arguments without ids": [history(calls=[call(f'{{"a": "{city}"}}', call_id=None)]) for city in ("Paris", "Rome")],
    "an empty id": [history(calls=[call(f'{{"a": "{city}"}}', call_id="")]) for city in ("Paris", "Rome")],
    "numbers and truth": [history(calls=[call(f'{{"a": {value}}}')]) for value in ("1", "true")],
    "one call and two": [history(calls=[call("{}")] * n) for n in (1, 2)],
    "words beside a call": [history(calls=[call("{}")], said=words) for words in ("Paris", "Rome")],
    "a result": [history(calls=[call("{}")], result=words) for words in ("Paris", "Rome")],
    "a result's parts": [
        history(calls=[call("{}")], result=[{"type": "text", "text": words}]) for words in ("Paris", "Rome")
    ],
    "reasoning": [history(said="Yes.", reasoning=words) for words in ("Paris", "Rome")],
    "reasoning beside a call": [history(calls=[call("{}")], reasoning=words) for words in ("Paris", "Rome")],
}
SHOWS_ALL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}"
    "<|im_end|>\n{% endfor %}{{ tools | length }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
async def showing_gateway(tmp_path):
    """A gateway whose chat template shows all of a message."""
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = SHOWS_ALL
    async with start_gateway(tmp_path, tokenizer) as running:
        yield running


@pytest.mark.parametrize("key", ["rollout", "model"])
@pytest.mark.parametrize("what", PAIRS)
async def test_other_histories_are_fed_as_they_are(showing_gateway, what, key):
    gateway = showing_gateway
    client = gateway.client(MODEL_KEY) if key == "model" else gateway.new_client()[0]
    prompts = []
    for messages in (*PAIRS[what], PAIRS[what][0]):
        await ask(client, messages)
        expected = gateway.renderer.render(read_messages(messages), [TOOL, OTHER_TOOL])
        assert gateway.engine.calls[-1].fed == expected
        prompts.append(expected)
    assert prompts[0] == prompts[2] != prompts[1]


SAMPLED = 'Wait. \n<tool_call>\n{"name": "f", "arguments": {"a": "Paris", "n": 1}}\n</tool_call>'
REWRITES = {
    "verbatim": (lambda m, f: None, True),
    "another order and spelling": (lambda m, f: f.update(arguments='{"n":1.0,\n"a":"P\\u0061ris"}'), True),
    "arguments dropped": (lambda m, f: f.update(arguments=""), True),
    "null": (lambda m, f: f.update(arguments="null"), True),
    "words dropped": (lambda m, f: m.update(content=None), True),
    "reasoning dropped": (lambda m, f: m.pop("reasoning_content"), True),
    "reasoning stripped": (lambda m, f: m.update(reasoning_content=" private\n"), True),
    "other arguments": (lambda m, f: f.update(arguments='{"a": "Rome", "n": 1}'), False),
    "more arguments": (lambda m, f: f.update(arguments='{"a": "Paris", "n": 1, "b": 2}'), False),
    "a number that is true": (lambda m, f: f.update(arguments='{"a": "Paris", "n": true}'), False),
    "a long number": (lambda m, f: f.update(arguments='{"a": "Paris", "n": 1000000000000000000000000001}'), False),
    "broken arguments": (lambda m, f: f.update(arguments='{"a": "Paris'), False),
    "another function": (lambda m, f: f.update(name="g"), False),
    "other words": (lambda m, f: m.update(content="Go."), False),
    "other reasoning": (lambda m, f: m.update(reasoning_content="public"), False),
}


@pytest.mark.parametrize("key", ["rollout", "model"])
@pytest.mark.parametrize("how", REWRITES)
async def test_a_call_that_was_issued_here_and_comes_back(gateway, how, key):
    client = gateway.client(MODEL_KEY) if key == "model" else gateway.new_client()[0]
    gateway.engine.say(THOUGHT + SAMPLED)
    message = (await ask(client, HELLO)).model_dump(exclude_none=True)
    served = [*gateway.engine.calls[-1].fed, *gateway.engine.calls[-1].returned]
    rewrite, same = REWRITES[how]
    rewrite(message, message["tool_calls"][0]["function"])
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}
    await ask(client, [*HELLO, message, result])
    assert (gateway.engine.calls[-1].fed[: len(served)] == served) == same
    if how == "other arguments":
        assert "Rome" in fed(gateway) and "Paris" not in fed(gateway)


async def test_what_a_model_thought_is_shown_to_no_other_agent(gateway):
    """Under a model's key all conversations share a tree; without a call that was issued here nothing tells them apart."""
    one, other = gateway.client(MODEL_KEY), gateway.client(MODEL_KEY)
    gateway.engine.say(THOUGHT + "Yes.")
    said = await ask(one, HELLO)
    assert said.reasoning_content == "private"
    await ask(other, [*HELLO, {"role": "assistant", "content": "Yes."}, *HELLO])
    assert "private" not in fed(gateway)
    await ask(one, [*HELLO, said, *HELLO])
    assert "private" in fed(gateway), "who knows it may go on from it"


async def test_after_a_call_of_its_own_an_agent_may_drop_its_reasoning(gateway):
    client = gateway.client(MODEL_KEY)
    gateway.engine.say(THOUGHT + SAMPLED, THOUGHT + "Yes.", "Bye.")
    messages = list(HELLO)
    for _ in range(2):
        said = (await ask(client, messages)).model_dump(exclude_none=True)
        del said["reasoning_content"]
        messages += [
            said,
            *({"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in said.get("tool_calls", ())),
        ]
    await ask(client, [*messages, *HELLO])
    assert fed(gateway).count("private") == 2


async def test_equal_words_with_and_without_reasoning(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say(THOUGHT + "Yes.", "Yes.", "<think>\nother\n</think>\n\nYes.")
    said = [await ask(client, HELLO) for _ in range(3)]
    for message, expected in ((said[0], "private"), (said[1], None), (said[2], "other")):
        await ask(client, [*HELLO, message, *HELLO])
        assert [word for word in ("private", "other") if word in fed(gateway)] == ([expected] if expected else [])
    gateway.check(rollout)
