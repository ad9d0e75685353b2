"""The queue of each project."""

import asyncio

import openai
import pytest
from tests.art_backend.gateway.conftest import start_gateway

from art_backend.errors import BusyError
from art_backend.gateway.limits import ProjectLimits


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Calls:
    """Calls that hold their place until they are told to end."""

    def __init__(self, limits):
        self.limits = limits
        self.entered = []
        self.ends = {}

    def start(self, name, project="p"):
        async def run():
            async with self.limits.enter(project):
                self.entered.append(name)
                await self.ends.setdefault(name, asyncio.Event()).wait()

        return asyncio.create_task(run())

    async def end(self, *names):
        for name in names:
            self.ends.setdefault(name, asyncio.Event()).set()
        await settle()


async def test_first_come_first_served_and_no_more_than_the_limit():
    calls = Calls(ProjectLimits(2, 10, 60))
    tasks = [calls.start(i) for i in range(5)]
    await settle()
    assert calls.entered == [0, 1]
    await calls.end(1)
    assert calls.entered == [0, 1, 2]
    await calls.end(0, 2)
    assert calls.entered == [0, 1, 2, 3, 4]
    await calls.end(3, 4)
    await asyncio.gather(*tasks)


async def test_projects_do_not_wait_for_each_other():
    calls = Calls(ProjectLimits(1, 10, 60))
    tasks = [calls.start("a"), calls.start("b"), calls.start("other", project="q")]
    await settle()
    assert calls.entered == ["a", "other"]
    await calls.end("a", "b", "other")
    await asyncio.gather(*tasks)


async def test_a_full_queue_and_a_long_wait_say_when_to_come_back():
    calls = Calls(ProjectLimits(1, 1, 0.05))
    first, second, third = calls.start(1), calls.start(2), calls.start(3)
    await settle()
    with pytest.raises(BusyError, match="--max-project-queue") as caught:
        await third
    assert caught.value.retry_after_s
    with pytest.raises(BusyError, match=r"0\.05 s"):
        await second
    assert calls.limits.waiting("p") == 0
    await calls.end(1)
    await first
    assert calls.entered == [1]


async def test_who_leaves_the_queue_lets_the_next_one_move_up():
    calls = Calls(ProjectLimits(1, 2, 60))
    first, second, third = (calls.start(i) for i in range(3))
    await settle()
    second.cancel()
    await settle()
    assert calls.limits.waiting("p") == 1
    await calls.end(0)
    assert calls.entered == [0, 2]
    await calls.end(2)
    await asyncio.gather(first, third)


async def test_a_place_is_not_lost_with_one_who_leaves_as_it_is_called():
    calls = Calls(ProjectLimits(1, 5, 60))
    first, second, third = (calls.start(i) for i in range(3))
    await settle()
    calls.ends[0].set()
    await asyncio.sleep(0)  # the first ends and calls the second, which has not run yet
    second.cancel()
    await settle()
    assert calls.entered in ([0, 2], [0, 1, 2])
    await calls.end(1, 2)
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert third.exception() is None
    fresh = calls.start("fresh")
    await settle()
    assert calls.entered[-1] == "fresh"
    await calls.end("fresh")
    await fresh


@pytest.fixture
async def narrow(tmp_path):
    async with start_gateway(tmp_path, keep_alive_s=30.0, limits=ProjectLimits(2, 1, 60.0)) as running:
        yield running


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_project_that_asks_too_much_is_told_when_to_come_back(narrow, stream):
    """Over all its rollouts; a call that leaves the queue makes room, and the SDK's own retry gets an answer."""
    narrow.engine.hold()
    (client, rollout), (other, _) = narrow.new_client(), narrow.new_client()
    options = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    tasks = [asyncio.create_task(c.chat.completions.create(**options)) for c in (client, other, client)]
    await until(lambda: len(narrow.engine.calls) == 2 and narrow.limits.waiting("p") == 1)
    with pytest.raises(openai.RateLimitError, match="--max-project-queue") as caught:
        await client.chat.completions.create(**options)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert "x-should-retry" not in caught.value.response.headers
    tasks[2].cancel()
    await until(lambda: not narrow.limits.waiting("p"))
    tasks[2] = asyncio.create_task(client.with_options(max_retries=2).chat.completions.create(**options))
    await until(lambda: narrow.limits.waiting("p") == 1)
    narrow.engine.release()
    for task in tasks:
        answer = await task
        if stream:
            assert [chunk async for chunk in answer]
    assert len(narrow.engine.calls) == 3
    narrow.check(rollout)
