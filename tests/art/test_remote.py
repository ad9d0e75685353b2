import asyncio
import socket

import pytest
from tests.art.conftest import KEY, FakeService, build_app, serving

import art
from art.errors import (
    BackendUnreachableError,
    EngineFailedError,
    JobInterruptedError,
    NoTrainingDataError,
    UnauthorizedError,
    VersionMismatchError,
)
from art.wire import ApiErrorBody, ErrorCode, JobState, TrainResult


def trainable(tmp_path, **fields):
    return art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path), **fields)


@pytest.fixture
def groups(make_choice):
    return [
        art.TrajectoryGroup(
            [
                art.Trajectory(
                    messages_and_choices=[{"role": "user", "content": "q"}, make_choice(turn="t1")], reward=1.0
                ),
                art.Trajectory(
                    messages_and_choices=[{"role": "user", "content": "q"}, make_choice(turn="t2")], reward=0.0
                ),
            ],
            metadata={"scenario_id": 7},
        )
    ]


@pytest.fixture
async def registered(service, tmp_path):
    backend = art.RemoteBackend(service.url, KEY)
    model = trainable(tmp_path)
    await model.register(backend)
    return backend, model


async def test_register_fills_the_endpoint_and_is_idempotent(service, tmp_path):
    backend = art.RemoteBackend(service.url + "/", KEY)
    model = trainable(tmp_path, _internal_config={"peft_args": {"r": 4, "lora_alpha": 8, "random_state": 3}})
    for _ in range(2):
        await model.register(backend)
    assert (model.inference_base_url, model.inference_api_key) == (f"{service.url}/v1", "model-key")
    assert model.get_inference_name() == "m@0"
    assert model.get_inference_name(step=5) == "m@5"
    spec = service.models["m"]
    assert (spec.lora.rank, spec.lora.alpha, spec.lora.seed, spec.base_model) == (4, 8.0, 3, "b")
    assert isinstance(backend, art.Backend)


async def test_settings_without_effect_warn(service, tmp_path):
    model = trainable(tmp_path, _internal_config={"init_args": {"load_in_4bit": True, "max_seq_length": 256}})
    with pytest.warns(UserWarning, match=r"init_args\.load_in_4bit has no effect"):
        await model.register(art.RemoteBackend(service.url, KEY))
    assert service.models["m"].max_sequence_length == 256


async def test_train_sends_references_and_returns_the_served_step(service, registered, groups, capsys):
    backend, model = registered
    result = await backend.train(model, groups, learning_rate=1e-4, epsilon=0.1, truncated_importance_sampling=3.0)
    (request,) = service.train_requests
    assert [t.turns for t in request.groups[0].trajectories] == [["t1"], ["t2"]]
    assert [t.reward for t in request.groups[0].trajectories] == [1.0, 0.0]
    assert request.groups[0].scenario == "7"
    assert (request.options.learning_rate, request.options.epsilon, request.options.importance_cap) == (1e-4, 0.1, 3.0)
    assert result.step == 1
    assert result.metrics["loss/train"] == 0.5
    assert result.metrics["data/step_num_groups_trainable"] == 1.0
    assert result.metrics["data/step_num_trajectories"] == 2.0
    assert result.metrics["time/step_trainer_s"] > 0
    assert model.inference_model_name == "m@1"
    assert capsys.readouterr() == ("", "")  # not a terminal: quiet


async def test_train_of_a_keyed_rollout_refers_to_it_alone(service, registered):
    backend, model = registered
    members = []
    for reward in (0.0, 1.0):
        async with model.rollout(step=0) as rollout:
            assert str(rollout.openai_client().base_url).rstrip("/") == rollout.base_url
            assert rollout.openai_client().api_key == rollout.api_key
            members.append(rollout.trajectory(reward=reward, metrics={"wins": 1}))
    assert service.rollouts[0].step == 0
    assert rollout.base_url == f"{service.url}/r/ro_2/v1"
    await backend.train(model, [art.TrajectoryGroup(members)])
    sent = service.train_requests[0].groups[0].trajectories
    assert [(t.rollout, t.turns, t.metrics) for t in sent] == [("ro_1", [], {"wins": 1.0}), ("ro_2", [], {"wins": 1.0})]


async def test_each_call_has_its_own_idempotency_key(service, registered, groups):
    backend, model = registered
    await backend.train(model, groups)
    service.events.clear()
    await backend.train(model, groups)
    first, second = (request.idempotency_key for request in service.train_requests)
    assert first != second


async def test_a_dropped_event_stream_resumes_where_it_broke(service, registered, groups):
    backend, model = registered
    service.drop_after = [1, 0, 2]
    result = await backend.train(model, groups)
    assert result.step == 1
    assert service.event_requests == [0, 1, 1, 3]
    assert len(service.train_requests) == 1


async def test_an_interrupted_job_is_sent_again_under_the_same_key(service, registered, groups, capsys):
    backend, model = registered
    service.final = lambda attempt: service.job(JobState.INTERRUPTED) if attempt == 1 else None
    assert (await backend.train(model, groups)).step == 1
    first, second = service.train_requests
    assert first == second
    assert "sending the step again" in capsys.readouterr().err


async def test_a_job_that_is_interrupted_every_time_says_that_nothing_was_kept(service, registered, groups):
    backend, model = registered
    service.final = lambda attempt: service.job(JobState.INTERRUPTED)
    with pytest.raises(JobInterruptedError, match="The step was not saved"):
        await backend.train(model, groups)
    assert len(service.train_requests) == 3


