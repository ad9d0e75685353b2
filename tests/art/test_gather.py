import asyncio
import gc
import inspect

import httpx
import openai
import pytest
from tests.support.waiting import until

import art
from art.errors import BackendDiedError, EngineFailedError
from art.gather import GatherContext, get_gather_context, record_metrics, set_gather_context
from art.rollouts.failures import remember_service
from art.wire import ErrorCode


async def rollout(reward=1.0, delay=0.0, error=None):
    await asyncio.sleep(delay)
    if error is not None:
        raise error
    return art.Trajectory(reward=reward)


async def test_groups_keep_their_order():
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(g * 10 + i, 0.01 * (3 - g)) for i in range(2)) for g in range(3)), pbar_desc=None
    )
    assert [[t.reward for t in group] for group in groups] == [[0, 1], [10, 11], [20, 21]]


async def test_the_first_failure_raises_by_default_and_cancels_the_rest():
    reached = []

    async def slow():
        await asyncio.sleep(30)
        reached.append(1)
        return art.Trajectory()

    with pytest.raises(ValueError, match="one"):
        await art.gather_trajectory_groups(
            [art.TrajectoryGroup([rollout(error=ValueError("one"))]), art.TrajectoryGroup([slow()])]
        )
    assert reached == []


@pytest.mark.parametrize(
    ("budget", "failures", "raises"), [(2, 2, False), (1, 2, True), (0.5, 2, False), (0.49, 2, True)]
)
async def test_budget_of_failures(budget, failures, raises):
    members = [rollout(error=ValueError("x")) for _ in range(failures)] + [rollout() for _ in range(4 - failures)]
    gathering = art.gather_trajectory_groups([art.TrajectoryGroup(members)], max_exceptions=budget)
    if raises:
        with pytest.raises(ValueError, match="x"):
            await gathering
    else:
        (group,) = await gathering
        assert (len(group), len(group.exceptions)) == (2, 2)


async def test_a_plain_awaitable_that_fails_within_the_budget_is_dropped():
    async def make(fail):
        if fail:
            raise ValueError("x")
        return art.TrajectoryGroup([art.Trajectory(reward=5)])

    groups = await art.gather_trajectory_groups([make(True), make(False)], max_exceptions=1)
    assert [t.reward for group in groups for t in group] == [5]


async def test_the_bar_counts_a_plain_awaitable_once_though_it_runs_members():
    seen = {}

    async def make():
        group = await art.TrajectoryGroup(rollout(i) for i in range(4))
        seen["bar"] = get_gather_context().pbar
        return group

    await art.gather_trajectory_groups([make(), art.TrajectoryGroup(rollout() for _ in range(3))])
    assert (seen["bar"].total, seen["bar"].n) == (4, 4)


async def test_after_each_keeps_splices_drops_and_raises():
    async def choose(group):
        reward = group.trajectories[0].reward
        return {0: group, 1: [group, group], 2: None}[reward]

    made = [art.TrajectoryGroup([rollout(i)]) for i in range(3)]
    groups = await art.gather_trajectory_groups(made, after_each=choose)
    assert [g.trajectories[0].reward for g in groups] == [0, 1, 1]

    async def fails(group):
        raise ZeroDivisionError("judge")

    with pytest.raises(ZeroDivisionError, match="judge"):
        await art.gather_trajectory_groups([art.TrajectoryGroup([rollout()])], after_each=fails, max_exceptions=9)


async def test_trajectories_in_order_with_failures_in_place():
    async def several():
        return (art.Trajectory(reward=i) for i in range(2))

    error = ValueError("x")
    found = await art.gather_trajectories([rollout(1, 0.01), several(), rollout(error=error)], max_exceptions=1)
    assert found[0].reward == 1
    assert [t.reward for t in found[1]] == [0, 1]
    assert found[2] is error


async def test_failing_means_no_warning_about_coroutines_never_awaited(recwarn):
    async def fails():
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await art.gather_trajectory_groups([fails(), *(art.TrajectoryGroup([rollout()]) for _ in range(3))])
    assert [w for w in recwarn if "never awaited" in str(w.message)] == []


def test_completion_tokens_are_the_mean_over_choices_with_logprobs(make_choice):
    def entries(n):
        return [{"token": "x", "logprob": -1.0, "top_logprobs": []}] * n

    trajectory = art.Trajectory(
        messages_and_choices=[
            make_choice(logprobs={"content": entries(2), "refusal": None}),
            make_choice(logprobs={"content": None, "refusal": entries(4)}),
            make_choice(),
        ],
        reward=2.0,
        metrics={"win": True},
    )
    context = GatherContext()
    record_metrics(context, trajectory)
    assert trajectory.metrics["completion_tokens"] == 3.0
    assert context.metric_sums == {"reward": 2.0, "win": 1, "completion_tokens": 3.0}
    assert context.metric_divisors == {"reward": 1, "win": 1, "completion_tokens": 1}


