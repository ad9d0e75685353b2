"""The order of one step, and what is left standing when a part of it fails.

Engine and trainer are recorded fakes here: the test is about the sequence of calls. The end-to-end tests run real ones.
"""

import asyncio
import shutil
from dataclasses import replace

import pytest
from tests.support.recorded_step import BASE, FakeTrainer, World

from art_backend.engines.client import EngineError, EngineUnreachableError
from art_backend.errors import (
    BadRequestError,
    BusyError,
    EngineFailedError,
    NotFoundError,
    StorageFailedError,
    TrainerFailedError,
)
from art_backend.process import ProcessDiedError
from art_backend.serving.policies import MAX_RESTARTS, Gate, WholePolicy


async def test_the_order_of_a_step():
    world = World()
    result = await world.step()
    assert world.calls == [
        "pause(keep) [held]",
        "sleep [held]",
        "train(1)",
        "rest",
        "wake_up(weights) [held]",
        "load(p/m@1) [held]",
        "wake_up(kv_cache) [held]",
        "resume [held]",
        "models [held]",
        "canary(p/m@1) [held]",
    ]
    assert not world.host.gate.is_closed
    assert (result.step, result.trained, world.policy.step) == (1, True, 1)
    assert world.phases == ["holding", "preparing", "training", "publishing", "resuming"]
    assert {"time/step_hold_s", "time/step_trainer_s", "time/step_publish_s", "reward/mean"} <= result.metrics.keys()


async def test_with_devices_of_their_own_the_engine_answers_while_the_trainer_works():
    world = World(dedicated=True)
    seen = []

    async def train(step, on_progress):
        async with world.policy.lease() as lease:
            seen.append((lease.engine_model, await lease.engine.models(), world.host.gate.is_closed))
        return await FakeTrainer.train(world.trainer, step, on_progress)

    world.trainer.train = train
    result = await world.step()
    assert seen == [(BASE, [BASE], False)]
    assert world.calls == [
        "models",
        "train(1)",
        "pause(keep) [held]",
        "load(p/m@1) [held]",
        "resume [held]",
        "models [held]",
        "canary(p/m@1) [held]",
    ]
    assert (result.step, world.policy.step, world.host.gate.is_closed) == (1, 1, False)


async def test_with_devices_of_their_own_a_failed_trainer_leaves_the_engine_alone():
    world = World(dedicated=True)
    world.trainer.error = ProcessDiedError("The trainer (process 7) was ended by signal SIGKILL.")
    with pytest.raises(TrainerFailedError):
        await world.step()
    assert world.calls == ["train(1)"]
    world.trainer.error = None
    world.engines.engine.load_adapter = lambda name, path: _raise(EngineError(400, "no room"))
    with pytest.raises(EngineFailedError, match="no room"):
        await world.step()
    assert world.calls[-2:] == ["pause(keep) [held]", "resume [held]"]


async def _raise(error):
    raise error


async def test_whole_weights_change_between_completions_on_devices_of_their_own():
    world = World(kind=WholePolicy, dedicated=True)
    await world.step()
    assert world.calls[:4] == ["train(1)", "pause(keep) [held]", "weights(p/m@1) [held]", "resume [held]"]


async def test_requests_wait_while_weights_change_and_then_get_the_new_version():
    world = World()
    world.host.gate = Gate(timeout_s=30)
    world.engines.engine.gate = world.host.gate
    waiting = []

    async def ask():
        async with world.policy.lease() as lease:
            return lease.policy_version, lease.engine_model

    world.trainer.while_training = lambda: waiting.append(asyncio.ensure_future(ask()))
    await world.step()
    assert await waiting[0] == (1, "p/m@1")


async def test_a_request_held_too_long_is_told_when_to_come_back():
    world = World()
    world.host.gate.close()
    with pytest.raises(BusyError) as error:
        async with world.policy.lease():
            pass
    assert error.value.retry_after_s == 10


async def test_an_adapter_that_answers_like_other_weights_is_refused():
    world = World()
    world.engines.engine.logprob = -2.0  # the previous weights
    with pytest.raises(EngineFailedError, match=r"does not serve the weights of step 1.*1\.500 nats"):
        await world.step()
    assert world.policy.step == 0
    assert not world.host.gate.is_closed
    async with world.policy.lease() as lease:
        assert lease.policy_version == 0


