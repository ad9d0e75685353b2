"""One model call of an agent, whatever protocol it came in: place, sample, commit.

A protocol's module normalises its requests to a ``Call``, and gives the ``Answer`` back in its own shape.
"""

import asyncio
from array import array
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from art.wire import RolloutKind
from art_backend.engines.client import EngineError
from art_backend.errors import BadRequestError, BusyError, EngineFailedError, ServiceError
from art_backend.gateway.ambient import AmbientRollouts
from art_backend.gateway.answers import Alias, Answer, Call, Completed, Part
from art_backend.gateway.limits import FairThreads, ProjectLimits, check_choices
from art_backend.gateway.ports import Identity, Lease, ModelDirectory, ServedModel
from art_backend.gateway.retries import RetryWindow
from art_backend.gateway.sampling import Plan, SamplingFields, plan_sampling
from art_backend.gateway.sources import Conversation, Source
from art_backend.store.captures import CaptureStore
from art_backend.tokens.grammar import Structure
from art_backend.tokens.grammar.check import CHECKER
from art_backend.tokens.parse import MessageStream, ParsedMessage
from art_backend.tokens.tree import Prompt, Sampled, Tree, Turn

LONG_TEXT = 20_000
"""Characters of a prompt from which it is rendered beside the event loop, not on it."""


@dataclass(slots=True)
class _Placed:
    """Where a prompt stands, and what the engine will be fed."""

    source: Source
    rollout: str | None
    tree: Tree
    prompt: Prompt
    ids: "array[int]"
    plan: Plan
    """The call's plan, cut to the room that the prompt leaves."""


