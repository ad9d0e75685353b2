"""The message tree of one rollout: what was served, which prompt each turn was sampled from, and which turn each prompt extends.

A tree alternates two kinds of node. A ``Prompt`` holds the ids that new messages added; a ``Turn`` holds the ids that the
model sampled from it. Invariants, all enforced in ``commit``:

- The ids along a path, prompt, turn, prompt, turn …, are those that the engine was fed plus those that it sampled, in order.
- A node stores only the ids that it adds. Nodes never change once committed.
- A turn has one log-probability per id.

Messages are matched by *content*: a chain of digests over everything that came before (tools included) names a place in a
conversation. Ids are matched by being on the path. Two turns with the same words are two turns; a conversation that goes on
from those words extends the later one, and its ids are exact either way.
"""

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from art_backend.gateway.render import ChatRenderer, Message
from art_backend.inference.contract import Generation

Digest = bytes


@dataclass(slots=True, eq=False)
class Prompt:
    """The ids that messages of others added: after ``parent``, or from the beginning."""

    id: str
    parent: "Turn | None"
    digest: Digest
    """Place in the conversation after the last message of this prompt."""
    ids: list[int]

    def path_ids(self) -> list[int]:
        """All ids up to here: what the engine is fed."""
        return [*(self.parent.path_ids() if self.parent else []), *self.ids]


@dataclass(slots=True, eq=False)
class Turn:
    """One completion, sampled from ``prompt``."""

    id: str
    prompt: Prompt
    digest: Digest
    """Place in the conversation after this turn's message."""
    ids: list[int]
    logprobs: list[float]
    policy_version: int
    temperature: float
    untrainable: str | None
    """Why this turn cannot be trained; ``None`` if it can."""
    message: Message
    """The assistant's message as the agent saw it."""
    finish_reason: str

    def path_ids(self) -> list[int]:
        return [*self.prompt.path_ids(), *self.ids]

    def ancestors(self) -> list["Turn"]:
        """Turns on the path to this one, oldest first, this one last."""
        parent = self.prompt.parent
        return [*(parent.ancestors() if parent else []), self]


@dataclass(slots=True)
class Tree:
    """All prompts and turns of one rollout."""

    turns: dict[str, Turn] = field(default_factory=dict[str, Turn])
    _prompts: dict[Digest, Prompt] = field(default_factory=dict[Digest, Prompt])
    _ends: dict[Digest, Turn] = field(default_factory=dict[Digest, Turn])

    def place(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, renderer: ChatRenderer
    ) -> Prompt:
        """Find or make the prompt of ``messages``. It joins the tree with its first turn.

        The longest known beginning of the conversation is extended; where that is not possible a new one begins.
        """
        chain = digest_chain(messages, tools)
        if known := self._prompts.get(chain[-1]):
            return known
        for known_messages in range(len(messages) - 1, 0, -1):
            turn = self._ends.get(chain[known_messages])
            if turn is None:
                continue
            extension = renderer.bridge(turn.path_ids(), messages[known_messages:], tools)
            if extension is not None:
                return Prompt(_new_id("p"), turn, chain[-1], extension)
            break
        return Prompt(_new_id("p"), None, chain[-1], renderer.render(messages, tools))

    def known_length(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> int:
        """How many of the first messages this tree has seen."""
        chain = digest_chain(messages, tools)
        if chain[-1] in self._prompts:
            return len(messages)
        return next((n for n in range(len(messages) - 1, 0, -1) if chain[n] in self._ends), 0)

    def commit(
        self,
        prompt: Prompt,
        generation: Generation,
        message: Message,
        *,
        policy_version: int,
        temperature: float,
        untrainable: str | None,
    ) -> Turn:
        """Add a sampled turn (and its prompt, if it is new) to the tree."""
        if len(generation.token_ids) != len(generation.logprobs):
            raise AssertionError("the engine reported another number of log-probabilities than of ids")
        prompt = self._prompts.setdefault(prompt.digest, prompt)
        turn = Turn(
            id=_new_id("t"),
            prompt=prompt,
            digest=extend_digest(prompt.digest, message),
            ids=generation.token_ids,
            logprobs=generation.logprobs,
            policy_version=policy_version,
            temperature=temperature,
            untrainable=untrainable,
            message=message,
            finish_reason=generation.finish_reason,
        )
        self.add(turn)
        return turn

    def add(self, turn: Turn) -> None:
        """Put a turn in its place; also used when a tree is read back from disk."""
        self._prompts.setdefault(turn.prompt.digest, turn.prompt)
        self.turns[turn.id] = turn
        self._ends[turn.digest] = turn


def digest_chain(messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> list[Digest]:
    """Digests of the conversation before its first message and after each: [len(messages) + 1]."""
    chain = [hashlib.blake2b(_canonical(tools or []), digest_size=16).digest()]
    for message in messages:
        chain.append(extend_digest(chain[-1], message))
    return chain


def extend_digest(digest: Digest, message: Message) -> Digest:
    """Digest of the conversation after one more message.

    Of an assistant's message with tool calls only the calls' ids count: frameworks re-serialise arguments and drop the words
    beside a call, but bring ids back unchanged. Reasoning never counts.
    """
    calls = [call["id"] for call in message.get("tool_calls") or []]
    what = (
        {"role": message["role"], "calls": calls} if calls else {"role": message["role"], "content": message["content"]}
    )
    if message.get("tool_call_id"):
        what["tool_call_id"] = message["tool_call_id"]
    return hashlib.blake2b(digest + _canonical(what), digest_size=16).digest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:20]}"
