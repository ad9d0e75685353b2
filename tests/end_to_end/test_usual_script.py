"""The script that everyone writes: register, gather with a judge, train, log, delete old checkpoints, resume."""

import json
from pathlib import Path

import polars
import pytest

import art
from art.logs.parquet import read_trajectory_groups_parquet
from art.rewards import ruler_score_group
from art.utils import iterate_dataset

pytestmark = pytest.mark.long

SCENARIOS = [{"id": f"s{n}", "prompt": f"Say {n}."} for n in range(4)]


async def judge(messages):
    """Prefers long answers, whatever they say."""
    parts = messages[1]["content"].split('<trajectory id="')[1:]
    ids = [part.split('"')[0] for part in parts]
    longest = max(map(len, parts))
    scores = [
        {"trajectory_id": name, "explanation": "by length", "score": len(part) / longest - 0.1 * n / len(ids)}
        for n, (name, part) in enumerate(zip(ids, parts, strict=True))
    ]
    return json.dumps({"scores": scores})


async def rollout(model: art.TrainableModel, scenario: dict) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": scenario["prompt"]}], metadata={"scenario_id": scenario["id"]}
    )
    async with trajectory.track_duration("agent"):
        answer = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=6, temperature=1.0
        )
    trajectory.messages_and_choices.append(answer.choices[0])
    return trajectory.finish()


async def train(path: Path, base_model: Path, until: int) -> list[int]:
    """One process's part of the run; returns the steps it took."""
    taken: list[int] = []
    with art.LocalBackend(path=path) as backend:
        model: art.TrainableModel = art.TrainableModel(name="agent", project="usual", base_model=str(base_model))
        await model.register(backend)
        batches = iterate_dataset(
            SCENARIOS, groups_per_step=2, num_epochs=2, initial_step=await model.get_step(), use_tqdm=False
        )
        for batch in batches:
            if batch.step == until:
                break
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(rollout(model, scenario) for _ in range(4)) for scenario in batch.items),
                after_each=lambda group: ruler_score_group(group, judge, swallow_exceptions=True),
                max_exceptions=0.1,
                pbar_desc=None,
            )
            result = await backend.train(model, groups, learning_rate=1e-3)
            await model.log(groups, split="train", metrics=result.metrics, step=result.step)
            await model.log(metrics={"reward": [0.5, 0.9, 0.1][batch.step]}, split="val", step=result.step)
            await model.delete_checkpoints()
            taken.append(result.step)
    return taken


@pytest.mark.timeout(400)
async def test_the_script_trains_logs_cleans_up_and_resumes(tmp_path, tiny_model_path):
    assert await train(tmp_path, tiny_model_path, until=2) == [1, 2]
    assert await train(tmp_path, tiny_model_path, until=3) == [3]

    directory = tmp_path / "usual/models/agent"
    kept = sorted(path.name for path in (directory / "checkpoints").iterdir() if path.name.isdigit())
    assert kept == ["0002", "0003"], "the best by val/reward, and the latest"
    history = polars.read_ndjson(directory / "history.jsonl")
    steps = history.filter(polars.col("train/reward").is_not_null())
    assert steps["step"].to_list() == [1, 2, 3]
    assert steps["data/cum/num_unique_scenarios"].to_list() == [2, 4, 4], "totals go on after the restart"
    assert steps["train/ruler_score"].to_list() == steps["train/reward"].to_list()
    groups = read_trajectory_groups_parquet(directory / "trajectories/train/0003.parquet")
    assert [len(group) for group in groups] == [4, 4]
    assert groups[0].trajectories[0].logs == ["RULER explanation: by length"]
    assert groups[0].trajectories[0].metrics["agent_duration"] > 0