async def test_an_adapter_that_is_not_listed_is_refused():
    world = World()
    world.engines.engine.models = lambda: asyncio.sleep(0, [BASE])
    with pytest.raises(EngineFailedError, match="does not list 'p/m@1'"):
        await world.step()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProcessDiedError("The trainer (process 7) was ended by signal SIGKILL."), TrainerFailedError),
        (BadRequestError("groups.0: bad row"), BadRequestError),
        (StorageFailedError("Saving the checkpoint of step 1 failed: no space left."), StorageFailedError),
    ],
)
async def test_a_failed_trainer_leaves_the_old_version_served_and_the_next_step_works(error, expected):
    world = World()
    world.trainer.error = error
    with pytest.raises(expected):
        await world.step()
    assert world.calls[-2:] == ["wake_up(weights+kv_cache) [held]", "resume [held]"]
    assert not world.host.gate.is_closed
    assert world.policy.step == 0
    world.trainer.error = None
    assert (await world.step()).step == 1


async def test_an_engine_killed_while_training_is_started_again_and_serves_the_new_version():
    world = World()
    world.trainer.while_training = world.engines.kill
    result = await world.step()
    assert result.step == world.policy.step == 1
    assert world.calls[world.calls.index("start") :] == [
        "start",
        "wake_up(weights) [held]",
        "load(p/m@1) [held]",
        "wake_up(kv_cache) [held]",
        "resume [held]",
        "models [held]",
        "canary(p/m@1) [held]",
    ]


@pytest.mark.parametrize("verb", ["wake_up", "load_adapter", "resume", "models", "greedy_logprobs"])
async def test_a_step_whose_engine_is_killed_late_is_published_by_the_next_one(verb):
    world = World()
    engine = world.engines.engine

    async def die(*_):
        world.engines.kill()
        raise EngineUnreachableError("connection reset")

    setattr(engine, verb, die)
    result = await world.step()
    assert result.step == world.policy.step == 1
    assert "p/m@1" in world.engines.engine.served
    assert world.calls.count("train(1)") == world.calls.count("start") == 1
    assert (await world.step()).step == 2


async def test_a_step_that_no_engine_serves_is_not_trained_again():
    world = World(dedicated=True)
    world.host.note_success()

    async def die(*_):
        world.engines.kill()
        raise EngineUnreachableError("connection reset")

    begin = world.engines._make

    def make():
        begin()
        world.engines.engine.load_adapter = die

    world.engines._make = make
    make()
    with pytest.raises(EngineFailedError, match=r"Step 1 is trained and saved, but not served. Do not train it again"):
        await world.step()
    assert world.calls.count("start") == MAX_RESTARTS
    for _ in range(2):
        with pytest.raises(EngineFailedError, match="Step 1 of 'm' is trained and saved, but not served"):
            await world.step()
    assert world.calls.count("train(1)") == 1
    assert "train(2)" not in world.calls


async def test_on_devices_of_its_own_a_trainer_s_step_waits_for_an_engine_that_starts_at_the_second_attempt():
    world = World(dedicated=True)
    start, failures = world.engines._start, [ProcessDiedError("it ended at once")]

    async def start_later(settings):
        if not world.engines.process.alive and failures:
            raise failures.pop()
        return await start(settings)

    world.host._start = start_later
    world.trainer.while_training = world.engines.kill
    await world.host.running()
    result = await world.step()
    assert (result.step, world.policy.step, failures) == (1, 1, [])
    assert "p/m@1" in world.engines.engine.served


async def test_a_checkpoint_that_was_moved_away_is_made_again():
    world = World()
    await world.step()
    world.checkpoints.saved.clear()
    assert (await world.step()).step == 1


@pytest.mark.parametrize("phase", ["train", "rest"])
async def test_a_trainer_killed_after_it_has_saved_costs_no_step(phase):
    world = World()
    train = world.trainer.train

    async def save_and_die(step, on_progress):
        output = await train(step, on_progress)
        if phase == "train":
            world.trainer.alive = False
            raise ProcessDiedError("The trainer (process 7) was ended by signal SIGKILL.")
        return output

    async def die():
        raise ProcessDiedError("The trainer (process 7) was ended by signal SIGKILL.")

    world.trainer.train, world.trainer.rest = save_and_die, die
    result = await world.step()
    assert (result.step, world.policy.step, world.checkpoints.saved) == (1, 1, [1])
    assert ["metrics were lost" in warning for warning in result.warnings] == [True] * (phase == "train")
    assert ("reward/mean" in result.metrics) == (phase == "rest")


async def test_a_lost_engine_is_an_error_that_tells_how_it_ended():
    world = World()
    with pytest.raises(EngineFailedError, match="SIGKILL"):
        async with world.policy.lease() as lease:
            world.engines.kill()
            await lease.engine.models()
    async with world.policy.lease() as lease:  # the next call gets a new engine
        assert await lease.engine.models() == [BASE]


