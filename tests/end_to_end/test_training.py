"""The whole product on a tiny random model: real service, engine, trainer and SDK; only the model is small."""

import asyncio
import itertools
import json
import os
import random
import signal
import warnings
from pathlib import Path

import httpx
import openai
import psutil
import pytest
import pytest_asyncio
from tests.support import user_functions

import art
from art.errors import BackendError, BadRequestError, NoTrainingDataError
from art.rollouts.references import build_train_groups
from art.wire import TrainRequest

SCENARIOS = 3
MEMBERS = 4
NUMBERS = itertools.count()

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def play(model, seed):
    """A three-turn agent that is rewarded by chance: enough for a gradient."""
    chance = random.Random(seed)
    async with model.rollout() as rollout:
        client = rollout.openai_client()
        messages = [{"role": "user", "content": f"Say something about {chance.randint(0, 9)}."}]
        for _ in range(3):
            answer = await client.chat.completions.create(
                model=model.get_inference_name(), messages=messages, max_tokens=5, temperature=1.0
            )
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages.append({"role": "user", "content": "And more?"})
        return rollout.trajectory(reward=chance.random(), metrics={"turns": 3})


async def gather(model, step, members=MEMBERS):
    return await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(play(model, seed=(step, group, member).__hash__()) for member in range(members))
            for group in range(SCENARIOS)
        ),
        pbar_desc=None,
    )


def make_model(tiny_model_path, name=None):
    """A model; without a name, one that no other test uses."""
    name = name or f"agent-{next(NUMBERS)}"
    return art.TrainableModel(name=name, project="test", base_model=str(tiny_model_path))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tmp_path_factory):
    """One service for all tests here. Each has a model of its own, and leaves the service able to serve the next."""
    backend = art.LocalBackend(path=str(tmp_path_factory.mktemp("art")), user_code=Path(__file__).parents[2])
    yield backend
    await backend.close()


async def find_children(backend, model):
    """The engine, and the model's trainer."""
    processes = (await backend.get_health()).processes
    (engine,) = (process for process in processes if process.name.startswith("engine"))
    return engine, next((process for process in processes if process.name == f"trainer test/{model.name}"), None)


async def test_the_usual_script(backend, tiny_model_path):
    model = make_model(tiny_model_path, "usual")
    await model.register(backend)
    await model.register(backend)  # harmless
    assert await model.get_step() == 0
    for step in range(2):
        groups = await gather(model, step)
        result = await backend.train(model, groups, learning_rate=1e-3, verbose=False)
        await model.log(groups, split="train", metrics=result.metrics, step=result.step)
        assert result.step == step + 1
        assert result.metrics["data/step_num_groups_trainable"] == SCENARIOS
        assert result.metrics["data/rows_per_trajectory"] == 1.0, "an append-only conversation is one row"
        assert result.metrics["offpolicy/logprob_gap_row_max"] < 0.03
        assert result.metrics["loss/grad_norm"] > 0
        assert result.metrics["offpolicy/canary_gap"] < 0.15
        assert result.checkpoint_path is not None
        assert (Path(result.checkpoint_path) / "adapter_model.safetensors").exists()
    own = {"advantage": user_functions.best_of_group, "loss": user_functions.reinforce, "epochs": 2}
    result = await backend.train(model, await gather(model, 2), learning_rate=1e-3, verbose=False, **own)
    assert result.metrics["data/step_num_gradient_steps"] == 2
    with pytest.raises(BackendError, match="no module 'nowhere'"):
        await backend.train(model, groups, advantage="nowhere:function", verbose=False)
    result = await backend.train(model, await gather(model, 3), learning_rate=1e-3, verbose=False, trainer="trl")
    assert result.metrics["offpolicy/canary_gap"] < 0.15
    assert await model.get_step() == 4
    names = await model.openai_client().models.list()
    assert {"usual", "usual@4"} <= {m.id for m in names.data}


