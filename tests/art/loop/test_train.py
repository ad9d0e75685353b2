import asyncio
import itertools
import random
import signal
import time
from types import SimpleNamespace

import pytest
from tests.support.recording_backend import Recorder
from tests.support.waiting import until

import art
from art.backend import EngineWatch
from art.errors import ConflictError, EngineFailedError, TrainerFailedError
from art.loop.rollouts import _TICK_S, EveryRolloutFailedError, HoldClock
from art.loop.train import Depth
from art.wire import ErrorCode


def scored(scenario, reward):
    return art.Trajectory(reward=reward, metadata={"scenario": scenario})


def make_rollout(before=None):
    """Rollouts with rewards 0, 1, 2, … in each scenario."""
    rewards = {}

    async def rollout(model, scenario):
        mine = next(rewards.setdefault(scenario, itertools.count()))
        if before is not None:
            await before(scenario, mine)
        await asyncio.sleep(0)
        return scored(scenario, mine)

    return rollout


SMALL = {"groups_per_step": 2, "group_size": 2, "show_progress": False, "handle_signals": False}


async def test_without_staleness_it_is_the_explicit_form(make_model, backend):
    """Rollouts end in any order, and differ by policy version; batches must not."""

    def make(log):
        async def rollout(model, scenario):
            chance = random.Random(f"{scenario} {backend.step}")
            await asyncio.sleep(chance.random() / 500)
            log.append((scenario, backend.step))
            return scored(scenario, chance.random())

        return rollout

    def contents():
        return [[[(t.metadata, t.reward) for t in group] for group in batch] for batch in backend.batches]

    model, explicit_log, log = await make_model(), [], []
    rollout = make(explicit_log)
    for step in range(4):
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(model, s) for _ in range(4)) for s in range(3 * step, 3 * step + 3)),
            pbar_desc=None,
        )
        await backend.train(model, groups, learning_rate=1e-3)
    explicit = contents()
    backend.step, backend.batches = 0, []
    run = await art.train(
        model, make(log), range(12), groups_per_step=3, group_size=4, learning_rate=1e-3, show_progress=False
    )
    assert (run.step, run.stopped) == (4, False)
    assert contents() == explicit
    assert sorted(log) == sorted(explicit_log)
    assert backend.options[-1] == backend.options[0]
    assert all(t.initial_policy_version == n for n, batch in enumerate(backend.batches) for g in batch for t in g)


@pytest.mark.parametrize("on_stale", ["requeue", "drop"])
@pytest.mark.parametrize("max_staleness", [1, 2])
async def test_no_group_is_older_than_allowed(make_model, backend, read_history, on_stale, max_staleness):
    """Every fifth scenario takes four steps, the first time that it is run."""

    async def slow(scenario, mine):
        if scenario in (0, 5, 10, 15, 20) and mine < 2:
            until = backend.step + 4
            while backend.step < until:
                await asyncio.sleep(0)

    model = await make_model()
    options = {**SMALL, "max_staleness": max_staleness, "on_stale": on_stale}
    await art.train(model, make_rollout(slow), range(40), **options)
    rows = [row for row in read_history(model) if "train/reward" in row]
    assert max(row["pipeline/staleness_max"] for row in rows) == max_staleness
    for version, batch in enumerate(backend.batches):
        assert all(0 <= version - t.initial_policy_version <= max_staleness for group in batch for t in group)
    stale = sum(row["pipeline/stale_groups"] for row in rows)
    trained = sorted(itertools.chain.from_iterable(backend.scenarios()))
    assert stale == 5
    if on_stale == "requeue":
        assert trained == list(range(40)), "each exactly once"
    else:
        assert len(trained) == len(set(trained)) == 40 - stale
        assert not {0, 5, 10, 15, 20} & set(trained)


async def test_rollouts_go_on_while_the_trainer_works(make_model, backend):
    """The second step's groups finish inside the first step."""
    finished = asyncio.Event()

    async def note(scenario, mine):
        if scenario >= 2:
            await backend_busy.wait()
        if scenario == 3 and mine == 1:
            finished.set()

    backend_busy = asyncio.Event()

    async def during():
        backend_busy.set()
        await asyncio.wait_for(finished.wait(), 60)

    backend.during = during
    await art.train(await make_model(), make_rollout(note), range(4), **SMALL, max_staleness=1)
    assert backend.scenarios() == [[0, 1], [2, 3]]


