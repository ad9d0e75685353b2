"""The whole road with a framework in front and the embedded engine behind: what it captured is what is trained."""

import asyncio
import json
import sys

import pytest
from tests.frameworks.pages import run_agent, write_agent

import art

KEY = "the-key-of-this-test"


@pytest.fixture
async def url(tmp_path):
    """A service of its own, as ``art serve`` starts it."""
    ready = tmp_path / "ready.json"
    arguments = ("serve", "--port", "0", "--path", tmp_path / "art", "--api-key", KEY, "--ready-file", ready)
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "art_backend", *arguments, "--watch-stdin"), stdin=asyncio.subprocess.PIPE
    )
    try:
        while not ready.exists():
            assert service.returncode is None, "the service did not start"
            await asyncio.sleep(0.1)
        yield json.loads(ready.read_text())["url"]
    finally:
        service.stdin.close()
        await service.wait()


@pytest.mark.timeout(400)
async def test_a_step_of_training(url, tmp_path, tiny_model_path):
    """A random model calls no tools, so that each agent takes one long turn; how it is rewarded is chance."""
    groups = []
    for page in ("openai-agents", "langgraph", "anthropic"):
        directory = tmp_path / page
        directory.mkdir()
        write_agent(page, 0, directory)
        runs = await run_agent(page, directory, url, KEY, str(tiny_model_path))
        groups.append(
            art.TrajectoryGroup(art.Trajectory(rollout_id=r["rollout"], reward=i) for i, r in enumerate(runs))
        )

    backend = art.RemoteBackend(url, KEY)
    model = art.TrainableModel(name="m", project="p", base_model=str(tiny_model_path), base_path=str(tmp_path))
    await model.register(backend)
    result = await backend.train(model, groups, learning_rate=1e-3)

    assert result.step == 1
    assert result.metrics["data/step_num_groups_trainable"] == len(groups)
    assert result.metrics["data/rows_per_trajectory"] == 1.0
    assert result.metrics["offpolicy/logprob_gap_row_max"] < 0.03, "the trainer sees the tokens that the engine sampled"
