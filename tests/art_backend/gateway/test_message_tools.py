"""Anthropic's typed tools: what the caller runs is a function, what Anthropic runs is left out."""

import json

import anthropic
import pytest
from tests.art_backend.gateway.test_messages import HELLO, TOOLS, ask, connect

SERVED = [
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    {"type": "mcp_toolset", "mcp_server_name": "s"},
    {"type": "computer_toolset_20260801"},
]
CALLED = {
    "bash_20250124": ("bash", {"command": "ls"}),
    "text_editor_20250728": ("str_replace_based_edit_tool", {"command": "view", "path": "/a"}),
    "text_editor_20250124": (
        "str_replace_editor",
        {"command": "insert", "path": "/a", "insert_line": 1, "new_str": "x"},
    ),
    "memory_20250818": ("memory", {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"}),
    "computer_20250124": ("computer", {"action": "left_click", "coordinate": [1, 2]}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", CALLED)
async def test_tools_that_the_caller_runs(gateway, kind, stream):
    info = gateway.rollout()
    client = connect(gateway, info)
    name, arguments = CALLED[kind]
    gateway.engine.say(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>", "Done.")
    tool = {"type": kind, "name": name, "display_width_px": 640, "display_height_px": 480}
    options = {"tools": [*TOOLS, *SERVED, tool], "stream": stream}
    first = await ask(client, messages=HELLO, **options)
    (use,) = first.content
    assert (use.type, use.name, use.input, first.stop_reason) == ("tool_use", name, arguments, "tool_use")
    told = gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    assert f'"{name}"' in told and "web_search" not in told and ("640 x 480" in told) == (name == "computer")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "ok"}
    messages = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    await ask(client, messages=messages, **options)
    assert len(gateway.captures.rows(info.id).rows) == 1
    gateway.check(info.id)


@pytest.mark.parametrize("kind", CALLED)
async def test_a_call_of_a_typed_tool_can_be_forced(gateway, kind):
    client = connect(gateway, gateway.rollout())
    name, _ = CALLED[kind]
    await ask(
        client,
        stream=False,
        messages=HELLO,
        tools=[{"type": kind, "name": name}],
        tool_choice={"type": "tool", "name": name},
    )
    assert name in gateway.engine.calls[-1].params["structured_outputs"]["grammar"]


async def test_calls_that_anthropic_ran_are_read_from_histories(gateway):
    info = gateway.rollout()
    client = connect(gateway, info)
    gateway.engine.say("one", "two")
    said = [
        {"type": "text", "text": "Let me look."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "sun"}},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "f", "server_name": "s", "input": {"a": 1}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "title": "Bright", "url": "u"}],
        },
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": [{"type": "text", "text": "yes"}]},
        {"type": "text", "text": "It shines."},
    ]
    found = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "mail"}]}
    messages = [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": [found]}]
    first = await ask(client, stream=False, messages=messages, tools=TOOLS)
    told = gateway.renderer.detokenizer.decode(gateway.engine.calls[-1].fed)
    places = [told.index(word) for word in ("Let me look.", '"sun"', "Bright", "yes", "It shines.", "mail")]
    assert places == sorted(places)
    messages += [{"role": "assistant", "content": first.content}, *HELLO]
    await ask(client, stream=False, messages=messages, tools=TOOLS)
    assert len(gateway.captures.rows(info.id).rows) == 1
    gateway.check(info.id)


async def test_unknown_types_are_named(gateway):
    client = connect(gateway, gateway.rollout())
    with pytest.raises(anthropic.BadRequestError, match=r"tools\.0\.type: .* 'oracle_20990101'"):
        await ask(client, stream=False, messages=HELLO, tools=[{"type": "oracle_20990101", "name": "o"}])
