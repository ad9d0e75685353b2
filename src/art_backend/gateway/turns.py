"""One model call of an agent, whatever protocol it came in: place, sample, commit.

``chat`` (and later other protocols) normalises a request to messages, and gives the answer back in its own shape.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from art.wire import RolloutKind
from art_backend.errors import NotFoundError
from art_backend.gateway.ports import Identity, Lease, ModelDirectory, ServedModel
from art_backend.gateway.render import Message, ParsedMessage
from art_backend.gateway.sampling import Plan, plan_sampling
from art_backend.gateway.tree import Prompt, Tree, Turn
from art_backend.inference.contract import Generation, GenerationDelta
from art_backend.store.captures import CaptureStore

AMBIENT_GENERATIONS = 3
"""Ambient rollouts of one model whose conversations can still be continued: one per policy version, the newest first."""

REPLAY_WINDOW = 4096
"""Answered requests that a retry can still be given the answer of."""


@dataclass(slots=True)
class Call:
    """A normalised model call."""

    model_name: str
    """As requested; echoed in the answer."""
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    body: dict[str, Any]
    """The request's own fields, for sampling settings."""
    retry: bool = False
    """Whether the client says that it sent this before."""


@dataclass(slots=True)
class Completed:
    """One sampled answer."""

    generation: Generation
    message: ParsedMessage
    finish_reason: str
    prompt_tokens: int
    plan: Plan
    turn: Turn | None = None
    rollout: str | None = None
    policy_version: int = 0


class TurnTaker:
    """Takes turns: the part of the gateway that all protocols share."""

    def __init__(self, directory: ModelDirectory, captures: CaptureStore) -> None:
        self.directory = directory
        self.captures = captures
        self._ambient: dict[tuple[str, str], OrderedDict[int, str]] = {}
        self._answers: OrderedDict[bytes, asyncio.Future[list[Completed]]] = OrderedDict()

    async def take(self, identity: Identity, call: Call) -> list[Completed]:
        """Answer a call: ``n`` completions, committed.

        A retry of a call that was answered, or is being answered, gets that answer.
        """
        digest = _digest(identity, call)
        if identity.kind != "service" and call.retry and (known := self._answers.get(digest)):
            return await asyncio.shield(known)
        work = asyncio.ensure_future(self._take(identity, call))
        self._answers[digest] = work
        while len(self._answers) > REPLAY_WINDOW:
            self._answers.popitem(last=False)
        try:
            return await work
        except BaseException:
            work.cancel()
            if self._answers.get(digest) is work:
                del self._answers[digest]
            raise

    async def _take(self, identity: Identity, call: Call) -> list[Completed]:
        opened = self.open(identity, call)
        if opened is None:
            return [self.overflow(identity)]
        async with opened.model.lease(opened.step) as lease:
            count = opened.plan.n
            generations = await asyncio.gather(*(opened.generate(lease) for _ in range(count)))
        return [self.commit(opened, generation, lease.policy_version) for generation in generations]

    def open(self, identity: Identity, call: Call) -> "OpenTurn | None":
        """Place a call's messages and plan its sampling; ``None`` when the prompt does not fit the context.

        Raises:
            BadRequestError, NotFoundError: The call is wrong; nothing was stored.
        """
        model, step = self.directory.resolve(identity, call.model_name)
        rollout, tree = self._tree(identity, model, call)
        prompt = tree.place(call.messages, call.tools, model.renderer)
        ids = prompt.path_ids()
        room = model.max_sequence_length - len(ids)
        plan = plan_sampling(call.body, model.renderer.stop_token_ids, max(room, 1))
        if room < 1:
            return None
        return OpenTurn(model, step, rollout, tree, prompt, ids, plan)

    def overflow(self, identity: Identity) -> Completed:
        """The answer to a prompt that is too long: nothing, for want of room."""
        if identity.rollout is not None:
            self.captures.mark_truncated(identity.rollout)
        return Completed(
            Generation([], [], [], "length"), ParsedMessage(""), "length", 0, _NO_PLAN, rollout=identity.rollout
        )

    def commit(self, opened: "OpenTurn", generation: Generation, policy_version: int) -> Completed:
        """Store a sampled turn durably; return it as an answer."""
        text_end = generation.finish_reason
        parsed = opened.parse(generation)
        finish = "tool_calls" if parsed.tool_calls else text_end
        completed = Completed(generation, parsed, finish, len(opened.ids), opened.plan, policy_version=policy_version)
        if opened.rollout is not None:
            message = _as_message(parsed)
            completed.turn = opened.tree.commit(
                opened.prompt,
                generation,
                message,
                policy_version=policy_version,
                temperature=opened.plan.sampling.temperature,
                untrainable=opened.plan.untrainable,
            )
            completed.rollout = opened.rollout
            self.captures.store_turn(opened.rollout, completed.turn)
        return completed

    def _tree(self, identity: Identity, model: ServedModel, call: Call) -> tuple[str | None, Tree]:
        if identity.kind == "service":
            return None, Tree()
        if identity.rollout is not None:
            return identity.rollout, self.captures.tree(identity.rollout)
        return self._ambient_tree(model, call)

    def _ambient_tree(self, model: ServedModel, call: Call) -> tuple[str, Tree]:
        """The tree that a conversation under a model's own key belongs to: the one that knows most of it."""
        recent = self._ambient.setdefault((model.project, model.name), OrderedDict())
        version = model.step
        if version not in recent:
            recent[version] = self.captures.create_rollout(model.project, model.name, kind=RolloutKind.AMBIENT).id
            while len(recent) > AMBIENT_GENERATIONS:
                recent.popitem(last=False)
        trees = [(rollout, self.captures.tree(rollout)) for rollout in reversed(recent.values())]
        return max(trees, key=lambda pair: pair[1].known_length(call.messages, call.tools))