async def test_members_that_hang_crash_or_come_late_cost_the_group_only_themselves(make_model, backend, read_history):
    late = []

    async def misbehave(scenario, mine):
        if scenario == 0 and mine == 0:
            await asyncio.Event().wait()
        if scenario == 0 and mine == 1:
            raise ValueError("the scorer crashed")
        if scenario == 1 and mine == 0:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # a clean-up that takes its time, and an answer that nobody waits for
                await asyncio.sleep(0.1)
                late.append(mine)

    model = await make_model()
    options = {**SMALL, "group_size": 4, "rollout_timeout_s": 1.0}
    await art.train(model, make_rollout(misbehave), range(2), **options)
    [[first, second]] = backend.batches
    assert [t.reward for t in first] == [2, 3]
    assert [t.reward for t in second] == [1, 2, 3]
    kinds = sorted(e.type for e in first.exceptions)
    assert "RolloutTimeoutError" in kinds[1]
    assert "ValueError" in kinds[0]
    assert late == [0], "given the time to clean up, its result ignored"
    [row] = read_history(model)
    assert row["pipeline/rollout_timeouts"] == 2
    assert row["train/exception_rate"] == 3 / 8


async def test_a_held_call_does_not_cost_a_rollout_its_time(make_model, backend, monkeypatch):
    """By a clock that moves in the first step alone."""
    seconds = [0.0]
    monkeypatch.setattr("art.loop.rollouts.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    step_over = asyncio.Event()

    async def wait_for_step(scenario, mine):
        if scenario == 2:
            await step_over.wait()

    async def during():
        if not step_over.is_set():
            seconds[0] += 100
            await asyncio.sleep(3 * _TICK_S)  # the deadlines are looked at
            step_over.set()

    backend.during = during
    options = {**SMALL, "groups_per_step": 1, "max_staleness": 2, "rollout_timeout_s": _TICK_S}
    await art.train(await make_model(), make_rollout(wait_for_step), range(3), **options)
    assert sorted(itertools.chain.from_iterable(backend.scenarios())) == [0, 1, 2]
    assert not any(group.exceptions for batch in backend.batches for group in batch)


async def test_the_clock_stands_still_while_held():
    clock = HoldClock()
    with clock.hold():
        before = clock.now()
        with clock.hold():  # an engine that starts in a step
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert clock.now() == before
        still_held = time.monotonic()
    assert 0 <= clock.now() - before <= time.monotonic() - still_held


async def test_the_number_of_rollouts_at_a_time_is_bounded(make_model, backend):
    running, most = 0, 0

    async def count(scenario, mine):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await until(lambda: most >= 3)
        await asyncio.sleep(0.001)
        running -= 1

    await art.train(await make_model(), make_rollout(count), range(8), **SMALL, max_concurrent_rollouts=3)
    assert (most, len(backend.batches)) == (3, 4)


async def test_ctrl_c_stops_cleanly_and_the_same_call_resumes(make_model, backend, capsys):
    async def interrupt(scenario, mine):
        if scenario == 5:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    options = {**SMALL, "handle_signals": True, "show_progress": True, "steps": 6}
    run = await art.train(await make_model(), make_rollout(interrupt), range(12), **options)
    assert (run.step, run.stopped) == (2, True)
    assert "Stopped after step 2" in capsys.readouterr().err
    run = await art.train(await make_model(), make_rollout(), range(12), **options)
    assert (run.step, run.stopped) == (6, False)
    assert backend.scenarios() == [[n, n + 1] for n in range(0, 12, 2)]
    again = await art.train(await make_model(), make_rollout(), range(12), **options)
    assert (again.step, len(backend.batches)) == (6, 6), "nothing is left to do"


async def test_ctrl_c_in_a_step_lets_it_finish(make_model, backend, read_history):
    async def during():
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.05)

    backend.during = during
    model = await make_model()
    run = await art.train(model, make_rollout(), range(12), **{**SMALL, "handle_signals": True}, max_staleness=1)
    assert (run.step, run.stopped) == (1, True)
    assert [row["step"] for row in read_history(model)] == [1]
    backend.during = None
    await art.train(await make_model(), make_rollout(), range(12), **SMALL, max_staleness=1)
    assert sorted(itertools.chain.from_iterable(backend.scenarios())) == list(range(12))