class TurnTaker:
    """Takes turns: the part of the gateway that all protocols share."""

    def __init__(self, directory: ModelDirectory, captures: CaptureStore, limits: ProjectLimits) -> None:
        self.directory = directory
        self.captures = captures
        self._limits = limits
        self._rendering = FairThreads(2, "rendering")
        self._compiling = FairThreads(1, "structures")
        self._ambient = AmbientRollouts(captures)
        self._window: RetryWindow[Answer] = RetryWindow()

    def take(self, identity: Identity, call: Call) -> Answer:
        """Begin to answer a call, or return the answer that it repeats the request of.

        Raises:
            NotFoundError: No such model for this caller.
            ConflictError: Its idempotency key came with another body.
        """
        known = None
        if call.idempotency_key:
            known = self._window.find_named(call.idempotency_key, call.digest)
        elif call.retry:
            known = self._window.find_lost(call.digest)
        if known is not None and not known.failed:
            return known
        check_choices(call.choices)
        model, step = self.directory.resolve(identity, call.model_name)
        answer = Answer(call, model)
        if call.idempotency_key:
            self._window.name(call.idempotency_key, call.digest, call.size, answer)
        elif identity.kind != "service":
            answer.on_lost = partial(self._window.lose, call.digest, call.size)
        answer.start(self._answer(identity, step, answer))
        return answer

    async def count(self, identity: Identity, call: Call) -> int:
        """Ids that the prompts of a call would have; nothing is sampled or kept."""
        model, step = self.directory.resolve(identity, call.model_name)
        found = [await self._find_place(identity, model, step, source) for source in call.sources]
        return sum(prompt.length for _, _, prompt in found)

    def find_turn(self, identity: Identity, turn: str) -> Turn | None:
        """A captured turn that this caller may go on from."""
        rollout = self.captures.find_rollout(turn)
        if rollout is None or identity.kind == "service":
            return None
        info = self.captures.get(rollout)
        ours = identity.rollout == rollout if identity.rollout else info.kind is RolloutKind.AMBIENT
        if not ours or (info.project, info.model) != (identity.project, identity.model):
            return None
        return self.captures.tree(rollout).turns[turn]

    def recall(self, identity: Identity, turn_id: str) -> Answer | None:
        """An answer that was kept; ``None`` if this caller has no such turn, or its answer was not kept.

        Raises:
            NotFoundError: Its model is no longer served.
        """
        turn, kept = self.find_turn(identity, turn_id), self.captures.find_request(turn_id)
        if turn is None or kept is None:
            return None
        model, _ = self.directory.resolve(identity, kept["model"])
        aliases = {name: Alias(*alias) for name, alias in kept.get("aliases", {}).items()}
        call = Call(
            kept["model"],
            [Conversation([])],
            plan_sampling(SamplingFields()),
            stream=False,
            echo=kept["echo"],
            aliases=aliases,
        )
        rollout = self.captures.find_rollout(turn_id)
        assert rollout is not None
        answer = Answer(call, model, turn_ids=[turn_id])
        answer.prompt_tokens = turn.prompt.length
        answer.completed = [Completed.of_turn(turn, rollout)]
        answer.work.set_result(None)
        return answer

    async def _answer(self, identity: Identity, step: int | None, answer: Answer) -> None:
        """Answer a call in its project's turn."""
        try:
            caller = identity.rollout or ""
            async with self._limits.enter(answer.model.project, caller, answer.call.choices, answer.call.size):
                await self._sample_and_commit(identity, step, answer)
        except EngineError as error:
            raise _explain(error, answer.call.sources[0].structure_field) from error

    async def _sample_and_commit(self, identity: Identity, step: int | None, answer: Answer) -> None:
        """Place, sample, commit. Nothing is stored unless all of it was sampled."""
        call, model = answer.call, answer.model
        placed = [await self._place(identity, model, step, source, call.plan) for source in call.sources]
        longest = model.max_sequence_length
        answer.prompt_tokens = sum(len(one.ids) if one else longest for one in placed)
        choices = [(i, one) for i, one in enumerate(one for one in placed for _ in range(call.plan.n)) if one]
        sampled: dict[int, Completed] = {}
        if choices:
            async with model.lease(step) as lease:
                completed = await _run_all([_sample(lease, one, answer, choice) for choice, one in choices])
            sampled = dict(zip((choice for choice, _ in choices), completed, strict=True))
        answer.completed = self._finish(identity, answer, placed, sampled)
        for source in call.sources:
            source.forget()

    async def _place(
        self, identity: Identity, model: ServedModel, step: int | None, source: Source, plan: Plan
    ) -> _Placed | None:
        """Find a prompt's place in its rollout's tree; ``None`` when it leaves no room for a completion."""
        if source.least_tokens(model.renderer) > model.max_sequence_length:
            return None
        rollout, tree, prompt = await self._find_place(identity, model, step, source)
        ids, renderer = prompt.path_ids(), model.renderer
        structure = source.structure(renderer, ids)
        if structure is not None:
            await self._check_structure(rollout or _name_caller(model), structure, source)
        room = model.max_sequence_length - len(ids)
        if room <= 0:
            return None
        return _Placed(source, rollout, tree, prompt, ids, plan.fit(room, renderer.stop_token_ids, structure))

    async def _check_structure(self, caller: str, structure: Structure, source: Source) -> None:
        """Raise BadRequestError for a structure that cannot be enforced; the error names the field that demanded it."""
        if (problem := await self._explain_structure(caller, structure)) is None:
            return
        field = source.structure_field
        for part, at in source.demands():
            if (of_part := await self._explain_structure(caller, part)) is not None:
                problem, field = of_part, at
                break
        raise BadRequestError(f"{field}: cannot be enforced: {problem}.", param=field)

    async def _explain_structure(self, caller: str, structure: Structure) -> str | None:
        """Why a structure cannot be enforced; a new one is tried beside the event loop."""
        known = CHECKER.recall(structure) or await self._compiling.run(caller, CHECKER.judge, structure)
        return known.problem

    async def _find_place(
        self, identity: Identity, model: ServedModel, step: int | None, source: Source
    ) -> tuple[str | None, Tree, Prompt]:
        """The rollout that a prompt belongs to, if any, its tree, and its place there."""
        if identity.rollout is not None:
            rollout, tree = identity.rollout, self.captures.tree(identity.rollout)
        elif identity.kind == "model":
            rollout, tree = self._ambient.find(model, step, source)
        else:
            rollout, tree = None, Tree()
        if source.size() <= LONG_TEXT:
            return rollout, tree, source.place(tree, model.renderer)
        prompt = await self._rendering.run(rollout or _name_caller(model), source.place, tree, model.renderer)
        return rollout, tree, prompt

    def _finish(
        self, identity: Identity, answer: Answer, placed: Sequence[_Placed | None], sampled: Mapping[int, Completed]
    ) -> list[Completed]:
        """Store what was sampled, durably. A prompt without room has an empty answer, and ends the episode as truncated."""
        n = answer.call.plan.n
        completed: list[Completed] = []
        for at, one in enumerate(placed):
            choices = range(at * n, (at + 1) * n)
            if one is None:
                if identity.rollout is not None:
                    self.captures.mark_truncated(identity.rollout)
                completed += [
                    Completed(finish_reason="length", rollout=identity.rollout, context_full=True) for _ in choices
                ]
            else:
                mine = [sampled[choice] for choice in choices]
                if one.rollout is not None:
                    self._commit(one, one.rollout, mine, [answer.turn_ids[choice] for choice in choices], answer)
                completed += mine
        return completed

    def _commit(
        self, placed: _Placed, rollout: str, completed: Sequence[Completed], turn_ids: Sequence[str], answer: Answer
    ) -> None:
        call, kept = answer.call, None
        if call.keep:
            aliases = {name: list(alias) for name, alias in call.aliases.items()}
            kept = {"model": call.model_name, "echo": call.echo, "aliases": aliases}
        sampled: list[Sampled] = []
        for one, turn_id in zip(completed, turn_ids, strict=True):
            message, digest = placed.source.remember(answer.model.renderer, one.message, one.ids)
            sampled.append(
                Sampled(
                    ids=one.ids,
                    logprobs=one.logprobs,
                    message=message,
                    policy_version=one.policy_version,
                    sampling=placed.plan.settings(),
                    untrainable=placed.plan.untrainable,
                    finish_reason=one.finish_reason,
                    id=turn_id,
                    digest=digest,
                )
            )
        turns = placed.tree.commit(
            placed.prompt, placed.ids, sampled, lambda turns: self.captures.store_turns(rollout, turns, kept)
        )
        for one, turn in zip(completed, turns, strict=True):
            one.turn = turn