@dataclass(slots=True)
class OpenTurn:
    """A placed call, ready to be sampled."""

    model: ServedModel
    step: int | None
    rollout: str | None
    tree: Tree
    prompt: Prompt
    ids: list[int]
    plan: Plan

    async def generate(self, lease: Lease) -> Generation:
        if not self.plan.stop:
            return await lease.engine.generate(lease.engine_model, self.ids, self.plan.sampling)
        collected = Generation([], [], [], "abort")
        async with self.stream(lease) as deltas:
            async for delta in deltas:
                collect(collected, delta)
        return collected

    @asynccontextmanager
    async def stream(self, lease: Lease) -> AsyncIterator[AsyncIterator[GenerationDelta]]:
        """Stream the completion, ending it at the token that completes a stop string."""
        source = lease.engine.stream(lease.engine_model, self.ids, self.plan.sampling)
        try:
            yield self._until_stop(source)
        finally:
            await source.aclose()

    async def _until_stop(self, source: AsyncIterator[GenerationDelta]) -> AsyncIterator[GenerationDelta]:
        seen: list[int] = []
        async for delta in source:
            for i in range(len(delta.token_ids)):
                seen.append(delta.token_ids[i])
                if self.plan.stop and any(stop in self.model.renderer.decode(seen) for stop in self.plan.stop):
                    keep = i + 1
                    yield GenerationDelta(
                        delta.token_ids[:keep], delta.logprobs[:keep], delta.top_logprobs[:keep], "stop"
                    )
                    return
            yield delta

    def parse(self, generation: Generation) -> ParsedMessage:
        parsed = self.model.renderer.parse(generation.token_ids, self.ids)
        cut = min((at for stop in self.plan.stop if (at := parsed.content.find(stop)) >= 0), default=None)
        if cut is not None:
            parsed.content = parsed.content[:cut]
        return parsed


def collect(generation: Generation, delta: GenerationDelta) -> None:
    """Append a delta to a generation."""
    generation.token_ids += delta.token_ids
    generation.logprobs += delta.logprobs
    generation.top_logprobs += delta.top_logprobs
    if delta.finish_reason is not None:
        generation.finish_reason = delta.finish_reason


def _as_message(parsed: ParsedMessage) -> Message:
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message


def _digest(identity: Identity, call: Call) -> bytes:
    what = [identity.kind, identity.project, identity.model, identity.rollout, call.body]
    return hashlib.blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=16).digest()


_NO_PLAN = plan_sampling({}, (), 1)
__all__ = ["Call", "Completed", "NotFoundError", "OpenTurn", "TurnTaker", "collect"]
