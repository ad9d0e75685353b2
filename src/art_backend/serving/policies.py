"""What is served: engines, the policy versions loaded in them, and the gate that holds requests while weights change.

Invariants:

- A version that somebody holds a lease on stays loaded.
- Every version has a unique name, ``{project}/{model}@{step}``, which is never used for other weights. Step 0 is the
  base model itself.
- A closed gate grants no new leases. Leases held when it closes stay valid.
- After an engine's death the next lease starts a new one, with the same adapters.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from art.wire import ProcessHealth
from art_backend.engines.client import EngineError, EngineUnreachableError
from art_backend.engines.contract import Engine, EngineVerbs, Member
from art_backend.engines.process import EngineProcess, EngineSettings
from art_backend.errors import BusyError, EngineFailedError, NotFoundError
from art_backend.gateway.ports import Lease
from art_backend.process import DeadlineExceededError, ProcessDiedError, read_tail
from art_backend.serving.meter import EngineMeter, EngineTime
from art_backend.store.checkpoints import CheckpointStore
from art_backend.tokens.render import ChatRenderer

MAX_RESTARTS = 3
"""Engine deaths in a row, without a successful lease between them, after which the service gives up."""

_log = logging.getLogger(__name__)


class Gate:
    """Holds requests while a policy is updated.

    Args:
        timeout_s: How long one request waits before it gets a ``BusyError``.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._open = asyncio.Event()
        self._open.set()
        self.meter = EngineMeter()

    async def enter(self) -> None:
        """Return once the gate is open.

        Raises:
            BusyError: It stayed closed for longer than ``timeout_s``.
        """
        if self._open.is_set():
            return
        with self.meter.hold():
            try:
                await asyncio.wait_for(self._open.wait(), self._timeout_s)
            except TimeoutError:
                raise BusyError(
                    f"The policy is still being updated after {self._timeout_s:g} s. Try again.", retry_after_s=10
                ) from None

    def close(self) -> None:
        self._open.clear()
        self.meter.set_paused(True)

    @property
    def is_closed(self) -> bool:
        return not self._open.is_set()

    def open(self) -> None:
        self._open.set()
        self.meter.set_paused(False)


