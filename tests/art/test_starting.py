"""What is said while a service starts."""

import asyncio
from types import SimpleNamespace

from art.backend import starting
from art.backend.starting import StartReport
from art.errors import BackendUnreachableError
from art.wire import Health, ProcessHealth


def health(engine, **preparing):
    return Health(
        status="ok",
        uptime_s=1,
        processes=[ProcessHealth(name="engine m", pid=1, state=engine, detail="a line of its log")],
        preparing=preparing,
    )


async def report(answers, monkeypatch, registered_after=3):
    monkeypatch.setattr(starting, "_ASK_S", 0.0)
    monkeypatch.setattr(starting, "time", SimpleNamespace(monotonic=lambda: 0.0))
    registering = asyncio.get_running_loop().create_future()
    told = iter(answers)
    asked = 0

    async def ask():
        nonlocal asked
        asked += 1
        if asked == registered_after:
            registering.set_result(None)
        answer = next(told)
        if isinstance(answer, Exception):
            raise answer
        return answer

    await StartReport(ask).until(registering)
    return list(told)


async def test_each_stage_is_said_once_as_it_begins(monkeypatch, capsys):
    answers = [
        health("stopped", m="Downloading m"),
        health("stopped", m="Downloading m"),
        health("stopped", m="Preparing m"),
        health("starting"),
        health("starting"),
        health("ready"),
        health("ready"),
    ]
    left = await report(answers, monkeypatch)
    assert capsys.readouterr().err.splitlines() == [
        "base model m: Downloading m",
        "base model m: Preparing m",
        "engine m: starting",
        "base model m: ready after 0 s",
        "engine m: ready after 0 s",
    ]
    assert len(left) == 1, "it ends when nothing starts any more"


async def test_a_long_stage_is_said_again(monkeypatch, capsys):
    monkeypatch.setattr(starting, "_SAY_AGAIN_S", -1.0)
    await report([health("starting")] * 3 + [health("ready")], monkeypatch, registered_after=1)
    assert capsys.readouterr().err.splitlines()[:3] == ["engine m: starting", *["engine m: starting (0 s)"] * 2]


async def test_nothing_is_said_of_what_is_there_already_or_gone(monkeypatch, capsys):
    await report([health("ready")], monkeypatch, registered_after=1)
    await report([BackendUnreachableError("gone", 503)], monkeypatch)
    assert capsys.readouterr().err == ""
