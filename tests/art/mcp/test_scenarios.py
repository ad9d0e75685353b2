import json

import pytest
from fastapi import FastAPI, Request
from tests.art.conftest import serving

import art
from art.mcp import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
    generate_scenarios,
    preview_scenarios,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}


def test_tools_and_resources_are_read_as_servers_list_them():
    tool = MCPTool.from_dict({"name": "add", "description": "Adds.", "inputSchema": SCHEMA})
    assert tool == MCPTool("add", "Adds.", SCHEMA) == MCPTool.from_dict(tool.to_dict())
    function = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
    assert tool.to_tool_schema() == {"type": "function", "function": function}
    assert MCPTool.from_dict({"name": "bare"}).parameters == {"type": "object", "properties": {}}
    resource = MCPResource.from_dict({"uri": "file:///a", "name": "a", "description": "d", "mimeType": "text/plain"})
    assert resource == MCPResource("file:///a", "a", "d", "text/plain") == MCPResource.from_dict(resource.to_dict())
    assert complete_task_tool["function"]["name"] == "complete_task"
    assert art.Trajectory(tools=[complete_task_tool]).tools == [complete_task_tool]


def test_a_collection_is_a_sequence(capsys):
    made = GeneratedScenarioCollection([GeneratedScenario(task=str(n), difficulty=n % 2 + 1) for n in range(6)])
    assert ([s.task for s in made[1:3]], made[-1].task, made[0] in made) == (["1", "2"], "5", True)
    shuffled = made.shuffle(seed=1)
    assert sorted(s.task for s in shuffled) == [s.task for s in made] != [s.task for s in shuffled]
    assert [len(part) for part in made.split(4)] == [4, 2]
    assert made.difficulties() == {1: 3, 2: 3}
    assert list(GeneratedScenarioCollection.from_json(made.to_json())) == list(made)
    preview_scenarios(made, 2)
    assert capsys.readouterr().out == "1. [difficulty 1] 0\n2. [difficulty 2] 1\n"
    for task, difficulty in (("", 1), ("x", 0), ("x", 6)):
        with pytest.raises(ValueError, match=r"task|difficulty"):
            GeneratedScenario(task=task, difficulty=difficulty)


@pytest.fixture
def author():
    """An endpoint that gives scripted answers and remembers what it was asked."""
    app = FastAPI()
    app.state.answers, app.state.asked = [], []

    @app.post("/v1/chat/completions")
    async def chat(request: Request):
        app.state.asked.append({**await request.json(), "key": request.headers["authorization"]})
        message = {"role": "assistant", "content": app.state.answers.pop(0)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    with serving(app) as url:
        app.state.url = f"{url}/v1"
        yield app.state


def answer(n, difficulty=1):
    return json.dumps({"scenarios": [{"task": f"task {i}", "difficulty": difficulty} for i in range(n)]})


async def test_bad_answers_are_objected_to(author, monkeypatch, capsys):
    monkeypatch.setenv("OPENROUTER_API_KEY", "from-the-environment")
    author.answers += ["no json", answer(1), answer(2, difficulty=9), answer(2), answer(3)]
    ask = {"num_scenarios": 2, "generator_base_url": author.url, "show_preview": False}
    tools = [MCPTool("add", "Adds.", SCHEMA)]
    with pytest.raises(ValueError, match=r"could not be used, 3 times in a row.*difficulty"):
        await generate_scenarios(tools, **ask)
    with art.Trajectory() as watched:
        resources = [MCPResource("file:///a", "a", "Notes.")]
        made = await generate_scenarios(tools, resources, custom_instructions="SHORT ONES", **ask)
    assert not watched.exchanges
    assert [s.task for s in made] == ["task 0", "task 1"]
    more = await generate_scenarios(tools, generator_api_key="given", generator_model="own", **ask)
    assert len(more) == 2, "what is too many is left out"
    assert capsys.readouterr().out == ""
    first, second, third, good, last = author.asked
    assert "does not match the schema" in second["messages"][-1]["content"]
    assert "holds 1 scenarios instead of 2" in third["messages"][-1]["content"]
    assert (first["model"], first["key"]) == ("openai/gpt-4.1-mini", "Bearer from-the-environment")
    assert (last["model"], last["key"]) == ("own", "Bearer given")
    assert first["response_format"]["json_schema"]["schema"]["properties"]["scenarios"]["maxItems"] == 2
    text = good["messages"][0]["content"]
    assert all(part in text for part in ("exactly 2 tasks", '"name": "add"', "file:///a", "SHORT ONES"))


async def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    tool = MCPTool("add", "Adds.", SCHEMA)
    for tools, options, named in (
        ([], {}, "tools"),
        ([tool], {"num_scenarios": 0}, "num_scenarios"),
        ([tool], {}, "OPENROUTER_API_KEY"),
    ):
        with pytest.raises(ValueError, match=named):
            await generate_scenarios(tools, **options)
