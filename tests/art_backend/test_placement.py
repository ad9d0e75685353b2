"""Where engines and trainer compute."""

import asyncio
import json
import os
import signal

import httpx
import psutil
import pytest
from tests.support.scripted_engine import serve

from art.wire import JobState, RegisterModel, TokenRow, TrainGroup, TrainOptions, TrainRequest, TrainTrajectory
from art_backend.app import build_app
from art_backend.devices import Device, Placement, parse_device_list
from art_backend.engines.contract import Sampling
from art_backend.engines.process import Launch
from art_backend.errors import BadRequestError
from art_backend.service import Service
from art_backend.serving.engines import Engines
from art_backend.settings import Settings

DEVICE = Device("NVIDIA Test", 80 * 2**30)


@pytest.mark.parametrize(
    ("given", "engines", "dedicated"),
    [
        ({}, 1, False),
        ({"kind": "dedicated"}, 1, True),
        ({"replicas": 3}, 3, False),
        ({"engine_devices": (0, 1), "trainer_devices": (2,)}, 2, True),
        ({"engine_devices": (0, 1), "trainer_devices": (2,), "replicas": 1}, 1, True),
        ({"engine_devices": (0, 1), "trainer_devices": (2,), "kind": "colocated"}, 2, False),
        ({"engine_devices": (0, 1, 2, 3), "trainer_devices": (0,)}, 4, False),
        ({"engine_devices": (1,)}, 1, False),
    ],
)
def test_what_follows_from_the_devices(given, engines, dedicated):
    placement = Placement(**given)
    assert (placement.engines, placement.dedicated) == (engines, dedicated)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"engine_devices": (0, 0)}, "engine_devices: 0,0 must list each device once"),
        ({"engine_devices": (0, 1, 2), "replicas": 2}, "3 engine devices cannot be divided among 2"),
        ({"kind": "dedicated", "engine_devices": (0, 1), "trainer_devices": (1,)}, "share 1. Give each its own"),
        ({"replicas": 0}, "at least one"),
    ],
)
def test_what_contradicts_itself(given, reason):
    with pytest.raises(BadRequestError, match=reason):
        Placement(**given)


@pytest.mark.parametrize(
    ("given", "devices", "reason"),
    [
        ({"engine_devices": (0,), "trainer_devices": (1,)}, 1, "there is no CUDA device 1 here; the service sees 1"),
        ({"trainer_devices": (0,)}, 0, "the service sees none"),
        ({"kind": "dedicated"}, 2, "needs --engine-devices and --trainer-devices"),
        ({"replicas": 2}, 2, "--engine-devices 0,1"),
    ],
)
def test_what_the_machine_does_not_have(given, devices, reason):
    with pytest.raises(BadRequestError, match=reason):
        Placement(**given).check(devices)


def test_lists_of_devices_are_read():
    assert parse_device_list("0, 2,10") == (0, 2, 10)
    with pytest.raises(BadRequestError, match="write numbers, such as 0,1, not '0-2'"):
        parse_device_list("0-2")


def test_the_cache_has_room_for_a_sequence_of_full_length(tmp_path, tiny_model_path):
    engines = Engines(Settings(path=tmp_path, api_key="k", engine="torch", max_sequence_length=32_768))
    llama = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32}
    llama |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256}
    (tmp_path / "config.json").write_text(json.dumps({**llama, "max_position_embeddings": 131_072}))
    sizes = [
        engines.host(RegisterModel(project="p", name="m", base_model=str(path)), path, 16).settings.kv_cache_mib
        for path in (tmp_path, tiny_model_path)
    ]
    assert sizes == [4096 + 8, 1024]  # 32,768 + 64 tokens of 128 KiB


def test_an_engine_that_computes_for_the_largest_rank_gets_the_registered_one(tmp_path, tiny_model_path):
    settings = Settings(path=tmp_path, api_key="k", engine="torch")
    spec = RegisterModel(project="p", name="m", base_model=str(tiny_model_path))
    other = Engines(settings, lambda settings, socket, key: Launch("other", []))
    ranks = [engines.host(spec, tiny_model_path, 16).settings.max_lora_rank for engines in (other, Engines(settings))]
    assert ranks == [16, 512]


