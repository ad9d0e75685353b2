"""A step's parts as recorded fakes: what the orchestrator tells engine and trainer, in order."""

import asyncio
from pathlib import Path

from art.wire import TokenRow, TrainOptions
from art_backend.engines.client import EngineUnreachableError
from art_backend.engines.process import EngineSettings
from art_backend.orchestrator import StepRunner
from art_backend.serving.policies import EngineHost, Gate, ServedPolicy
from art_backend.training.types import Canary, ScoredTrajectory, StepInput, StepOutput

BASE = "base"
ROW = TokenRow(token_ids=[1, 2], sampled=[False, True], logprobs=[0.0, -1.0], policy_versions=[-1, 0], temperature=1.0)
GROUPS = [[ScoredTrajectory(reward=float(i), rows=[ROW]) for i in range(2)]]


class FakeEngine:
    """The client of an engine that remembers what it was told, and can be lost."""

    def __init__(self, calls, gate):
        self.calls, self.gate = calls, gate
        self.served = {BASE}
        self.logprob = -0.5
        self.lost = False

    def _note(self, call):
        if self.lost:
            raise EngineUnreachableError("connection refused")
        self.calls.append(call + (" [held]" if self.gate.is_closed else ""))

    async def pause(self, mode):
        self._note(f"pause({mode})")

    async def sleep(self):
        self._note("sleep")

    async def wake_up(self, tags):
        self._note(f"wake_up({'+'.join(tags)})")

    async def resume(self):
        self._note("resume")

    async def load_adapter(self, name, path):
        self._note(f"load({name})")
        self.served.add(name)

    async def unload_adapter(self, name):
        self._note(f"unload({name})")
        self.served.remove(name)

    async def load_weights(self, name, path):
        self._note(f"weights({name})")
        self.served = {name}

    async def models(self):
        self._note("models")
        return sorted(self.served)

    async def greedy_logprobs(self, model, token_ids):
        self._note(f"canary({model})")
        return [self.logprob]


class FakeProcess:
    pid = 1
    alive = True

    def __init__(self, client):
        self.client = client

    async def guard(self, awaitable, *, deadline_s, doing):
        return await awaitable

    async def settle(self):
        pass

    def describe_death(self):
        return "The engine (process 1) was ended by signal SIGKILL."

    async def stop(self):
        self.alive = False


class Engines:
    """Starts fake engines, one after the other."""

    def __init__(self, calls):
        self.calls = calls
        self.gate = Gate(timeout_s=0.05)
        self.settings = EngineSettings(model_path=Path(), served_name=BASE, log_path=Path("log"))
        self.host = EngineHost(self.settings, self.gate, self._start)
        self._make()

    def _make(self):
        self.engine = FakeEngine(self.calls, self.gate)
        self.process = FakeProcess(self.engine)

    async def _start(self, settings):
        if not self.process.alive:
            self.calls.append("start")
            self._make()
        return self.process

    def kill(self):
        self.engine.lost = True
        self.process.alive = False


class FakeCheckpoints:
    def __init__(self):
        self.saved = []

    def latest_step(self):
        return max(self.saved, default=0)

    def steps(self):
        return list(self.saved)

    def path(self, step):
        return Path(f"checkpoints/{step:04d}")

    def verify(self, step):
        return self.path(step)


class FakeTrainer:
    alive = True

    def __init__(self, checkpoints, calls):
        self.checkpoints, self.calls = checkpoints, calls
        self.error: Exception | None = None
        self.canaries = [Canary(token_ids=[1, 2, 3], logprob=-0.5, previous_logprob=-2.0)]
        self.while_training = lambda: None

    async def train(self, step, on_progress):
        self.calls.append(f"train({step.step})")
        self.while_training()
        if self.error:
            raise self.error
        on_progress(1, 1)
        self.checkpoints.saved.append(step.step)
        return StepOutput(
            step=step.step,
            trained=True,
            reason=None,
            metrics={"reward/mean": 0.5},
            warnings=[],
            checkpoint=self.checkpoints.path(step.step),
            canaries=self.canaries,
        )

    async def rest(self):
        self.calls.append("rest")


class World:
    def __init__(self, keep_versions=2, kind=ServedPolicy, dedicated=False):
        self.calls = []
        self.dedicated = dedicated
        self.engines = Engines(self.calls)
        self.host = self.engines.host
        self.checkpoints = FakeCheckpoints()
        self.policy = kind(
            project="p",
            name="m",
            host=self.host,
            checkpoints=self.checkpoints,
            renderer=None,
            max_sequence_length=64,
            keep_versions=keep_versions,
        )
        self.trainer = FakeTrainer(self.checkpoints, self.calls)
        self.phases = []

    async def get_trainer(self):
        return self.trainer

    async def step(self):
        runner = StepRunner(self.policy, self.get_trainer, asyncio.Lock(), dedicated=self.dedicated)
        return await runner.run(
            StepInput(GROUPS, TrainOptions(), 1),
            on_start=lambda step: None,
            report=lambda p: self.phases.append(p.phase),
        )
