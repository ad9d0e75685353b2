"""Child processes: their death is heard, and nothing of theirs survives."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from art_backend import process
from art_backend.process import ChildProcess, DeadlineExceededError, ProcessDiedError


@pytest.fixture
async def start(tmp_path):
    """Starts a Python child that runs a script."""
    children = []

    async def start(script, **settings):
        child = await ChildProcess.start(
            [sys.executable, "-u", "-c", script], name="child", log_path=tmp_path / "logs" / "child.log", **settings
        )
        children.append(child)
        return child

    yield start
    for child in children:
        await child.stop(grace_s=0.1)


async def logged(child, text):
    """Wait until the child's log holds ``text``."""
    while text not in child.log_path.read_text():
        await asyncio.sleep(0.01)


async def forever():
    await asyncio.Event().wait()


async def test_death_ends_a_wait_at_once_with_the_logs_tail(start):
    child = await start("print('reason: no more paper'); raise SystemExit(3)")
    begin = time.monotonic()
    with pytest.raises(ProcessDiedError, match=r"(?s)exited with code 3.*no more paper"):
        await child.guard(forever(), deadline_s=None, doing="printing")
    assert time.monotonic() - begin < 30
    assert not child.alive
    assert await child.wait() == 3


async def test_a_kill_is_named(start):
    child = await start("import time; time.sleep(60)")
    waiting = [asyncio.ensure_future(child.guard(forever(), deadline_s=60, doing="a")) for _ in range(3)]
    await asyncio.sleep(0)
    os.kill(child.pid, signal.SIGKILL)
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, ProcessDiedError)
        assert "SIGKILL" in str(outcome)


async def test_a_deadline_names_what_was_awaited(start):
    child = await start("import time; print('thinking'); time.sleep(60)")
    await logged(child, "thinking")
    with pytest.raises(DeadlineExceededError, match=r"(?s)did not finish an answer within 0\.1 s.*thinking"):
        await child.guard(forever(), deadline_s=0.1, doing="an answer")
    assert child.alive


async def test_what_is_guarded_is_cancelled_with_the_wait(start):
    child = await start("import time; time.sleep(60)")
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def work():
        begun.set()
        try:
            await forever()
        finally:
            cancelled.set()

    waiting = asyncio.ensure_future(child.guard(work(), deadline_s=None, doing="work"))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cancelled.is_set()


async def test_results_and_errors_pass_through(start):
    child = await start("import time; time.sleep(60)")

    async def fail():
        raise KeyError("x")

    assert await child.guard(asyncio.sleep(0, "result"), deadline_s=60, doing="it") == "result"
    with pytest.raises(KeyError):
        await child.guard(fail(), deadline_s=60, doing="it")


async def test_environment_and_pipes(start):
    child = await start("import os; print(os.environ['GREETING'], input())", env={"GREETING": "hello"}, pipes=True)
    child.process.stdin.write(b"world\n")
    assert await child.process.stdout.readline() == b"hello world\n"


async def test_stop_ends_grandchildren_and_the_stubborn(start):
    child = await start(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(inner.pid)\n"
        "time.sleep(60)\n"
    )
    await logged(child, "\n")
    inner = psutil.Process(int(child.log_tail()))
    await child.stop(grace_s=0.2)
    assert not child.alive
    _, left = psutil.wait_procs([inner], timeout=30)
    assert not left
    await child.stop()  # again: nothing happens


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children of a dead parent on Linux only")
@pytest.mark.parametrize(
    ("stopped", "number", "lives"),
    [
        (False, signal.SIGKILL, False),
        (True, signal.SIGKILL, False),
        (False, signal.SIGTERM, False),
        (True, signal.SIGTERM, True),  # why SIGKILL is the default
    ],
)
def test_a_parents_death_ends_its_child(tmp_path, stopped, number, lives):
    script = f"""
import asyncio, signal, sys
from pathlib import Path
from art_backend.process import ChildProcess
async def main():
    child = await ChildProcess.start([sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"], name="child",
                                     log_path=Path({str(tmp_path / "log")!r}), death_signal=signal.Signals({int(number)}))
    while not child.log_tail():
        await asyncio.sleep(0.01)
    print(child.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if stopped:
            child.suspend()
        parent.kill()
        parent.wait()
        _, left = psutil.wait_procs([child], timeout=1 if lives else 30)
        assert bool(left) == lives
        for survivor in left:
            survivor.kill()


async def test_a_default_of_the_environment_gives_way_to_what_the_user_has_set(tmp_path, monkeypatch):
    monkeypatch.setenv("ART_TEST_SET", "mine")
    monkeypatch.delenv("ART_TEST_UNSET", raising=False)
    log = tmp_path / "log"
    script = "import os; print(os.environ['ART_TEST_SET'], os.environ['ART_TEST_UNSET'])"
    defaults = {"ART_TEST_SET": "default", "ART_TEST_UNSET": "default"}
    child = await ChildProcess.start([sys.executable, "-c", script], name="child", log_path=log, defaults=defaults)
    assert await child.wait() == 0
    assert log.read_text() == "mine default\n"


BUSY = "while True: pass"
IDLE = "import time; time.sleep(600)"


@pytest.mark.parametrize(
    ("script", "answers", "number", "lives"),
    [
        (IDLE, False, None, False),
        (BUSY, False, None, True),
        (IDLE, True, None, True),
        (IDLE, True, signal.SIGSTOP, False),
        (BUSY, False, signal.SIGSTOP, False),
    ],
)
async def test_a_child_that_hangs_is_ended_and_one_that_works_or_answers_is_not(
    start, monkeypatch, script, answers, number, lives
):
    monkeypatch.setattr(process, "PULSE_S", 0.4)  # a busy child gets a twentieth of a core in that time, anywhere
    child = await start(script)
    if number is not None:
        child.process.send_signal(number)

    async def listen():
        return answers or await forever()

    watching = asyncio.ensure_future(child.watch(listen))
    waiting = asyncio.ensure_future(child.guard(forever(), deadline_s=None, doing="an answer"))
    if lives:
        await asyncio.wait({watching}, timeout=5)
        assert child.alive and not watching.done()
        watching.cancel()
        waiting.cancel()
    else:
        with pytest.raises(ProcessDiedError, match=r"answered nothing and computed nothing for 2 s, so it was ended"):
            await asyncio.wait_for(waiting, 60)
        await asyncio.wait_for(watching, 60)


async def test_a_child_of_the_child_that_is_stopped_counts(start, monkeypatch):
    monkeypatch.setattr(process, "PULSE_S", 0.4)
    child = await start(
        "import subprocess, sys, time\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(inner.pid)\n"
        "time.sleep(600)\n"
    )
    await logged(child, "\n")
    os.kill(int(child.log_tail()), signal.SIGSTOP)
    await asyncio.wait_for(child.watch(lambda: asyncio.sleep(0, True)), 60)
    assert not child.alive
