"""Wrapping rollouts. What real graphs of LangGraph do with it is in docs/frameworks/langgraph.md and its test."""

import asyncio
import json
import sys
from types import SimpleNamespace

import openai
import pytest
from fastapi import FastAPI, Request, Response
from tests.art.conftest import serving

import art
from art.errors import MissingExtraError
from art.langgraph import init_chat_model, wrap_rollout
from art.wire import RolloutTree, TreeNode


class Source(art.backend.RolloutSource):
    """A backend that hands out rollouts in which one question was answered."""

    def __init__(self):
        self.made = 0

    def _model_inference_name(self, model, step=None):
        return f"{model.name}@{step or 0}"

    async def register(self, model):
        pass

    async def _prepare_backend_for_training(self, model, config):
        return "http://127.0.0.1:1/v1", "model-key"

    async def create_rollout(self, model, step):
        self.made += 1
        return f"ro_{self.made}", f"http://127.0.0.1:1/r/ro_{self.made}/v1", f"key_{self.made}"

    async def get_rollout(self, rollout_id):
        question = {"role": "user", "content": rollout_id}
        answer = {"role": "assistant", "content": "a"}
        nodes = [
            TreeNode(id="n1", parent=None, keep=0, token_ids=[], sampled=False, messages=[question]),
            TreeNode(id="n2", parent="n1", keep=0, token_ids=[], sampled=True, messages=[answer], finish_reason="stop"),
        ]
        place = {"api_key": "k", "base_path": "/r", "kind": "keyed", "project": "p", "model": "m", "step": None}
        return RolloutTree(id=rollout_id, nodes=nodes, **place)


@pytest.fixture
def endpoint():
    """An OpenAI endpoint that repeats the question."""
    endpoint_app = FastAPI()

    @endpoint_app.post("/v1/chat/completions")
    async def answer(request: Request):
        body = await request.json()
        said = {"role": "assistant", "content": body["messages"][-1]["content"] + "?"}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        if not body.get("stream"):
            return {**head, "choices": [{"index": 0, "finish_reason": "stop", "message": said}]}
        chunk = {**head, "object": "chat.completion.chunk"}
        chunk["choices"] = [{"index": 0, "finish_reason": "stop", "delta": said}]
        return Response(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")

    with serving(endpoint_app) as url:
        yield f"{url}/v1"


@pytest.fixture
def chat(monkeypatch):
    """Stands for the package: what a chat model was made with is what it is."""
    monkeypatch.setitem(sys.modules, "langchain_openai", SimpleNamespace(ChatOpenAI=lambda **options: options))


async def test_each_rollout_has_a_chat_model_of_its_own_and_its_conversation(chat, tmp_path):
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await model.register(Source())
    made = []

    async def agent(scenario, own=False):
        """Doc."""
        made.append(init_chat_model(temperature=0.5))
        made.append(init_chat_model("m@3", base_url="http://else/v1"))
        return art.Trajectory(reward=0.5, messages_and_choices=[{"role": "user", "content": "own"}] if own else [])

    rollout = wrap_rollout(model, agent)
    assert (rollout.__name__, rollout.__doc__) == ("agent", "Doc.")
    group = await art.TrajectoryGroup([rollout("a"), rollout("b", own=True)])
    assert [(t.rollout_id, t.reward) for t in group] == [("ro_1", 0.5), ("ro_2", 0.5)]
    assert [t.messages()[0]["content"] for t in group] == ["ro_1", "own"]
    assert made[0] == {
        "model": "m@0",
        "base_url": "http://127.0.0.1:1/r/ro_1/v1",
        "api_key": "key_1",
        "stream_chunk_timeout": None,
        "temperature": 0.5,
    }
    assert (made[1]["model"], made[1]["base_url"], made[1]["api_key"]) == ("m@3", "http://else/v1", "key_1")
    assert {one["api_key"] for one in made} == {"key_1", "key_2"}


async def test_arguments_of_langchains_own_function(chat):
    prompted = art.Model(name="x", project="p", inference_api_key="k", inference_base_url="http://x/v1")

    async def agent():
        made = init_chat_model(None, model_provider="openai", configurable_fields=None, config_prefix=None)
        assert (made["model"], "model_provider" in made) == ("x", False)
        for arguments, words in [
            ({"model_provider": "anthropic"}, "a rollout speaks OpenAI's protocol"),
            ({"configurable_fields": ("model",)}, "configurable_fields cannot be set"),
            ({"config_prefix": "a"}, "config_prefix cannot be set"),
        ]:
            with pytest.raises(ValueError, match=words):
                init_chat_model(**arguments)
        return art.Trajectory()

    await wrap_rollout(prompted, agent)()


async def test_a_prompted_model_is_talked_to_where_it_is(chat, tmp_path):
    prompted = art.Model(
        name="x", project="p", inference_model_name="gpt", inference_api_key="k", inference_base_url="http://x/v1"
    )

    async def agent():
        assert init_chat_model()["model"] == "gpt"
        assert init_chat_model()["api_key"] == "k"
        return art.Trajectory(reward=1)

    trajectory = await wrap_rollout(prompted, agent)()
    assert (trajectory.reward, trajectory.rollout_id) == (1.0, None)
    with pytest.raises(ValueError, match="inference_api_key"):
        await wrap_rollout(art.Model(name="y", project="p"), agent)()


@pytest.mark.parametrize("kind", ["async", "sync", "streamed"])
async def test_the_conversation_of_a_prompted_model_is_filled_too(chat, endpoint, kind):
    """As documented, for any model: its calls are seen where they are made."""
    prompted = art.Model(name="x", project="p", inference_api_key="k", inference_base_url=endpoint)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

    async def agent(question, own=False):
        made = init_chat_model()
        ask = {"model": made["model"], "messages": [{"role": "user", "content": question}], "tools": tools}
        if kind == "sync":
            client = openai.OpenAI(base_url=made["base_url"], api_key="k", http_client=made["http_client"])
            await asyncio.to_thread(client.chat.completions.create, **ask)
        else:
            client = openai.AsyncOpenAI(base_url=made["base_url"], api_key="k", http_client=made["http_async_client"])
            answer = await client.chat.completions.create(**ask, stream=kind == "streamed")
            _ = [chunk async for chunk in answer] if kind == "streamed" else None
        assert not {"http_client", "http_async_client"} & init_chat_model(base_url="http://judge/v1").keys()
        return art.Trajectory(reward=1, messages_and_choices=[{"role": "user", "content": "own"}] if own else [])

    rollout = wrap_rollout(prompted, agent)
    group = await art.TrajectoryGroup([rollout("a"), rollout("b"), rollout("c", own=True)])
    said = [[(message["role"], message["content"]) for message in t.messages()] for t in group]
    assert said == [[("user", q), ("assistant", f"{q}?")] for q in "ab"] + [[("user", "own")]]
    assert [t.tools for t in group] == [tools, tools, None]
    assert [t.rollout_id for t in group] == [None] * 3


async def test_outside_of_a_rollout_and_without_the_package(monkeypatch, tmp_path):
    with pytest.raises(RuntimeError, match="No rollout is running"):
        init_chat_model()
    monkeypatch.setitem(sys.modules, "langchain_openai", None)
    prompted = art.Model(name="x", project="p", inference_api_key="k", inference_base_url="http://x/v1")

    async def agent():
        init_chat_model()

    with pytest.raises(MissingExtraError, match=r"pip install 'art-trainer\[langgraph\]'"):
        await wrap_rollout(prompted, agent)()