async def test_choices_kept_in_a_trajectory_reach_the_exact_captured_tokens(backend, tiny_model_path):
    model = make_model(tiny_model_path, "kept")
    await model.register(backend)

    async def rollout(reward):
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}], reward=reward)
        for _ in range(2):
            answer = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=4, logprobs=True
            )
            trajectory.messages_and_choices.append(answer.choices[0])
            trajectory.messages_and_choices.append({"role": "user", "content": "more"})
        return trajectory

    groups = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(reward) for reward in (0.0, 1.0))], pbar_desc=None
    )
    result = await backend.train(model, groups, learning_rate=1e-3, verbose=False)
    sampled = sum(
        len(item.logprobs.content)
        for trajectory in groups[0]
        for item in trajectory.messages_and_choices
        if not isinstance(item, dict)
    )
    assert result.metrics["data/step_trainer_tokens"] == sampled


async def test_bad_groups_are_named_and_equal_rewards_are_an_empty_step(backend, tiny_model_path):
    model = make_model(tiny_model_path, "bad")
    await model.register(backend)
    groups = await gather(model, 0)

    groups[1].trajectories[2].reward = float("nan")
    with pytest.raises(NoTrainingDataError, match="group 1, trajectory 2"):
        await backend.train(model, groups, verbose=False)

    plain = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], reward=1.0
    )
    with pytest.raises(NoTrainingDataError, match="plain dict"):
        await backend.train(model, [art.TrajectoryGroup([plain, plain])], verbose=False)

    for group in groups:
        for trajectory in group:
            trajectory.reward = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = await backend.train(model, [*groups, art.TrajectoryGroup([])], verbose=False)
    assert result.metrics["data/step_num_groups_trainable"] == 0
    assert result.metrics["data/step_num_gradient_steps"] == 0
    assert result.step == 1

    result = await backend.train(model, await gather(model, 1), learning_rate=1e-3, verbose=False)
    assert (result.step, result.metrics["data/step_num_gradient_steps"]) == (2, 1)


async def run_to_its_end(model, kind):
    """An agent that speaks once, makes no call, or begins with more than the context holds; under a key, or the model's own."""
    way, under = kind.split("/")
    messages = [{"role": "user", "content": "x" * 5_000_000 if way == "full" else "hi"}]
    async with model.rollout() as run:
        client = run.openai_client() if under == "rollout" else model.openai_client()
        trajectory = run.trajectory(reward=float(way == "speaks"))
        trajectory.rollout_id = run.id if under == "rollout" else None
        if way != "silent":
            answer = await client.chat.completions.create(
                model=model.get_inference_name(), messages=messages, max_tokens=4
            )
            trajectory.messages_and_choices += [messages[0], answer.choices[0]]
        return trajectory


async def test_a_run_in_which_nothing_was_sampled_costs_only_itself(backend, tiny_model_path, capfd):
    model = make_model(tiny_model_path)
    await model.register(backend)
    for step, under in enumerate(("rollout", "model"), start=1):
        kinds = [f"{way}/{under}" for way in ("speaks", "full", "silent")]
        group = await art.TrajectoryGroup([run_to_its_end(model, kind) for kind in kinds])
        result = await backend.train(model, [group], learning_rate=1e-3)
        assert result.step == step
        assert result.metrics["data/step_num_groups_trainable"] == 1
        assert result.metrics["data/step_num_trajectories_trained"] == 1
        assert result.metrics["data/step_num_trajectories_without_tokens"] == 2
        assert result.metrics["reward/mean"] == pytest.approx(1 / 3), "its reward is an outcome like any other"
        told = capfd.readouterr().err
        assert told.count("2 trajectories have no token to train") == 1
        assert "groups.0.trajectories.1: " in told
        assert "groups.0.trajectories.2: " in told

    run = await art.train(  # whole steps of them
        model,
        run_to_its_end,
        ["full/rollout", "silent/rollout", "full/model"],
        steps=4,
        groups_per_step=3,
        group_size=2,
        show_progress=False,
    )
    assert run.step == 4
    assert f"step 4 of {model.name} trained nothing: No trajectory holds a token" in capfd.readouterr().err


