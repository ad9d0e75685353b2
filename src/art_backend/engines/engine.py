"""What the service needs of an engine, whether one process is behind it or several.

``EngineProcess`` is one; ``EngineRouter`` is several. Nobody outside of this folder knows which.
"""

from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from art_backend.engines.client import PauseMode, SleepTag
from art_backend.engines.contract import Generation, GenerationDelta, Sampling

T = TypeVar("T")


class EngineVerbs(Protocol):
    """What can be asked of an engine. ``EngineClient`` says what each does and raises."""

    async def generate(
        self,
        model: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        request_id: str | None = None,
        *,
        rollout: str | None = None,
    ) -> Generation: ...
    def stream(
        self,
        model: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        request_id: str | None = None,
        *,
        rollout: str | None = None,
    ) -> AsyncGenerator[GenerationDelta, None]: ...
    async def greedy_logprobs(self, model: str, token_ids: list[int]) -> list[float]: ...
    async def load_adapter(self, name: str, path: Path) -> None: ...
    async def unload_adapter(self, name: str) -> None: ...
    async def load_weights(self, name: str, path: Path) -> None: ...
    async def models(self) -> list[str]: ...
    async def pause(self, mode: PauseMode = "keep") -> None: ...
    async def resume(self) -> None: ...
    async def sleep(self, level: int = 1) -> None: ...
    async def wake_up(self, tags: Iterable[SleepTag] = ()) -> None: ...
    async def health(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Member:
    """One process of an engine, as it is now."""

    label: str
    """Tells it from its siblings; empty where it has none."""
    pid: int | None
    state: Literal["ready", "starting", "failed"]
    detail: str | None = None
    """Why it failed, or how far its start has come."""
    calls: int = 0
    """Model calls that it answers now."""
    answered: int = 0
    failed: int = 0
    restarts: int = 0
    rollouts: int = 0
    """Rollouts whose calls go to it."""


class Engine(Protocol):
    """A running engine. ``EngineProcess`` says what each method does and raises."""

    @property
    def client(self) -> EngineVerbs: ...
    @property
    def alive(self) -> bool:
        """Whether it can still answer."""
        ...

    def members(self) -> list[Member]: ...
    def describe_death(self) -> str: ...
    async def guard(self, awaitable: Awaitable[T], *, deadline_s: float | None, doing: str) -> T: ...
    async def settle(self) -> None: ...
    async def stop(self) -> None: ...
