"""A model call, and its answer while it is made and after."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from art_backend.gateway.ports import ServedModel
from art_backend.gateway.sampling import Plan
from art_backend.gateway.sources import Source
from art_backend.tokens.parse import ParsedMessage
from art_backend.tokens.tool_calls import ParsedToolCall
from art_backend.tokens.tree import Turn, new_id

TopLogprobs = list[list[tuple[int, float]]]


class Alias(NamedTuple):
    """The tool that a caller declared, where it became a function."""

    kind: str
    """The type of tool that it declared."""
    name: str
    namespace: str | None = None


Aliases = Mapping[str, Alias]
"""Functions that a caller knows as something else, by name."""


@dataclass(slots=True)
class Call:
    """A normalised model call."""

    model_name: str
    """As requested; echoed in the answer."""
    sources: Sequence[Source]
    """The prompts; more than one only where the protocol knows that. Each is answered ``plan.n`` times."""
    plan: Plan
    stream: bool
    size: int = 0
    """Bytes of the request's body."""
    digest: bytes = b""
    """Of all that makes two requests the same: the caller, the path and the body."""
    retry: bool = False
    """Whether the client says that it sent this before."""
    idempotency_key: bytes = b""
    """Digest of the caller and the key that it gave this request; empty if it gave none."""
    include_usage: bool = False
    """Whether a stream ends with a count of tokens."""
    echo: dict[str, Any] = field(default_factory=dict[str, Any])
    """What a protocol's answer repeats of the request."""
    keep: bool = False
    """Whether the answer may be asked for again: model name, ``echo`` and ``aliases`` are then stored beside its turn."""
    aliases: Aliases = field(default_factory=dict[str, Alias])

    @property
    def choices(self) -> int:
        """Completions that are wanted in all."""
        return len(self.sources) * self.plan.n


@dataclass(slots=True)
class Part:
    """What came new in a stream: a piece of the message, and the tokens since the last part."""

    message: ParsedMessage
    ids: list[int]
    logprobs: list[float]
    top_logprobs: TopLogprobs


@dataclass(slots=True)
class Completed:
    """One sampled answer, while it grows and after."""

    message: ParsedMessage = field(default_factory=ParsedMessage)
    finish_reason: str = "abort"
    """``stop``, ``length`` or ``tool_calls``; ``abort`` until it has ended."""
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: "array[float]" = field(default_factory=lambda: array("d"))
    top_logprobs: TopLogprobs = field(default_factory=TopLogprobs)
    stop_string: str | None = None
    """The stop string that ended it."""
    turn: Turn | None = None
    rollout: str | None = None
    policy_version: int = 0
    context_full: bool = False
    """Whether the end of the context cut it, not the limit that was asked for."""

    def add(self, part: Part) -> None:
        """Append what came new."""
        self.message.extend(part.message)
        self.ids.extend(part.ids)
        self.logprobs.extend(part.logprobs)
        self.top_logprobs += part.top_logprobs

    @property
    def overflow(self) -> bool:
        """Whether the prompt left no room to sample anything."""
        return self.context_full and not self.ids

    @classmethod
    def of_turn(cls, turn: Turn, rollout: str) -> "Completed":
        """As it was when it was captured, but for alternatives that were not sampled."""
        said = turn.message
        calls = [
            ParsedToolCall(call["function"]["name"], call["function"]["arguments"], call["id"])
            for call in said.get("tool_calls", ())
        ]
        return cls(
            message=ParsedMessage(said["content"], said.get("reasoning_content", ""), calls),
            finish_reason=turn.finish_reason,
            ids=turn.ids,
            logprobs=turn.logprobs,
            top_logprobs=[[] for _ in turn.ids],
            turn=turn,
            rollout=rollout,
            policy_version=turn.policy_version,
        )

    def reference(self) -> dict[str, Any] | None:
        """The reference that a trajectory keeps. Its turn is ``None`` if there was no room to sample; ``None``: not captured."""
        if self.rollout is None and not self.overflow:
            return None
        turn = self.turn.id if self.turn else None
        return {"turn": turn, "rollout": self.rollout, "policy_version": self.policy_version}


class Answer:
    """The answer to one call while it is made and after. The request that began it and its retries read it together."""

    def __init__(self, call: Call, model: ServedModel, turn_ids: Sequence[str] | None = None) -> None:
        self.call = call
        self.model = model
        self.prompt_tokens = 0
        self.completed: list[Completed] = []
        self.turn_ids = list(turn_ids or (new_id("t") for _ in range(call.choices)))
        """Of the turns that the choices will be."""
        self.parts: list[list[Part]] = [[] for _ in range(call.choices)]
        self._readers = 0
        self._given_up = False
        self.delivered = False
        """Whether a reader had all of it."""
        self.on_lost: Callable[[Answer], None] | None = None
        """Called when its last reader left without all of it."""
        self.work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """What makes the answer; ended with it, or with the error that it came to."""
        self._news = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self.work = asyncio.create_task(work)
        self.work.add_done_callback(self._ended)

    @property
    def finished(self) -> bool:
        return bool(self.completed)

    @property
    def failed(self) -> bool:
        """Whether it will not come about."""
        return self._given_up or (self.work.done() and not self.finished)

    def publish(self, choice: int, part: Part) -> None:
        self.parts[choice].append(part)
        self._tell()

    @contextmanager
    def reading(self):
        """Read the answer. An unfinished answer without readers is cancelled, which frees the engine."""
        self._readers += 1
        try:
            yield self
        finally:
            self._readers -= 1
            if not self._readers:
                if not self.finished:
                    self.work.cancel()
                    self._given_up = True
                elif not self.delivered and self.on_lost is not None:
                    self.on_lost(self)
                self.parts = [[] for _ in self.parts]

    async def wait(self) -> list[Completed]:
        """Wait for all choices.

        Raises:
            ServiceError: The answer did not come about.
        """
        await asyncio.shield(self.work)
        return self.completed

    async def follow(self) -> AsyncIterator[tuple[int, Part | Completed]]:
        """All parts of all choices from the beginning, then each choice's end.

        Raises:
            ServiceError: The answer did not come about.
        """
        if self.finished:
            for choice, one in enumerate(self.completed):
                if not one.ids:
                    continue
                yield choice, Part(one.message, one.ids.tolist(), one.logprobs.tolist(), one.top_logprobs)
        else:
            seen = [0] * len(self.parts)
            while True:
                news, done = self._news, self.work.done()
                for choice, parts in enumerate(self.parts):
                    while seen[choice] < len(parts):
                        seen[choice] += 1
                        yield choice, parts[seen[choice] - 1]
                if done:
                    break
                await news.wait()
        for choice, one in enumerate(await self.wait()):
            yield choice, one

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _ended(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled():
            work.exception()  # read, so that an error whose reader has left is not reported as lost
        self._tell()
