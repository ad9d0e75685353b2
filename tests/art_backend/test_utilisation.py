import asyncio
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.scripted_engine import serve

from art.wire import RegisterModel, TokenRow
from art_backend.app import build_app
from art_backend.errors import BusyError
from art_backend.service import Service
from art_backend.serving.meter import EngineMeter, EngineTime, age_metrics, token_ages
from art_backend.serving.policies import EngineHost, Gate, ServedPolicy
from art_backend.settings import Settings
from art_backend.training.types import ScoredTrajectory


def test_every_second_is_busy_idle_or_paused():
    now = 0.0
    meter = EngineMeter(lambda: now)
    now = 100.0
    assert meter.read() == EngineTime(), "nothing counts before the first call"
    with meter.call():
        now += 2
        with meter.call():
            now += 3  # 5 s busy, 2 + 2·3 call-seconds
    now += 4  # idle
    with meter.call():
        now += 1  # 6 s busy, 9 call-seconds
        meter.set_paused(True)
        now += 10
        with meter.hold(), meter.hold():
            now += 5  # 15 s paused, 10 held call-seconds
        meter.set_paused(False)
        now += 1  # 7 s busy, 10 call-seconds
    first = meter.read()
    assert first == EngineTime(busy_s=7, idle_s=4, paused_s=15, calls_s=10, held_s=10)
    assert first.metrics() == {
        "time/step_engine_busy_s": 7,
        "time/step_engine_idle_s": 4,
        "time/step_engine_paused_s": 15,
        "throughput/engine_busy_share": pytest.approx(7 / 26),
        "throughput/engine_idle_share": pytest.approx(4 / 26),
        "throughput/engine_paused_share": pytest.approx(15 / 26),
        "pipeline/engine_calls_mean": pytest.approx(10 / 11),
        "pipeline/held_calls_mean": pytest.approx(10 / 15),
    }
    now += 8
    assert meter.read().since(first) == EngineTime(idle_s=8)
    assert EngineTime().metrics() == {}


async def test_the_gate_counts_whom_it_holds():
    gate = Gate(timeout_s=0.05)
    gate.close()
    asking = [asyncio.ensure_future(gate.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    assert (gate.meter.held, gate.meter.paused) == (3, True)
    assert [type(error) for error in await asyncio.gather(*asking, return_exceptions=True)] == [BusyError] * 3
    gate.open()
    assert (gate.meter.held, gate.meter.paused) == (0, False)


def test_the_age_of_tokens():
    row = TokenRow(
        token_ids=[1, 2, 3, 4, 5],
        sampled=[False, True, True, False, True],
        logprobs=[0.0, -1.0, -1.0, 0.0, -1.0],
        policy_versions=[-1, 3, 3, -1, 5],
        temperature=1.0,
    )
    ages = token_ages([[ScoredTrajectory(1.0, [row])], [ScoredTrajectory(0.0, [row, row])]], version=5)
    assert ages == Counter({2: 6, 0: 3})
    assert age_metrics(ages) == {
        "offpolicy/staleness_mean": pytest.approx(12 / 9),
        "offpolicy/staleness_max": 2,
        "offpolicy/staleness_0_share": pytest.approx(1 / 3),
        "offpolicy/staleness_2_share": pytest.approx(2 / 3),
    }
    assert age_metrics(Counter({30: 1, 8: 1}))["offpolicy/staleness_8_share"] == 1
    assert age_metrics(Counter()) == {}


ORDER = ["process", "engine", "state", "project", "model", "le"]


async def test_prometheus_reads_it(tmp_path, tiny_model_path):
    import httpx

    service = Service(Settings(path=tmp_path, api_key="key"))
    spec = RegisterModel(project="p", name="m", base_model=str(tiny_model_path))
    host = service.engines.host(spec, tiny_model_path, 16)
    policy = ServedPolicy(
        project="p",
        name="m",
        host=host,
        checkpoints=_NoCheckpoints(),
        renderer=None,
        max_sequence_length=64,
        keep_versions=1,
    )
    assert isinstance(host, EngineHost)
    service._policies["p", "m"] = policy
    policy.step, policy.ages = 3, Counter({0: 5, 1: 2, 9: 1})
    try:
        async with serve(build_app(service)) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert (await http.get("/metrics")).status_code == 401
            with host.gate.meter.call():
                answer = await http.get("/metrics", headers={"Authorization": "Bearer key"})
    finally:
        await service.close()
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels, key=ORDER.index))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    base = str(tiny_model_path)
    assert samples["art_engine_calls", base] == 1
    assert samples["art_engine_held_calls", base] == 0
    assert samples["art_engine_seconds_total", base, "busy"] > 0
    assert samples["art_engine_seconds_total", base, "paused"] == 0
    assert samples["art_policy_version", "p", "m"] == 3
    assert samples["art_trained_token_staleness_bucket", "p", "m", "0"] == 5
    assert samples["art_trained_token_staleness_bucket", "p", "m", "7"] == 7
    assert samples["art_trained_token_staleness_bucket", "p", "m", "+Inf"] == 8
    assert samples["art_trained_token_staleness_sum", "p", "m"] == 11
    assert samples["art_process_up", f"engine {base}"] == 0


class _NoCheckpoints:
    def latest_step(self):
        return 0
