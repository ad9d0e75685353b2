"""The engine contract of docs/engines.md. One suite for every engine: embedded, vLLM, and the scripted one of other tests."""

import asyncio
import contextlib
import math
import re
from urllib.parse import urlsplit

import pytest
import torch
from tests.art_backend.engines.conftest import WITH_A_MODEL
from transformers import AutoModelForCausalLM

from art_backend.engines.client import EngineClient, EngineError, EngineUnreachableError
from art_backend.engines.contract import Sampling

pytestmark = pytest.mark.asyncio(loop_scope="session")

with_a_model = pytest.mark.parametrize("engine", WITH_A_MODEL, indirect=True, scope="session")

BASE = "tiny/base"
PROMPT = [5, 17, 3, 88, 41, 2, 60]
LONG = Sampling(max_tokens=7500, temperature=0.0)
"""Far from its end when something happens to it a few tokens after its beginning, however busy the machine is."""
CROWD = 3
SAMPLED = re.compile(r"(art_engine_generated|vllm:generation)_tokens_total")
WAIT_S = 120.0
"""What ends at all ends long before this, however busy the machine is."""


@pytest.fixture
def client(engine):
    return engine.client


@pytest.fixture(scope="session")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model("llama")).eval()


def next_logits(model, token_ids):
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0, -1]


def per_token(model, prompt, completion):
    """The logits that each sampled token was drawn from."""
    for i, token in enumerate(completion.token_ids):
        yield token, completion.logprobs[i], next_logits(model, prompt + completion.token_ids[:i])