async def test_ctrl_c_does_not_wait_for_an_evaluation(make_model, backend):
    async def evaluate(model, step):
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    options = {**SMALL, "handle_signals": True, "eval": evaluate}
    run = await art.train(await make_model(), make_rollout(), range(4), **options)
    assert (run.step, run.stopped, backend.batches) == (0, True, [])


async def test_a_run_killed_after_the_checkpoint_repeats_nothing(make_model, backend):
    async def die():
        backend.step += 1  # the checkpoint is there, but nobody lives to hear of it
        raise KeyboardInterrupt

    backend.during = die
    with pytest.raises(KeyboardInterrupt):
        await art.train(await make_model(), make_rollout(), range(6), **SMALL)
    backend.during = None
    await art.train(await make_model(), make_rollout(), range(6), **SMALL)
    assert backend.scenarios() == [[0, 1], [2, 3], [4, 5]]


async def test_a_broken_service_ends_the_run_at_once_and_a_broken_agent_soon(make_model, backend, capsys):
    async def dead(model, scenario):
        raise EngineFailedError("the engine died", 503, code=ErrorCode.ENGINE_FAILED)

    with pytest.raises(EngineFailedError, match="the engine died"):
        await art.train(await make_model(), dead, itertools.count(), **SMALL)

    async def broken(model, scenario):
        raise KeyError("typo")

    with pytest.raises(EveryRolloutFailedError, match="all 2 rollouts failed, the first with KeyError"):
        await art.train(await make_model(), broken, itertools.count(), **SMALL)
    assert "scenario 1 failed" in capsys.readouterr().err
    assert backend.batches == []


async def test_what_a_rollout_may_return(make_model, backend):
    async def pair(model, scenario):
        return scored(scenario, 0.0), 0.25

    await art.train(await make_model(), pair, range(2), **SMALL)
    assert backend.batches[0][0].trajectories[0].reward == 0.25

    async def wrong(model, scenario):
        return 0.5

    with pytest.raises(
        EveryRolloutFailedError, match="must return a Trajectory, or a Trajectory and its reward, not float"
    ):
        await art.train(await make_model(), wrong, itertools.count(5), **SMALL)


async def test_a_list_is_repeated_until_the_steps_are_taken(make_model, backend, read_history, capsys):
    evaluated = []

    async def evaluate(model, step):
        await asyncio.sleep(0.01)
        evaluated.append(step)
        return [art.Trajectory(reward=step)]

    model = await make_model()
    run = await art.train(
        model, make_rollout(), ["a", "b", "c"], **{**SMALL, "show_progress": True}, steps=5, eval=evaluate, eval_every=2
    )
    assert run.step == 5
    assert list(itertools.chain.from_iterable(backend.scenarios())) == list("abcabcabca")
    assert evaluated == [0, 2, 4, 5]
    rows = read_history(model)
    assert [row["val/reward"] for row in rows if "val/reward" in row] == [0, 2, 4, 5]
    shown = capsys.readouterr().err
    assert "m: training from step 0 of 5" in shown
    assert "+0.500 ± 0.000" in shown
    assert "No held-out evaluation" not in shown, "its user evaluates"


@pytest.mark.parametrize(
    "option", ["groups_per_step", "group_size", "steps", "max_concurrent_rollouts", "max_staleness"]
)
async def test_sizes_are_checked(make_model, option):
    with pytest.raises(ValueError, match=option):
        await art.train(await make_model(), make_rollout(), [1], **{**SMALL, option: -1})


async def test_a_trainer_that_dies_is_given_its_groups_again_and_not_for_ever(make_model, backend, capsys):
    """The first step's trainer dies twice; later one dies each time."""
    deaths = itertools.count(1)
    last_death = 2

    async def die():
        if next(deaths) <= last_death:
            raise TrainerFailedError("the trainer was ended by signal SIGKILL", 500, code=ErrorCode.TRAINER_FAILED)

    backend.during = die
    run = await art.train(await make_model(), make_rollout(), range(4), **SMALL, max_staleness=1)
    assert run.step == 2
    batches = backend.scenarios()
    assert batches[0] == batches[1] == batches[2], "the same groups"
    assert sorted(itertools.chain.from_iterable(batches[2:])) == [0, 1, 2, 3]
    assert capsys.readouterr().err.count("step 1 runs again because the trainer failed: the trainer was ended") == 2
    last_death, backend.batches = 10**6, []
    with pytest.raises(TrainerFailedError, match="SIGKILL"):
        await art.train(await make_model(), make_rollout(), range(4, 100), **SMALL)
    assert len(backend.batches) == 3


