import importlib
import json
from types import SimpleNamespace

import openai
import pytest
from fastapi import FastAPI, Request
from tests.art.conftest import serving

import art
from art.metrics import MetricsBuilder
from art.rewards import ruler, ruler_score_group

module = importlib.import_module("art.rewards.ruler")


def answer(*scores):
    return json.dumps({"scores": [{"trajectory_id": str(i), "explanation": f"why {i}", "score": s} for i, s in scores]})


class Judge:
    """Gives scripted answers and remembers what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def __call__(self, messages):
        self.asked.append(messages)
        return self.answers.pop(0)


def conversation(*texts):
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


def test_the_package_gives_the_function_and_importlib_the_module():
    assert art.rewards.ruler is module.ruler
    assert module.__name__ == "art.rewards.ruler"


async def test_scores_are_mapped_by_id_and_the_prompt_shows_the_shared_start_once():
    judge = Judge(answer((2, 0.25), (1, 1)))
    lists = [conversation("same", "first"), conversation("same", "second", "more")]
    scores = await ruler(lists, judge, rubric="MY RUBRIC", tools=[{"name": "tool"}])
    assert [(s.trajectory_id, s.score) for s in scores] == [("1", 1.0), ("2", 0.25)]
    system, user = judge.asked[0]
    assert "MY RUBRIC" in system["content"]
    text = user["content"]
    assert text.count("same") == 1
    assert text.index("<context>") < text.index("<available_tools>") < text.index('<trajectory id="1">')
    assert json.loads(text.split('<trajectory id="2">\n')[1].split("\n</trajectory>")[0]) == lists[1][1:]


async def test_no_lists_no_call():
    assert await ruler([], Judge()) == []


async def test_identical_lists_are_judged_once(capsys):
    judge = Judge(answer((1, 0.5)))
    scores = await ruler([conversation("a", "b")] * 3, judge)
    assert [(s.trajectory_id, s.score, s.explanation) for s in scores] == [(str(i), 0.5, "why 1") for i in (1, 2, 3)]
    assert "identical" in capsys.readouterr().err
    assert "<context>" not in judge.asked[0][1]["content"]
    assert judge.asked[0][1]["content"].count("<trajectory ") == 1


async def test_some_identical_lists_are_shown_once_and_share_their_score():
    judge = Judge(answer((3, 0.25), (1, 1)))
    lists = [conversation("q", text) for text in ("same", "same", "other", "same")]
    scores = await ruler(lists, judge)
    assert [(s.trajectory_id, s.score) for s in scores] == [("1", 1.0), ("2", 1.0), ("3", 0.25), ("4", 1.0)]
    assert judge.asked[0][1]["content"].count("<trajectory ") == 2


async def test_long_trajectories_are_cut_in_their_middles_and_say_so(capsys):
    judge = Judge(answer((1, 0), (2, 1)))
    lists = [conversation("q", "BEGIN" + "x" * 50_000 + "END"), conversation("q", "short, whole")]
    kept = [[dict(message) for message in messages] for messages in lists]
    await ruler(lists, judge, max_characters=3000)
    text = judge.asked[0][1]["content"]
    assert len(text) < 3600
    assert all(part in text for part in ("BEGINxxx", "xxxEND", "short, whole", "47,0", "characters omitted"))
    assert "RULER omitted 47,0" in capsys.readouterr().err
    assert lists == kept, "what was given is as before"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("no json", "does not match the schema"),
        (answer((1, 0.5)), "must score the ids 1, 2, each once, not 1"),
        (answer((1, 0.5), (3, 0.5)), "must score the ids 1, 2"),
        (answer((1, 0.5), (1, 0.5)), "must score the ids 1, 2"),
        (answer((1, 0.5), (2, 1.5)), "trajectory 2 is 1.5, not between 0 and 1"),
        (answer((1, 0.5), (2, float("nan"))), "score"),
    ],
)
async def test_bad_answers_are_objected_to_and_asked_again(bad, problem):
    judge = Judge(bad, "```json\n" + answer((1, 0), (2, 1)) + "\n```")
    lists = [conversation("a", "b"), conversation("a", "c")]
    assert [s.score for s in await ruler(lists, judge)] == [0, 1]
    objection = judge.asked[1][-1]["content"]
    assert problem in objection
    with pytest.raises(ValueError, match="3 times in a row"):
        await ruler(lists, Judge(bad, bad, bad))


async def test_a_judge_by_litellm_name(monkeypatch):
    calls = []

    async def acompletion(**arguments):
        calls.append(arguments)
        usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
        return SimpleNamespace(
            choices=[SimpleNamespace(message=SimpleNamespace(content=answer((1, 0.5))))], usage=usage
        )

    monkeypatch.setattr(module, "acompletion", acompletion)
    builder = MetricsBuilder("train")
    with builder.activate_context():
        await ruler([conversation("a")], "openai/gpt-4.1", {"seed": 1})
        await ruler([conversation("a")], "openai/unpriced")
        await ruler([conversation("a")], "gpt-4.1")  # no provider: nothing is booked
    assert (calls[0]["model"], calls[0]["response_format"], calls[0]["caching"], calls[0]["seed"]) == (
        "openai/gpt-4.1",
        module.Response,
        False,
        1,
    )
    row = await builder.flush()
    assert (row["costs/train/judge/ruler"], row["costs/train/judge"], row["costs/all"]) == (2.0, 2.0, 2.0)

    async def nothing(**arguments):
        return SimpleNamespace(choices=[])

    monkeypatch.setattr(module, "acompletion", nothing)
    with pytest.raises(ValueError, match="no choices"):
        await ruler([conversation("a")])


async def test_what_a_judge_by_name_returns_is_checked_by_a_name_that_may_be_replaced(monkeypatch):
    class Strict:
        pass

    async def acompletion(**arguments):
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=answer((1, 0.5))))])

    monkeypatch.setattr(module, "acompletion", acompletion)
    assert (await ruler([conversation("a")]))[0].score == 0.5, "the default judge, whose price nobody knows here"
    monkeypatch.setattr(module, "ModelResponse", Strict)
    with pytest.raises(ValueError, match="returned a SimpleNamespace"):
        await ruler([conversation("a")])


async def test_the_system_message_says_what_is_judged_and_how_and_debug_shows_the_answer(capsys):
    judge = Judge(answer((1, 0.5)))
    await ruler([conversation("a")], judge, debug=True)
    system = judge.asked[0][0]
    assert system["role"] == "system"
    assert all(part in system["content"] for part in ("same goal", "between 0 and 1", module.DEFAULT_RUBRIC))
    assert answer((1, 0.5)) in capsys.readouterr().err
    assert "<context>" not in judge.asked[0][1]["content"]


async def test_the_narrowed_schema_names_the_ids():
    schema = module._response_format(["1", "3"])["json_schema"]
    scores = schema["schema"]["properties"]["scores"]
    fields = schema["schema"]["$defs"]["TrajectoryScore"]["properties"]
    assert (schema["strict"], scores["minItems"], scores["maxItems"]) == (True, 2, 2)
    assert fields["trajectory_id"]["enum"] == ["1", "3"]
    assert (fields["score"]["minimum"], fields["score"]["maximum"]) == (0, 1)
    assert "enum" not in module.Response.model_json_schema()["$defs"]["TrajectoryScore"]["properties"]["trajectory_id"]


async def test_the_tools_of_the_first_trajectory_are_shown():
    tools = [{"type": "function", "function": {"name": "find_me", "parameters": {}}}]
    members = [art.Trajectory(messages_and_choices=conversation("a", x), tools=tools) for x in "bc"]
    judge = Judge(answer((1, 0), (2, 1)))
    await ruler_score_group(art.TrajectoryGroup(members), judge)
    assert "find_me" in judge.asked[0][1]["content"]


async def test_a_judge_behind_any_openai_endpoint_is_not_captured():
    app, bodies = FastAPI(), []

    @app.post("/v1/chat/completions")
    async def chat(request: Request):
        bodies.append(await request.json())
        message = {"role": "assistant", "content": answer((1, 0.75))}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "j", "choices": [choice]}

    with serving(app) as url:
        http = art.capture.async_http_client()
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", http_client=http) as client:

            async def judge_inside():
                (score,) = await ruler([conversation("a", "b")], (client, "judge"), {"temperature": 0})
                assert score.score == 0.75

            with art.Trajectory() as trajectory:
                await judge_inside()
    assert trajectory.messages_and_choices == []
    assert (bodies[0]["model"], bodies[0]["temperature"]) == ("judge", 0)
    assert bodies[0]["response_format"]["json_schema"]["strict"] is True


async def test_a_group_is_scored_in_a_copy(make_choice):
    group = art.TrajectoryGroup(
        [art.Trajectory(messages_and_choices=[*conversation("q"), make_choice(str(i))], reward=i) for i in range(2)],
        exceptions=[ValueError("x")],
        metadata={"scenario_id": "s"},
        metrics={"m": 1},
        logs=["l"],
    )
    group.trajectories[0].initial_policy_version = 3
    judged = await ruler_score_group(group, Judge(answer((1, 0.9), (2, 0.1))))
    assert [t.reward for t in judged] == [0.9, 0.1]
    assert [t.metrics for t in judged] == [
        {"independent_reward": 0.0, "ruler_score": 0.9},
        {"independent_reward": 1.0, "ruler_score": 0.1},
    ]
    assert judged.trajectories[0].logs == ["RULER explanation: why 1"]
    assert judged.trajectories[0].initial_policy_version == 3
    assert (judged.metadata, judged.metrics, judged.logs, judged.exceptions) == (
        group.metadata,
        group.metrics,
        group.logs,
        group.exceptions,
    )
    assert [(t.reward, t.metrics, t.logs) for t in group] == [(0.0, {}, []), (1.0, {}, [])]


async def test_failures_of_judging(capsys):
    group = art.TrajectoryGroup([art.Trajectory(messages_and_choices=conversation("a"))])
    with pytest.raises(ValueError, match="in a row"):
        await ruler_score_group(group, Judge("x", "x", "x"))
    assert await ruler_score_group(group, Judge("x", "x", "x"), swallow_exceptions=True) is None
    assert "could not be judged" in capsys.readouterr().err
    group.trajectories[0].additional_histories = [art.trajectories.History(messages_and_choices=[])]
    with pytest.raises(ValueError, match="additional_histories"):
        await ruler_score_group(group, Judge(), swallow_exceptions=True)
