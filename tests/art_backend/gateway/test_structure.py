"""Structured output by the embedded engine, asked for with the official SDKs: whatever a random model says, it fits."""

import json
import re
from typing import Literal

import anthropic
import numpy as np
import openai
import pytest
import pytest_asyncio
import torch
from openai.lib.streaming.chat import ChatCompletionStreamState
from pydantic import BaseModel, ConfigDict, Field
from tests.art_backend.gateway.conftest import check_rows, start_gateway
from tests.support.tiny import build_tiny_model, build_tiny_tokenizer
from transformers import AutoModelForCausalLM

from art.wire import LoraSpec, TrainOptions
from art_backend.engines.process import EngineProcess, EngineSettings
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.vocabulary import GrammarVocabulary
from art_backend.training.policy.adapter import AdapterPolicy
from art_backend.training.rows.batch import build_batch, weigh
from art_backend.training.rows.packing import pack_rows
from art_backend.training.rows.structures import StructureReplay
from art_backend.training.rows.targets import read_targets
from art_backend.training.types import ScoredTrajectory, StepInput

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = [{"role": "user", "content": "Hello"}]


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    mood: Literal["glad", "sad"]
    size: int = Field(ge=0, le=99)


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: Literal["Bern", "Zürich"]
    days: int = Field(ge=1, le=9)


ARGUMENTS = {"meet": Person, "visit": Place}
FUNCTIONS = [{"name": n, "parameters": m.model_json_schema(), "strict": True} for n, m in ARGUMENTS.items()]
CHAT_TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
FLAT_TOOLS = [{"type": "function", **function} for function in FUNCTIONS]
ANTHROPIC_TOOLS = [{"name": n, "input_schema": m.model_json_schema()} for n, m in ARGUMENTS.items()]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": Person.model_json_schema()}}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(model_path, tmp_path_factory):
    directory = tmp_path_factory.mktemp("structure")
    engine = await EngineProcess.start(
        EngineSettings(model_path, "m@0", directory / "engine.log", dtype="float32", threads=1, kv_cache_mib=32)
    )
    async with start_gateway(directory, client=engine.client) as gateway:
        yield gateway
    await engine.stop()


@pytest.fixture
def rollout(running):
    """A rollout; when the test is over its rows hold every sampled token once."""
    info = running.rollout()
    yield info
    check_rows(running.captures.rows(info.id).rows, running.turns(info.id))


@pytest.fixture
def client(running, rollout):
    return running.client(rollout.api_key)


@pytest.fixture
def claude(running, rollout):
    return anthropic.AsyncAnthropic(base_url=running.url, api_key=rollout.api_key, max_retries=0)


async def chat(client, *, stream, **options):
    """The choices of an answer."""
    options = {"model": "m", "messages": HELLO, "max_tokens": 400, "seed": 7, **options}
    if not stream:
        return (await client.chat.completions.create(**options)).choices
    state = ChatCompletionStreamState()
    async for chunk in await client.chat.completions.create(**options, stream=True):
        state.handle_chunk(chunk)
    try:
        completion = state.get_final_completion()
    except openai.LengthFinishReasonError as error:
        completion = error.completion
    return sorted(completion.choices, key=lambda choice: choice.index)


def check_calls(calls, names=frozenset(ARGUMENTS)):
    assert calls
    for call in calls:
        assert call.function.name in names
        ARGUMENTS[call.function.name].model_validate_json(call.function.arguments)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_json_schema_is_kept_in_every_choice(client, stream):
    choices = await chat(client, stream=stream, response_format=SCHEMA, n=4)
    people = [Person.model_validate_json(choice.message.content) for choice in choices]
    assert [choice.finish_reason for choice in choices] == ["stop"] * 4
    assert len({person.name for person in people}) > 1


async def test_a_pydantic_model_is_parsed_by_the_sdk(client):
    answer = await client.chat.completions.parse(model="m", messages=HELLO, response_format=Person)
    assert isinstance(answer.choices[0].message.parsed, Person)
    response = await client.responses.parse(model="m", input="Hello", text_format=Person)
    assert isinstance(response.output_parsed, Person)


