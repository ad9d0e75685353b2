"""The whole road with a framework in front and the embedded engine behind: what it captured is what is trained."""

import pytest
from tests.frameworks.conftest import KEY
from tests.frameworks.pages import run_agent, run_script, write_agent
from tests.frameworks.test_pages import ROWS
from tests.support.tiny import build_tiny_model

import art

LONG = "smolagents"
"""Its instructions fill a context of 2,048 bytes several times over."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("pages", "context"), [([p for p in ROWS if p != LONG], 2048), ([LONG], 12_288)], ids=["all", LONG]
)
async def test_a_step_of_training(url, tmp_path, pages, context):
    """Two trajectories of every page, as its agent returns them. A random model calls tools only where it must; how it is rewarded is
    chance."""
    base_model = str(build_tiny_model(tmp_path / "model", context=context))
    groups = []
    for page in pages:
        directory = tmp_path / page.replace("../", "")
        directory.mkdir()
        write_agent(page, 0, directory)
        runs = await run_agent(page, directory, url, KEY, base_model)
        group = art.TrajectoryGroup(art.Trajectory.model_validate(run["trajectory"]) for run in runs)
        assert len(group) == 2, page
        for reward, trajectory in enumerate(group):
            trajectory.reward = reward
        groups.append(group)

    backend = art.RemoteBackend(url, KEY)
    model = art.TrainableModel(name="m", project="p", base_model=base_model, base_path=str(tmp_path))
    await model.register(backend)
    result = await backend.train(model, groups, learning_rate=1e-3)

    assert result.step == 1
    assert result.metrics["data/step_num_groups_trainable"] == len(pages)
    assert result.metrics["data/step_num_trajectories_trained"] == 2 * len(pages)
    assert result.metrics["offpolicy/logprob_gap_row_max"] < 0.03, "the trainer sees the tokens that the engine sampled"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("provider", ["hosted_vllm/", "openai/"])
@pytest.mark.parametrize("environment", ["main", "litellm-1.81"])
async def test_choices_of_litellm_are_trained(url, tmp_path, tiny_model_path, environment, provider):
    """Calls of the model's own endpoint: the choices alone say which turns they are."""
    done = await run_script("run_litellm.py", environment, tmp_path, url, KEY, str(tiny_model_path), provider)
    assert done["step"] == 1
    assert done["roles"] == [["user", "assistant"] * 2 + ["user"]] * 3
    assert done["metrics"]["data/step_num_trajectories_trained"] == 3
    assert done["metrics"]["data/rows_per_trajectory"] == 1.0
    assert done["metrics"]["data/step_trainer_tokens"] == done["sampled"]
    assert done["metrics"]["offpolicy/logprob_gap_row_max"] < 0.03
