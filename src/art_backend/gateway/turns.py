"""One model call of an agent, whatever protocol it came in: place, sample, commit.

A protocol's module normalises its requests to a ``Call``, and gives the ``Answer`` back in its own shape.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from art_backend.errors import BadRequestError, BusyError, EngineFailedError, ServiceError
from art_backend.gateway.ambient import AmbientRollouts
from art_backend.gateway.parse import ParsedMessage
from art_backend.gateway.ports import Identity, Lease, ModelDirectory, ServedModel
from art_backend.gateway.render import Message
from art_backend.gateway.retries import RetryWindow
from art_backend.gateway.sampling import Plan
from art_backend.gateway.tree import Prompt, Sampled, Tree, Turn
from art_backend.inference.client import EngineError
from art_backend.inference.contract import Generation
from art_backend.store.captures import CaptureStore

LONG_TEXT = 50_000
"""Characters of a prompt from which it is rendered beside the event loop, not on it."""

TopLogprobs = list[list[tuple[int, float]]]


@dataclass(slots=True)
class Call:
    """A normalised model call."""

    model_name: str
    """As requested; echoed in the answer."""
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    plan: Plan
    stream: bool
    digest: bytes = b""
    """Of all that makes two requests the same: the caller, the path and the body."""
    retry: bool = False
    """Whether the client says that it sent this before."""
    parse_calls: bool = True
    """Whether tool calls are given as such; otherwise as text."""
    include_usage: bool = False
    """Whether a stream ends with a count of tokens."""


@dataclass(slots=True)
class Part:
    """What came new in a stream: a piece of the message, and the tokens since the last part."""

    message: ParsedMessage
    ids: list[int]
    logprobs: list[float]
    top_logprobs: TopLogprobs


@dataclass(slots=True)
class Completed:
    """One sampled answer."""

    message: ParsedMessage
    finish_reason: str
    """``stop``, ``length`` or ``tool_calls``."""
    ids: "array[int]"
    logprobs: "array[float]"
    top_logprobs: TopLogprobs
    turn: Turn | None = None
    rollout: str | None = None
    policy_version: int = 0

    def reference(self) -> dict[str, Any] | None:
        """What a trajectory keeps of it; ``None`` if it was not captured."""
        if self.rollout is None:
            return None
        turn = self.turn.id if self.turn else None
        return {"turn": turn, "rollout": self.rollout, "policy_version": self.policy_version}


class Answer:
    """The answer to one call while it is made and after. The request that began it and its retries read it together."""

    def __init__(self, call: Call, model: ServedModel) -> None:
        self.call = call
        self.model = model
        self.prompt_tokens = 0
        self.completed: list[Completed] = []
        self.parts: list[list[Part]] = [[] for _ in range(call.plan.n)]
        self._readers = 0
        self._work: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = asyncio.create_task(work)
        self._work.add_done_callback(self._ended)

    @property
    def finished(self) -> bool:
        return bool(self.completed)

    def publish(self, choice: int, part: Part) -> None:
        self.parts[choice].append(part)
        self._tell()

    @contextmanager
    def reading(self):
        """Read the answer. When nobody reads an unfinished answer any more, it is given up and the engine freed."""
        self._readers += 1
        try:
            yield self
        finally:
            self._readers -= 1
            if not self._readers:
                if self._work is not None and not self._work.done():
                    self._work.cancel()
                self.parts = [[] for _ in self.parts]

    async def wait(self) -> list[Completed]:
        """Wait for all choices.

        Raises:
            ServiceError: The answer did not come about.
        """
        if self._work is not None:
            await asyncio.shield(self._work)
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
                news, done = self._news, self._work is None or self._work.done()
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

    def _ended(self, work: asyncio.Task[None]) -> None:
        if not work.cancelled():
            work.exception()  # read, so that an error whose reader has left is not reported as lost
        self._tell()


@dataclass(slots=True)
class _Placed:
    """Where a call stands, and what the engine will be fed."""

    rollout: str | None
    tree: Tree
    prompt: Prompt
    ids: list[int]


@dataclass(slots=True)
class _Collected:
    """One completion as it grows."""

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: "array[float]" = field(default_factory=lambda: array("d"))
    top_logprobs: TopLogprobs = field(default_factory=TopLogprobs)
    message: ParsedMessage = field(default_factory=ParsedMessage)
    finish_reason: str = "abort"

    def add(self, ids: Sequence[int], logprobs: Sequence[float], top_logprobs: TopLogprobs) -> None:
        self.ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.top_logprobs += top_logprobs


class TurnTaker:
    """Takes turns: the part of the gateway that all protocols share."""

    def __init__(self, directory: ModelDirectory, captures: CaptureStore) -> None:
        self.directory = directory
        self.captures = captures
        self._ambient = AmbientRollouts(captures)
        self._window: RetryWindow[Answer] = RetryWindow()

    def take(self, identity: Identity, call: Call) -> Answer:
        """Begin to answer a call, or return the answer that it is a retry of.

        Raises:
            NotFoundError: No such model for this caller.
        """
        captured = identity.kind != "service"
        if captured and call.retry and (known := self._window.find(call.digest)) is not None:
            return known
        model, step = self.directory.resolve(identity, call.model_name)
        answer = Answer(call, model)
        if captured:
            self._window.add(call.digest, answer)
        answer.start(self._answer(identity, step, answer))
        return answer

    async def _answer(self, identity: Identity, step: int | None, answer: Answer) -> None:
        """Place, sample, commit. Nothing is stored unless all of it succeeds."""
        call, model = answer.call, answer.model
        try:
            placed = await self._place(identity, model, step, call)
            room = model.max_sequence_length - (len(placed.ids) if placed else model.max_sequence_length)
            answer.prompt_tokens = model.max_sequence_length - room
            if placed is None or room < 1:
                answer.completed = self._overflow(identity, call)
                return
            plan = call.plan.fit(room, model.renderer.stop_token_ids)
            async with model.lease(step) as lease:
                collected = await _run_all(
                    [_sample(lease, placed.ids, plan, answer, choice) for choice in range(plan.n)]
                )
            answer.completed = self._commit(placed, plan, lease.policy_version, collected)
        except BaseException as error:
            self._window.remove(call.digest, answer)
            if isinstance(error, ServiceError) and error.status >= 429:
                self._window.refuse(call.digest)
            if isinstance(error, EngineError):
                raise _explain(error) from error
            raise

    async def _place(self, identity: Identity, model: ServedModel, step: int | None, call: Call) -> _Placed | None:
        """Find a call's place in its rollout's tree; ``None`` when the prompt is certain to be too long."""
        text = sum(len(message["content"]) for message in call.messages)
        if text > model.max_sequence_length * model.renderer.longest_token:
            return None
        if identity.rollout is not None:
            rollout, tree = identity.rollout, self.captures.tree(identity.rollout)
        elif identity.kind == "model":
            rollout, tree = self._ambient.find(model, step, call.messages, call.tools)
        else:
            rollout, tree = None, Tree()
        if text > LONG_TEXT:
            prompt = await asyncio.to_thread(tree.place, call.messages, call.tools, model.renderer)
        else:
            prompt = tree.place(call.messages, call.tools, model.renderer)
        return _Placed(rollout, tree, prompt, prompt.path_ids().tolist())

    def _overflow(self, identity: Identity, call: Call) -> list[Completed]:
        """The answer to a prompt that leaves no room: nothing, for want of length. The episode ends as truncated."""
        if identity.rollout is not None:
            self.captures.mark_truncated(identity.rollout)
        return [
            Completed(ParsedMessage(), "length", array("i"), array("d"), [], rollout=identity.rollout)
            for _ in range(call.plan.n)
        ]

    def _commit(
        self, placed: _Placed, plan: Plan, policy_version: int, collected: Sequence[_Collected]
    ) -> list[Completed]:
        """Store what was sampled, durably, and make answers of it."""
        completed = [
            Completed(
                one.message,
                "tool_calls" if one.message.tool_calls else one.finish_reason,
                one.ids,
                one.logprobs,
                one.top_logprobs,
                rollout=placed.rollout,
                policy_version=policy_version,
            )
            for one in collected
        ]
        rollout = placed.rollout
        if rollout is None:
            return completed
        settings = plan.settings()
        sampled = [
            Sampled(
                one.ids,
                one.logprobs,
                as_message(one.message),
                policy_version,
                settings,
                plan.untrainable,
                one.finish_reason,
            )
            for one in completed
        ]
        turns = placed.tree.commit(
            placed.prompt, placed.ids, sampled, lambda turns: self.captures.store_turns(rollout, turns)
        )
        for one, turn in zip(completed, turns, strict=True):
            one.turn = turn
        return completed


async def _run_all(work: Sequence[Coroutine[Any, Any, _Collected]]) -> list[_Collected]:
    """Run all to their end; when one fails the others are cancelled."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _sample(lease: Lease, ids: list[int], plan: Plan, answer: Answer, choice: int) -> _Collected:
    call, renderer = answer.call, answer.model.renderer
    sampling = plan.sampling_of(choice)
    tools = call.tools if call.parse_calls else None
    if not call.stream and not plan.stop:
        whole = await lease.engine.generate(lease.engine_model, ids, sampling)
        return _collect_whole(whole, renderer.parse(whole.token_ids, ids, tools))
    collected = _Collected()
    parser = renderer.stream(ids, tools, plan.stop)
    source = lease.engine.stream(lease.engine_model, ids, sampling)
    try:
        async for delta in source:
            used, part = _feed(parser, delta.token_ids, one_by_one=bool(plan.stop))
            new = Part(part, delta.token_ids[:used], delta.logprobs[:used], delta.top_logprobs[:used])
            collected.add(new.ids, new.logprobs, new.top_logprobs)
            collected.message.extend(part)
            if new.ids:
                answer.publish(choice, new)
            if parser.stopped:
                collected.finish_reason = "stop"
                break
            if delta.finish_reason is not None:
                collected.finish_reason = delta.finish_reason
    finally:
        await source.aclose()
    if collected.finish_reason == "abort":
        raise _aborted()
    if rest := parser.finish():
        collected.message.extend(rest)
        answer.publish(choice, Part(rest, [], [], []))
    return collected


def _feed(parser: Any, ids: list[int], *, one_by_one: bool) -> tuple[int, ParsedMessage]:
    """Feed new ids to a parser; return how many belong to the completion, and the new part of its message."""
    if not one_by_one:
        return len(ids), parser.feed(ids)
    part = ParsedMessage()
    for used, token_id in enumerate(ids, start=1):
        part.extend(parser.feed([token_id]))
        if parser.stopped:
            return used, part
    return len(ids), part


def _collect_whole(whole: Generation, message: ParsedMessage) -> _Collected:
    if whole.finish_reason == "abort":
        raise _aborted()
    return _Collected(
        array("i", whole.token_ids), array("d", whole.logprobs), whole.top_logprobs, message, whole.finish_reason
    )


def as_message(parsed: ParsedMessage) -> Message:
    """The message that an agent will bring back."""
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message


def _aborted() -> BusyError:
    return BusyError("The engine ended this completion before its time. Try again.", retry_after_s=1)


def _explain(error: EngineError) -> ServiceError:
    if error.status == 400:
        return BadRequestError(f"The engine refuses this request: {error.message}")
    return EngineFailedError(f"The engine failed to answer ({error.status}): {error.message}")