@pytest.mark.parametrize("stream", [False, True])
async def test_json_objects_cut_short_say_so(client, stream):
    choices = await chat(client, stream=stream, response_format={"type": "json_object"}, n=16, max_tokens=3)
    for choice in choices:
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
    assert "length" in {choice.finish_reason for choice in choices}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names", "most"),
    [
        ("required", {"meet", "visit"}, None),
        ({"type": "function", "function": {"name": "visit"}}, {"visit"}, 1),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "meet"}}],
                },
            },
            {"meet"},
            None,
        ),
    ],
)
async def test_tool_choice_is_kept(client, choice, names, most, stream):
    for answer in await chat(client, stream=stream, tools=CHAT_TOOLS, tool_choice=choice, n=3, seed=5):
        assert answer.finish_reason in ("tool_calls", *(["length"] if most is None else []))
        assert "<tool_call>" in answer.message.content if answer.message.content else True, "all but a call cut short"
        check_calls(answer.message.tool_calls, names)
        assert most is None or len(answer.message.tool_calls) == most


async def test_one_call_at_a_time(client):
    answers = await chat(client, stream=False, tools=CHAT_TOOLS, tool_choice="required", parallel_tool_calls=False, n=4)
    assert [len(answer.message.tool_calls) for answer in answers] == [1] * 4


async def test_strict_tools_leave_words_free(client):
    answers = await chat(client, stream=False, tools=CHAT_TOOLS, n=4, max_tokens=30, tool_choice="auto")
    assert any(answer.message.content for answer in answers)
    assert not any(answer.message.tool_calls for answer in answers)


async def test_a_conversation_goes_on_after_enforced_turns(running, rollout, client):
    messages = list(HELLO)
    for options in ({"tool_choice": "required"}, {"response_format": SCHEMA, "tool_choice": "none"}, {}):
        (answer,) = await chat(
            client, stream=False, messages=messages, tools=CHAT_TOOLS, parallel_tool_calls=False, **options
        )
        messages.append(answer.message)
        messages += [{"role": "tool", "tool_call_id": c.id, "content": "ok"} for c in answer.message.tool_calls or ()]
        messages.append({"role": "user", "content": "And now?"})
        if "response_format" in options:
            Person.model_validate_json(answer.message.content)
    assert len(running.turns(rollout.id)) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_a_structure(client, stream):
    (answer,) = await chat(client, stream=stream, response_format=SCHEMA, stop=["mood"])
    assert re.fullmatch(r'\{\s*"name"\s*:\s*".*"\s*,\s*"', answer.message.content, re.DOTALL)
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_keep_formats_and_tool_choices(client, stream):
    async def ask(**options):
        options = {"model": "m", "input": "Hello", "max_output_tokens": 400, **options}
        if not stream:
            return await client.responses.create(**options)
        async with client.responses.stream(**options) as events:
            return await events.get_final_response()

    shape = {"type": "json_schema", "name": "x", "schema": Person.model_json_schema(), "strict": True}
    Person.model_validate_json((await ask(text={"format": shape})).output_text)
    named = {"type": "function", "name": "visit"}
    (call,) = (await ask(tools=FLAT_TOOLS, tool_choice=named)).output
    assert call.name == "visit"
    Place.model_validate_json(call.arguments)
    calls = (await ask(tools=FLAT_TOOLS, tool_choice="required", parallel_tool_calls=False)).output
    assert [item.type for item in calls] == ["function_call"]
    ARGUMENTS[calls[0].name].model_validate_json(calls[0].arguments)


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_keeps_formats_and_tool_choices(claude, stream):
    async def ask(**options):
        options = {"model": "m", "messages": HELLO, "max_tokens": 400, **options}
        if not stream:
            return await claude.messages.create(**options)
        async with claude.messages.stream(**options) as events:
            return await events.get_final_message()

    shape = {"type": "json_schema", "schema": Person.model_json_schema()}
    (block,) = (await ask(output_config={"format": shape})).content
    Person.model_validate_json(block.text)
    for choice, names in (({"type": "any"}, ARGUMENTS), ({"type": "tool", "name": "meet"}, {"meet"})):
        message = await ask(tools=ANTHROPIC_TOOLS, tool_choice={**choice, "disable_parallel_tool_use": True})
        (use,) = message.content
        assert (use.type, message.stop_reason) == ("tool_use", "tool_use")
        assert use.name in names
        ARGUMENTS[use.name].model_validate(use.input)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("structure", "pattern"),
    [
        ({"regex": "[ab]{3}/[0-9]{1,9};"}, "[ab]{3}/[0-9]{1,9};"),  # bounded: a random model likes to repeat itself
        ({"choice": ['left "now"', "right"]}, 'left "now"|right'),
        ({"grammar": 'start: "x" "x"? y\ny: /[0-9]/'}, "xx?[0-9]"),
        ({"json": {"enum": [1, 22]}}, "1|22"),
    ],
)
async def test_completions_and_chats_keep_other_structures(client, structure, pattern, stream):
    extra = {"structured_outputs": structure}
    answer = await client.completions.create(model="m", prompt="Go", max_tokens=200, extra_body=extra, stream=stream)
    text = "".join([part.choices[0].text async for part in answer]) if stream else answer.choices[0].text
    assert re.fullmatch(pattern, text)
    (choice,) = await chat(client, stream=stream, extra_body=extra)
    assert re.fullmatch(pattern, choice.message.content)