class EngineHost:
    """The engine of one base model: started when first needed, started again when it died.

    Args:
        settings: How to start it.
        gate: Closed while its weights change.
        start: Starts an engine.
    """

    def __init__(
        self,
        settings: EngineSettings,
        gate: Gate,
        start: Callable[[EngineSettings], Awaitable[Engine]] = EngineProcess.start,
    ) -> None:
        self.settings = settings
        self.gate = gate
        self._start = start
        self.adapters: dict[str, Path] = {}
        """Adapters loaded in the running engine, by name."""
        self.weights: str = settings.served_name
        """Name of the weights that the running engine's model itself has."""
        self._lost: dict[str, Path] = {}
        """Adapters of an engine that ended: the next one gets them."""
        self.uses: Counter[str] = Counter()
        """Leases on each adapter, by name."""
        self._changing = asyncio.Lock()
        self._process: Engine | None = None
        self._starting = asyncio.Lock()
        self._deaths = 0

    async def running(self) -> Engine:
        """Return the live engine, starting it if need be.

        Raises:
            EngineFailedError: It cannot be started, or died too often.
        """
        async with self._starting:
            if self._process is not None:
                if self._process.alive:
                    return self._process
                await self._bury()
            if self._deaths > MAX_RESTARTS:
                raise EngineFailedError(
                    f"The engine died {self._deaths} times in a row and will not be restarted. See its log: "
                    f"{self.settings.log_path}. Fix the cause, then restart the service.",
                    permanent=True,
                )
            try:
                self._process = await self._start(self.settings)
                await self._load_again(self._process)
            except (ProcessDiedError, DeadlineExceededError, EngineUnreachableError) as error:
                await self._bury()
                raise EngineFailedError(str(error)) from error
            return self._process

    async def _load_again(self, process: Engine) -> None:
        """Give a new engine the adapters of the last one, as far as they still exist."""
        for name, path in self._lost.items():
            if not path.exists():
                continue
            try:
                await self._load(process, name, path)
            except EngineError:
                _log.exception("The new engine did not take %s; requests for it fail with the reason", name)
        self._lost.clear()

    async def _load(self, process: Engine, name: str, path: Path) -> None:
        await process.guard(process.client.load_adapter(name, path), deadline_s=120, doing=f"loading {name}")
        self.adapters[name] = path

    async def take_rank(self, rank: int) -> None:
        """Make sure that the engine takes adapters of ``rank``; restart one that does not, once it is idle."""
        if rank <= self.settings.max_lora_rank:
            return
        self.settings = replace(self.settings, max_lora_rank=rank)
        process = self._process
        if process is None or not process.alive:
            return
        self.gate.close()
        try:
            await process.guard(process.client.pause("wait"), deadline_s=None, doing="its last requests")
            await self.stop()
        finally:
            self.gate.open()

    async def load(self, name: str, path: Path) -> None:
        """Make sure that the engine serves the adapter ``name``. Unused adapters make room, the oldest first."""
        async with self._changing:
            process = await self.running()
            if name in self.adapters:
                return
            idle = [other for other in self.adapters if not self.uses[other]]
            for other in idle[: max(0, len(self.adapters) - self.settings.max_loras + 1)]:
                await self.unload(other)
            await self._load(process, name, path)

    async def load_weights(self, name: str, path: Path) -> None:
        """Make sure that the engine's model itself has the weights ``name``."""
        process = await self.running()
        if name != self.weights:
            await process.guard(process.client.load_weights(name, path), deadline_s=600, doing=f"loading {name}")
            self.weights = name

    async def unload(self, name: str) -> None:
        if self._process is not None and self._process.alive and self.adapters.pop(name, None):
            await self._process.client.unload_adapter(name)

    async def explain_failure(self, error: Exception) -> EngineFailedError:
        """Turn a failed call into an error that says what happened to the engine."""
        if isinstance(error, ProcessDiedError):
            return EngineFailedError(str(error))
        process = self._process
        if process is not None:
            await process.settle()
            if not process.alive:
                return EngineFailedError(process.describe_death())
        return EngineFailedError(f"The engine did not answer: {error}")

    def note_success(self) -> None:
        self._deaths = 0

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()
            self._process = None
            self._lost.update(self.adapters)
            self.adapters.clear()
            self.weights = self.settings.served_name

    async def _bury(self) -> None:
        """Put away an engine that died."""
        self._deaths += 1
        await self.stop()

    def members(self) -> list[Member]:
        """The engine's processes; none while it is not running."""
        return [] if self._process is None else self._process.members()

    def health(self) -> list[ProcessHealth]:
        """Of each of the engine's processes."""
        name = f"engine {self.settings.served_name}"
        if self._process is None:
            if self._starting.locked():
                last_line = read_tail(self.settings.log_path, 1)
                return [ProcessHealth(name=name, pid=None, state="starting", detail=last_line)]
            return [ProcessHealth(name=name, pid=None, state="stopped")]
        return [
            ProcessHealth(
                name=f"{name} {member.label}".rstrip(),
                pid=member.pid,
                state="paused" if member.state == "ready" and self.gate.is_closed else member.state,
                detail=member.detail,
            )
            for member in self.members()
        ]


