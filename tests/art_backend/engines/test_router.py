"""Several engines as one. The first tests drive recorded fakes through every order of events; the last ones, real engines."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_backend.engines import router as router_module
from art_backend.engines.client import EngineError, EngineUnreachableError
from art_backend.engines.contract import Generation, Sampling
from art_backend.engines.process import EngineProcess, EngineSettings
from art_backend.engines.router import MAX_RESTARTS, EngineRouter, split_settings
from art_backend.process import DeadlineExceededError, ProcessDiedError

GREEDY = Sampling(max_tokens=8, temperature=0.0)
SETTINGS = EngineSettings(model_path=Path("base"), served_name="base", log_path=Path("logs/engine.log"), threads=4)


class FakeClient:
    """An engine that answers when it is told to, unless it is paused or dead."""

    def __init__(self, process, world):
        self.process, self.world = process, world
        self.served = {"base": None}
        self.calls = 0
        self.log = []
        self.going = asyncio.Event()
        self.going.set()

    async def generate(self, model, token_ids, sampling):
        self._note(f"generate {token_ids[0]}")
        self.calls += 1
        try:
            for _ in range(sampling.max_tokens):
                await asyncio.sleep(0)
                await self.going.wait()
                if not self.process.alive:
                    raise EngineUnreachableError("connection reset")
            self.world.answered[token_ids[0]] += 1
            return Generation([self.process.number], [0.0], [[]], "stop")
        finally:
            self.calls -= 1

    async def greedy_logprobs(self, model, token_ids):
        return [-float(self.process.number)]

    async def load_adapter(self, name, path):
        self._note(f"load {name}")
        if self.process.number in self.world.refusing:
            raise EngineError(400, f"engine {self.process.number} has no room")
        if self.process.number in self.world.dying:
            self.process.die()
            raise EngineUnreachableError("connection reset")
        self.served[name] = path

    async def unload_adapter(self, name):
        self._note(f"unload {name}")
        del self.served[name]

    async def load_weights(self, name, path):
        self._note(f"weights {name}")

    async def models(self):
        return list(self.served)

    async def pause(self, mode):
        self._note(f"pause {mode}")
        while mode == "wait" and self.calls:
            await asyncio.sleep(0)
        self.going.clear()

    async def resume(self):
        self._note("resume")
        self.going.set()

    async def sleep(self):
        self._note("sleep")

    async def wake_up(self, tags):
        self._note(f"wake_up {'+'.join(tags)}")

    def _note(self, what):
        if not self.process.alive:
            raise EngineUnreachableError("connection refused")
        self.log.append(what)


class FakeProcess:
    def __init__(self, settings, number, world):
        self.settings, self.number, self.pid = settings, number, 1000 + number
        self.dead = asyncio.Event()
        self.client = FakeClient(self, world)

    @property
    def alive(self):
        return not self.dead.is_set()

    def die(self):
        self.dead.set()
        self.client.going.set()  # what waits for it hears of it

    def describe_death(self):
        return f"The engine (process {self.pid}) was ended by signal SIGKILL."

    async def wait(self):
        await self.dead.wait()
        return -9

    async def settle(self):
        pass

    async def stop(self):
        self.die()

    async def guard(self, awaitable, *, deadline_s, doing):
        return await awaitable


class World:
    """Starts fake engines and remembers them."""

    def __init__(self):
        self.started = []
        self.answered = Counter()
        self.refusing, self.dying = set(), set()
        self.failing = 0
        """How many of the next starts fail."""
        self.failure: Exception = ProcessDiedError("it ended at once")
        self.hold = asyncio.Event()
        self.hold.set()

    async def start(self, settings):
        await self.hold.wait()
        if self.failing:
            self.failing -= 1
            raise self.failure
        process = FakeProcess(settings, len(self.started), self)
        self.started.append(process)
        return process

    async def router(self, replicas=2):
        return await EngineRouter.start(split_settings(SETTINGS, replicas), self.start)


async def ask(router, number, ticks=1, rollout=None):
    return await router.generate("base", [number], Sampling(max_tokens=ticks), rollout=rollout)


async def until(condition):
    """Wait in passes of the loop, not in time: between two of them the fakes take one step."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def states(router):
    return [member.state for member in router.members()]


