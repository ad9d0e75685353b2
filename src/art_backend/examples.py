"""Where the tokens of what is to be trained are: in captured rollouts and turns, in the request, or in plain messages."""

import asyncio
from collections.abc import Sequence
from typing import Literal

from art.wire import Conversation, Example, RolloutInfo, RolloutRows, TokenRow
from art_backend.errors import BadRequestError, NotFoundError
from art_backend.gateway.render import ChatRenderer
from art_backend.serving import ServedPolicy
from art_backend.store.captures import CaptureStore
from art_backend.store.runs import RunStore
from art_backend.training.conversations import render_conversation
from art_backend.training.sequences import learn_everything

TrainOn = Literal["assistant", "all"]


class ExampleFinder:
    """Finds the training rows of the examples of a request. ``where`` is an example's path in it, for errors."""

    def __init__(self, captures: CaptureStore, runs: RunStore) -> None:
        self._captures = captures
        self._runs = runs

    async def find_rows(self, policy: ServedPolicy, example: Example, where: str) -> tuple[list[TokenRow], list[str]]:
        """The rows of an example for reinforcement learning, and a sentence for each turn that cannot be trained.

        Raises:
            BadRequestError: There is no row; the message says why, and names the example.
        """
        return await self._find(policy, example, where, imitate=False, train_on="assistant")

    async def find_rows_to_imitate(
        self, policy: ServedPolicy, example: Example, where: str, train_on: TrainOn
    ) -> list[TokenRow]:
        """The rows of an example for supervised fine-tuning; what was captured counts whatever its settings.

        Raises:
            BadRequestError: There is no row; the message says why, and names the example.
        """
        rows, _ = await self._find(policy, example, where, imitate=True, train_on=train_on)
        return learn_everything(rows) if train_on == "all" else rows

    async def _find(
        self, policy: ServedPolicy, example: Example, where: str, *, imitate: bool, train_on: TrainOn
    ) -> tuple[list[TokenRow], list[str]]:
        captured: list[RolloutRows] = []
        try:
            if example.rollout is not None:
                captured.append(self._captures.rows(example.rollout, imitate=imitate))
            if example.turns:
                captured += self._captures.rows_for_turns(example.turns, imitate=imitate)
            for part in captured:
                self._check_tokens(policy, self._captures.get(part.rollout), where)
        except NotFoundError as error:
            raise BadRequestError(f"{where}: {error.message}", param=where) from error
        for r, row in enumerate(example.rows):
            if (latest := max(row.policy_versions, default=-1)) > policy.step:
                at = f"{where}.rows.{r}.policy_versions"
                raise BadRequestError(
                    f"{at}: version {latest} is later than the model's latest, {policy.step}.", param=at
                )
        rows = [*example.rows, *(row for part in captured for row in part.rows)]
        untrainable = [sentence for part in captured for sentence in part.untrainable_turns]
        for i, conversation in enumerate(example.conversations):
            rows += await asyncio.to_thread(
                _render, policy.renderer, conversation, f"{where}.conversations.{i}", train_on
            )
        if not rows:
            why = "; ".join(untrainable[:3]) or _why_nothing(example)
            raise BadRequestError(f"{where}: no token to train on. {why}", param=where)
        return rows, untrainable

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


def _why_nothing(example: Example) -> str:
    if example.rollout is None:
        return "Give it a rollout id, turn ids, rows of tokens, or conversations."
    return (
        f"Nothing was sampled in rollout {example.rollout}: let the agent call the rollout's own base_url with its api_key. For what "
        "was sampled elsewhere leave out rollout_id and pass allow_training_without_logprobs=True."
    )


def tell_untrainable(found: Sequence[tuple[str, str]]) -> list[str]:
    """One sentence for each reason why turns were left out.

    Args:
        found: (trajectory, a sentence of ``build_rows``).
    """
    by_reason: dict[str, list[str]] = {}
    for where, sentence in found:
        turn, _, reason = sentence.partition(" cannot be trained: ")
        by_reason.setdefault(reason, []).append(f"{where}, {turn}")
    return [
        f"{len(places)} turns were left out (the first: {places[0]}): {reason}" for reason, places in by_reason.items()
    ]


def _render(renderer: ChatRenderer, conversation: Conversation, where: str, train_on: TrainOn) -> list[TokenRow]:
    """``render_conversation``, with errors that name the conversation."""
    try:
        return render_conversation(renderer, conversation, train_on=train_on)
    except BadRequestError as error:
        param = f"{where}.{error.param}" if error.param else where
        raise BadRequestError(f"{where}: {error.message}", param=param) from error
