"""Waiting for an event, however busy the machine is, instead of for a time in which it probably happens."""

import asyncio
import time

PATIENCE_S = 60.0
"""What happens at all happens long before this."""


async def until(condition, pause_s=0.005):
    """Wait until ``condition()`` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {PATIENCE_S:g} s"
        await asyncio.sleep(pause_s)


async def until_held(backend, work):
    """Wait until the engine's calls are held for a training step, which ``work`` waits for."""
    while (await backend.get_health()).processes[0].state != "paused":
        assert not work.done()
        await asyncio.sleep(0.005)
