"""The order of a training step on a real engine: what it says of itself while the trainer works, and what becomes of its calls."""

import asyncio
from pathlib import Path

import pytest
from tests.art_backend.engines.conftest import WITH_A_MODEL

from art.wire import TrainOptions
from art_backend.engines.contract import Sampling
from art_backend.engines.process import EngineSettings
from art_backend.errors import EngineFailedError
from art_backend.orchestrator import StepRunner
from art_backend.serving.policies import EngineHost, Gate, ServedPolicy
from art_backend.training.types import StepInput, StepOutput

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
    pytest.mark.parametrize("engine", WITH_A_MODEL, indirect=True, scope="session"),  # the scripted one is no process
]

LONG = Sampling(max_tokens=400, temperature=0.0)


class Checkpoints:
    """Where the adapters of versions are."""

    def __init__(self, *adapters: Path) -> None:
        self.saved = 0
        self._adapters = adapters

    def latest_step(self) -> int:
        return self.saved

    def steps(self) -> list[int]:
        return list(range(1, self.saved + 1))

    def path(self, step: int) -> Path:
        return self._adapters[step - 1]

    verify = path


class Trainer:
    """Asks the engine how it is while it has the device."""

    alive = True

    def __init__(self, client, checkpoints) -> None:
        self.client, self.checkpoints = client, checkpoints
        self.seen: list[tuple[bool, bool]] = []
        self.rested = 0

    async def train(self, step, on_progress) -> StepOutput:
        self.seen.append((await self.client.is_paused(), await self.client.is_sleeping()))
        self.checkpoints.saved = step.step
        path = self.checkpoints.path(step.step)
        return StepOutput(step=step.step, trained=True, reason=None, metrics={}, warnings=[], checkpoint=path)

    async def rest(self) -> None:
        self.rested += 1


async def test_the_engine_sleeps_while_the_trainer_works_and_its_calls_go_on(engine, tiny_adapter):
    name = engine.settings.served_name
    alone = await engine.client.generate(name, [7, 8], LONG)
    checkpoints = Checkpoints(tiny_adapter("llama", 1), Path("/nowhere"))

    async def start(settings: EngineSettings):
        return engine

    host = EngineHost(engine.settings, Gate(60), start)
    policy = ServedPolicy(
        project="order",
        name="m",
        host=host,
        checkpoints=checkpoints,
        renderer=None,
        max_sequence_length=64,
        keep_versions=2,
    )
    trainer = Trainer(engine.client, checkpoints)

    async def step():
        runner = StepRunner(policy, lambda: asyncio.sleep(0, trainer), asyncio.Lock())
        return await runner.run(StepInput([], TrainOptions(), 1), on_start=lambda number: None, report=lambda p: None)

    tokens: list[int] = []
    started = asyncio.Event()

    async def read():
        async for delta in engine.client.stream(name, [7, 8], LONG):
            tokens.extend(delta.token_ids)
            started.set()

    reading = asyncio.create_task(read())
    await started.wait()
    result = await step()
    assert (result.step, trainer.seen, trainer.rested) == (1, [(True, True)], 1)
    assert not await engine.client.is_paused()
    assert not await engine.client.is_sleeping()
    assert "order/m@1" in await engine.client.models()
    await reading
    assert tokens == alone.token_ids, "frozen and gone on"

    with pytest.raises(EngineFailedError, match="Step 2 is trained and saved, but not served"):
        await step()  # its adapter cannot be read
    assert not await engine.client.is_sleeping()
    assert (await engine.client.generate(name, [7, 8], LONG)).token_ids == alone.token_ids
    assert policy.step == 1
    await engine.client.unload_adapter("order/m@1")
