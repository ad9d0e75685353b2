"""``art train``, ``art eval`` and ``art delete`` on a real service and a tiny model."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

import art
from art.cli import app
from art.errors import NotFoundError

AGENT = """
import art

async def rollout(model, scenario):
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": scenario["ask"]}])
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=4, temperature=1.0
    )
    trajectory.messages_and_choices.append(answer.choices[0])
    return trajectory, sum(map(ord, answer.choices[0].message.content or "")) % 7 / 7

async def documented(model, scenario):
    async with model.rollout() as r:
        answer = await r.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": scenario["ask"]}], max_tokens=4
        )
        return r.trajectory(reward=answer.choices[0].model_extra["art"]["policy_version"])
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cli_agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps({"ask": word}) for word in ("one", "two", "three")))
    return tmp_path


async def run(*arguments):
    """A command, in a thread, since it has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments), catch_exceptions=False)


@pytest.mark.long
async def test_train_eval_and_delete(workplace, tiny_model_path):
    async with art.LocalBackend(path=workplace / "art") as service:
        await service.get_health()
        where = ["--backend", service._service.url, "--api-key", service._service.api_key, "--path", "logs"]
        agent = ["cli_agent:rollout", "--scenarios", "tasks.jsonl", *where]
        training = [*agent, "--model", "cli/pupil", "--base-model", str(tiny_model_path), "--learning-rate", "1e-3"]
        sizes = ["--groups-per-step", "2", "--group-size", "3", "--json"]
        done = await run("train", *training, *sizes, "--steps", "2")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"model": "cli/pupil", "step": 2, "stopped": False}
        again = await run("train", *training, *sizes, "--steps", "2")
        assert json.loads(again.stdout)["step"] == 2, "a finished run is not trained further"

        shown = await run("show", "cli/pupil", "--path", "logs", "--json")
        assert [step for step, _ in json.loads(shown.stdout)["metrics"]["train/reward"]] == [1, 2]

        models = ["--model", "cli/pupil@0", "--model", "cli/pupil"]
        rows = json.loads((await run("eval", *agent, *models, "--runs", "2", "--json")).stdout)
        assert [(row["model"], row["runs"], row["failed"]) for row in rows] == [
            ("cli/pupil@0", 6, 0),
            ("cli/pupil", 6, 0),
        ]

        documented = ["cli_agent:documented", *agent[1:], "--model", "cli/pupil", "--runs", "2", "--json"]
        pinned = ["--model", "cli/pupil@1", "--model", "cli/pupil@0"]
        rows = json.loads((await run("eval", *documented, *pinned)).stdout)
        assert [(row["runs"], row["failed"], row["reward"]["value"]) for row in rows] == [
            (6, 0, 2.0),
            (6, 0, 1.0),
            (6, 0, 0.0),
        ], "each answers as the version that it names"
        missing = await run("eval", *documented, "--model", "cli/pupil@7")
        assert missing.exit_code == 1
        assert "has no version 7: [0, 1, 2]" in " ".join(missing.stderr.split())

        pruned = await run("delete", "cli/pupil", "--checkpoints", "--yes", *where)
        assert "Deleted 1 checkpoints of cli/pupil; kept: 2." in pruned.stdout
        asked = await run("delete", "cli/pupil", *where)  # no answer at the prompt is no
        assert asked.exit_code == 1
        gone = await run("delete", "cli/pupil", "--yes", *where)
        assert gone.stdout == "Deleted cli/pupil with its 2 steps.\n"
        with pytest.raises(NotFoundError):
            await service.get_model("cli", "pupil")
        assert not (workplace / "art/cli/models/pupil").exists()
        unknown = await run("delete", "cli/pupil", "--yes", *where)
        assert unknown.exit_code == 1
        assert "No model 'pupil' is registered" in unknown.stderr
