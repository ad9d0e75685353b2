"""The engine interface that the rest of the service uses: its calls, their inputs and results.

Only this folder knows whether one process (``EngineProcess``) or several (``EngineRouter``) run behind an engine. The
wire format is the subset of vLLM's public HTTP API that docs/engines.md lists.
"""

from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from art_backend.tokens.grammar import Structure

FinishReason = Literal["stop", "length", "abort"]
PauseMode = Literal["keep", "wait", "abort"]
SleepTag = Literal["weights", "kv_cache"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one completion."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    """``None`` samples from the whole vocabulary."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    """Sampling one of these ends the completion; the id itself is part of it."""
    seed: int | None = None
    top_logprobs: int = 0
    """How many alternatives to report per token, beside the sampled one."""
    structure: Structure | None = None
    """Tokens that would break it are not sampled; log-probabilities are those of what is left."""


@dataclass(slots=True)
class GenerationDelta:
    """Newly sampled tokens of one completion. All lists have one length."""

    token_ids: list[int]
    logprobs: list[float]
    """Natural-log probability of each token under the distribution that was sampled (after temperature)."""
    top_logprobs: list[list[tuple[int, float]]]
    """Per token, (id, log-probability) of the likeliest tokens; empty lists when not asked for."""
    finish_reason: FinishReason | None = None
    """Set on the last delta."""

    def extend(self, later: "GenerationDelta") -> None:
        """Append the delta that follows."""
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.top_logprobs += later.top_logprobs
        self.finish_reason = later.finish_reason


@dataclass(slots=True)
class Generation:
    """One whole completion."""

    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[list[tuple[int, float]]]
    finish_reason: FinishReason


class EngineVerbs(Protocol):
    """The calls of an engine. ``EngineClient`` says what each does and raises."""

    async def generate(
        self, model: str, token_ids: Sequence[int], sampling: Sampling, *, rollout: str | None = None
    ) -> Generation: ...
    def stream(
        self, model: str, token_ids: Sequence[int], sampling: Sampling, *, rollout: str | None = None
    ) -> AsyncGenerator[GenerationDelta, None]: ...
    async def greedy_logprobs(self, model: str, token_ids: list[int]) -> list[float]: ...
    async def load_adapter(self, name: str, path: Path) -> None: ...
    async def unload_adapter(self, name: str) -> None: ...
    async def load_weights(self, name: str, path: Path) -> None: ...
    async def models(self) -> list[str]: ...
    async def pause(self, mode: PauseMode = "keep") -> None: ...
    async def resume(self) -> None: ...
    async def sleep(self) -> None: ...
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
