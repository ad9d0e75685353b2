"""Starting, watching and ending an engine."""

import asyncio
import contextlib
import os
import signal
import stat
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import PATIENCE_S, until

from art_backend.engines.client import EngineUnreachableError
from art_backend.engines.contract import Sampling
from art_backend.engines.process import EngineProcess, EngineSettings
from art_backend.process import DeadlineExceededError, ProcessDiedError

LONG = Sampling(max_tokens=7500, temperature=0.0)


@pytest.fixture
def settings(tiny_model, tmp_path):
    return EngineSettings(
        model_path=tiny_model("llama"),
        served_name="base",
        log_path=tmp_path / "logs" / "engine.log",
        dtype="float32",
        threads=1,
        kv_cache_mib=32,
    )


@pytest.mark.parametrize(
    ("launcher", "victim"),
    [("torch", "server"), *(pytest.param("vllm", v, marks=pytest.mark.vllm) for v in ("server", "core"))],
)
async def test_every_waiter_hears_of_a_killed_engine(settings, launchers, launcher, victim):
    engine = await EngineProcess.start(settings, launchers[launcher])
    family = psutil.Process(engine.pid).children(recursive=True)
    by_role = {"server": engine.pid} | {role: p.pid for p in family if (role := _role(p)) is not None}
    calls = [
        asyncio.ensure_future(engine.guard(call, deadline_s=60, doing="sampling"))
        for call in (
            engine.client.generate("base", [1, 2], LONG),
            engine.client.generate("base", [1, 3], LONG),
            anext(_drained(engine.client.stream("base", [4], LONG))),
        )
    ]
    unguarded = asyncio.ensure_future(engine.client.generate("base", [5], LONG))
    await _running(engine.client, len(calls) + 1)
    with engine.settings.log_path.open("a") as log:
        log.write("last words\n")
    os.kill(by_role[victim], signal.SIGKILL)
    killed = time.monotonic()
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, ProcessDiedError)
        assert "SIGKILL" in str(outcome) or victim != "server"
        assert "last words" in str(outcome) or victim != "server"
        assert str(settings.log_path) in str(outcome)
    assert time.monotonic() - killed < 30, "none of them waits for its deadline"
    with pytest.raises(EngineUnreachableError):
        await unguarded
    assert not engine.alive
    with pytest.raises(ProcessDiedError):
        await engine.guard(engine.client.health(), deadline_s=5, doing="a health check")
    await engine.stop()
    _, left = psutil.wait_procs(family, timeout=30)
    assert not left