async def test_a_grammar_is_a_format(client):
    form = {"type": "grammar", "grammar": 'start: /[ab]/ c\nc: "!" | "?"'}
    (choice,) = await chat(client, stream=False, response_format=form)
    assert re.fullmatch("[ab][!?]", choice.message.content)


async def test_logprobs_are_those_of_what_the_structure_leaves(running, rollout, client, model_path):
    form = {"type": "grammar", "grammar": 'start: ("ab" | /[x-z]/)+ "."'}
    await chat(client, stream=False, response_format=form, temperature=0.7)
    (turn,) = running.turns(rollout.id)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    prompt, ids = turn.prompt.path_ids().tolist(), turn.ids.tolist()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :] / 0.7
    spelled = [ord(c) for c in "abxyz."]
    tokenizer = build_tiny_tokenizer()
    legal = {c: tokenizer.convert_tokens_to_ids(chr(c)) for c in spelled}
    first = [legal[ord(c)] for c in "axyz"]
    before = None
    for row, token, logprob in zip(logits, ids, turn.logprobs, strict=False):
        may = first if before is None else [*first, legal[ord(".")]]
        if before == legal[ord("a")]:
            may = [legal[ord("b")]]
        if before == legal[ord(".")]:
            may = [2]
        assert token in may
        assert logprob == pytest.approx((row[token] - row[may].logsumexp(0)).item(), abs=1e-4)
        before = token


async def test_the_trainer_sees_the_distribution_that_was_sampled(running, rollout, client, model_path):
    """Also where the structure left little, or nothing, of what the policy would have said."""
    await chat(client, stream=False, response_format=SCHEMA, temperature=0.8)
    await chat(client, stream=False, tools=CHAT_TOOLS, tool_choice="required", parallel_tool_calls=False)
    await chat(client, stream=False, tools=CHAT_TOOLS, max_tokens=30)
    await chat(client, stream=False, max_tokens=30)
    rows = running.captures.rows(rollout.id).rows
    assert sorted(len(row.structures) for row in rows) == [0, 1, 1, 1]
    other = ScoredTrajectory(0.0, [rows[0].model_copy(update={"token_ids": [*rows[0].token_ids[:-1], 2]})])
    policy = AdapterPolicy(model_path, LoraSpec(rank=4, alpha=8), precision="float32")
    replay = StructureReplay(model_path, policy.vocabulary)
    step = StepInput([[ScoredTrajectory(1.0, rows), other]], TrainOptions(), 1)
    batch = build_batch(step, vocabulary=policy.vocabulary, max_length=2000, structures=replay)
    assert replay.lost == 0
    seen = 0
    for pack in pack_rows(weigh(batch.members[:1], "token", 2000), 4000):
        targets = read_targets(pack, policy.device)
        ours = targets.logprobs(policy.forward(pack), policy.head).logprobs
        torch.testing.assert_close(ours, targets.engine_logprobs, atol=1e-4, rtol=0)
        forced = targets.engine_logprobs == 0
        assert forced.any()
        assert not ours[forced].any()
        seen += len(ours)
    assert seen == sum(sum(row.sampled) for row in rows)


async def test_what_another_engine_allowed_is_left_out(running, rollout, client, model_path):
    await chat(client, stream=False, response_format={"type": "grammar", "grammar": 'start: "a" /[0-9]/ "b"'})
    (row,) = running.captures.rows(rollout.id).rows
    wrong = row.model_copy(deep=True)
    (span,) = wrong.structures
    wrong.token_ids[span.start + 1] = wrong.token_ids[span.start]
    replay = StructureReplay(model_path, 259)
    trained = np.array(wrong.sampled)
    masks = replay.replay(wrong, trained)
    assert replay.lost == 3
    assert trained.nonzero()[0].tolist() == [span.start]
    assert masks is not None
    assert [mask is not None for mask in masks].count(True) == 1


IMPOSSIBLE = {"type": "integer", "minimum": 5, "maximum": 3}


