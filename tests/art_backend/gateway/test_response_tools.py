"""Tools that the caller runs, in OpenAI's words: declared, called, answered in their own items, and read back."""

import json

import openai
import pytest
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter
from tests.art_backend.gateway.conftest import start_gateway
from tests.art_backend.gateway.test_responses import ask

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
PLAN = {"type": "function", "name": "update_plan", "parameters": {"type": "object"}, "strict": False}
LOOKUP = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}
DECLARED = {
    "custom": {"type": "custom", "name": "patch", "description": "Edit files.", "format": GRAMMAR},
    "local_shell": {"type": "local_shell"},
    "shell": {"type": "shell", "environment": {"type": "local"}},
    "apply_patch": {"type": "apply_patch"},
    "tool_search": {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
    "namespace": {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [LOOKUP]},
    "namespace with custom": {
        "type": "namespace",
        "name": "functions__",
        "description": "",
        "tools": [{"type": "custom", "name": "patch"}],
    },
}
SERVED = [
    {"type": "web_search"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation"},
    {"type": "mcp", "server_label": "s", "server_url": "https://example.com"},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
    {"type": "computer"},
    {"type": "programmatic_tool_calling"},
    {"type": "tool_search"},
    {"type": "shell", "environment": {"type": "container_auto"}},
]
CALLED = {
    "custom": (
        "patch",
        {"input": "*** Begin\n+é"},
        {"type": "custom_tool_call", "name": "patch", "input": "*** Begin\n+é"},
    ),
    "local_shell": (
        "local_shell",
        {"command": ["ls", "-l"], "timeout_ms": 5},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5}},
    ),
    "shell": ("shell", {"commands": ["ls"]}, {"type": "shell_call", "action": {"commands": ["ls"]}}),
    "apply_patch": (
        "apply_patch",
        {"type": "delete_file", "path": "a"},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
    ),
    "tool_search": (
        "tool_search",
        {"query": "mail"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "mail"}},
    ),
    "namespace": (
        "crm__lookup",
        {"id": 1},
        {"type": "function_call", "name": "lookup", "namespace": "crm", "arguments": '{"id": 1}'},
    ),
    "namespace with custom": (
        "functions__patch",
        {"input": "x"},
        {"type": "custom_tool_call", "name": "patch", "namespace": "functions__", "input": "x"},
    ),
}
OUTPUTS = {
    "local_shell": lambda call: {"type": "local_shell_call_output", "id": call.id, "output": "sunny"},
    "shell": lambda call: {
        "type": "shell_call_output",
        "call_id": call.call_id,
        "output": [{"stdout": "sunny", "stderr": "", "outcome": {"type": "exit", "exit_code": 3}}],
    },
    "apply_patch": lambda call: {
        "type": "apply_patch_call_output",
        "call_id": call.call_id,
        "status": "failed",
        "output": "sunny",
    },
    "tool_search": lambda call: {
        "type": "tool_search_output",
        "call_id": call.call_id,
        "execution": "client",
        "tools": [{**LOOKUP, "description": "sunny"}],
    },
    "namespace": lambda call: {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
}


def spell(name, arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"


def told(gateway):
    return gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", DECLARED)
async def test_what_the_caller_runs_is_a_function_and_its_calls_are_items_of_its_type(gateway, kind, stream):
    client, rollout = gateway.new_client()
    name, arguments, expected = CALLED[kind]
    gateway.engine.say("Now:\n" + spell(name, arguments), "Done.", "Bye.")
    tools = [PLAN, *SERVED, DECLARED[kind]]
    first = await ask(client, input="Go", tools=tools, stream=stream)
    assert name in told(gateway) and "web_search" not in told(gateway)
    message, call = first.output
    TypeAdapter(ResponseOutputItem).validate_python(call.model_dump(by_alias=True, warnings=False))
    assert {**call.model_dump(exclude_none=True), **expected} == call.model_dump(exclude_none=True)
    output = OUTPUTS.get(
        kind, lambda call: {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "sunny"}
    )
    items = [{"role": "user", "content": "Go"}, message, call, output(call)]
    second = await ask(client, input=items, tools=tools, stream=stream)
    assert second.output_text == "Done." and "sunny" in told(gateway)
    if kind == "shell":
        assert "exit code 3" in told(gateway)
    reference = {"type": "item_reference", "id": call.id}
    items = [items[0], message, reference, output(call), *second.output, {"role": "user", "content": "?"}]
    await ask(client, input=items, tools=tools, stream=stream)
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


@pytest.mark.parametrize("kind", ["custom", "local_shell", "shell", "apply_patch"])
async def test_a_call_that_does_not_fit_its_type_stays_a_functions(gateway, kind):
    client, _ = gateway.new_client()
    name = CALLED[kind][0]
    gateway.engine.say(spell(name, {"nonsense": [1]}))
    (call,) = (await ask(client, input="Go", tools=[DECLARED[kind]])).output
    assert (call.type, call.name, call.arguments) == ("function_call", name, '{"nonsense": [1]}')


async def test_a_diff_is_what_a_patch_needs(gateway):
    client, _ = gateway.new_client()
    fitting = {"type": "create_file", "path": "a", "diff": "+x"}
    gateway.engine.say(spell("apply_patch", fitting) + spell("apply_patch", {"type": "create_file", "path": "a"}))
    calls = (await ask(client, input="Go", tools=[DECLARED["apply_patch"]])).output
    assert [call.type for call in calls] == ["apply_patch_call", "function_call"]


async def test_stored_responses_keep_the_types_of_their_calls(tmp_path):
    async with start_gateway(tmp_path) as first:
        info = first.rollout()
        first.engine.say(spell("patch", {"input": "x"}))
        before = await ask(first.client(info.api_key), input="Go", tools=[DECLARED["custom"]])
    async with start_gateway(tmp_path) as second:
        after = await second.client(info.api_key).responses.retrieve(before.id)
        assert after.output == before.output and after.output[0].type == "custom_tool_call"


async def test_additional_tools_are_declared_and_a_grammar_is_told(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say(spell("patch", {"input": "x"}), "Done.")
    items = [
        {"type": "additional_tools", "role": "developer", "tools": [DECLARED["custom"], {"type": "web_search"}]},
        {"role": "user", "content": "Go"},
    ]
    first = await ask(client, input=items, tools=[PLAN])
    assert first.output[0].type == "custom_tool_call"
    assert "lark grammar" in told(gateway) and "start: /.+/" in told(gateway)
    output = {"type": "custom_tool_call_output", "call_id": first.output[0].call_id, "output": "ok"}
    await ask(client, input=[*items, *first.output, output], tools=[PLAN])
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


async def test_tools_that_a_search_loaded_are_called_in_their_own_type(gateway):
    client, rollout = gateway.new_client()
    gateway.engine.say(spell("tool_search", {"query": "crm"}), spell("crm__lookup", {}))
    tools = [DECLARED["tool_search"]]
    first = await ask(client, input="Go", tools=tools)
    (call,) = first.output
    loaded = {"type": "tool_search_output", "call_id": call.call_id, "tools": [DECLARED["namespace"]]}
    (second,) = (await ask(client, input=[{"role": "user", "content": "Go"}, call, loaded], tools=tools)).output
    assert (second.name, second.namespace) == ("lookup", "crm")
    assert len(gateway.captures.rows(rollout).rows) == 1


SERVED_ITEMS = [
    (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "sun"}},
        ["sun"],
    ),
    ({"type": "file_search_call", "id": "fs_1", "queries": ["rain"], "results": [{"text": "wet"}]}, ["rain", "wet"]),
    ({"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "outputs": [{"logs": "2!"}]}, ["1 + 1", "2!"]),
    (
        {"type": "mcp_call", "id": "m_1", "name": "f", "arguments": '{"a": 7}', "server_label": "s", "output": "yes"},
        ["yes"],
    ),
    (
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QkFTRTY0"},
        ["image_generation"],
    ),
    ({"type": "mcp_list_tools", "id": "l_1", "server_label": "s", "tools": []}, []),
]


@pytest.mark.parametrize(("item", "words"), SERVED_ITEMS)
async def test_calls_that_openai_ran_are_read_from_histories(gateway, item, words):
    client, rollout = gateway.new_client()
    gateway.engine.say("one", "two")
    items = [
        {"role": "user", "content": "Go"},
        item,
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": "?"},
    ]
    first = await ask(client, input=items, tools=[PLAN])
    assert all(word in told(gateway).replace('\\"', '"') for word in words) and "QkFTRTY0" not in told(gateway)
    await ask(client, input=[*items, *first.output, {"role": "user", "content": "!"}], tools=[PLAN])
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)


CHOICES = [
    ({"type": "custom", "name": "patch"}, ["patch"]),
    ({"type": "local_shell"}, ["local_shell"]),
    ({"type": "apply_patch"}, ["apply_patch"]),
    ({"type": "function", "name": "lookup", "namespace": "crm"}, ["crm__lookup"]),
    (
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "web_search"}, {"type": "custom", "name": "patch"}],
        },
        ["patch"],
    ),
]