async def test_a_failed_job_raises_its_typed_error(service, registered, groups):
    backend, model = registered
    error = ApiErrorBody(code=ErrorCode.ENGINE_FAILED, message="The engine died: out of memory", param="groups")
    service.final = lambda attempt: service.job(JobState.FAILED, error=error)
    with pytest.raises(EngineFailedError, match="out of memory") as caught:
        await backend.train(model, groups)
    assert (caught.value.code, caught.value.param) == (ErrorCode.ENGINE_FAILED, "groups")


async def test_an_empty_step_is_reported(service, registered, groups, capsys):
    backend, model = registered
    service.result = TrainResult(
        step=1, trained=False, reason="all rewards are equal", metrics={}, warnings=["one row was dropped"]
    )
    result = await backend.train(model, groups)
    assert result.metrics["data/step_num_groups_trainable"] == 0.0
    assert result.metrics["data/step_trainer_tokens"] == 0.0
    assert result.metrics["data/step_num_gradient_steps"] == 0.0
    told = capsys.readouterr().err
    assert "step 1 of m trained nothing: all rewards are equal" in told
    assert told.count("one row was dropped") == 1


async def test_bad_input_is_refused_before_anything_is_sent(service, registered, groups):
    backend, model = registered
    groups[0].trajectories[1].reward = float("nan")
    with pytest.raises(NoTrainingDataError, match="group 0, trajectory 1 is nan"):
        await backend.train(model, groups)
    with pytest.raises(TypeError, match="unknown options: lerning_rate"):
        await backend.train(model, groups, lerning_rate=1.0)
    assert service.train_requests == []


async def test_verbose_names_the_phases(service, registered, groups, capsys):
    backend, model = registered
    await backend.train(model, groups, verbose=True)
    assert capsys.readouterr().err.splitlines() == ["m: training"]


async def test_a_wrong_key_is_told(service, tmp_path):
    with pytest.raises(UnauthorizedError, match="not known"):
        await trainable(tmp_path).register(art.RemoteBackend(service.url, "wrong"))


async def test_another_protocol_version_is_told_before_anything_else(service, tmp_path):
    service.protocol = 99
    with pytest.raises(VersionMismatchError, match=r"speaks protocol 99, this art speaks protocol 1\. Upgrade the art"):
        await trainable(tmp_path).register(art.RemoteBackend(service.url, KEY))
    assert service.models == {}


async def test_an_address_where_nothing_listens_is_told_in_time(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"  # bound, so that nobody else can listen there
        backend = art.RemoteBackend(url, KEY)
        backend._client._first_contact_s = 0.3
        with pytest.raises(BackendUnreachableError, match=f"No backend answers at {url}"):
            await backend.get_model("p", "m")


async def test_a_proxy_without_a_backend_is_waited_for_and_then_told(service):
    backend = art.RemoteBackend(service.url, KEY, reconnect_s=0.3)
    await backend.get_model("p", "m")
    service.refuse = (502, "<html>Bad Gateway</html>")
    with pytest.raises(BackendUnreachableError, match="answered 502"):
        await backend.get_model("p", "m")


async def test_a_backend_that_comes_back_is_waited_for():
    def bind(port):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    fake = FakeService()
    with bind(0) as kept:  # as LocalBackend keeps it, so that nobody else can listen there meanwhile
        port = kept.getsockname()[1]
        server = serving(build_app(fake), bind(port))
        backend = art.RemoteBackend(server.__enter__(), KEY)
        await backend.get_model("p", "m")
        await asyncio.to_thread(server.__exit__)
        call = asyncio.create_task(backend.get_model("p", "m"))
        await asyncio.sleep(0.3)
        assert not call.done()
        with serving(build_app(fake), bind(port)):
            assert (await call).name == "m"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="url must look like"):
        art.RemoteBackend(url)


async def test_log_sends_its_row_to_the_backend(service, registered):
    _backend, model = registered
    await model.log(split="val", metrics={"reward": 0.5, "broken": float("nan")}, step=3)
    (row,) = service.rows
    assert (row.step, row.split, row.metrics) == (3, "val", {"val/reward": 0.5})


async def test_a_row_that_cannot_be_sent_is_kept_and_told(service, tmp_path, read_history, capsys):
    model = art.TrainableModel(name="forgotten", project="p", base_model="b", base_path=str(tmp_path))
    await model.register(art.RemoteBackend(service.url, KEY))
    await model.log(split="val", metrics={"reward": 0.5}, step=3)
    assert read_history(model)[0]["val/reward"] == 0.5
    assert "could not be sent to the backend" in capsys.readouterr().err


async def test_delete_checkpoints_keeps_the_latest_and_the_best(service, registered):
    _backend, model = registered
    for step, reward in ((1, 0.2), (2, 0.9), (3, 0.9), (4, 0.1)):
        await model.log(split="val", metrics={"reward": reward}, step=step)
    service.step = 4
    await model.delete_checkpoints()
    assert service.pruned == [[2, 4]]


async def test_several_event_loops_may_use_one_backend(service, tmp_path):
    backend = art.RemoteBackend(service.url, KEY)
    model = trainable(tmp_path)

    def in_a_loop_of_its_own():
        asyncio.run(model.register(backend))
        return asyncio.run(model.get_step())

    assert await asyncio.to_thread(in_a_loop_of_its_own) == 0
