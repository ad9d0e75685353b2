import asyncio

import pytest

import art


def test_scopes_nest_and_are_left_in_order():
    assert art.current_trajectory() is None
    with art.Trajectory() as outer:
        assert art.current_trajectory() is outer
        with art.Trajectory() as inner:
            assert art.current_trajectory(required=True) is inner
        assert art.current_trajectory(require=True) is outer
        with art.no_capture():
            assert art.current_trajectory() is None
            with art.Trajectory() as hidden:
                assert art.current_trajectory() is hidden
        assert "duration" in inner.metrics
    for name in ("required", "require"):
        with pytest.raises(RuntimeError, match="No trajectory"):
            art.current_trajectory(**{name: True})


def test_leaving_out_of_order_is_an_error():
    outer, inner = art.Trajectory(), art.Trajectory()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="reverse order"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert art.current_trajectory() is None


async def test_one_call_needs_a_coroutine():
    async def agent():
        art.current_trajectory(required=True).reward = 0.5

    assert (await art.trajectory(agent())).reward == 0.5
    task = asyncio.ensure_future(agent())
    with pytest.raises(TypeError, match=r"takes a coroutine.*not Task"):
        await art.trajectory(task)
    task.cancel()


async def test_groups_of_rollouts():
    async def rollout(reward, delay=0.0):
        assert art.current_trajectory() is None
        await asyncio.sleep(delay)
        if reward < 0:
            raise ValueError("bad")
        return art.Trajectory(reward=reward)

    with art.Trajectory():
        group = await art.trajectory_group(
            [rollout(0, 0.01), art.Trajectory(reward=1), KeyError("k")], metadata={"a": 1}
        )
    assert [t.reward for t in group] == [0, 1]
    assert (len(group.exceptions), group.metadata) == (1, {"a": 1})
    kept = await art.trajectory_group([rollout(-1), rollout(2)], return_exceptions=True)
    assert ([t.reward for t in kept], kept.exceptions[0].message) == ([2], "bad")
    with pytest.raises(ValueError, match="bad"):
        await art.trajectory_group([rollout(-1), rollout(2, 30)])

    ended = asyncio.Event()

    async def hangs():
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    with pytest.raises(ValueError, match="bad"):
        await art.trajectory_group([hangs(), rollout(-1, 0.01)])
    assert ended.is_set(), "the first failure cancels the rest"
    made = await art.trajectory_group([], exceptions=[ValueError("given")], metrics={"m": 1}, logs=["l"])
    assert (made.exceptions[0].message, made.metrics, made.logs) == ("given", {"m": 1}, ["l"])

    async def wrong():
        return 5

    with pytest.raises(TypeError, match="must be a Trajectory, not int"):
        await art.trajectory_group([wrong()], return_exceptions=True)
    with pytest.raises(TypeError, match="must be a Trajectory, not str"):
        await art.trajectory_group(["text"])

    async def cancelled():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await art.trajectory_group([cancelled()], return_exceptions=True)
