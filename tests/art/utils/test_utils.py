import asyncio
import gc
import importlib
import logging
import random
import subprocess
import sys
import weakref
from collections import namedtuple
from types import SimpleNamespace

import httpx
import pytest

import art.utils
from art.utils import (
    format_message,
    get_model_step,
    get_repo_root_path,
    iterate_dataset,
    limit_concurrency,
    log_http_errors,
    record_provenance,
    retry,
    strip_logprobs,
)
from art.utils.group_aggregate import group_aggregate
from art.utils.litellm import convert_litellm_choice_to_openai


@pytest.mark.parametrize("name", art.utils.__all__)
def test_functions_stand_before_the_modules_of_their_names(name):
    module = importlib.import_module(f"art.utils.{name}")
    assert getattr(art.utils, name) is getattr(module, name)


def test_retry_until_it_works_and_how_often():
    calls, seen = [], []

    @retry(max_attempts=3, delay=0, on_retry=lambda error, attempt: seen.append((str(error), attempt)))
    def fails_twice(x):
        """Doc."""
        calls.append(x)
        if len(calls) < 3:
            raise ValueError(len(calls))
        return x

    assert fails_twice(7) == 7
    assert seen == [("1", 1), ("2", 2)]
    assert (fails_twice.__name__, fails_twice.__doc__) == ("fails_twice", "Doc.")


async def test_retry_of_async_functions_logs_and_gives_up(caplog):
    @retry(max_attempts=2, delay=0, exceptions=(ValueError,))
    async def fails():
        raise ValueError("always")

    @retry(max_attempts=2, delay=0, exceptions=(ValueError,))
    async def other():
        raise KeyError("at once")

    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="always"):
        await fails()
    assert caplog.messages == ["fails failed (attempt 1 of 2): always"]
    caplog.clear()
    with pytest.raises(KeyError):
        await other()
    assert caplog.messages == []


def test_retry_waits_longer_each_time(monkeypatch):
    waits = []
    monkeypatch.setattr("art.compat.helpers.time", SimpleNamespace(sleep=waits.append))

    @retry(max_attempts=4, delay=0.5, backoff_factor=3)
    def fails():
        raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert waits == [0.5, 1.5, 4.5]


async def test_concurrency_is_limited_per_key():
    running, most = {}, {}

    @limit_concurrency(2, derive_key=lambda key: key)
    async def call(key):
        running[key] = running.get(key, 0) + 1
        most[key] = max(most.get(key, 0), running[key])
        await asyncio.sleep(0.001)
        running[key] -= 1

    await asyncio.gather(*(call(key) for key in "ab" for _ in range(6)))
    assert most == {"a": 2, "b": 2}


async def test_one_key_for_all_by_default_and_idle_keys_are_forgotten():
    running, most = 0, 0

    @limit_concurrency(2)
    async def call(argument):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    await asyncio.gather(*(call(n) for n in range(6)))
    assert most == 2

    class Key:
        pass

    @limit_concurrency(1, derive_key=lambda key: key)
    async def fails(key):
        raise ValueError

    key = Key()
    alive = weakref.ref(key)
    with pytest.raises(ValueError):
        await fails(key)
    del key
    gc.collect()
    assert alive() is None


def test_concurrency_limit_works_in_every_event_loop():
    @limit_concurrency(1)
    async def call():
        await asyncio.sleep(0)
        return 1

    async def three():
        return await asyncio.gather(call(), call(), call())

    assert [asyncio.run(three()) for _ in range(2)] == [[1, 1, 1]] * 2


def test_dataset_batches():
    random.seed(5)
    expected_state = random.getstate()
    batches = list(iterate_dataset(list("abcde"), groups_per_step=2, num_epochs=2, use_tqdm=False))
    assert random.getstate() == expected_state
    assert [(b.step, b.epoch, b.epoch_step, len(b.items)) for b in batches] == [
        (0, 0, 0, 2),
        (1, 0, 1, 2),
        (2, 0, 2, 1),
        (3, 1, 0, 2),
        (4, 1, 1, 2),
        (5, 1, 2, 1),
    ]
    order = list(range(5))
    random.Random(1).shuffle(order)
    assert [item for b in batches[3:] for item in b.items] == ["abcde"[i] for i in order]
    resumed = list(iterate_dataset(list("abcde"), groups_per_step=2, num_epochs=2, initial_step=4, use_tqdm=False))
    assert resumed == batches[4:]
    assert list(iterate_dataset([])) == []
    (first,) = iterate_dataset(["x"], use_tqdm=False)
    assert (first.items, first.step) == (["x"], 0)


def test_logprobs_are_stripped_from_a_copy():
    pair = namedtuple("pair", "x logprobs")
    thing = SimpleNamespace(logprobs=[1], inner=SimpleNamespace(logprobs=2, kept=3))
    given = {"logprobs": 1, "list": [{"logprobs": 1, "a": 2}], "tuple": (thing,), "pair": pair(1, 2)}
    stripped = strip_logprobs(given)
    assert stripped["list"] == [{"a": 2}]
    assert "logprobs" not in stripped
    (twin,) = stripped["tuple"]
    assert (twin.logprobs, twin.inner.logprobs, twin.inner.kept) == (None, None, 3)
    assert stripped["pair"] == pair(1, 2)
    assert (thing.logprobs, thing.inner.logprobs, given["logprobs"]) == ([1], 2, 1)


