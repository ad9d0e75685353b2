"""Each page of docs/frameworks is run: two rollouts at once, of each version that it shows.

The model first calls a tool, and answers when it has the result. What was captured of a rollout must be what the engine
was fed and what it sampled, id for id, with each sampled token trained once; and in one row, where the framework sends
back what it was sent.
"""

import json
import re

import pytest
from tests.art_backend.gateway.conftest import SERVICE_KEY
from tests.frameworks.pages import PAGES, ROOT, run_agent, run_script, write_agent

import art
from art.rollouts.references import build_train_groups
from art_backend.tokens.rows import build_rows

ROWS = {
    "../frameworks": [1],
    "anthropic": [1, 1, 1],
    "autogen": [1, 1],
    "crewai": [1, 1],
    "langgraph": [1, 1, 1, 1],
    "litellm": [1, 1, 1],
    "openai": [1, 1],
    "openai-agents": [1, 1, 1],
    "openai-node": [1, 1],
    "pydantic-ai": [1, 1, 1],
    "smolagents": [2, 2],
    "vercel-ai-sdk": [1, 1],
    "mastra": [1, 1],
}
"""Training rows of a rollout with two turns, for each version of the agent that a page shows."""


def test_every_page_is_run_and_linked():
    pages = {page.stem for page in PAGES.glob("*.md")}
    index = (ROOT / "docs/frameworks.md").read_text()
    assert pages | {"../frameworks"} == set(ROWS)
    assert pages == set(re.findall(r"\(frameworks/([\w-]+)\.md\)", index))


@pytest.mark.parametrize(("page", "version"), [(page, i) for page, rows in ROWS.items() for i in range(len(rows))])
async def test_page(gateway, tmp_path, page, version):
    assert write_agent(page, version, tmp_path) == len(ROWS[page])
    runs = await run_agent(page, tmp_path, gateway.url, SERVICE_KEY, "tiny")
    assert [run["trajectory"]["reward"] for run in runs] == [1.0, 1.0]
    (group,), _ = build_train_groups([art.TrajectoryGroup(art.Trajectory(**run["trajectory"]) for run in runs)])
    count = 0
    for sent in group.trajectories:
        found = gateway.captures.find_turns(sent.turns or [turn.id for turn in gateway.turns(sent.rollout)])
        turns = [turn for members in found.values() for turn in members]
        assert [turn.untrainable for turn in turns] == [None, None]
        for rollout in found:
            gateway.check(rollout)
        rows, _ = build_rows(turns)
        assert len(rows) == ROWS[page][version]
        assert {tuple(row.token_ids) for row in rows} <= {(*call.fed, *call.returned) for call in gateway.engine.calls}
        count += len(turns)
    assert count == len(gateway.engine.calls), "a call was made that no trajectory holds"


async def test_the_conversation_that_was_captured(gateway, tmp_path):
    write_agent("../frameworks", 0, tmp_path)
    for run in await run_agent("../frameworks", tmp_path, gateway.url, SERVICE_KEY, "tiny"):
        question, call, result, answer = run["messages"]
        assert (question["role"], question["content"]) == ("user", "What is the weather in Zürich?")
        assert (call["role"], call["content"], call["trainable"]) == ("assistant", "Let me look.", True)
        assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"city": "Zürich"}
        assert (result["role"], result["content"]) == ("tool", "Zürich: sunny, 21 degrees")
        assert result["tool_call_id"] == call["tool_calls"][0]["id"]
        assert (answer["content"], answer["trainable"]) == ("It is sunny in Zürich.", True)


async def test_the_conversation_of_a_model_that_is_not_trained(gateway, tmp_path):
    """``wrap_rollout`` fills it for any model; the service's key captures nothing, as any other endpoint."""
    write_agent("langgraph", 2, tmp_path)
    done = await run_script("run_prompted.py", "main", tmp_path, f"{gateway.url}/v1", SERVICE_KEY)
    question, call, result, answer = done["messages"]
    assert (question["role"], question["content"]) == ("user", "What is the weather in Zürich?")
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"city": "Zürich"}
    assert (result["role"], result["content"]) == ("tool", "Zürich: sunny, 21 degrees")
    assert (answer["content"], done["reward"]) == ("It is sunny in Zürich.", 1.0)
    assert [tool["function"]["name"] for tool in done["tools"]] == ["get_weather"]
