"""``art eval`` on OpenAI endpoints."""

import json
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from tests.art.conftest import serving
from typer.testing import CliRunner

from art.cli import app
from art.cli.targets import read_scenarios

ROLLOUT = """
import art

async def rollout(model, scenario):
    if scenario["question"] == "broken":
        raise RuntimeError("no environment")
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[{"role": "user", "content": scenario["question"]}]
    )
    return art.Trajectory(reward=float(answer.choices[0].message.content == scenario["answer"]))

async def documented(model, scenario):
    async with model.rollout() as r:
        answer = await r.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": scenario["question"]}]
        )
        trajectory = await r.fill(r.trajectory())
        trajectory.reward = float(trajectory.messages()[-1]["content"] == scenario["answer"])
        return trajectory

scenarios = [{"question": str(n), "answer": str(n)} for n in range(3)]
"""


@pytest.fixture
def endpoint():
    """``good`` repeats the question; ``bad`` always says 0."""
    endpoint_app = FastAPI()

    @endpoint_app.post("/v1/chat/completions")
    async def chat(request: Request):
        body = await request.json()
        content = body["messages"][0]["content"] if body["model"] == "good" else "0"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    with serving(endpoint_app) as url:
        yield f"{url}/v1"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"agent_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(ROLLOUT)
    lines = [json.dumps({"question": str(n), "answer": str(n)}) for n in range(6)]
    (tmp_path / "scenarios.jsonl").write_text("\n".join(lines) + "\n")
    return name


def test_a_line_of_a_file_ends_where_json_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "scenarios.jsonl"
    file.write_text('{"question": "one\u2028two"}\r\n\n[3]\n', encoding="utf-8", newline="")
    assert read_scenarios(str(file), "--scenarios") == [{"question": "one\u2028two"}, [3]]


def run(*arguments: str):
    return CliRunner().invoke(app, ["eval", *arguments], catch_exceptions=False)


def test_a_table_compares_models(workplace, endpoint):
    models = ["--model", f"{endpoint}#bad", "--model", f"{endpoint}#good"]
    result = run(f"{workplace}:rollout", "--scenarios", "scenarios.jsonl", "--runs", "2", *models)
    assert result.exit_code == 0, result.output
    compact = " ".join(result.stdout.split())
    assert "6 12 0 +0.167" in compact
    assert "6 12 0 +1.000 [+1.000, +1.000]" in compact
    assert "+0.833 [+0.405, +1.262]" in compact  # 5/6 ± 2.571 · sqrt((5/36)/5)


def test_a_rollout_function_that_opens_rollouts_runs_at_any_endpoint(workplace, endpoint):
    arguments = [f"{workplace}:documented", "--scenarios", "scenarios.jsonl", "--model", f"{endpoint}#good", "--json"]
    (row,) = json.loads(run(*arguments).stdout)
    assert (row["runs"], row["failed"], row["reward"]["value"]) == (24, 0, 1.0)


@pytest.mark.parametrize("width", ["67", "80"])
def test_the_table_fits_the_terminal_whatever_the_names(workplace, endpoint, width):
    models = ["--model", f"{endpoint}#bad", "--model", f"{endpoint}#good"]
    arguments = [f"{workplace}:rollout", "--scenarios", f"{workplace}:scenarios", "--runs", "1", *models]
    shown = CliRunner(env={"COLUMNS": width}).invoke(app, ["eval", *arguments], catch_exceptions=False).stdout
    heading, *lines = shown.splitlines()
    assert heading.split() == ["model", "scenarios", "runs", "failed", "reward,", "95", "%", "interval"]
    assert max(map(len, lines)) <= int(width)
    assert "…" not in shown
    assert f"{endpoint}#good against {endpoint}#bad: +0.667" in " ".join(shown.split())


def test_json_for_scripts_and_scenarios_of_a_module(workplace, endpoint):
    target = f"{workplace}:scenarios"
    result = run(f"{workplace}:rollout", "--scenarios", target, "--model", f"{endpoint}#good", "--json")
    (row,) = json.loads(result.stdout)
    assert (row["runs"], row["failed"], row["reward"]["value"]) == (12, 0, 1.0)


def test_failures_are_shown_and_nothing_at_all_is_an_exit_code(workplace, endpoint):
    Path("broken.jsonl").write_text(json.dumps({"question": "broken"}))
    result = run(f"{workplace}:rollout", "--scenarios", "broken.jsonl", "--model", f"{endpoint}#good")
    assert result.exit_code == 1
    assert "no environment" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["nowhere:rollout", "--scenarios", "scenarios.jsonl", "--model", "http://h/v1#m"],
            "no module named 'nowhere'",
        ),
        (["{module}:nothing", "--scenarios", "scenarios.jsonl", "--model", "http://h/v1#m"], "has no 'nothing'"),
        (["{module}:rollout", "--scenarios", "gone.jsonl", "--model", "http://h/v1#m"], "no such file: gone.jsonl"),
        (["{module}:rollout", "--scenarios", "bad.jsonl", "--model", "http://h/v1#m"], "line 2 is not valid JSON"),
        (["{module}:rollout", "--scenarios", "scenarios.jsonl", "--model", "http://h/v1#"], "write URL#NAME"),
    ],
)
def test_bad_arguments_are_named(workplace, arguments, expected):
    Path("bad.jsonl").write_text('{"a": 1}\nnonsense\n')
    result = run(*[argument.format(module=workplace) for argument in arguments])
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.replace("│", " ").split())