@pytest.mark.parametrize("error", [TypeError("cannot copy"), RecursionError("too deep")])
def test_what_cannot_be_copied_is_returned_with_one_warning(caplog, error):
    class Stubborn:
        logprobs = 1

        def __deepcopy__(self, memo):
            raise error

    stubborn = Stubborn()
    assert strip_logprobs(stubborn) is stubborn
    (message,) = caplog.messages
    assert "Failed to deepcopy object in strip_logprobs" in message
    assert str(error) in message
    assert "Returning original object unchanged" in message


def test_format_message():
    call = {"function": {"name": "f", "arguments": '{"x":1}'}}
    assert format_message({"role": "user", "content": "hi"}) == "User:\nhi"
    assert format_message({"role": "assistant", "content": None, "tool_calls": [call]}) == 'Assistant:\n\nf({"x":1})'


def test_model_step_is_the_highest_checkpoint(tmp_path):
    model = art.Model(name="m", project="p", base_path=str(tmp_path))
    assert get_model_step(model) == 0
    for name in ("0001", "0012", "partial", "0003"):
        (tmp_path / "p/models/m/checkpoints" / name).mkdir(parents=True)
    assert get_model_step(model) == get_model_step(model, str(tmp_path)) == 12


async def test_http_errors_show_the_detail():
    def failing(body):
        @log_http_errors
        async def call():
            response = httpx.Response(400, request=httpx.Request("GET", "http://x/y"), **body)
            response.raise_for_status()

        return call

    with pytest.raises(RuntimeError, match="400 from http://x/y: no such thing"):
        await failing({"json": {"detail": "no such thing"}})()
    for body in ({"text": "plain"}, {"json": [1]}):
        with pytest.raises(httpx.HTTPStatusError):
            await failing(body)()


def test_provenance_is_noted_once():
    class Config(dict):
        def update(self, values, allow_val_change):
            super().update(values)

    run = SimpleNamespace(config=Config())
    for entry in ("a", "a", "b"):
        record_provenance(run, entry)
    assert run.config == {"provenance": ["a", "b"]}


def test_group_aggregate():
    values, by = [1.0, 3.0, 10.0], ["a", "a", "b"]
    assert group_aggregate(values, by=by) == [2.0, 2.0, 10.0]
    assert group_aggregate(values, by=by, reduce="var", broadcast=False) == [1.0, 0.0]
    assert group_aggregate(values, by=by, reduce="std", eps=0.0) == [1.0, 1.0, 0.0]
    assert group_aggregate(values, by=by, reduce="count") == [2.0, 2.0, 1.0]
    assert group_aggregate(values, by=by, reduce="max", broadcast=False) == [3.0, 10.0]
    assert group_aggregate(values, by=by, reduce="sum", broadcast=False) == [4.0, 10.0]
    assert group_aggregate(values, by=by, reduce="min") == [1.0, 1.0, 10.0]
    with pytest.raises(ValueError, match="reduce must be one of"):
        group_aggregate(values, by=by, reduce="median")


def test_the_root_of_the_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert get_repo_root_path() == "."
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path / "a/b")
    assert get_repo_root_path() == str(tmp_path)


def test_lines_for_the_terminal():
    code = "from art.utils import logging as l\nfor f in (l.info, l.step, l.ok, l.warn, l.err, l.dim): f('[x] said')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *("[INFO] [x] said", "[STEP] [x] said", "[OK] [x] said", "[WARN] [x] said", "[ERR] [x] said", "[x] said"),
    ]


def test_litellm_choices():
    top = SimpleNamespace(token="a", bytes=[97], logprob=-0.5)
    entry = SimpleNamespace(token="a", bytes=[97], logprob=-0.5, top_logprobs=[top])
    call = SimpleNamespace(id="c", function=SimpleNamespace(name="f", arguments="{}"))
    message = SimpleNamespace(role="assistant", content=None, tool_calls=[call])
    choice = convert_litellm_choice_to_openai(
        SimpleNamespace(message=message, finish_reason="tool_calls", index=1, logprobs=SimpleNamespace(content=[entry]))
    )
    assert (choice.index, choice.finish_reason, choice.message.content) == (1, "tool_calls", None)
    assert choice.message.tool_calls[0].function.name == "f"
    assert choice.logprobs.content[0].top_logprobs[0].logprob == -0.5
    message.role = "tool"
    with pytest.raises(AssertionError, match="'tool'"):
        convert_litellm_choice_to_openai(SimpleNamespace(message=message))
    plain = SimpleNamespace(
        message=SimpleNamespace(role="assistant", content="x", tool_calls=None), finish_reason="stop", index=0
    )
    assert convert_litellm_choice_to_openai(plain).message.tool_calls is None