async def _running(client, count):
    """Wait until the engine computes ``count`` completions."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(value for name, value in (await client.metrics()).items() if "requests_running" in name) < count:
            await asyncio.sleep(0.01)


def _role(process):
    """What a process of vLLM does, by the title that it gives itself."""
    titles = {"VLLM::EngineCore": "core"}
    return titles.get(process.cmdline()[0] if process.cmdline() else "")


async def _drained(stream):
    """Yields once, when the stream ends."""
    async for _ in stream:
        pass
    yield None


@pytest.mark.parametrize("launcher", ["torch", pytest.param("vllm", marks=pytest.mark.vllm)])
async def test_a_stopped_engine_is_noticed_and_treated_as_dead(settings, launchers, launcher):
    engine = await EngineProcess.start(settings, launchers[launcher])
    try:
        calls = [
            asyncio.ensure_future(engine.guard(call, deadline_s=None, doing="sampling"))
            for call in (engine.client.generate("base", [1, 2], LONG), engine.client.health())
        ]
        await calls[1]
        os.kill(engine.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        with pytest.raises(ProcessDiedError, match="computed nothing for 10 s, so it was ended"):
            await asyncio.wait_for(calls[0], 60)
        assert time.monotonic() - stopped > 5, "a moment's silence is no death"
        assert not engine.alive
        assert engine.members()[0].state == "failed"
    finally:
        await engine.stop()


@pytest.mark.parametrize("launcher", ["torch", pytest.param("vllm", marks=pytest.mark.vllm)])
async def test_nobody_else_can_listen_where_an_engine_is_asked(settings, launchers, launcher, monkeypatch):
    """There is no port to be first at, and no way for another user into the directory of the socket."""
    seen = []

    def noted(own, socket, key):
        seen.append((socket, stat.S_IMODE(socket.parent.stat().st_mode), list(socket.parent.iterdir()), key))
        return launchers[launcher](own, socket, key)

    for directory in (tempfile.gettempdir(), str(settings.log_path.parent / ("long" * 25))):
        Path(directory).mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        engine = await EngineProcess.start(settings, noted)
        try:
            socket, mode, before, key = seen[-1]
            assert (mode, before, engine.client.address) == (0o700, [], f"unix:{socket}")
            for process in (
                family := [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
            ):
                assert not any(key in word for word in process.cmdline())
            listening = [c for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            assert listening == [] or launcher == "vllm"
        finally:
            await engine.stop()
        assert not socket.parent.exists()
    assert seen[0][0].parent != seen[1][0].parent
    assert seen[0][3] != seen[1][3]


async def test_an_engine_that_does_not_answer_meets_the_deadline(settings):
    engine = await EngineProcess.start(settings)
    try:
        await engine.client.pause("keep")
        with pytest.raises(DeadlineExceededError, match=r"sampling within 0\.2 s"):
            await engine.guard(engine.client.generate("base", [1], LONG), deadline_s=0.2, doing="sampling")
        assert engine.alive
    finally:
        pid = engine.pid
        await engine.stop()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_cache_mib": 0}, "--max-model-len"),
        ({"max_model_len": 10**6}, "8192 positions"),
    ],
)
async def test_a_start_that_fails_says_why(settings, change, reason):
    with pytest.raises(ProcessDiedError, match=reason):
        await EngineProcess.start(EngineSettings(**{**vars(settings), **change}))


async def test_a_missing_model_is_named(settings, tmp_path):
    with pytest.raises(ProcessDiedError, match=r"Cannot serve .*nowhere"):
        await EngineProcess.start(EngineSettings(**{**vars(settings), "model_path": tmp_path / "nowhere"}))


async def test_an_engine_that_is_stopped_while_it_starts_is_noticed(settings, launchers):
    others = set(psutil.Process().children())  # another test's engine may serve the same model
    starting = asyncio.ensure_future(EngineProcess.start(settings))
    found = []

    def started():
        for child in set(psutil.Process().children()) - others:
            with contextlib.suppress(psutil.Error):  # another one that has just ended
                if str(settings.model_path) in child.cmdline():
                    found.append(child)
        return found

    await until(started)
    found[0].suspend()
    with pytest.raises(ProcessDiedError, match="computed nothing for 10 s, so it was ended"):
        await asyncio.wait_for(starting, 60)
    assert not found[0].is_running()


async def test_a_start_without_progress_is_given_up(settings):
    with pytest.raises(DeadlineExceededError, match=r"nothing to its log for 0\.05 s"):
        await EngineProcess.start(EngineSettings(**{**vars(settings), "start_timeout_s": 0.05}))


async def test_all_of_an_engine_s_computing_is_done_by_one_pool_of_threads(settings, tiny_model, tiny_adapter):
    """A second pool would put the workers of both to sleep between operations (see ``model_thread``)."""
    adapter = tiny_adapter("wide", r=64)
    counts = []
    for threads in (1, 5):
        change = {"model_path": tiny_model("wide"), "threads": threads}
        engine = await EngineProcess.start(EngineSettings(**{**vars(settings), **change}))
        await engine.client.load_adapter("wide@1", adapter)
        await engine.client.generate("wide@1", [i % 200 for i in range(400)], Sampling(max_tokens=4))
        counts.append(psutil.Process(engine.pid).num_threads())
        await engine.stop()
    # four workers, and four of a pool that torch makes beside it for operators of mobile devices, and never uses
    assert counts[1] - counts[0] <= 8