async def test_what_cannot_be_enforced_is_named(client, claude, running, rollout):
    def tool(parameters, **more):
        return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}

    async def blame(error, call):
        with pytest.raises(error) as caught:
            await call
        return caught.value

    async def blame_chat(**options):
        return (await blame(openai.BadRequestError, client.chat.completions.create(**{**base, **options}))).param

    base = {"model": "m", "messages": HELLO}
    schema = "response_format.json_schema.schema"
    for bad in (IMPOSSIBLE, {"type": "strin"}, {"$ref": "#/nowhere"}, {"type": "string", "pattern": "(?=a)"}, []):
        shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": bad, "strict": True}}
        for stream in (False, True):
            assert await blame_chat(response_format=shape, stream=stream) == schema, bad
    assert await blame_chat(response_format={"type": "json_schema"}) == "response_format.json_schema"
    assert await blame_chat(response_format={"type": "grammar", "grammar": "start: ("}) == "response_format.grammar"
    # what only the engine can tell: no token goes on
    dead = {"type": "grammar", "grammar": "start: /a/ /[^\\s\\S]/"}
    assert await blame_chat(response_format=dead) == "response_format.grammar"
    with pytest.raises(openai.APIError) as caught:
        [_ async for _ in await client.chat.completions.create(**base, response_format=dead, stream=True)]
    assert caught.value.param == "response_format.grammar"
    assert await blame_chat(tools=[tool(IMPOSSIBLE)], tool_choice="required") == "tools.0.function.parameters"
    assert await blame_chat(tools=[tool(IMPOSSIBLE, strict=True)]) == "tools.0.function.parameters"
    assert await blame_chat(tools=CHAT_TOOLS, tool_choice="sometimes") == "tool_choice"
    nobody = {"type": "function", "function": {"name": "nobody"}}
    assert await blame_chat(tools=CHAT_TOOLS, tool_choice=nobody) == "tool_choice"
    assert await blame_chat(tool_choice="required") == "tool_choice"
    assert await blame_chat(parallel_tool_calls="no") == "parallel_tool_calls"
    assert await blame_chat(extra_body={"structured_outputs": {"regex": "("}}) == "structured_outputs.regex"
    assert await blame_chat(extra_body={"structured_outputs": {"choice": []}}) == "structured_outputs.choice"
    assert await blame_chat(extra_body={"structured_outputs": {}}) == "structured_outputs"

    text = {"format": {"type": "json_schema", "name": "x", "schema": IMPOSSIBLE}}
    error = await blame(openai.BadRequestError, client.responses.create(model="m", input="x", text=text))
    assert error.param == "text.format.schema"
    flat = {"type": "function", "name": "f", "parameters": IMPOSSIBLE, "strict": True}
    error = await blame(openai.BadRequestError, client.responses.create(model="m", input="x", tools=[flat]))
    assert error.param == "tools.0.parameters"
    extra = {"structured_outputs": {"json": "{"}}
    error = await blame(openai.BadRequestError, client.completions.create(model="m", prompt="x", extra_body=extra))
    assert error.param == "structured_outputs.json"

    say = {**base, "max_tokens": 9}
    config = {"format": {"type": "json_schema", "schema": IMPOSSIBLE}}
    error = await blame(anthropic.BadRequestError, claude.messages.create(**say, output_config=config))
    assert "output_config.format.schema" in error.message
    tools = [{"name": "f", "input_schema": IMPOSSIBLE}]
    error = await blame(
        anthropic.BadRequestError, claude.messages.create(**say, tools=tools, tool_choice={"type": "any"})
    )
    assert "tools.0.input_schema" in error.message
    error = await blame(anthropic.BadRequestError, claude.messages.create(**say, tool_choice={"type": "any"}))
    assert "tool_choice" in error.message

    assert running.turns(rollout.id) == []
    await chat(client, stream=False, response_format=SCHEMA)
    assert len(running.turns(rollout.id)) == 1


async def test_tools_that_nobody_forces_may_have_any_schema(client):
    await chat(client, stream=False, max_tokens=3, tools=[
        {"type": "function", "function": {"name": "f", "parameters": IMPOSSIBLE}},
    ])  # fmt: skip


async def test_unusual_schemas_of_frameworks_are_enforced_where_they_are_not_strict():
    vocabulary = GrammarVocabulary(build_tiny_tokenizer(), 259)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "type": "object",
        "properties": {
            "a": {"type": "string", "nullable": True, "format": "path", "default": "x"},
            "b": {"not": {"type": "string"}},
            "c": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        },
        "required": ["a", "b", "c"],
    }
    schema["x-guidance"] = {"lenient": True}
    guide = vocabulary.start(Structure("json", json.dumps(schema)), (2,))
    for token in build_tiny_tokenizer().backend_tokenizer.encode('{"a": "x", "b": 1, "c": 2.5}').ids:
        assert guide.allowed()[token]
        guide.accept(token)
    assert guide.allowed()[2]
