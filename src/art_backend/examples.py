"""Where the tokens of what is to be trained are: in captured rollouts and turns, in the request, or in plain messages."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from art.wire import Conversation, Example, RolloutInfo, TokenRow, TrainGroup
from art_backend.errors import BadRequestError, NotFoundError
from art_backend.gateway.dialects.chat_messages import read_messages, read_tools
from art_backend.serving.policies import ServedPolicy
from art_backend.store.captures import CaptureStore
from art_backend.store.runs import RunStore
from art_backend.tokens.render import ChatRenderer
from art_backend.tokens.rows import build_rows, describe_untrainable, learn_everything, spell_conversation
from art_backend.tokens.tree import Turn
from art_backend.training.types import ScoredTrajectory

TrainOn = Literal["assistant", "all"]

_NAMED = 5
"""Most trajectories that a warning names."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The tokens of an example."""

    rows: list[TokenRow]
    turns: list[str]
    """Ids of the captured turns that it holds."""
    untrainable: list[Turn]
    """Captured turns that cannot be trained."""


class ExampleFinder:
    """Finds the training rows of the examples of a request."""

    def __init__(self, captures: CaptureStore, runs: RunStore) -> None:
        self._captures = captures
        self._runs = runs

    async def find_groups(
        self, policy: ServedPolicy, groups: Sequence[TrainGroup]
    ) -> tuple[list[list[ScoredTrajectory]], list[str]]:
        """The rows of every trajectory, and one sentence for each reason why something is left out.

        A trajectory in which nothing was sampled has no rows: its reward still counts in its group.

        Raises:
            BadRequestError: A group is empty, tokens cannot be found, a turn would be trained twice, or the sampling settings
                of all that was captured leave nothing to train; the message names the trajectory.
        """
        scored: list[list[ScoredTrajectory]] = []
        silent: list[tuple[str, Example]] = []
        untrainable: list[tuple[str, Turn]] = []
        trained_by: dict[str, str] = {}
        for g, group in enumerate(groups):
            if not group.trajectories:
                raise BadRequestError(
                    f"groups.{g} has no trajectories. Leave out groups in which every rollout failed.",
                    param=f"groups.{g}",
                )
            scored.append([])
            for t, trajectory in enumerate(group.trajectories):
                where = f"groups.{g}.trajectories.{t}"
                found = await self._find(policy, trajectory, where, imitate=False, train_on="assistant")
                for turn in found.turns:
                    _check_once(turn, where, trained_by.setdefault(turn, where))
                scored[g].append(ScoredTrajectory(trajectory.reward, found.rows))
                untrainable += [(where, turn) for turn in found.untrainable]
                if not (found.rows or found.untrainable):
                    silent.append((where, trajectory))
        if untrainable and not any(trajectory.rows for group in scored for trajectory in group):
            where, first = untrainable[0]
            raise BadRequestError(f"{where}: no token to train on. {describe_untrainable(first)}", param=where)
        return scored, tell_untrainable(untrainable) + self._tell_silent(silent)

    async def find_rows_to_imitate(
        self, policy: ServedPolicy, example: Example, where: str, train_on: TrainOn
    ) -> list[TokenRow]:
        """The rows of an example for supervised fine-tuning; what was captured counts whatever its settings.

        Args:
            where: The example's path in the request, for errors.

        Raises:
            BadRequestError: There is no row; the message says why, and names the example.
        """
        found = await self._find(policy, example, where, imitate=True, train_on=train_on)
        if not found.rows:
            raise BadRequestError(f"{where}: no token to train on. {self._why_silent(example)}", param=where)
        return learn_everything(found.rows) if train_on == "all" else found.rows

    async def _find(
        self, policy: ServedPolicy, example: Example, where: str, *, imitate: bool, train_on: TrainOn
    ) -> _Found:
        _check_versions(policy, example, where)
        found = _Found([*example.rows], [], [])
        for turns in self._captured(policy, example, where).values():
            rows, untrainable = build_rows([*turns], imitate=imitate)
            found.rows.extend(rows)
            found.turns.extend(turn.id for turn in turns)
            found.untrainable.extend(untrainable)
        for i, conversation in enumerate(example.conversations):
            found.rows.extend(
                await asyncio.to_thread(_render, policy.renderer, conversation, f"{where}.conversations.{i}", train_on)
            )
        return found

    def _captured(self, policy: ServedPolicy, example: Example, where: str) -> dict[str, Iterable[Turn]]:
        """The captured turns of an example by rollout, each once."""
        captured: dict[str, Iterable[Turn]] = {}
        try:
            if example.rollout is not None:
                self._captures.get(example.rollout)
                captured[example.rollout] = self._captures.tree(example.rollout).turns.values()
            for rollout, turns in self._captures.find_turns(example.turns).items():
                captured.setdefault(rollout, turns)  # a whole rollout holds its single turns
            for rollout in captured:
                self._check_tokens(policy, self._captures.get(rollout), where)
        except NotFoundError as error:
            raise BadRequestError(f"{where}: {error.message}", param=where) from error
        return captured

    def _check_tokens(self, policy: ServedPolicy, rollout: RolloutInfo, where: str) -> None:
        """Raise BadRequestError where captured ids are those of another vocabulary."""
        _, spec = self._runs.find_model(rollout.project, rollout.model)
        mine = policy.host.settings.served_name
        if spec.base_model != mine:
            raise BadRequestError(
                f"{where}: its tokens are those of {rollout.project}/{rollout.model}, whose base model is {spec.base_model!r}, "
                f"not {mine!r}. Give it as conversations (plain messages) instead.",
                param=where,
            )

    def _tell_silent(self, silent: Sequence[tuple[str, Example]]) -> list[str]:
        if not silent:
            return []
        named = " ".join(f"{where}: {self._why_silent(example)}" for where, example in silent[:_NAMED])
        more = f" (and {len(silent) - _NAMED} more)" if len(silent) > _NAMED else ""
        return [
            f"{len(silent)} trajectories have no token to train and were left out; their rewards still count in their groups."
            f" {named}{more}"
        ]

    def _why_silent(self, example: Example) -> str:
        if example.rollout is None:
            return "No model call was captured for it: give it a rollout id, turn ids, token rows or conversations."
        if self._captures.get(example.rollout).truncated:
            return f"The first prompt of rollout {example.rollout} fills the model's context; nothing was sampled."
        return (
            f"Nothing was sampled in rollout {example.rollout}: an agent must call the rollout's own base_url with its api_key. For "
            "what was sampled elsewhere leave out rollout_id and pass allow_training_without_logprobs=True."
        )


