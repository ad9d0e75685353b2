"""Several replicas of one engine that look like one.

Invariants:

- A call goes to a replica that is in service; while the engine is paused it waits at the door, so none is lost to an update.
- Every replica in service has the same adapters and weights: a load succeeds on all of them, or is undone.
- A replica that dies is out of service at once. Its calls fail; the others go on. It is started again, loaded with what the
  others have, and only then back in service. None is started while the engine is paused: its memory may be lent to the trainer.
- The engine is alive while one replica is in service.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from art_backend.engines.affinity import Homes
from art_backend.engines.client import EngineError, EngineUnreachableError
from art_backend.engines.contract import (
    EngineVerbs,
    Generation,
    GenerationDelta,
    Member,
    PauseMode,
    Sampling,
    SleepTag,
)
from art_backend.engines.process import EngineProcess, EngineSettings
from art_backend.process import DeadlineExceededError, ProcessDiedError, read_tail

T = TypeVar("T")

StartEngine = Callable[[EngineSettings], Awaitable[EngineProcess]]

MAX_RESTARTS = 3
"""Deaths of a replica in a row, without a call answered between them, after which it is not started again."""

RETRY_S = 5.0
"""Pause before a replica is started again for which the system lacked something."""

_LOST = (EngineUnreachableError, ProcessDiedError)

_log = logging.getLogger(__name__)


def split_settings(settings: EngineSettings, replicas: int, devices: Sequence[int] = ()) -> list[EngineSettings]:
    """Settings of each replica: its own log, its share of the devices, or of the CPU's threads where there are none.

    Args:
        devices: As many for each replica; a multiple of ``replicas``.
    """
    if replicas == 1:
        return [replace(settings, devices=tuple(devices))]
    log, share = settings.log_path, len(devices) // replicas
    threads = settings.threads if share else max(1, (settings.threads or os.cpu_count() or 1) // replicas)
    return [
        replace(
            settings,
            log_path=log.with_name(f"{log.stem}-{i + 1}{log.suffix}"),
            devices=tuple(devices[i * share : (i + 1) * share]),
            threads=threads,
        )
        for i in range(replicas)
    ]


class Replica:
    """One engine of several."""

    def __init__(self, label: str, settings: EngineSettings) -> None:
        self.label = label
        self.settings = settings
        self.process: EngineProcess | None = None
        """``None`` until it is started, and while it is started again."""
        self.calls = 0
        self.answered = 0
        self.failed = 0
        self.restarts = 0
        self.deaths = 0
        """In a row."""
        self.failure: str | None = None
        """How it ended, if it is not started again."""

    @property
    def running(self) -> EngineProcess:
        assert self.process is not None
        return self.process


class EngineRouter:
    """An ``Engine`` of several replicas, and its own client. Use ``await EngineRouter.start(...)``."""

    def __init__(self, start: StartEngine) -> None:
        self._start = start
        self._replicas: list[Replica] = []
        self._in_service: list[Replica] = []
        self._homes: Homes[Replica] = Homes()
        self._adapters: dict[str, Path] = {}
        self._weights: tuple[str, Path] | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._changing = asyncio.Lock()
        """Held while what the replicas have in common changes."""
        self._watchers: set[asyncio.Task[None]] = set()
        self._starting: set[asyncio.Task[None]] = set()
        """Replicas that are started again."""

    @classmethod
    async def start(cls, settings: Sequence[EngineSettings], start: StartEngine) -> "EngineRouter":
        """Start a replica for each of ``settings``; return once all of them answer.

        Raises:
            ProcessDiedError, DeadlineExceededError: One of them did not start; none is left.
        """
        router = cls(start)
        router._replicas = [Replica(str(i), own) for i, own in enumerate(settings, start=1)]
        outcomes = await asyncio.gather(*(router._launch(r) for r in router._replicas), return_exceptions=True)
        if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            await router.stop()
            raise failures[0]
        return router

    # An engine

    @property
    def client(self) -> EngineVerbs:
        return self

    @property
    def alive(self) -> bool:
        return bool(self._in_service)

    def members(self) -> list[Member]:
        return [self._describe(replica) for replica in self._replicas]

    def describe_death(self) -> str:
        """How the replicas ended."""
        return "\n".join(r.failure or f"Replica {r.label} was being started again." for r in self._replicas)

    async def guard(self, awaitable: Awaitable[T], *, deadline_s: float | None, doing: str) -> T:
        """As ``EngineProcess.guard``; a replica's death is noticed by the call itself."""
        try:
            async with asyncio.timeout(deadline_s):
                return await awaitable
        except TimeoutError:
            logs = ", ".join(str(replica.settings.log_path) for replica in self._replicas)
            raise DeadlineExceededError(
                f"The engine's {len(self._replicas)} replicas did not finish {doing} within {deadline_s:g} s. Logs: {logs}"
            ) from None

    async def settle(self) -> None:
        """Find out which replicas can no longer answer; they are out of service afterwards."""
        await asyncio.gather(*(self._settle(replica) for replica in list(self._in_service)))

    async def stop(self) -> None:
        """End every replica."""
        self._in_service.clear()
        self._open.set()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(r.process.stop() for r in self._replicas if r.process is not None))

    # Calls, each to one replica

    async def generate(
        self, model: str, token_ids: Sequence[int], sampling: Sampling, *, rollout: str | None = None
    ) -> Generation:
        async with self._call(rollout) as client:
            return await client.generate(model, token_ids, sampling)

    async def stream(
        self, model: str, token_ids: Sequence[int], sampling: Sampling, *, rollout: str | None = None
    ) -> AsyncGenerator[GenerationDelta, None]:
        async with (
            self._call(rollout) as client,
            contextlib.aclosing(client.stream(model, token_ids, sampling)) as deltas,
        ):
            async for delta in deltas:
                yield delta

    @contextlib.asynccontextmanager
    async def _call(self, rollout: str | None) -> AsyncIterator[EngineVerbs]:
        await self._open.wait()
        if not self._in_service:
            raise EngineUnreachableError("No replica of the engine is in service.")
        replica = self._homes.find(rollout, self._in_service)
        process = replica.running
        replica.calls += 1
        try:
            yield process.client
            replica.answered += 1
            replica.deaths = 0
        except EngineUnreachableError as error:
            replica.failed += 1
            await process.settle()
            if process.alive:
                raise
            raise ProcessDiedError(f"Replica {replica.label}: {process.describe_death()}") from error
        finally:
            replica.calls -= 1

    # Changes, on every replica

    async def load_adapter(self, name: str, path: Path) -> None:
        async with self._changing:
            loaded: list[EngineVerbs] = []

            async def load(client: EngineVerbs) -> None:
                await client.load_adapter(name, path)
                loaded.append(client)

            try:
                await self._all(load)
            except BaseException:
                for client in loaded:
                    with contextlib.suppress(*_LOST):
                        await client.unload_adapter(name)
                raise
            self._adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        async with self._changing:
            self._adapters.pop(name, None)
            await self._all(lambda client: client.unload_adapter(name))

    async def load_weights(self, name: str, path: Path) -> None:
        async with self._changing:
            await self._all(lambda client: client.load_weights(name, path))
            self._weights = (name, path)

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Calls that come later wait at the door; with ``wait``, this returns when no replica is computing any more."""
        async with self._changing:
            self._open.clear()
            try:
                await self._all(lambda client: client.pause(mode))
            except BaseException:
                self._open.set()
                raise

    async def resume(self) -> None:
        async with self._changing:
            try:
                await self._all(lambda client: client.resume())
            finally:
                self._open.set()

    async def sleep(self) -> None:
        for starting in self._starting:  # it would take the memory that is being given away
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await self._all(lambda client: client.sleep())

    async def wake_up(self, tags: Iterable[SleepTag] = ()) -> None:
        wanted = list(tags)
        await self._all(lambda client: client.wake_up(wanted))

    # Questions, to every replica

    async def greedy_logprobs(self, model: str, token_ids: list[int]) -> list[float]:
        """From each replica."""
        answers = await self._all(lambda client: client.greedy_logprobs(model, token_ids))
        return [logprob for answer in answers for logprob in answer]

    async def models(self) -> list[str]:
        """Names that every replica serves."""
        first, *others = await self._all(lambda client: client.models())
        return [name for name in first if all(name in other for other in others)]

    async def health(self) -> None:
        await self._all(lambda client: client.health())

    async def _all(self, act: Callable[[EngineVerbs], Awaitable[T]]) -> list[T]:
        """Do something with every replica in service. Those that die of it are out; it fails if one refuses, or all die."""
        outcomes = await asyncio.gather(
            *(self._guarded(replica, replica.running, act) for replica in self._in_service), return_exceptions=True
        )
        answers: list[T] = []
        lost: list[BaseException] = []
        for outcome in outcomes:
            if isinstance(outcome, _LOST):
                lost.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers.append(outcome)
        if not answers:
            raise lost[0] if lost else EngineUnreachableError("No replica of the engine is in service.")
        return answers

    async def _guarded(self, replica: Replica, process: EngineProcess, act: Callable[[EngineVerbs], Awaitable[T]]) -> T:
        try:
            return await process.guard(act(process.client), deadline_s=None, doing="what its siblings do")
        except _LOST:
            if replica.process is process:
                self._withdraw(replica)
            await process.stop()  # what lives but does not answer is not taken back as it is
            raise

    # Life and death

    async def _launch(self, replica: Replica) -> None:
        """Start a replica, bring it up to date, put it into service and watch it."""
        process = await self._start(replica.settings)
        try:
            async with self._changing:
                if self._weights is not None:
                    await process.client.load_weights(*self._weights)
                for name, path in self._adapters.items():
                    await process.client.load_adapter(name, path)
                if not self._open.is_set():
                    await process.client.pause("keep")
                replica.process, replica.failure = process, None
                replica.restarts += replica.deaths > 0
                self._in_service.append(replica)
        except BaseException:
            await process.stop()
            raise
        watcher = asyncio.create_task(self._look_after(replica, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _look_after(self, replica: Replica, process: EngineProcess) -> None:
        """Wait until a replica dies; then see to it that it lives again."""
        await process.wait()
        self._withdraw(replica)
        self._note_death(replica, process.describe_death())
        await process.stop()
        replica.process = None
        while replica.deaths <= MAX_RESTARTS:
            await self._open.wait()
            if not self._in_service:
                return  # all are dead: the next call starts a new engine
            starting = asyncio.create_task(self._launch(replica))
            self._starting.add(starting)
            try:
                await asyncio.wait({starting})
            finally:
                starting.cancel()  # of one that has ended, nothing
                await asyncio.gather(starting, return_exceptions=True)
                self._starting.discard(starting)
            if starting.cancelled():
                continue  # to make room for the trainer
            if (error := starting.exception()) is None:
                return
            if isinstance(error, OSError):  # out of descriptors or space: not the replica's fault
                _log.error("Replica %s cannot be started now; trying again in %g s: %s", replica.label, RETRY_S, error)
                await asyncio.sleep(RETRY_S)
                continue
            if not isinstance(error, (*_LOST, DeadlineExceededError, EngineError)):
                raise error
            self._note_death(replica, f"It could not be started again: {error}")
        _log.error("Replica %s is not started again; %d others serve.", replica.label, len(self._in_service))

    def _note_death(self, replica: Replica, how: str) -> None:
        replica.deaths += 1
        replica.failure = f"Replica {replica.label}: {how}"
        _log.error("%s", replica.failure)

    def _withdraw(self, replica: Replica) -> None:
        if replica in self._in_service:
            self._in_service.remove(replica)
        if not self._in_service:
            self._open.set()  # waiting calls fail now

    async def _settle(self, replica: Replica) -> None:
        process = replica.running
        await process.settle()
        if not process.alive:
            self._withdraw(replica)

    def _describe(self, replica: Replica) -> Member:
        if replica in self._in_service:
            state, detail = "ready", None
        elif replica.deaths > MAX_RESTARTS or not self._in_service:
            state, detail = "failed", replica.failure
        else:
            state, detail = "starting", read_tail(replica.settings.log_path, 1)
        return Member(
            label=replica.label,
            pid=replica.process.pid if replica.process is not None else None,
            state=state,
            detail=detail,
            calls=replica.calls,
            answered=replica.answered,
            failed=replica.failed,
            restarts=replica.restarts,
            rollouts=self._homes.guests(replica),
        )
