"""The whole product on vLLM (its CPU build): only the model is small."""

import asyncio
import os
import signal
import time

import openai
import psutil
import pytest
from tests.art_backend.engines.conftest import VLLM_PYTHON
from tests.support.tiny import build_tiny_model

import art

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

GROUPS, MEMBERS = 2, 3


@pytest.fixture
async def backend(tmp_path):
    arguments = ["--engine", "vllm", "--vllm-python", VLLM_PYTHON, "--threads", "2"]
    async with art.LocalBackend(path=str(tmp_path / "art"), serve_arguments=arguments) as backend:
        yield backend


def find_core(engine):
    """The process that computes for a vLLM server, by the title that it gives itself."""
    (core,) = [p for p in psutil.Process(engine).children(recursive=True) if p.cmdline()[:1] == ["VLLM::EngineCore"]]
    return core.pid


async def find_engine(backend):
    return (await backend.get_health()).processes[0]


async def test_a_killed_engine_is_told_at_once_and_costs_at_most_the_rollouts_in_flight(
    backend, tmp_path, read_history
):
    base_model = build_tiny_model(tmp_path / "tiny", head_dim=32)
    model = art.TrainableModel(name="agent", project="test", base_model=str(base_model), base_path=str(tmp_path))
    await model.register(backend)
    in_mid_rollout, played, versions = asyncio.Event(), 0, []

    async def rollout(model, scenario):
        nonlocal played
        played += 1
        async with model.rollout() as run:
            messages = [{"role": "user", "content": f"{scenario}"}]
            for turn in range(3):
                answer = await run.openai_client().chat.completions.create(
                    model=model.name, messages=messages, max_tokens=60, temperature=1.0
                )
                version = answer.choices[0].model_extra["art"]["policy_version"]
                versions.append(version)
                messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
                messages += [{"role": "user", "content": "?"}]
                if version == 1 and turn == 0:
                    in_mid_rollout.set()
            return run.trajectory(reward=float(len(messages[1]["content"]) % 7))

    training = asyncio.ensure_future(
        art.train(
            model,
            rollout,
            range(100),
            groups_per_step=GROUPS,
            group_size=MEMBERS,
            steps=3,
            learning_rate=1e-3,
            eval_scenarios=[],
            show_progress=False,
        )
    )
    await asyncio.wait({training, asyncio.ensure_future(in_mid_rollout.wait())}, return_when=asyncio.FIRST_COMPLETED)

    # beside the rollouts: calls that are not tried again, of two versions, whole and streamed
    client = model.openai_client().with_options(max_retries=0, timeout=120)
    question = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1800, "temperature": 0}
    waiters = [
        asyncio.ensure_future(client.chat.completions.create(model=name, **question))
        for name in ("agent", "agent", "agent@0")
    ]
    stream = await client.chat.completions.create(model="agent@1", stream=True, **question)
    await anext(aiter(stream))

    async def read_on():
        async for _ in stream:
            pass

    waiters.append(asyncio.ensure_future(read_on()))
    before = await find_engine(backend)
    os.kill(find_core(before.pid), signal.SIGKILL)
    killed = time.monotonic()
    for outcome in await asyncio.gather(*waiters, return_exceptions=True):
        assert isinstance(outcome, openai.APIError)
        assert "End of its log" in str(outcome)
        assert "VLLM" in str(outcome) or "vLLM" in str(outcome)
    assert time.monotonic() - killed < 30

    run = await training
    assert run.step == 3
    rows = [row for row in read_history(model) if "train/reward" in row]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert played <= 3 * GROUPS * MEMBERS + GROUPS * MEMBERS, "at most the rollouts in flight were lost"
    assert set(versions) == {0, 1, 2}
    after = await find_engine(backend)
    assert (after.state, after.pid != before.pid) == ("ready", True)

    log = (tmp_path / "art" / "logs" / "engine.log").read_text()
    assert log.count("Loaded new LoRA adapter: name 'test/agent@1'") == 2, "the new engine got it without being asked"

    # evaluation of an earlier version beside the latest
    names = ["agent@1", "agent", "agent@0", "agent@3"] * 3
    answers = await asyncio.gather(
        *(client.chat.completions.create(model=name, **question | {"max_tokens": 30}) for name in names)
    )
    assert [a.choices[0].model_extra["art"]["policy_version"] for a in answers] == [1, 3, 0, 3] * 3