class ServedPolicy:
    """One registered model on its engine (a ``ServedModel`` of the gateway), by an adapter for each version.

    Args:
        checkpoints: Where its versions are; the highest step is the latest version.
        keep_versions: How many unused versions stay loaded.
    """

    def __init__(
        self,
        *,
        project: str,
        name: str,
        host: EngineHost,
        checkpoints: CheckpointStore,
        renderer: ChatRenderer,
        max_sequence_length: int,
        keep_versions: int,
    ) -> None:
        self.project = project
        self.name = name
        self.host = host
        self.checkpoints = checkpoints
        self.renderer = renderer
        self.max_sequence_length = max_sequence_length
        self.step = checkpoints.latest_step()
        self.ages: Counter[int] = Counter()
        """Tokens trained since the service started, by age in policy versions."""
        self._accounted = host.gate.meter.read()
        self._keep_versions = keep_versions
        self._leases: Counter[int] = Counter()
        self._ended = asyncio.Event()
        """Set whenever a lease ends."""
        self._recent: list[int] = []
        self._loading = asyncio.Lock()

    def engine_name(self, step: int) -> str:
        """The name that the engine knows version ``step`` by."""
        return f"{self.project}/{self.name}@{step}" if step else self.host.settings.served_name

    @contextlib.asynccontextmanager
    async def lease(self, step: int | None = None) -> AsyncIterator[Lease]:
        """See ``gateway.ports.ServedModel.lease``."""
        await self.host.gate.enter()
        version = self.step if step is None else step
        self._leases[version] += 1
        self.host.uses[self.engine_name(version)] += 1
        try:
            client = await self.load(version)
            with self.host.gate.meter.call():
                yield Lease(client, self.engine_name(version), version)
            self.host.note_success()
        except (EngineUnreachableError, ProcessDiedError, DeadlineExceededError) as error:
            raise await self.host.explain_failure(error) from error
        finally:
            self._leases[version] -= 1
            self.host.uses[self.engine_name(version)] -= 1
            self._ended.set()

    async def load(self, step: int) -> EngineVerbs:
        """Make sure that version ``step`` is loaded; return the engine's client."""
        process = await self.host.running()
        if step == 0:
            return process.client
        name = self.engine_name(step)
        if name not in self.host.adapters:
            async with self._loading:
                if step not in self.checkpoints.steps():
                    raise NotFoundError(
                        f"Model {self.name!r} has no version {step}. Versions: {[0, *self.checkpoints.steps()]}.",
                        param="model",
                    )
                await self.host.load(name, await asyncio.to_thread(self.checkpoints.verify, step))
                await self._retire(keep=step)
        return process.client

    def account(self) -> EngineTime:
        """How the engine's time was spent since this was last asked."""
        spent = self.host.gate.meter.read()
        before, self._accounted = self._accounted, spent
        return spent.since(before)

    async def drain(self) -> None:
        """Wait for what must end before training begins: nothing, since each completion goes on with its own adapter."""

    def leased_steps(self) -> list[int]:
        """Versions that somebody holds a lease on."""
        return [step for step, count in self._leases.items() if count]

    async def withdraw(self) -> None:
        """For a model that is deleted: end the engine if it served a version, so that no cache survives its name."""
        if any(self.engine_name(step) in self.host.adapters for step in self._recent):
            await self.host.stop()

    async def _retire(self, keep: int) -> None:
        """Unload versions without a lease, except the most recently loaded."""
        self._recent = [step for step in self._recent if step != keep] + [keep]
        for step in self._recent[: -self._keep_versions]:
            if not self._leases[step] and step != self.step:
                await self.host.unload(self.engine_name(step))
                self._recent.remove(step)


class WholePolicy(ServedPolicy):
    """A fully fine-tuned model on its own engine, which holds one version at a time.

    Completions in flight finish before the weights change, so each is of one version. Versions but the latest are not served.
    """

    async def withdraw(self) -> None:
        """For a model that is deleted: end its engine."""
        await self.host.stop()

    async def drain(self) -> None:
        """Return once no completion is in flight. Call it while the gate is closed."""
        while any(self._leases.values()):
            self._ended.clear()
            await self._ended.wait()

    async def load(self, step: int) -> EngineVerbs:
        """Make sure that the engine has version ``step``, which is the latest or becomes it; return its client."""
        process = await self.host.running()
        async with self._loading:
            published = self.host.gate.is_closed and step > self.step
            if step != self.step and not published:
                raise NotFoundError(
                    f"Model {self.name!r} is fully fine-tuned: of its versions only the latest, {self.step}, is served, not {step}."
                    " Follow the latest version, or export the other one.",
                    param="model",
                )
            path = self.checkpoints.path(step) if step else self.host.settings.model_path
            if step and step not in self.checkpoints.steps():
                raise NotFoundError(
                    f"Model {self.name!r} has no version {step}; the latest is {self.step}.", param="model"
                )
            if step and not published and self.host.weights != self.engine_name(step):
                path = await asyncio.to_thread(self.checkpoints.verify, step)
            await self.host.load_weights(self.engine_name(step), path)
        return process.client