def test_each_replica_has_a_log_and_its_share_of_the_machine():
    assert split_settings(SETTINGS, 1) == [SETTINGS]
    halves = split_settings(SETTINGS, 2)
    assert [(str(s.log_path), s.threads, s.devices) for s in halves] == [
        ("logs/engine-1.log", 2, ()),
        ("logs/engine-2.log", 2, ()),
    ]
    assert [s.devices for s in split_settings(SETTINGS, 2, (0, 1, 4, 5))] == [(0, 1), (4, 5)]
    assert split_settings(SETTINGS, 1, (3,))[0].devices == (3,)


@given(st.data())
@settings(max_examples=60)
def test_no_call_is_lost_whatever_the_order_of_calls_and_drains(data):
    """Calls arrive, the engine drains and goes on, in any order; every call is answered once, a rollout's by one replica."""

    async def run():
        world = World()
        router = await world.router(data.draw(st.integers(1, 3), "replicas"))
        calls: list[asyncio.Task[Generation]] = []
        rollouts: list[str | None] = []
        for _ in range(data.draw(st.integers(1, 15), "events")):
            match data.draw(st.sampled_from(["call", "call", "call", "tick", "drain"])):
                case "call":
                    rollout = data.draw(st.sampled_from([None, "a", "b", "c"]))
                    ticks = data.draw(st.integers(1, 9))
                    calls.append(asyncio.create_task(ask(router, len(calls), ticks, rollout)))
                    rollouts.append(rollout)
                case "tick":
                    await asyncio.sleep(0)
                case "drain":
                    await router.pause("wait")
                    assert sum(member.calls for member in router.members()) == 0
                    assert all(process.client.calls == 0 for process in world.started)
                    late = asyncio.create_task(ask(router, len(calls), 2, None))
                    calls.append(late)
                    rollouts.append(None)
                    for _ in range(3):
                        await asyncio.sleep(0)
                    assert not late.done()
                    await router.resume()
        answers = await asyncio.gather(*calls)
        assert world.answered == Counter(range(len(calls)))
        homes = {(rollout, answer.token_ids[0]) for rollout, answer in zip(rollouts, answers, strict=True) if rollout}
        assert len(homes) == len({rollout for rollout, _ in homes})
        assert sum(member.answered for member in router.members()) == len(calls)
        await router.stop()

    asyncio.run(run())


async def test_frozen_calls_go_on_where_they_were():
    world = World()
    router = await world.router()
    call = asyncio.create_task(ask(router, 1, ticks=50))
    await until(lambda: sum(p.client.calls for p in world.started) == 1)
    await router.pause("keep")
    await router.sleep()
    await router.wake_up(["weights"])
    await router.load_adapter("m@1", Path("1"))
    await router.wake_up(["kv_cache"])
    await router.resume()
    await call
    for process in world.started:
        control = [entry for entry in process.client.log if not entry.startswith("generate")]
        assert control == ["pause keep", "sleep", "wake_up weights", "load m@1", "wake_up kv_cache", "resume"]
    await router.stop()


async def test_a_dead_replica_fails_its_own_calls_alone_and_comes_back_with_the_same_adapters():
    world = World()
    router = await world.router()
    await router.load_weights("w", Path("w"))
    await router.load_adapter("m@1", Path("1"))
    await router.load_adapter("m@2", Path("2"))
    await router.unload_adapter("m@1")
    homes = {rollout: (await ask(router, n, rollout=rollout)).token_ids[0] for n, rollout in enumerate("ab")}
    assert sorted(homes.values()) == [0, 1]
    victim = world.started[homes["a"]]
    doomed = asyncio.create_task(ask(router, 10, ticks=10**6, rollout="a"))
    lucky = asyncio.create_task(ask(router, 11, ticks=200, rollout="b"))
    await until(lambda: all(p.client.calls for p in world.started))
    world.hold.clear()
    victim.die()
    with pytest.raises(ProcessDiedError, match=rf"Replica {victim.number + 1}: .*process {victim.pid}.*SIGKILL"):
        await doomed
    await until(lambda: "starting" in states(router))
    assert sorted(states(router)) == ["ready", "starting"]
    assert router.alive
    assert (await ask(router, 12, rollout="a")).token_ids == [homes["b"]], "the others serve"
    assert (await lucky).token_ids == [homes["b"]]
    world.hold.set()
    await until(lambda: states(router) == ["ready", "ready"])
    assert world.started[2].client.log == ["weights w", "load m@2"]
    assert world.started[2].settings == victim.settings
    assert (await ask(router, 13, rollout="a")).token_ids == [homes["b"]], "its new home"
    assert (await ask(router, 14, rollout="new")).token_ids == [2], "the emptiest"
    assert {(m.restarts, m.failed) for m in router.members()} == {(0, 0), (1, 1)}
    await router.stop()