async def until(condition):
    """Wait for an asynchronous condition."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.02)


def idle(client):
    """Whether the engine computes nothing and holds nothing."""

    async def check():
        metrics = await client.metrics()
        running = [value for name, value in metrics.items() if "requests_running" in name]
        assert running
        return sum(running) == 0

    return check


async def collect(stream):
    return [delta async for delta in stream]


def join(deltas):
    return [token for delta in deltas for token in delta.token_ids]


async def test_an_idle_connection_stays_open(client):
    """The gateway keeps its connections for longer than servers do by default; one that closes in mid call fails it."""
    if client.address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(client.address.removeprefix("unix:"))
    else:
        url = urlsplit(client.address)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
    for pause_s in (5.5, 0):
        writer.write(b"GET /health HTTP/1.1\r\nHost: engine\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 ")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(pause_s + 0.5):
                while await reader.read(1000):
                    pass
                pytest.fail("the engine closed the connection")
    writer.close()


@with_a_model
async def test_greedy_tokens_and_logprobs_are_the_models_own(client, model):
    completion = await client.generate(BASE, PROMPT, Sampling(max_tokens=12, temperature=0.0))
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 12
    for token, logprob, logits in per_token(model, PROMPT, completion):
        assert token == logits.argmax()
        assert logprob == pytest.approx(logits.log_softmax(-1)[token].item(), abs=1e-4)


@with_a_model
async def test_logprobs_are_of_the_tempered_distribution(client, model):
    completion = await client.generate(BASE, PROMPT, Sampling(max_tokens=12, temperature=0.6, seed=3))
    for token, logprob, logits in per_token(model, PROMPT, completion):
        assert logprob == pytest.approx((logits / 0.6).log_softmax(-1)[token].item(), abs=1e-4)


@with_a_model
async def test_logprobs_are_of_the_filtered_distribution(client, model):
    completion = await client.generate(BASE, PROMPT, Sampling(max_tokens=8, top_k=3, seed=1, top_logprobs=5))
    for i, (token, logprob, logits) in enumerate(per_token(model, PROMPT, completion)):
        values, allowed = logits.topk(3)
        expected = dict(zip(allowed.tolist(), values.log_softmax(-1).tolist(), strict=True))
        assert logprob == pytest.approx(expected[token], abs=1e-4)
        finite = {other: value for other, value in completion.top_logprobs[i] if value > -1000}
        assert finite == pytest.approx(expected, abs=1e-4)


@with_a_model
async def test_sampling_follows_the_distribution(client, model):
    count = 600
    answers = await asyncio.gather(
        *(client.generate(BASE, PROMPT, Sampling(max_tokens=1, seed=seed, temperature=2.0)) for seed in range(count))
    )
    drawn = torch.bincount(torch.tensor([a.token_ids[0] for a in answers]), minlength=259) / count
    expected = (next_logits(model, PROMPT) / 2.0).softmax(-1)
    worst = (drawn - expected).abs() / (expected * (1 - expected) / count).sqrt().clamp(min=2 / count)
    assert worst.max() < 5  # standard errors; the seeds make this the same on every run


async def test_stream_carries_the_same_completion(client):
    sampling = Sampling(max_tokens=10, seed=11, top_logprobs=2)
    whole = await client.generate(BASE, PROMPT, sampling)
    deltas = await collect(client.stream(BASE, PROMPT, sampling))
    assert join(deltas) == whole.token_ids
    assert [p for d in deltas for p in d.logprobs] == pytest.approx(whole.logprobs, abs=1e-5)
    assert [len(t) for d in deltas for t in d.top_logprobs] == [2] * 10
    assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + ["length"]


async def test_stop_id_ends_the_completion_and_is_part_of_it(client):
    free = await client.generate(BASE, PROMPT, Sampling(max_tokens=10, temperature=0.0))
    stop = free.token_ids[4]
    ended = await client.generate(BASE, PROMPT, Sampling(max_tokens=10, temperature=0.0, stop_token_ids=(stop,)))
    assert ended.finish_reason == "stop"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd(client):
    sampling = Sampling(max_tokens=20, seed=7)
    alone = await client.generate(BASE, PROMPT, sampling)
    crowd = await asyncio.gather(
        client.generate(BASE, PROMPT, sampling),
        *(client.generate(BASE, [*PROMPT, i], Sampling(max_tokens=5 + i, seed=i)) for i in range(12)),
    )
    assert crowd[0].token_ids == alone.token_ids
    others = [(await client.generate(BASE, PROMPT, Sampling(max_tokens=20, seed=s))).token_ids for s in (8, 9)]
    assert alone.token_ids not in others


async def test_temperature_zero_is_a_value(client):
    first, second = [await client.generate(BASE, PROMPT, Sampling(max_tokens=9, temperature=0.0)) for _ in range(2)]
    assert first.token_ids == second.token_ids


@with_a_model
async def test_penalties_count_what_was_sampled(client, model):
    completion = await client.generate(
        BASE, PROMPT, Sampling(max_tokens=10, temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5)
    )
    for i, (token, logprob, logits) in enumerate(per_token(model, PROMPT, completion)):
        for seen in set(completion.token_ids[:i]):
            logits[seen] -= 1.5 + 0.5 * completion.token_ids[:i].count(seen)
        assert token == logits.argmax()
        assert logprob == pytest.approx(logits.log_softmax(-1)[token].item(), abs=1e-4)


@with_a_model
async def test_repetition_penalty_counts_the_prompt_too(client, model):
    completion = await client.generate(BASE, PROMPT, Sampling(max_tokens=6, temperature=0.0, repetition_penalty=1.7))
    for i, (token, _, logits) in enumerate(per_token(model, PROMPT, completion)):
        for seen in {*PROMPT, *completion.token_ids[:i]}:
            logits[seen] = logits[seen] / 1.7 if logits[seen] > 0 else logits[seen] * 1.7
        assert token == logits.argmax()


async def count_sampled(client):
    """Tokens that the engine has sampled since its start."""
    totals = [value for name, value in (await client.metrics()).items() if SAMPLED.match(name)]
    assert totals
    return sum(totals)


@contextlib.asynccontextmanager
async def streams(client, sampling=LONG):
    """Completions in flight, each past its first token: as pairs of what came so far and the rest."""
    opened = [client.stream(BASE, [*PROMPT, i], sampling) for i in range(CROWD)]
    try:
        firsts = await asyncio.gather(*(anext(stream) for stream in opened))
        yield [([first], stream) for first, stream in zip(firsts, opened, strict=True)]
    finally:
        for stream in opened:
            await stream.aclose()
        await until(idle(client))


async def test_closing_a_stream_ends_the_sampling(client):
    before = await count_sampled(client)
    async with streams(client):
        pass
    assert await count_sampled(client) - before < CROWD * LONG.max_tokens


async def test_cancelling_a_call_ends_the_sampling(client):
    before = await count_sampled(client)
    calls = [asyncio.ensure_future(client.generate(BASE, [*PROMPT, i], LONG)) for i in range(CROWD)]
    await until(lambda: _not(idle(client)))
    for call in calls:
        call.cancel()
    await until(idle(client))
    assert await count_sampled(client) - before < CROWD * LONG.max_tokens


async def _not(condition):
    return not await condition()


async def test_versions_side_by_side_in_one_batch(client, tiny_adapter):
    paths = {"run/m@1": tiny_adapter("llama", 1), "run/m@2": tiny_adapter("llama", 2)}
    for name, path in paths.items():
        await client.load_adapter(name, path)
    try:
        assert {BASE, *paths} <= set(await client.models())
        names = [BASE, *paths] * 3
        sampling = Sampling(max_tokens=8, temperature=0.0)
        answers = await asyncio.gather(*(client.generate(name, PROMPT, sampling) for name in names))
        by_name = {name: answer.token_ids for name, answer in zip(names, answers, strict=True)}
        assert all(answer.token_ids == by_name[name] for name, answer in zip(names, answers, strict=True))
        assert len({tuple(tokens) for tokens in by_name.values()}) == 3
        with pytest.raises(EngineError) as taken:
            await client.load_adapter("run/m@1", paths["run/m@2"])
        assert 400 <= taken.value.status < 500
    finally:
        for name in paths:
            await client.unload_adapter(name)
    assert not set(paths) & set(await client.models())
    with pytest.raises(EngineError) as gone:
        await client.generate("run/m@1", PROMPT, Sampling(max_tokens=1))
    assert gone.value.status == 404


async def test_a_request_finishes_on_the_adapter_it_started_with(client, tiny_adapter):
    await client.load_adapter("run/old", tiny_adapter("llama", 1))
    whole = await client.generate("run/old", PROMPT, Sampling(max_tokens=200, temperature=0.0))
    stream = client.stream("run/old", PROMPT, Sampling(max_tokens=200, temperature=0.0))
    deltas = [await anext(stream)]
    await client.unload_adapter("run/old")
    deltas += await collect(stream)
    assert join(deltas) == whole.token_ids


async def test_no_request_fails_while_versions_come_and_go(client, tiny_adapter):
    latest, over = BASE, False

    async def talk():
        answered = 0
        while not over:
            assert len((await client.generate(latest, PROMPT, Sampling(max_tokens=4))).token_ids) == 4
            answered += 1
        return answered

    talkers = [asyncio.ensure_future(talk()) for _ in range(6)]
    for step in range(1, 11):
        version = f"run/m@{step}"
        await client.load_adapter(version, tiny_adapter("llama", step % 2))
        latest = version
        await client.generate(latest, PROMPT, Sampling(max_tokens=1))
        if step > 2:
            await client.unload_adapter(f"run/m@{step - 2}")
    over = True
    assert all(await asyncio.gather(*talkers))
    for step in (9, 10):
        await client.unload_adapter(f"run/m@{step}")


async def test_bad_adapters_are_refused(client, tmp_path, tiny_adapter):
    (tmp_path / "adapter_config.json").write_text("{")
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(EngineError) as refused:
            await client.load_adapter("bad", path)
        assert refused.value.status in (400, 404, 500)
        assert str(path) in refused.value.message
    with pytest.raises(EngineError) as unknown:
        await client.unload_adapter("never-loaded")
    assert unknown.value.status == 404


async def read_on(deltas, stream, count):
    """Read until ``count`` tokens came in all."""
    async for delta in stream:
        deltas.append(delta)
        if len(join(deltas)) >= count:
            return


async def same_as_undisturbed(client, prompt, deltas):
    """Whether a greedy completion, or the beginning of one, is what an undisturbed one would be."""
    tokens = join(deltas)
    return tokens == (await client.generate(BASE, prompt, Sampling(len(tokens), temperature=0.0))).token_ids


async def test_pause_keep_freezes_and_resumes_in_mid_generation(client):
    before = await count_sampled(client)
    async with streams(client) as running:
        await client.pause("keep")
        try:
            assert await client.is_paused()
            assert not await idle(client)(), "they are kept"
            later = asyncio.ensure_future(client.generate(BASE, PROMPT, Sampling(max_tokens=2, temperature=0.0)))
            done, _ = await asyncio.wait({later}, timeout=0.5)
            assert not done
            frozen_at = (await count_sampled(client) - before) / CROWD
        finally:
            await client.resume()
        assert not await client.is_paused()
        for deltas, stream in running:
            await read_on(deltas, stream, frozen_at + 50)
        beginnings = [(deltas, [*PROMPT, i]) for i, (deltas, _) in enumerate(running)]
    assert all([await same_as_undisturbed(client, prompt, deltas) for deltas, prompt in beginnings])
    assert len((await later).token_ids) == 2


async def test_pause_wait_lets_requests_finish(client):
    sampling = Sampling(max_tokens=400, temperature=0.0)
    async with streams(client, sampling) as running:
        await client.pause("wait")
        try:
            assert await idle(client)()
            for deltas, stream in running:
                assert len(join(deltas + await collect(stream))) == 400
        finally:
            await client.resume()


async def test_pause_abort_ends_requests(client):
    async with streams(client) as running:
        await client.pause("abort")
        try:
            await until(idle(client))
            for deltas, stream in running:
                deltas += await collect(stream)
                assert deltas[-1].finish_reason == "abort"
                assert len(join(deltas)) < LONG.max_tokens
        finally:
            await client.resume()


async def test_sleep_and_wake_leave_answers_unchanged(client):
    before = await count_sampled(client)
    async with streams(client) as running:
        await client.pause("keep")
        frozen_at = (await count_sampled(client) - before) / CROWD
        await client.sleep()
        assert await client.is_sleeping()
        await client.wake_up(["weights"])
        await client.wake_up(["kv_cache"])
        assert not await client.is_sleeping()
        await client.resume()
        for deltas, stream in running:
            await read_on(deltas, stream, frozen_at + 50)
        beginnings = [(deltas, [*PROMPT, i]) for i, (deltas, _) in enumerate(running)]
    assert all([await same_as_undisturbed(client, prompt, deltas) for deltas, prompt in beginnings])


async def test_bad_requests_name_the_reason(client):
    with pytest.raises(EngineError, match="nobody") as unknown:
        await client.generate("nobody", PROMPT, Sampling(max_tokens=1))
    assert unknown.value.status == 404
    with pytest.raises(EngineError, match="8192") as long:
        await client.generate(BASE, [1] * 9000, Sampling(max_tokens=1))
    assert long.value.status == 400
    with pytest.raises(EngineError) as streamed:
        await anext(client.stream("nobody", PROMPT, Sampling(max_tokens=1)))
    assert streamed.value.status == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"token_ids": "abc"}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -5]}, "token_ids"),
        ({"token_ids": [1, 10**6]}, "(?i)token.?id"),
        ({"sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens"),
        ({"sampling_params": {"top_p": 0}}, "top_p"),
    ],
)
async def test_wrong_values_are_400(engine, change, field):
    body = {"model": BASE, "token_ids": PROMPT, "sampling_params": {"max_tokens": 1}} | change
    client = engine.client
    with pytest.raises(EngineError, match=field) as refused:
        await client._post("/inference/v1/generate", body)
    assert refused.value.status in (400, 422)


async def test_completion_ends_at_the_length_limit(client):
    ended = await client.generate(BASE, [1] * 8184, Sampling(max_tokens=50))
    assert ended.finish_reason == "length"
    assert len(ended.token_ids) == 8


async def test_only_our_key_opens(engine):
    stranger = EngineClient(engine.client.address, "wrong")
    for call in (stranger.models(), stranger.pause("keep"), stranger.generate(BASE, PROMPT, Sampling(max_tokens=1))):
        with pytest.raises(EngineError) as refused:
            await call
        assert refused.value.status == 401
    await stranger.close()
    assert not await engine.client.is_paused()


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "unix:/nowhere/socket"])
async def test_an_absent_engine_is_unreachable(address):
    absent = EngineClient(address, "key")
    with pytest.raises(EngineUnreachableError):
        await absent.health()
    with pytest.raises(EngineUnreachableError):
        await anext(absent.stream(BASE, PROMPT, Sampling(max_tokens=1)))
    await absent.close()


async def test_who_still_asks_when_the_client_was_closed_hears_that_the_engine_has_ended(engine):
    client = EngineClient(engine.client.address, "key")
    with contextlib.suppress(EngineError):
        await client.health()
    await client.close()
    with pytest.raises(EngineUnreachableError, match="has ended"):
        await client.health()


async def test_more_requests_than_places(client):
    calls = [client.generate(BASE, [i, *PROMPT], Sampling(max_tokens=3, seed=i)) for i in range(60)]
    answers = await asyncio.wait_for(asyncio.gather(*calls), WAIT_S)
    assert all(len(a.token_ids) == 3 and all(math.isfinite(p) for p in a.logprobs) for a in answers)
