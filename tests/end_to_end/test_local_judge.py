"""A model that ART serves, as the judge of others and as the author of scenarios: structured output, by a random model."""

import json
import shutil

import pytest
import pytest_asyncio

import art
from art.guided_completion import get_guided_completion_params
from art.mcp import MCPTool, generate_scenarios
from art.metrics import MetricsBuilder
from art.rewards import ruler, ruler_score_group

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("add", "find")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge(tmp_path_factory, tiny_model_path):
    path = tmp_path_factory.mktemp("judge")
    roomy = shutil.copytree(tiny_model_path, path / "base")  # a token is a byte, and judges are shown thousands
    config = json.loads((roomy / "config.json").read_text())
    (roomy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16384}))
    serve = ["--max-sequence-length", "16384"]
    async with art.LocalBackend(path=path, serve_arguments=serve) as backend:
        model = art.TrainableModel(
            name="judge",
            project="judges",
            base_model=str(roomy),
        )
        await model.register(backend)
        yield model


def conversation(*texts):
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


async def test_it_scores_what_it_is_shown_within_the_schema(judge):
    builder = MetricsBuilder("train")
    asked = (judge.openai_client(), judge.get_inference_name())
    builder.register_model_pricing(f"openai/{asked[1]}", prompt_per_million=1.0, completion_per_million=1.0)
    with builder.activate_context(), art.Trajectory() as watched:
        scores = await ruler([conversation("q", "same")] * 3, asked, {"seed": 1})
    assert [score.trajectory_id for score in scores] == ["1", "2", "3"]
    assert len({score.score for score in scores}) == 1
    assert 0 <= scores[0].score <= 1
    assert (await builder.flush())["costs/train/judge/ruler"] > 0
    assert (watched.messages_and_choices, bool(watched.exchanges)) == ([], False)


async def test_it_scores_a_group_by_id(judge):
    asked = (judge.openai_client(), judge.get_inference_name())
    group = art.TrajectoryGroup(art.Trajectory(messages_and_choices=conversation("q", text)) for text in ("a", "b"))
    for seed in range(10):  # what is random is only whether it scores both, or one of them twice
        judged = await ruler_score_group(group, asked, {"seed": seed}, swallow_exceptions=True)
        if judged is not None:
            break
    assert [0 <= t.reward <= 1 and t.metrics["ruler_score"] == t.reward for t in judged] == [True, True]
    assert all(t.logs[0].startswith("RULER explanation: ") for t in judged)


async def test_it_writes_scenarios(judge, capsys):
    tool = {"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}
    made = await generate_scenarios(
        [tool, MCPTool("find", "Finds.", {"type": "object"})],
        num_scenarios=3,
        generator_model=judge.get_inference_name(),
        generator_api_key=judge.inference_api_key,
        generator_base_url=judge.inference_base_url,
    )
    assert len(made) == 3
    assert all(scenario.task and 1 <= scenario.difficulty <= 5 for scenario in made)
    assert capsys.readouterr().out.startswith(f"1. [difficulty {made[0].difficulty}] ")


@pytest.mark.parametrize("answer", ["Exactly this.", 'ünd "that"\n'])
async def test_a_text_that_is_guided_to_is_said(judge, answer):
    completion = await judge.openai_client().chat.completions.create(
        model=judge.get_inference_name(), messages=conversation("q"), **get_guided_completion_params(answer)
    )
    assert completion.choices[0].message.content == answer
    again = get_guided_completion_params(completion)
    assert again == get_guided_completion_params(completion.choices[0]) == get_guided_completion_params(answer)


async def test_a_call_that_is_guided_to_is_made(judge):
    arguments = {"a": [1, 2], "b": {"deep": "x", "none": None}}
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": json.dumps(arguments)}}
    wanted = {"role": "assistant", "content": None, "tool_calls": [call]}
    completion = await judge.openai_client().chat.completions.create(
        model=judge.get_inference_name(), messages=conversation("q"), **get_guided_completion_params(wanted, TOOLS)
    )
    (made,) = completion.choices[0].message.tool_calls
    assert (made.function.name, json.loads(made.function.arguments)) == ("add", arguments)
