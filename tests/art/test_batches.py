import asyncio
import gc

import pytest

import art


async def rollout(value, error=None):
    await asyncio.sleep(0)
    if error:
        raise error
    return art.Trajectory(reward=value)


def group(value, error=None):
    return art.TrajectoryGroup([rollout(value, error), rollout(value)])


async def collect(groups, **options):
    return [
        [g.trajectories[0].reward for g in batch] async for batch in art.trajectory_group_batches(groups, **options)
    ]


async def test_batches_are_full_but_the_last():
    assert sorted(map(len, await collect((group(i) for i in range(7)), batch_size=3))) == [1, 3, 3]


async def test_skipped_batches_never_run():
    found = await collect((group(i) for i in range(6)), batch_size=2, skip_batches=2)
    assert sorted(found[0]) == [4, 5]


async def test_a_generator_is_read_only_as_far_ahead_as_needed():
    made = []

    def source():
        for i in range(100):
            made.append(i)
            yield group(i)

    batches = art.trajectory_group_batches(source(), batch_size=2, max_concurrent_batches=2)
    await anext(batches)
    assert len(made) <= 4 + 4
    await batches.aclose()


async def test_each_batch_has_an_exception_budget_of_its_own():
    async def fails():
        raise ValueError("x")

    def source():
        for i in range(4):
            yield art.TrajectoryGroup([rollout(i), fails()])

    found = await collect(source(), batch_size=1, max_concurrent_batches=1, max_batch_exceptions=1)
    assert found == [[0], [1], [2], [3]]
    with pytest.raises(ValueError, match="x"):
        await collect(source(), batch_size=2, max_concurrent_batches=1, max_batch_exceptions=1)


async def test_abandoning_cancels_what_runs(recwarn):
    ended = []

    async def hangs():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    batches = art.trajectory_group_batches(
        [group(0), art.TrajectoryGroup([hangs()])], batch_size=1, max_concurrent_batches=2
    )
    await anext(batches)
    await batches.aclose()
    assert ended == [1]
    assert [w for w in recwarn if "never awaited" in str(w.message)] == []


async def test_a_failed_batch_ends_what_runs_and_closes_what_does_not(recwarn):
    ended = []

    async def hangs():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    groups = [group(0, ValueError("x")), art.TrajectoryGroup([hangs()]), *(group(i) for i in range(4))]
    with pytest.raises(ValueError, match="x"):
        await collect(groups, batch_size=1, max_concurrent_batches=2)
    del groups
    gc.collect()
    assert ended == [1]
    assert [w for w in recwarn if "never awaited" in str(w.message)] == []


async def test_failures_within_the_budget_hold_nothing_up():
    async def whole(value):
        if value < 3:
            raise ValueError("x")
        return art.TrajectoryGroup([art.Trajectory(reward=value)])

    found = await collect((whole(i) for i in range(6)), batch_size=2, max_batch_exceptions=3)
    assert sorted(reward for batch in found for reward in batch) == [3, 4, 5]
    assert max(map(len, found)) == 2


async def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        await collect([], batch_size=0)
