"""Every way in which templates write calls is learned from the template, read back, and forced where a call is required."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.art_backend.gateway.conftest import start_gateway
from tests.art_backend.gateway.templates import NOTATIONS, Template, chatml, with_template
from tests.art_backend.gateway.test_guard import FAMILIES, build

from art_backend.errors import BadRequestError
from art_backend.gateway.form import Form
from art_backend.tokens.grammar.vocabulary import GrammarVocabulary
from art_backend.tokens.parse import ParsedMessage
from art_backend.tokens.render import ChatRenderer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Bern", "Zürich"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "note": {"type": "string", "maxLength": 5},
        "sure": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in ("f", "get_weather")]
HELLO = [{"role": "user", "content": "Hello"}]
CALLS = [("f", {"city": "Bern", "days": 7, "note": "it's", "sure": True, "list": [1, 2]}), ("get_weather", {"city": "Zürich", "days": 0})]  # fmt: skip
RENDERERS: dict[str, ChatRenderer] = {}


def renderer_of(kind: str) -> ChatRenderer:
    if kind not in RENDERERS:
        RENDERERS[kind] = build(kind)[0] if kind in FAMILIES else ChatRenderer(with_template(NOTATIONS[kind]))
    return RENDERERS[kind]


def spell(renderer: ChatRenderer, calls) -> str:
    """What the template writes for a message with calls."""
    made = [
        {"id": f"abcdefgh{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    ids = renderer.spell(HELLO, {"role": "assistant", "content": "", "tool_calls": made}, TOOLS)
    return renderer._backend.decode(
        ids[: -1 if ids[-1] in renderer.stop_token_ids else None], skip_special_tokens=False
    )


def several(renderer):
    return renderer.notation.separator is not None


def read(message: ParsedMessage):
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


EVERY = pytest.mark.parametrize("kind", [*NOTATIONS, *FAMILIES])
OURS = pytest.mark.parametrize("kind", NOTATIONS)


@EVERY
def test_what_the_template_writes_is_read_back(kind):
    renderer = renderer_of(kind)
    assert renderer.explain_calls() is None
    calls = CALLS if several(renderer) else CALLS[:1]
    prompt = renderer.render(HELLO, TOOLS)
    message = renderer.parse(renderer.encode(spell(renderer, calls)), prompt, TOOLS)
    assert read(message) == calls and not message.content.strip()


VALUES = st.fixed_dictionaries(
    {"city": st.sampled_from(["Bern", "Zürich"]), "days": st.integers(0, 99)},
    optional={
        "note": st.text("ab <>=()[]{},:'/", max_size=9),
        "sure": st.booleans(),
        "list": st.lists(st.integers(0, 9), max_size=2),
    },
)


@OURS
def test_any_cut_of_any_call_reads_the_same(kind):
    renderer = renderer_of(kind)

    @settings(max_examples=15, deadline=None)
    @given(
        st.lists(st.tuples(st.sampled_from(["f", "get_weather"]), VALUES), min_size=1, max_size=2), st.integers(1, 9)
    )
    def check(calls, size):
        calls = calls if several(renderer) else calls[:1]
        ids = renderer.encode(spell(renderer, calls))
        stream = renderer.stream((5,), TOOLS)
        streamed = ParsedMessage()
        for at in range(0, len(ids), size):
            streamed.extend(stream.feed(ids[at : at + size]))
        streamed.extend(stream.finish())
        assert read(streamed) == read(renderer.parse(ids, (5,), TOOLS)) == calls
        assert not streamed.content.strip()

    check()


@OURS
def test_text_that_is_no_call_stays_text(kind):
    renderer = renderer_of(kind)
    spelled = spell(renderer, CALLS[:1])
    for said in (
        "Hello.",
        "[1, 2]",
        '{"answer": {"name": 1}}',
        '{"name": "nobody", "parameters": {}}',
        "<b>bold</b>",
        spelled[:-9],
    ):
        message = renderer.parse(renderer.encode(said), (5,), TOOLS)
        shown = message.content
        if renderer.notation.bare or not said.startswith(renderer.notation.mark):
            assert (shown, message.tool_calls) == (said, []), said
    assert not renderer.parse(renderer.encode(spelled), (5,), None).tool_calls


@OURS
def test_a_whole_call_before_a_cut_one_is_a_call(kind):
    renderer = renderer_of(kind)
    if several(renderer):
        spelled = spell(renderer, CALLS)
        cut = spelled[: spelled.rindex("days")]
        assert read(renderer.parse(renderer.encode(cut), (5,), TOOLS)) == CALLS[:1]
        assert "get_weather" in renderer.parse(renderer.encode(cut), (5,), TOOLS).content


def sample(renderer, structure, chance, most=3000):
    """A random completion under a structure, which ends where it may."""
    vocabulary = GrammarVocabulary(renderer._tokenizer, renderer.vocabulary_size)
    guide, ids = vocabulary.start(structure, (2,)), []
    while len(ids) < most:
        allowed = [i for i in guide.allowed().nonzero()[0].tolist() if i != renderer.mark("<think>")]
        token = 2 if 2 in allowed and chance.random() < 0.5 else chance.choice(allowed)
        if token == 2:
            return ids
        ids.append(token)
        guide.accept(token)
    raise AssertionError(f"no end: {renderer._backend.decode(ids, skip_special_tokens=False)[-200:]}")


@EVERY
@pytest.mark.parametrize("single", [False, True])
def test_a_required_call_is_forced_in_the_templates_notation(kind, single):
    renderer, chance = renderer_of(kind), random.Random(0)
    prompt = [renderer.encode("x")[0]]
    bounded = {**SCHEMA, "properties": {k: v for k, v in SCHEMA["properties"].items() if k != "note"}}
    tools = [{"type": "function", "function": {"name": n, "parameters": bounded}} for n in ("f", "get_weather")]
    structure = Form(calls="required", single=single, allowed=frozenset(["get_weather"])).structure(
        renderer, prompt, tools
    )
    assert structure is not None
    for _ in range(4):
        ids = sample(renderer, structure, chance)
        message = renderer.parse(ids, prompt, tools)
        calls = read(message)
        text = renderer._backend.decode(ids, skip_special_tokens=False)
        assert calls and not message.content.strip(), text
        assert len(calls) == 1 or not single
        for name, arguments in calls:
            assert name == "get_weather" and arguments["city"] in ("Bern", "Zürich") and 0 <= arguments["days"] <= 99, (
                text
            )
            assert set(arguments) <= set(bounded["properties"])


@OURS
@pytest.mark.parametrize(("mode", "strict"), [("required", True), ("auto", True), ("auto", False)])
def test_the_grammar_allows_what_the_template_writes(kind, mode, strict):
    renderer = renderer_of(kind)
    names = frozenset(["f", "get_weather"])
    vocabulary = GrammarVocabulary(renderer._tokenizer, renderer.vocabulary_size)
    structure = Form(calls=mode, allowed=names, strict=names if strict else frozenset()).structure(
        renderer, (5,), TOOLS
    )
    if structure is None:
        assert mode == "auto" and renderer.notation.bare
        return
    for calls in (CALLS[:1], CALLS[1:], CALLS if several(renderer) else CALLS[1:]):
        guide = vocabulary.start(structure, (2,))
        for token in renderer.encode(spell(renderer, calls)):
            assert guide.allowed()[token]
            guide.accept(token)
        assert guide.allowed()[2]
    if mode == "auto":
        guide = vocabulary.start(structure, (2,))
        for token in renderer.encode("Just words."):
            guide.accept(token)
        assert guide.allowed()[2]


SILENT = Template(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{#- tools #}"
)
OTHER = chatml("{{ 'I call ' + m.tool_calls[0].function.name + '!' }}")
REFUSING = chatml("{{ raise_exception('no calls, please') }}")


@pytest.mark.parametrize("template", [SILENT, OTHER, REFUSING])
def test_calls_that_are_not_read_back_are_named(template):
    renderer = ChatRenderer(with_template(template))
    problem = renderer.explain_calls()
    assert problem is not None and "chat template" in problem
    with pytest.raises(BadRequestError, match="chat template") as caught:
        Form(calls="required").structure(renderer, (5,), TOOLS)
    assert caught.value.param == "tool_choice"
    assert Form(strict=frozenset("f")).structure(renderer, (5,), TOOLS) is None
    said = renderer.encode('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    assert read(renderer.parse(said, (5,), TOOLS)) == [("f", {})]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen-coder", "functions without a wrapper", "pythonic"])
async def test_an_agent_gets_calls_and_its_conversation_is_one_row(tmp_path, kind, stream):
    async with start_gateway(tmp_path, tokenizer=with_template(NOTATIONS[kind])) as gateway:
        gateway.model.max_sequence_length = 8000
        client, rollout = gateway.new_client()
        gateway.engine.say(spell(gateway.renderer, CALLS[:1]), "Sunny.")
        options: dict[str, Any] = {"model": "m", "tools": TOOLS, "tool_choice": "required", "messages": HELLO}
        if stream:
            async with client.chat.completions.stream(**options) as events:
                async for _ in events:
                    pass
                answer = await events.get_final_completion()
        else:
            answer = await client.chat.completions.create(**options)
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments), choice.finish_reason) == (
            *CALLS[0],
            "tool_calls",
        )
        forced = gateway.engine.calls[-1].params["structured_outputs"]["grammar"]
        assert "<tool_call>" not in forced
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        options |= {"messages": [*HELLO, choice.message, result], "tool_choice": "auto"}
        last = await client.chat.completions.create(**options)
        assert last.choices[0].message.content == "Sunny."
        assert len(gateway.captures.rows(rollout).rows) == 1
        gateway.check(rollout)