async def test_copies_are_refused_here_and_by_the_service(backend, tiny_model_path):
    model = make_model(tiny_model_path)
    await model.register(backend)
    first = await run_to_its_end(model, "speaks/model")
    second = first.model_copy(update={"reward": 0.0})
    with pytest.raises(NoTrainingDataError, match="group 0, trajectory 1 is the same run as group 0, trajectory 0"):
        await backend.train(model, [art.TrajectoryGroup([first, second])])
    (group,), _ = build_train_groups([art.TrajectoryGroup([first])])
    group.trajectories.append(group.trajectories[0].model_copy(update={"reward": 0.0}))
    request = TrainRequest(project="test", model=model.name, groups=[group], idempotency_key="of another client")
    with pytest.raises(
        BadRequestError, match=r"groups\.0\.trajectories\.1 is the same run as groups\.0\.trajectories\.0"
    ):
        await backend._run_job(request, verbose=False)


@pytest.mark.long
async def test_killed_children_are_told_and_replaced(backend, tiny_model_path):
    model = make_model(tiny_model_path, "killed")
    await model.register(backend)
    groups = await gather(model, 0)

    engine, _ = await find_children(backend, model)
    os.kill(engine.pid, signal.SIGKILL)
    answers = await gather(model, 1)  # the SDK's retry meets a new engine
    assert len(answers) == SCENARIOS

    await backend.train(model, groups, learning_rate=1e-3, verbose=False)
    _, trainer = await find_children(backend, model)
    os.kill(trainer.pid, signal.SIGKILL)
    while trainer.state != "failed":
        await asyncio.sleep(0.05)
        _, trainer = await find_children(backend, model)
    result = await backend.train(model, answers, learning_rate=1e-3, verbose=False)
    assert result.step == 2
    assert await model.get_step() == 2


@pytest.mark.long
async def test_the_service_ends_its_children_when_it_is_killed(tmp_path, tiny_model_path):
    backend = art.LocalBackend(path=str(tmp_path / "art"))
    model = make_model(tiny_model_path, "orphan")
    await model.register(backend)
    await backend.train(model, await gather(model, 0), learning_rate=1e-3, verbose=False)
    children = [psutil.Process(process.pid) for process in await find_children(backend, model)]
    service = children[0].parent()
    service.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    with pytest.raises(BackendError):
        await model.get_step()
    await backend.close()


async def test_wrong_keys_models_and_bodies_are_told_apart(backend, tiny_model_path):
    model = make_model(tiny_model_path, "keys")
    await model.register(backend)
    client = model.openai_client()
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError, match="keys"):
        await client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "x"}])
    async with httpx.AsyncClient(base_url=str(client.base_url).removesuffix("/v1/"), timeout=60) as http:
        headers = {"Authorization": f"Bearer {client.api_key}"}
        for body in (b"{", b"[]", b"\xff\xfe", json.dumps({"model": 3, "messages": "x"}).encode()):
            answer = await http.post("/v1/chat/completions", content=body, headers=headers)
            assert answer.status_code == 400, body
            assert answer.json()["error"]["message"]
        assert (await http.get("/api/v1/models", headers=headers)).status_code == 403
        assert (await http.get("/api/v1/models")).status_code == 401
        assert (await http.get("/api/v1/models", headers={"Authorization": "Bearer wrong"})).status_code == 401
        assert (await http.get("/api/v1/health")).status_code == 200
    answer = await client.chat.completions.create(
        model=model.get_inference_name(), messages=[{"role": "user", "content": "x"}], max_tokens=2
    )
    assert answer.usage.completion_tokens <= 2


async def test_a_model_that_does_not_exist(backend):
    model = art.TrainableModel(name="nowhere", project="test", base_model="/no/such/model")
    with pytest.raises(BackendError, match="/no/such/model"):
        await model.register(backend)


async def test_two_models_take_turns(backend, tiny_model_path):
    models = [make_model(tiny_model_path, name) for name in ("one", "two")]
    for model in models:
        await model.register(backend)
    batches = await asyncio.gather(*(gather(model, 0) for model in models))
    results = await asyncio.gather(
        *(
            backend.train(model, groups, learning_rate=1e-3, verbose=False)
            for model, groups in zip(models, batches, strict=True)
        )
    )
    assert [result.step for result in results] == [1, 1]