async def test_a_version_is_on_all_replicas_or_on_none():
    world = World()
    router = await world.router(3)
    world.refusing = {1}
    with pytest.raises(EngineError, match="engine 1 has no room"):
        await router.load_adapter("m@1", Path("1"))
    assert [list(p.client.served) for p in world.started] == [["base"]] * 3
    world.refusing = set()
    await router.load_adapter("m@1", Path("1"))
    assert await router.models() == ["base", "m@1"]
    del world.started[2].client.served["m@1"]
    assert await router.models() == ["base"], "what one of them does not serve is not served"
    assert await router.greedy_logprobs("base", [1]) == [0, -1, -2], "each of them is asked"
    await router.stop()


async def test_a_replica_that_dies_of_a_load_does_not_stop_the_others():
    world = World()
    router = await world.router()
    world.dying = {0}
    await router.load_adapter("m@1", Path("1"))
    await until(lambda: states(router) == ["ready", "ready"])
    assert [list(p.client.served) for p in world.started[1:]] == [["base", "m@1"]] * 2
    await router.stop()


async def test_no_replica_is_started_while_the_trainer_has_the_memory():
    world = World()
    router = await world.router()
    await router.pause("keep")
    await router.sleep()
    world.started[0].die()
    await until(lambda: states(router)[0] == "starting")
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(world.started) == 2
    await router.wake_up(["weights", "kv_cache"])
    await router.resume()
    await until(lambda: states(router) == ["ready", "ready"])

    world.hold.clear()  # now one is being started when the next step begins
    world.started[1].die()
    await until(lambda: states(router) == ["ready", "starting"] and router._starting)
    await router.pause("keep")
    await router.sleep()
    assert not router._starting
    world.hold.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(world.started) == 3
    await router.resume()
    await until(lambda: states(router) == ["ready", "ready"])
    assert len(world.started) == 4
    await router.stop()


async def test_a_replica_that_never_starts_again_is_given_up_and_the_others_serve():
    world = World()
    router = await world.router()
    world.failing = 99
    world.started[0].die()
    await until(lambda: states(router) == ["failed", "ready"])
    assert 99 - world.failing == MAX_RESTARTS
    assert "could not be started again: it ended at once" in (router.members()[0].detail or "")
    assert (await ask(router, 1)).token_ids == [1]
    await router.stop()


async def test_a_replica_for_which_there_are_no_descriptors_is_started_when_there_are_again(monkeypatch):
    monkeypatch.setattr(router_module, "RETRY_S", 0.01)
    world = World()
    router = await world.router()
    world.failing, world.failure = 2 * MAX_RESTARTS, OSError(24, "Too many open files")
    world.started[0].die()
    await until(lambda: world.failing == 0 and states(router) == ["ready", "ready"])
    await router.stop()


async def test_when_all_are_dead_the_engine_is():
    world = World()
    router = await world.router()
    world.failing = 99
    for process in world.started:
        process.die()
    await until(lambda: not router.alive)
    with pytest.raises(EngineUnreachableError, match="No replica"):
        await ask(router, 1)
    with pytest.raises(EngineUnreachableError, match="No replica"):
        await router.pause("keep")
    assert router.describe_death().count("SIGKILL") == 2
    await router.stop()


