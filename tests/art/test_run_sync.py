import asyncio
import contextvars
import subprocess
import sys

import pytest

import art

where = contextvars.ContextVar("where", default="nowhere")


async def answer(error=None):
    await asyncio.sleep(0)
    if error is not None:
        raise error
    return where.get()


def test_without_a_loop():
    assert art.run_sync(answer()) == "nowhere"
    with pytest.raises(ValueError, match="x"):
        art.run_sync(answer(ValueError("x")))


async def test_where_a_loop_is_running_it_runs_beside_it_in_the_same_context():
    where.set("here")
    assert art.run_sync(answer()) == "here"
    with pytest.raises(ValueError, match="x"):
        art.run_sync(answer(ValueError("x")))
    group = art.run_sync(art.trajectory_group([art.Trajectory(reward=1.0)]))
    assert [t.reward for t in group] == [1.0]


def test_an_interrupt_ends_what_runs():
    code = """
import asyncio, os, signal, threading, art

async def endless():
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        await asyncio.sleep(60)
    finally:
        print("ended", flush=True)

async def cell():
    try:
        art.run_sync(endless())
    except KeyboardInterrupt:
        print("interrupted", flush=True)

loop = asyncio.new_event_loop()
loop.run_until_complete(cell())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True)
    assert done.stdout.split() == ["ended", "interrupted"]