def test_a_context_holds_inside_its_block_and_can_be_reset():
    context = GatherContext(max_exceptions=3, metric_sums={"exceptions": 4.0})
    with set_gather_context(context):
        assert get_gather_context() is context
        assert context.too_many_exceptions()
    assert get_gather_context() is not context
    context.reset()
    assert context == GatherContext()


async def test_the_bar_shows_means_and_moves_by_each_trajectory():
    shown = []

    async def play(reward, turn):
        bar = get_gather_context().pbar
        await until(lambda: bar.n == turn)
        shown.append((bar.n, bar.postfix))
        return art.Trajectory(reward=reward, metrics={"a": 1, "b": 2})

    await art.gather_trajectory_groups(
        [art.TrajectoryGroup(play(r, turn) for turn, r in enumerate((1, 20))), art.TrajectoryGroup([play(60, 2)])],
        max_metrics=2,
    )
    assert [n for n, _ in shown] == [0, 1, 2]
    assert shown[2][1] == "reward=10.5, a=1"


async def test_a_context_that_does_not_move_the_bar_shows_all_the_same():
    seen = []

    class Bar:
        total = 4

        def set_postfix(self, values):
            seen.append(values)

        def update(self, n):
            seen.append(n)

    context = GatherContext(pbar=Bar(), increment_pbar=False, max_exceptions=0.25)
    record_metrics(context, art.Trajectory(reward=3))
    context.update_pbar(1)
    context.increment_pbar = True
    context.update_pbar(2)
    assert seen == [{"reward": 3.0}, {"reward": 3.0}, 2]
    for failures, too_many in ((1, False), (2, True)):
        context.metric_sums["exceptions"] = failures
        assert context.too_many_exceptions() is too_many


async def test_the_old_token_option_only_warns():
    with pytest.warns(DeprecationWarning, match="has no effect"):
        await art.gather_trajectory_groups([], pbar_total_completion_tokens=True)
    with pytest.warns(DeprecationWarning, match="has no effect"):
        await art.gather_trajectories([], pbar_total_completion_tokens=True)


def status_error(code):
    response = httpx.Response(503, request=httpx.Request("POST", "http://x/v1/chat/completions"))
    return openai.InternalServerError("failed", response=response, body={"code": code, "message": "m"})


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_prompt_that_outgrew_the_context_is_counted_apart_from_failures(wrapped):
    async def agent():
        response = httpx.Response(400, request=httpx.Request("POST", "http://x/v1/responses"))
        error = openai.BadRequestError("full", response=response, body={"code": "context_length_exceeded"})
        if not wrapped:
            raise error
        raise RuntimeError("the agent failed") from error

    context = art.gather.GatherContext()
    with art.gather.set_gather_context(context):
        group = await art.TrajectoryGroup([agent(), rollout()])
    assert (len(group.trajectories), len(group.exceptions)) == (1, 1)
    assert (context.metric_sums["truncated"], "exceptions" in context.metric_sums) == (1, False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: status_error("engine_failed"),
        lambda: EngineFailedError("dead", code=ErrorCode.ENGINE_FAILED),
        lambda: BackendDiedError("dead"),
        lambda: openai.APIConnectionError(request=httpx.Request("POST", "http://127.0.0.1:9/v1/chat/completions")),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_failure_of_the_service_is_no_failure_of_a_rollout(make, wrapped):
    remember_service("http://127.0.0.1:9")
    error = make()

    async def agent():
        if not wrapped:
            raise error
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("the agent failed") from cause

    with pytest.raises(RuntimeError if wrapped else type(error)):
        await art.gather_trajectory_groups([art.TrajectoryGroup([agent(), rollout()])], max_exceptions=100)


@pytest.mark.parametrize(
    "error",
    [
        status_error("context_length_exceeded"),
        openai.APIConnectionError(request=httpx.Request("POST", "https://judge.example/v1/chat/completions")),
    ],
)
async def test_other_failed_calls_are_failures_of_the_rollout(error):
    (group,) = await art.gather_trajectory_groups(
        [art.TrajectoryGroup([rollout(error=error), rollout()])], max_exceptions=1
    )
    assert (len(group), len(group.exceptions)) == (1, 1)


async def test_members_that_a_cancelled_group_did_not_begin_are_closed(recwarn):
    async def member():
        return art.Trajectory(reward=0.0)

    members = [member() for _ in range(2)]
    group = asyncio.ensure_future(art.TrajectoryGroup(members))
    asyncio.get_running_loop().call_soon(group.cancel)  # after the group's first step, before its members'
    with pytest.raises(asyncio.CancelledError):
        await group
    assert [inspect.getcoroutinestate(one) for one in members] == [inspect.CORO_CLOSED] * 2
    del members
    gc.collect()
    assert [w for w in recwarn if "never awaited" in str(w.message)] == []