async def test_a_model_is_trained_by_one_loop_at_a_time(make_model, backend):
    first_runs, over = asyncio.Event(), asyncio.Event()

    async def wait(scenario, mine):
        first_runs.set()
        await over.wait()

    model = await make_model()
    first = asyncio.create_task(art.train(model, make_rollout(wait), range(2), **SMALL))
    await first_runs.wait()
    with pytest.raises(ConflictError, match="'m' of project 'p' is already being trained"):
        await art.train(await make_model(), make_rollout(), range(2), **SMALL)
    over.set()
    assert (await first).step == 1
    assert (await art.train(model, make_rollout(), range(4), **SMALL)).step == 2, "free again"


async def test_steps_that_somebody_else_takes_from_elsewhere_are_noticed(make_model, backend):
    async def during():
        backend.step += 1

    backend.during = during
    with pytest.raises(ConflictError, match="at step 2 after the step that followed 0: somebody else trains it"):
        await art.train(await make_model(), make_rollout(), range(4), **SMALL)


async def test_an_engine_that_starts_does_not_cost_a_rollout_its_time(tmp_path):
    """The first calls wait for the engine for longer than a rollout may take."""

    class Starting(Recorder, EngineWatch):
        async def engine_is_starting(self):
            return not ready.is_set()

    ready = asyncio.Event()
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await model.register(backend := Starting())
    asyncio.get_running_loop().call_later(0.6, ready.set)
    options = {**SMALL, "rollout_timeout_s": 0.3}
    await art.train(model, make_rollout(lambda scenario, mine: ready.wait()), range(2), **options)
    assert not any(group.exceptions for group in backend.batches[0])


async def test_a_service_that_is_gone_ends_the_run_even_if_no_rollout_asks_it(tmp_path):
    class Gone(Recorder, EngineWatch):
        async def engine_is_starting(self):
            raise EngineFailedError("the engine is broken for good", 503, code=ErrorCode.ENGINE_FAILED)

    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    await model.register(Gone())
    with pytest.raises(EngineFailedError, match="broken for good"):
        await art.train(
            model, make_rollout(lambda scenario, mine: asyncio.Event().wait()), range(2), **SMALL, rollout_timeout_s=60
        )


async def test_groups_in_flight_follow_the_idle_share_of_the_engine(make_model, backend):
    """With staleness 1 and 4 groups a step: at first 8; after a step that idled for 30 %, three more; after one that
    did not, one fewer again."""
    begun, in_flight, shares = set(), [], iter([0.30, 0.0, 0.05])
    expected = [8, 11, 10]
    train = backend.train

    async def watched(model, groups, **options):
        await until(lambda: len(begun) - 4 * backend.step >= expected[backend.step])
        await asyncio.sleep(0.05)  # no more of them begin
        in_flight.append(len(begun) - 4 * backend.step)
        result = await train(model, groups, **options)
        result.metrics["throughput/engine_idle_share"] = next(shares)
        return result

    async def note(scenario, mine):
        """Ends when its step is the next one."""
        begun.add(scenario)
        while scenario >= 4 * (backend.step + 1):
            await asyncio.sleep(0.001)

    backend.train = watched
    options = {**SMALL, "groups_per_step": 4, "max_staleness": 1, "steps": 3}
    await art.train(await make_model(), make_rollout(note), itertools.count(), **options)
    assert in_flight == expected


def test_the_surplus_of_groups_has_bounds():
    assert [Depth(4, 1).adapt(share, ready=3) for share in (0.30, 0.05, 0.0, None)] == [11, 8, 8, 8]
    assert [Depth(4, 2).adapt(share, ready=0) for share in (1.0, 0.0)] == [18, 12]
    assert Depth(4, 1).adapt(0.30, ready=4) == 8, "the next step has its groups already"
    assert Depth(4, 0).adapt(0.9, ready=0) == 4, "without staleness a step waits for its own groups"