def _name_caller(model: ServedModel) -> str:
    """Name the caller by its model, where no rollout is known."""
    return f"{model.project}/{model.name}"


async def _run_all(work: Sequence[Coroutine[Any, Any, Completed]]) -> list[Completed]:
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


async def _sample(lease: Lease, placed: _Placed, answer: Answer, choice: int) -> Completed:
    """Sample one completion; a streaming call gets its parts as they come."""
    source, plan, renderer = placed.source, placed.plan, answer.model.renderer
    completed = Completed(rollout=placed.rollout, policy_version=lease.policy_version)
    if not answer.call.stream and not plan.stop:
        sampling = plan.sampling_of(choice)
        whole = await lease.engine.generate(lease.engine_model, placed.ids, sampling, rollout=placed.rollout)
        completed.finish_reason = whole.finish_reason
        message = source.parse(renderer, plan.shown(whole.token_ids), placed.ids)
        completed.add(Part(message, whole.token_ids, whole.logprobs, whole.top_logprobs))
    else:
        await _follow(lease, placed, answer, choice, completed)
    if completed.finish_reason == "abort":
        raise BusyError("The engine ended this completion early. Try again.", retry_after_s=1)
    if completed.finish_reason == "stop" and completed.message.tool_calls:
        completed.finish_reason = "tool_calls"  # one that was cut short is cut short, whatever it called before
    limits = plan.sampling.max_tokens, answer.call.plan.sampling.max_tokens
    completed.context_full = completed.finish_reason == "length" and limits[0] < limits[1]
    return completed


async def _follow(lease: Lease, placed: _Placed, answer: Answer, choice: int, completed: Completed) -> None:
    """Stream one completion from the engine, up to its end or the first stop string."""
    plan = placed.plan
    parser = placed.source.stream(answer.model.renderer, placed.ids, plan.stop)
    stream = lease.engine.stream(lease.engine_model, placed.ids, plan.sampling_of(choice), rollout=placed.rollout)
    try:
        async for delta in stream:
            shown = plan.shown(delta.token_ids)
            used, message = _feed(parser, shown, one_by_one=bool(plan.stop))
            if used == len(shown):
                used = len(delta.token_ids)
            part = Part(message, delta.token_ids[:used], delta.logprobs[:used], delta.top_logprobs[:used])
            completed.add(part)
            if part.ids:
                answer.publish(choice, part)
            if parser.stopped is not None:
                completed.finish_reason, completed.stop_string = "stop", parser.stopped
                break
            if delta.finish_reason is not None:
                completed.finish_reason = delta.finish_reason
    finally:
        await stream.aclose()
    if completed.finish_reason != "abort" and (rest := parser.finish()):
        completed.message.extend(rest)
        answer.publish(choice, Part(rest, [], [], []))


def _feed(parser: MessageStream, ids: list[int], *, one_by_one: bool) -> tuple[int, ParsedMessage]:
    """Feed new ids to a parser; return how many belong to the completion, and the new part of its message."""
    if not one_by_one:
        return len(ids), parser.feed(ids)
    part = ParsedMessage()
    for used, token_id in enumerate(ids, start=1):
        part.extend(parser.feed([token_id]))
        if parser.stopped is not None:
            return used, part
    return len(ids), part


def _explain(error: EngineError, structure_field: str) -> ServiceError:
    if error.status == 400 and "structured_outputs" in error.message:
        return BadRequestError(f"{structure_field}: cannot be enforced: {error.message}", param=structure_field)
    if error.status == 400:
        return BadRequestError(f"The engine refuses this request: {error.message}")
    return EngineFailedError(f"The engine failed to answer ({error.status}): {error.message}")