@pytest.mark.long
async def test_two_replicas_and_a_trainer_with_devices_of_their_own(tmp_path, tiny_model_path):
    """Each process sees its own devices; the engines answer while the trainer works; the version is on both; /metrics tells."""
    settings = Settings(
        path=tmp_path,
        api_key="k",
        engine="torch",
        threads=2,
        placement=Placement(engine_devices=(0, 1), trainer_devices=(2,)),
    )
    service = Service(settings, devices=(DEVICE,) * 3)
    try:
        await service.register(RegisterModel(project="p", name="m", base_model=str(tiny_model_path)))
        policy = service.policy("p", "m")
        async with policy.lease() as lease:
            engines = [member.pid for _, member in service.engines.members()]
            logprob = (await lease.engine.generate(lease.engine_model, [5], Sampling(max_tokens=1))).logprobs
        assert [psutil.Process(pid).environ()["CUDA_VISIBLE_DEVICES"] for pid in engines] == ["0", "1"]

        row = TokenRow(
            token_ids=[5, 6], sampled=[False, True], logprobs=[0.0, *logprob], policy_versions=[-1, 0], temperature=1.0
        )
        groups = [TrainGroup(trajectories=[TrainTrajectory(reward=r, rows=[row]) for r in (0, 1)])]
        options = TrainOptions(learning_rate=1e-3)
        job = await service.train(
            TrainRequest(project="p", model="m", groups=groups, options=options, idempotency_key="a" * 8)
        )
        answered = 0
        while service.runs.job(job.id).state not in (JobState.SUCCEEDED, JobState.FAILED):
            before = _phase(service, job.id)
            async with policy.lease() as lease:
                await lease.engine.generate(lease.engine_model, [5, 6], Sampling(max_tokens=2), rollout=f"{answered}")
            answered += before == _phase(service, job.id) and before in ("preparing", "training")
            await asyncio.sleep(0.01)
        done = service.runs.job(job.id)
        assert done.state is JobState.SUCCEEDED, done.error
        assert answered, "while the trainer worked"
        (trainer,) = [one for one in service.health().processes if one.name == "trainer p/m"]
        assert psutil.Process(trainer.pid).environ()["CUDA_VISIBLE_DEVICES"] == "2"
        async with policy.lease() as lease:
            assert lease.engine_model == "p/m@1"
            assert "p/m@1" in await lease.engine.models()
            assert len(await lease.engine.greedy_logprobs(lease.engine_model, [5])) == 2
        spent = done.result["metrics"]
        assert spent["time/step_engine_paused_s"] < spent["time/step_trainer_s"]

        os.kill(engines[0], signal.SIGKILL)
        async with asyncio.timeout(150):
            while service.engines.members()[0][1].state == "ready":
                await asyncio.sleep(0.01)
            while [m.restarts for _, m in service.engines.members()] != [1, 0]:
                async with policy.lease() as lease:  # the other serves
                    await lease.engine.generate(lease.engine_model, [5], Sampling(max_tokens=1))
                await asyncio.sleep(0.05)
        async with serve(build_app(service)) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            told = (await http.get("/metrics", headers={"Authorization": "Bearer k"})).text
        base = f'engine="{tiny_model_path}"'
        assert f'art_replica_restarts_total{{{base},replica="1"}} 1.0' in told
        assert f'art_replica_restarts_total{{{base},replica="2"}} 0.0' in told
        for replica in ("1", "2"):
            assert f'art_replica_calls{{{base},replica="{replica}"}} 0.0' in told
            assert f'art_replica_answers_total{{{base},outcome="answered",replica="{replica}"}}' in told
            assert f'art_process_up{{process="engine {tiny_model_path} {replica}"}} 1.0' in told
    finally:
        await service.close()


def _phase(service, job):
    phases = [e.data["phase"] for e in service.runs.events_after(job, 0) if e.type == "progress"]
    return phases[-1] if phases else None