@pytest.mark.parametrize(("choice", "names"), CHOICES)
async def test_the_tool_that_a_choice_names_is_forced(gateway, choice, names):
    client, _ = gateway.new_client()
    gateway.model.max_sequence_length = 10_000
    tools = [*DECLARED.values()]
    await client.responses.create(model="m", input="Go", tools=tools, tool_choice=choice)
    grammar = gateway.engine.calls[-1].params["structured_outputs"]["grammar"]
    everyone = ["patch", "local_shell", "shell", "apply_patch", "tool_search", "crm__lookup", "functions__patch"]
    assert [name for name in everyone if f'\\"name\\": \\"{name}\\"' in grammar] == names


async def test_only_tools_that_nobody_here_runs(gateway):
    client, _ = gateway.new_client()
    served = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "image_generation"}]}
    for choice in ("auto", served):
        await client.responses.create(model="m", input="Go", tools=SERVED, tool_choice=choice)
    for choice in ("required", {"type": "web_search_preview"}):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="m", input="Go", tools=SERVED, tool_choice=choice)
        assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("stream", [False, True])
async def test_custom_tools_of_chat_completions(gateway, stream):
    client, rollout = gateway.new_client()
    custom = {"name": "patch", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}}
    options = {"model": "m", "tools": [{"type": "custom", "custom": custom}]}
    messages = [{"role": "user", "content": "Go"}]
    gateway.engine.say(spell("patch", {"input": "aa"}), "Done.")
    answer = await client.chat.completions.create(messages=messages, stream=stream, **options)
    assert "regex grammar" in told(gateway)
    if stream:
        chunks = [chunk.choices[0] async for chunk in answer]
        (call,) = [call.to_dict() for choice in chunks for call in choice.delta.tool_calls or ()]
        assert call.pop("index") == 0
    else:
        call = answer.choices[0].message.tool_calls[0].to_dict()
    assert (call["type"], call["custom"]) == ("custom", {"name": "patch", "input": "aa"})
    messages += [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "ok"},
    ]
    choice = {"type": "custom", "custom": {"name": "patch"}}
    await client.chat.completions.create(messages=messages, tool_choice=choice, **options)
    assert len(gateway.captures.rows(rollout).rows) == 1
    gateway.check(rollout)
