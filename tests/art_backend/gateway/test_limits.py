"""The queue of each project."""

import asyncio

import httpx
import openai
import pytest
from tests.art_backend.gateway.conftest import start_gateway
from tests.support.waiting import until

from art_backend.errors import BusyError
from art_backend.gateway.dialects.chat import read_call
from art_backend.gateway.limits import MAX_WAITING_BYTES, ProjectLimits
from art_backend.gateway.turns import LONG_TEXT


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Calls:
    """Calls that hold their place until they are told to end."""

    def __init__(self, limits):
        self.limits = limits
        self.entered = []
        self.ends = {}

    def start(self, name, project="p", **weight):
        async def run():
            async with self.limits.enter(project, **weight):
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


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_place_is_not_lost_where_it_comes_as_the_wait_ends(cancelled):
    """In one pass of the loop: the timeout is due, the place is given, and the caller may leave as well."""
    for early in range(6):  # passes of the loop between the end of the first and the others' deadline
        calls = Calls(ProjectLimits(1, 5, 0.05))
        first, second = calls.start(1), calls.start(2)
        await settle()
        loop, deadline = asyncio.get_running_loop(), asyncio.get_running_loop().time() + 0.05
        while loop.time() < deadline - 0.002:
            await asyncio.sleep(0)
        calls.ends[1].set()
        for _ in range(early):
            await asyncio.sleep(0)
        while loop.time() < deadline + 0.002:  # nobody runs meanwhile: all is due at once
            pass
        if cancelled:
            second.cancel()
        await settle()
        await calls.end(2)
        await asyncio.gather(first, second, return_exceptions=True)
        fresh = calls.start("fresh")
        await settle()
        assert calls.entered[-1] == "fresh"
        await calls.end("fresh")
        await fresh
        assert calls.limits._projects == {}


async def test_every_choice_counts():
    calls = Calls(ProjectLimits(4, 5, 60))
    tasks = [calls.start("three", choices=3), calls.start("two", choices=2), calls.start("one", choices=1)]
    await settle()
    assert calls.entered == ["three"], "who came first is not overtaken by who needs less"
    with pytest.raises(BusyError, match=r"3 completions running, 3 queued"):
        await calls.start("many", choices=4)
    await calls.end("three")
    assert calls.entered == ["three", "two", "one"]
    all_places = calls.start("all", choices=100)
    await calls.end("two", "one")
    assert calls.entered[-1] == "all"
    await calls.end("all")
    await asyncio.gather(*tasks, all_places)
    assert calls.limits._projects == {}


async def test_callers_take_turns():
    calls = Calls(ProjectLimits(1, 10, 60))
    tasks = [calls.start("a0", caller="a")]
    await settle()
    tasks += [calls.start(name, caller=name[0]) for name in ("a1", "a2", "a3", "b1", "b2", "c1")]
    await settle()
    for name in ("a0", "a1", "b1", "c1", "a2", "b2", "a3"):
        assert calls.entered[-1] == name
        await calls.end(name)
    await asyncio.gather(*tasks)


async def test_bodies_that_wait_are_bounded():
    calls = Calls(ProjectLimits(1, 10, 60))
    first, second = calls.start(1, size=MAX_WAITING_BYTES // 2), calls.start(2, size=MAX_WAITING_BYTES // 2)
    await settle()
    with pytest.raises(BusyError, match="bytes"):
        await calls.start(3, size=1)
    other = calls.start("other", project="q", size=1)
    await calls.end(1, 2, "other")
    await asyncio.gather(first, second, other)


CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
LONG = "x" * (LONG_TEXT + 1)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": [{"role": "user", "content": ""}] * 1000},
        {"messages": [{"role": "tool", "tool_call_id": LONG, "content": ""}]},
        {"messages": [{"role": "assistant", "content": "", "reasoning_content": LONG}]},
        *[{"messages": [{"role": "assistant", "tool_calls": [call]}]} for call in (
            {**CALL, "id": LONG}, {"function": {"name": LONG}}, {"function": {"name": "f", "arguments": LONG}},
        )],
        {"messages": [{"role": "user"}, {"role": "assistant", "content": LONG}], "continue_final_message": True},
        {"messages": [{"role": "user"}], "chat_template_kwargs": {"documents": [{LONG: 0}]}},
        {"messages": [{"role": "user"}], "tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]},
    ],
)  # fmt: skip
def test_what_takes_long_to_render_is_rendered_beside_the_event_loop(body):
    (source,) = read_call({"model": "m", **body}).sources
    assert source.size() > LONG_TEXT


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": ["a"] * 500, "n": 128}, "n"),
        ("completions", {"prompt": ["a"] * 100, "n": 2}, "n"),
        ("completions", {"prompt": [[5]] * 129}, "n"),
        ("completions", {"prompt": [5] * 1_100_000}, "prompt"),
        ("completions", {"prompt": [[5] * 600_000] * 2}, "prompt"),
        ("chat/completions", {"messages": [{"role": "user", "content": ""}] * 50_000}, "messages"),
        ("responses", {"input": [{"role": "user", "content": ""}] * 50_000}, "input"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 50_000}]}, "messages"),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": [CALL] * 50_000}]}, "messages"),
        ("chat/completions", {"chat_template_kwargs": {"documents": ["x" * 2**20]}}, "chat_template_kwargs"),
        ("messages/count_tokens", {"chat_template_kwargs": {"x": ["x"] * 300_000}}, "chat_template_kwargs"),
        ("chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}] * 50_000}, "tools"),
        ("messages", {"tools": [{"name": "f", "input_schema": {"description": "x" * 10_000_000}}]}, "tools"),
        ("messages/count_tokens", {"tools": [{"name": "f"}] * 50_000}, "tools"),
        ("responses/input_tokens", {"tools": [{"name": "f"}] * 50_000}, "tools"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 17_000_000}]}, None),
    ],
)
async def test_a_call_that_is_too_large_is_refused_at_once(narrow, path, body, param):
    """A small call that waits beside it is answered meanwhile."""
    info = narrow.rollout()
    async with httpx.AsyncClient(
        base_url=narrow.url, headers={"authorization": f"Bearer {info.api_key}"}, timeout=60
    ) as http:
        hello = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}
        if path == "completions":
            hello = {"model": "m"}
        answer = await http.post(f"/v1/{path}", json={**hello, **body})
        assert answer.status_code == 400, answer.text
        assert "limit is" in answer.text or "which is the limit" in answer.text
        if path.startswith(("chat", "completions", "responses")):
            assert answer.json()["error"]["param"] == param
    client, _ = narrow.new_client()
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])


@pytest.fixture
async def narrow(tmp_path):
    async with start_gateway(tmp_path, keep_alive_s=30.0, limits=ProjectLimits(2, 1, 60.0)) as running:
        yield running


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
