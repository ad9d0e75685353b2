"""What docs/capture.md shows is recorded as it says."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.art.conftest import serving

import art
from art.rollouts.references import build_train_groups

PAGE = (Path(__file__).parents[2] / "docs/capture.md").read_text()
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "9.9"}}
REFERENCE = {"turn": "t1", "rollout": "ro_1", "policy_version": 0}


@pytest.fixture
def model(tmp_path):
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat():
        choices = [{**CHOICE, "art": REFERENCE}]
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}

    with serving(app) as url:
        made = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
        made.inference_base_url, made.inference_api_key = f"{url}/v1", "k"
        yield made


@pytest.mark.parametrize("name", ["rollout", "rollout_by_hand"])
async def test_the_agents_of_the_page_can_be_trained(model, name):
    namespace: dict = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(snippet, namespace)
    trajectory = await namespace[name](model)
    assert (trajectory.reward, trajectory.messages()[-1]["content"]) == (1.0, "9.9")
    groups, _ = build_train_groups([art.TrajectoryGroup([trajectory])])
    assert groups[0].trajectories[0].turns == ["t1"]


def test_the_messages_that_it_explains_are_those_that_are_given():
    explained = re.findall(r'^\*\*"(.*?)"', PAGE, re.MULTILINE)
    assert len(explained) == 6
    source = "\n".join(path.read_text() for path in (Path(__file__).parents[2] / "src").rglob("*.py"))
    words = [re.sub(r" group 0, trajectory 0$", "", text) for text in explained]
    assert [text for text in words if text not in source] == []