def _check_versions(policy: ServedPolicy, example: Example, where: str) -> None:
    for r, row in enumerate(example.rows):
        if (latest := max(row.policy_versions, default=-1)) > policy.step:
            at = f"{where}.rows.{r}.policy_versions"
            raise BadRequestError(f"{at}: version {latest} is later than the model's latest, {policy.step}.", param=at)


def _check_once(turn: str, where: str, first: str) -> None:
    if first != where:
        raise BadRequestError(
            f"{where} is the same run as {first}: both would train turn {turn}. A turn is trained once: leave one of them out.",
            param=where,
        )


def tell_untrainable(found: Sequence[tuple[str, Turn]]) -> list[str]:
    """One sentence for each reason why turns were left out.

    Args:
        found: (the path of a trajectory, one of its turns that cannot be trained).
    """
    by_reason: dict[str | None, list[str]] = {}
    for where, turn in found:
        by_reason.setdefault(turn.untrainable, []).append(f"{where}, turn {turn.id}")
    return [
        f"{len(places)} turns were left out (the first: {places[0]}): {reason}" for reason, places in by_reason.items()
    ]


def render_conversation(
    renderer: ChatRenderer, conversation: Conversation, *, train_on: TrainOn = "assistant"
) -> list[TokenRow]:
    """Return the rows of a conversation that was not sampled here.

    Raises:
        BadRequestError: A message is malformed, the chat template refuses it, or there is nothing to learn; ``param`` is the
            path within the conversation.
    """
    messages, tools = read_messages(conversation.messages), read_tools(conversation.tools).functions
    return spell_conversation(renderer, messages, tools, trained=conversation.trained, train_on=train_on)


def _render(renderer: ChatRenderer, conversation: Conversation, where: str, train_on: TrainOn) -> list[TokenRow]:
    """``render_conversation``, with errors that name the conversation."""
    try:
        return render_conversation(renderer, conversation, train_on=train_on)
    except BadRequestError as error:
        param = f"{where}.{error.param}" if error.param else where
        raise BadRequestError(f"{where}: {error.message}", param=param) from error