@pytest.mark.parametrize("stopped", [True, False])
async def test_calls_at_the_door_hear_of_the_end(stopped):
    world = World()
    router = await world.router()
    await router.pause("keep")
    calls = [asyncio.create_task(ask(router, n)) for n in range(2)]
    await asyncio.sleep(0.01)
    assert not any(call.done() for call in calls)
    if stopped:
        await router.stop()
    else:
        for process in world.started:
            process.die()
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, EngineUnreachableError)
    await router.stop()


async def test_a_start_that_fails_leaves_nothing_behind():
    world = World()
    world.failing = 1
    with pytest.raises(ProcessDiedError, match="it ended at once"):
        await world.router(3)
    assert len(world.started) == 2
    assert not any(process.alive for process in world.started)


async def test_a_control_call_has_a_deadline():
    world = World()
    router = await world.router()
    call = asyncio.create_task(ask(router, 1, ticks=10**9))
    await until(lambda: sum(p.client.calls for p in world.started) == 1)
    with pytest.raises(DeadlineExceededError, match=r"did not finish draining within 0\.01 s.*engine-1\.log"):
        await router.guard(router.pause("wait"), deadline_s=0.01, doing="draining")
    call.cancel()
    await router.stop()


@pytest.mark.parametrize("launcher", ["torch", pytest.param("vllm", marks=pytest.mark.vllm)])
@pytest.mark.timeout(600)
async def test_two_real_engines_look_like_one(launcher, launchers, tiny_model, tiny_adapter, tmp_path):
    """The same answers from both, versions on both, and a killed one comes back with them while the other serves."""
    own = EngineSettings(
        model_path=tiny_model("llama"),
        served_name="base",
        log_path=tmp_path / "logs" / "engine.log",
        max_lora_rank=8,
        dtype="float32",
        threads=2,
        kv_cache_mib=32,
    )
    router = await EngineRouter.start(
        split_settings(own, 2), lambda settings: EngineProcess.start(settings, launchers[launcher])
    )
    try:
        await router.load_adapter("m@1", tiny_adapter("llama"))
        assert set(await router.models()) >= {"base", "m@1"}
        expected = {}
        for model in ("base", "m@1"):
            answers = await asyncio.gather(
                *(router.generate(model, [5, 6, 7], GREEDY, rollout=f"{n}") for n in range(4))
            )
            assert len({tuple(answer.token_ids) for answer in answers}) == 1
            expected[model] = answers[0].token_ids
        assert expected["base"] != expected["m@1"]
        assert [member.answered for member in router.members()] == [4, 4]
        first, second = await router.greedy_logprobs("m@1", [5, 6, 7])
        assert first == pytest.approx(second, abs=1e-5)

        long = Sampling(max_tokens=2000, temperature=0.0)
        calls = [asyncio.create_task(router.generate("m@1", [9], long, rollout=f"{n}")) for n in range(2)]
        await until(lambda: [member.calls for member in router.members()] == [1, 1])
        await router.pause("keep")
        await router.sleep()
        os.kill(router.members()[0].pid, signal.SIGKILL)
        await router.wake_up(["weights", "kv_cache"])
        await router.resume()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        died, served = sorted(outcomes, key=lambda outcome: isinstance(outcome, Generation))
        assert isinstance(died, ProcessDiedError)
        assert str(tmp_path / "logs" / "engine-1.log") in str(died)
        assert isinstance(served, Generation)
        assert len(served.token_ids) == 2000
        async with asyncio.timeout(300):
            while states(router) != ["ready", "ready"]:
                assert (await router.generate("m@1", [5, 6, 7], GREEDY)).token_ids == expected["m@1"]
                await asyncio.sleep(0.05)
        assert set(await router.models()) >= {"base", "m@1"}
        assert router.members()[0].restarts == 1
        answers = await asyncio.gather(*(router.generate("m@1", [5, 6, 7], GREEDY) for _ in range(2)))
        assert {tuple(answer.token_ids) for answer in answers} == {tuple(expected["m@1"])}
    finally:
        await router.stop()
