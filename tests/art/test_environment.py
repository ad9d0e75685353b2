"""Code that builds its own clients from the environment reaches the rollout of its own context."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import anthropic
import openai
import pytest
from fastapi import Request
from tests.art.conftest import KEY, build_app, serving

import art

NAMES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")


@pytest.fixture
async def model(service, tmp_path):
    """A model whose endpoint answers with the rollout and the key that the request named."""
    app = build_app(service)

    @app.post("/r/{rollout}/v1/chat/completions")
    async def chat(rollout: str, request: Request):
        message = {"role": "assistant", "content": f"{rollout} {request.headers['authorization']}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    @app.post("/r/{rollout}/v1/messages")
    async def messages(rollout: str, request: Request):
        key = request.headers.get("authorization") or f"Bearer {request.headers['x-api-key']}"
        block = {"type": "text", "text": f"{rollout} {key}"}
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block], "usage": usage}

    app.user_middleware.clear()  # the guard lets the service's own key in alone; here every key is shown
    with serving(app) as url:
        model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
        await model.register(art.RemoteBackend(url, KEY))
        yield model


async def ask() -> str:
    """An agent that knows nothing but the environment."""
    async with openai.AsyncOpenAI() as client:
        completion = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    return completion.choices[0].message.content or ""


def ask_sync() -> str:
    with openai.OpenAI() as client:
        completion = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    return completion.choices[0].message.content or ""


async def ask_anthropic() -> str:
    async with anthropic.AsyncAnthropic() as client:
        message = await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "q"}])
    return message.content[0].text


@pytest.fixture(autouse=True)
def process_environment(monkeypatch):
    """What the user has set: nothing of it may be reached, or lost."""
    for name in NAMES:
        monkeypatch.setenv(name, f"http://127.0.0.1:9/{name}")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "the user's own")
    before, variables = os.environ, {**os.environ}
    yield
    assert os.environ is before
    mine = "PYTEST_CURRENT_TEST"
    assert {**os.environ, mine: ""} == {**variables, mine: ""}


async def test_concurrent_rollouts_see_their_own(model):
    async def rollout(i):
        async with model.rollout() as r, r.trajectory() as t:
            expected = f"{r.id} Bearer {r.api_key}"
            await asyncio.sleep(0.002 * (i % 5))  # every one of them is open while others begin and end
            answers = [
                await ask(),
                await ask_anthropic(),
                *await asyncio.gather(ask(), asyncio.to_thread(ask_sync)),
            ]
            await asyncio.sleep(0.002 * (i % 3))
            assert answers == [expected] * 4
            assert os.environ["OPENAI_API_KEY"] == r.api_key
        assert os.environ["OPENAI_API_KEY"] == "http://127.0.0.1:9/OPENAI_API_KEY"
        return t

    group = await art.TrajectoryGroup(rollout(i) for i in range(5))
    assert not group.exceptions, group.exceptions
    assert len({t.rollout_id for t in group}) == 5


async def test_rollouts_nest_and_end_with_an_exception(model):
    async with model.rollout() as outer, model.rollout() as inner:
        with outer.trajectory():
            with pytest.raises(KeyError, match="of the agent"), inner.trajectory():
                assert await ask() == f"{inner.id} Bearer {inner.api_key}"
                raise KeyError("of the agent")
            assert await ask() == f"{outer.id} Bearer {outer.api_key}"
            with art.Trajectory():  # records, and leaves the variables as they are
                assert os.environ["OPENAI_API_KEY"] == outer.api_key


async def test_a_context_without_the_scope_sees_the_process(model):
    """Where the context does not reach, nothing of another rollout is seen."""
    name = "OPENAI_API_KEY"
    async with model.rollout() as r, r.trajectory():
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(os.environ.get, name).result() == f"http://127.0.0.1:9/{name}"
        assert await asyncio.to_thread(os.environ.get, name) == r.api_key


async def test_a_task_that_outlives_its_rollout(model):
    async def straggler():
        await ended.wait()
        return os.environ["OPENAI_API_KEY"]

    ended = asyncio.Event()
    async with model.rollout() as r, r.trajectory():
        task = asyncio.create_task(straggler())
        await asyncio.sleep(0)
    ended.set()
    assert await task == "http://127.0.0.1:9/OPENAI_API_KEY"


async def test_it_is_a_mapping_of_variables_like_any(model, monkeypatch):
    count = len(os.environ)
    async with model.rollout() as r, r.trajectory():
        assert "ANTHROPIC_AUTH_TOKEN" not in os.environ
        assert os.environ.get("ANTHROPIC_AUTH_TOKEN", "none") == "none"
        assert len(os.environ) == len(list(os.environ)) == count - 1
        assert isinstance(os.environ, os._Environ)
        assert {name: os.environ[name] for name in NAMES} == r.environment
        with mock.patch.dict(os.environ, {"OPENAI_API_KEY": "mine", "ART_TEST_NEW": "1"}, clear=True):
            assert dict(os.environ) == {"OPENAI_API_KEY": "mine", "ART_TEST_NEW": "1"}
        assert os.environ["OPENAI_API_KEY"] == r.api_key
        with pytest.raises(KeyError):
            del os.environ["ANTHROPIC_AUTH_TOKEN"]
        with pytest.raises(TypeError):
            os.environ["OPENAI_API_KEY"] = 5  # pyright: ignore[reportArgumentType]
        os.environ["OPENAI_API_KEY"] = "for this run only"
        assert os.environ["OPENAI_API_KEY"] == "for this run only"
        os.environ["ART_TEST_KEPT"] = "1"  # of no concern to the scope, so the process's
    assert os.environ.pop("ART_TEST_KEPT") == "1"


async def test_a_process_of_the_agents_own(model):
    script = "import os; print(os.environ['OPENAI_API_KEY'])"

    def run(**options):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, **options)
        return done.stdout.strip()

    async with model.rollout() as r:
        assert run(env=os.environ | r.environment) == r.api_key
        with r.trajectory():
            assert run(env=os.environ) == r.api_key
            assert run() == "http://127.0.0.1:9/OPENAI_API_KEY", "a child inherits the process's variables"