async def test_a_new_engine_gets_the_adapters_of_the_last_one(tmp_path):
    world = World()
    world.checkpoints.path = lambda step: tmp_path / str(step)
    for step in (1, 2):
        world.checkpoints.path(step).mkdir()
        await world.step()
    for expected in (["start", "load(p/m@1)", "load(p/m@2)"], ["start", "load(p/m@2)"]):
        world.engines.kill()
        world.calls.clear()
        async with world.policy.lease() as lease:
            assert lease.policy_version == 2
        assert world.calls == expected
        shutil.rmtree(world.checkpoints.path(1), ignore_errors=True)


async def test_old_versions_are_unloaded_unless_somebody_uses_them():
    world = World(keep_versions=1)
    await world.step()
    async with world.policy.lease() as lease:
        assert lease.policy_version == 1
        await world.step()
        assert "unload(p/m@1) [held]" not in world.calls
    await world.step()
    # version 2 was the one served while version 3 was not proven yet, so it goes with the next step
    assert world.engines.engine.served == {BASE, "p/m@2", "p/m@3"}


async def test_the_oldest_adapter_that_nobody_uses_makes_room():
    world = World(keep_versions=9)
    world.host.settings = replace(world.host.settings, max_loras=2)
    await world.step()
    await world.step()
    async with world.policy.lease(step=1):
        await world.step()
    assert world.engines.engine.served == {BASE, "p/m@1", "p/m@3"}
    async with world.policy.lease(step=2) as lease:
        assert lease.engine_model in world.engines.engine.served
    assert world.engines.engine.served == {BASE, "p/m@2", "p/m@3"}


async def test_an_adapter_that_the_engine_refuses_leaves_it_awake():
    world = World()

    async def refuse(name, path):
        raise EngineError(400, "no room")

    world.engines.engine.load_adapter = refuse
    with pytest.raises(
        EngineFailedError, match=r"Step 1 is trained and saved, but not served. Do not train it again.*no room"
    ):
        await world.step()
    assert world.calls[-3:] == ["wake_up(weights) [held]", "wake_up(kv_cache) [held]", "resume [held]"]
    assert not world.host.gate.is_closed


async def test_a_canary_that_is_not_a_number_proves_nothing():
    world = World()
    world.engines.engine.logprob = float("nan")
    with pytest.raises(EngineFailedError, match="does not serve the weights of step 1"):
        await world.step()
    assert world.policy.step == 0


async def test_an_old_version_can_be_asked_for_and_an_unknown_one_is_named():
    world = World(keep_versions=1)
    for _ in range(3):
        await world.step()
    async with world.policy.lease(step=1) as lease:
        assert lease.engine_model == "p/m@1"
        assert "p/m@1" in world.engines.engine.served
    async with world.policy.lease(step=0) as lease:
        assert lease.engine_model == BASE
    with pytest.raises(NotFoundError, match=r"no version 9. Versions: \[0, 1, 2, 3\]"):
        async with world.policy.lease(step=9):
            pass


async def test_whole_weights_are_replaced_when_nothing_is_in_flight():
    world = World(kind=WholePolicy)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def ask():
        async with world.policy.lease() as lease:
            entered.set()
            await leave.wait()
            return lease.engine_model

    asking = asyncio.ensure_future(ask())
    await entered.wait()
    step = asyncio.ensure_future(world.step())
    await asyncio.sleep(0.05)
    assert world.calls == [], "the step waits for the completion"
    leave.set()
    assert await asking == BASE
    await step
    assert world.calls == [
        "pause(keep) [held]",
        "sleep [held]",
        "train(1)",
        "rest",
        "wake_up(weights) [held]",
        "weights(p/m@1) [held]",
        "wake_up(kv_cache) [held]",
        "resume [held]",
        "models [held]",
        "canary(p/m@1) [held]",
    ]
    with pytest.raises(NotFoundError, match="only the latest, 1, is served, not 0"):
        async with world.policy.lease(step=0):
            pass


async def test_whole_weights_that_are_not_proven_are_replaced_by_the_last_ones_again():
    world = World(kind=WholePolicy)
    await world.step()
    world.engines.engine.logprob = -2.0
    with pytest.raises(EngineFailedError, match="does not serve the weights of step 2"):
        await world.step()
    async with world.policy.lease() as lease:
        assert lease.engine_model == "p/m@1"
    assert world.calls[-1] == "weights(p/m@1)"
    world.engines.kill()
    async with world.policy.lease() as lease:
        assert (lease.engine_model, world.calls[-2:]) == ("p/m@1", ["start", "weights(p/m@1)"])
