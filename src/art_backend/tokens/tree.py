"""The message tree of one rollout: what was served, and which turn each prompt extends.

Two kinds of node alternate. A ``Prompt`` holds the ids that messages of others added; a ``Turn`` holds the ids that the
model sampled from it. Invariants, all enforced in ``Tree.commit``:

- The ids along a path are those that the engine was fed plus those that it sampled, in order.
- A node stores only the ids that it adds, and never changes once committed.
- A turn has one log-probability per id.

A prompt that extends its parent turn keeps all ids before it. Where that is not possible (the template rewrites what came
before) the prompt is rendered afresh and keeps only the ids that are the same from the beginning: the tree forks there.

Messages are matched by *content*: a chain of digests over everything that came before, tools and template arguments included,
names a place in a conversation. Frameworks rewrite what they got, so a message may be a turn although it differs from it; but
only where that is proven (see ``Tree._recognise``):

- Its calls have ids that were issued here. Then words and reasoning may be missing and arguments may be spelled in another way.
- It comes without the turn's reasoning, in a tree that one agent has to itself or after a call that was issued here.

Whatever says something else than the turn did is another message, and is fed as it stands. Two turns with the same content are
two turns; a conversation that goes on from it extends the later one, and its ids are exact either way.
"""

import hashlib
import secrets
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from art_backend.tokens.likeness import common_length, says_nothing_else, thinks_nothing_else, without_reasoning
from art_backend.tokens.render import ChatRenderer, Message, Tools
from art_backend.tokens.setting import Setting, Toolset

Digest = bytes


@dataclass(frozen=True, slots=True)
class PlainText:
    """A prompt that was written as a whole: text, or ids."""

    kind: bytes
    content: bytes
    """UTF-8, or the ids as 32-bit integers."""
    tokenise: Callable[[str, bool], list[int]]
    """Text to ids; the second argument says whether it is the beginning."""

    @property
    def is_ids(self) -> bool:
        return self.kind == b"ids"

    def shown_from(self, start: int) -> Any:
        """The text, or the ids, from byte ``start`` on, as they are stored for people to read."""
        return array("i", self.content[start:]).tolist() if self.is_ids else self.content[start:].decode()

    def encode(self, start: int) -> list[int]:
        """Ids of the content from byte ``start`` on."""
        shown = self.shown_from(start)
        return shown if self.is_ids else self.tokenise(shown, start == 0)

    def extended(self, ids: Sequence[int], text: str) -> tuple[bytes, int]:
        """The place after a completion, and the bytes up to there."""
        content = self.content + (array("i", ids).tobytes() if self.is_ids else text.encode())
        return hashlib.blake2b(self.kind + content, digest_size=16).digest(), len(content)


@dataclass(slots=True, eq=False)
class Prompt:
    """The ids that messages of others added: after ``parent``, or from the beginning."""

    id: str
    parent: "Turn | None"
    """The last turn that the messages before are known to end with."""
    keep: int
    """How many ids of the parent's path stand before ``ids``; all of them unless the tree forks here."""
    ids: "array[int]"
    digest: Digest
    """Place in the conversation after the last message."""
    messages: list[Message]
    """The messages since the parent's turn."""
    tools: list[dict[str, Any]] | None = None
    """Where the conversation begins: the tools that it began with."""
    setting: Setting | None = None
    """Where the conversation begins: what it is rendered with."""

    @property
    def length(self) -> int:
        """Number of ids on the path, these included."""
        return self.keep + len(self.ids)

    def path_ids(self) -> "array[int]":
        """All ids up to here: what the engine is fed."""
        pieces = [self.ids]
        keep, turn = self.keep, self.parent
        while turn is not None and keep > 0:
            prompt = turn.prompt
            if keep > prompt.length:
                pieces.append(turn.ids[: keep - prompt.length])
            if keep > prompt.keep:
                pieces.append(prompt.ids[: keep - prompt.keep])
            keep, turn = min(keep, prompt.keep), prompt.parent
        path = array("i")
        for piece in reversed(pieces):
            path.extend(piece)
        return path


@dataclass(slots=True, eq=False)
class Turn:
    """One completion, sampled from ``prompt``."""

    id: str
    prompt: Prompt
    ids: "array[int]"
    logprobs: "array[float]"
    digest: Digest
    """Place in the conversation after this turn's message."""
    message: Message
    """The assistant's message as the agent saw it."""
    policy_version: int
    sampling: dict[str, Any]
    """The settings that it was sampled with; ``temperature`` among them."""
    untrainable: str | None
    """Why this turn cannot be trained; ``None`` if it can."""
    finish_reason: str

    @property
    def temperature(self) -> float:
        return self.sampling["temperature"]

    @property
    def length(self) -> int:
        """Number of ids on the path, these included."""
        return self.prompt.length + len(self.ids)

    def path_ids(self) -> "array[int]":
        return self.prompt.path_ids() + self.ids

    def setting(self) -> Setting:
        """The setting that this conversation is rendered with."""
        prompt = self.prompt
        while prompt.parent is not None:
            prompt = prompt.parent.prompt
        return prompt.setting or Setting()

    def path_messages(self) -> list[Message]:
        """The conversation up to here, this turn's message included."""
        pieces: list[list[Message]] = []
        turn: Turn | None = self
        while turn is not None:
            pieces.append([*turn.prompt.messages, turn.message])
            turn = turn.prompt.parent
        return [message for piece in reversed(pieces) for message in piece]

    def ancestors(self) -> "list[Turn]":
        """Turns whose ids stand whole on the path to this one, oldest first, this one last."""
        path: list[Turn] = [self]
        keep, turn = self.prompt.keep, self.prompt.parent
        while turn is not None:
            if keep >= turn.length:
                path.append(turn)
            keep, turn = min(keep, turn.prompt.keep), turn.prompt.parent
        path.reverse()
        return path


@dataclass(slots=True)
class Sampled:
    """What an engine made of a prompt, and what the agent gets to see of it."""

    ids: "array[int]"
    logprobs: "array[float]"
    message: Message
    policy_version: int
    sampling: dict[str, Any]
    untrainable: str | None
    finish_reason: str
    id: str
    digest: Digest | None = None
    """Place after it, where the message alone does not determine it."""


@dataclass(eq=False)
class Tree:
    """All prompts and turns of one rollout."""

    shared: bool = False
    """Whether the conversations in it are those of several agents, which must not see each other's reasoning."""
    turns: dict[str, Turn] = field(default_factory=dict[str, Turn])
    prompts: dict[str, Prompt] = field(default_factory=dict[str, Prompt])
    size: int = 0
    """Number of ids stored."""
    _by_place: dict[Digest, Prompt] = field(default_factory=dict[Digest, Prompt])
    _ends: dict[Digest, Turn] = field(default_factory=dict[Digest, Turn])
    _calls: dict[Digest, Turn] = field(default_factory=dict[Digest, Turn])
    """Turns by the place before them and the ids of their calls."""
    _words: dict[Digest, Turn] = field(default_factory=dict[Digest, Turn])
    """First turns by the place before them and what they said, reasoning left out."""
    _text_ends: set[int] = field(default_factory=set[int])
    """Bytes after which turns of prompts without messages end."""

    def place(
        self,
        messages: Sequence[Message],
        tools: Tools | None,
        renderer: ChatRenderer,
        arguments: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Find or make the prompt of ``messages``. A new one joins the tree with its first turn.

        The longest known beginning of the conversation is extended; where that is not possible the tree forks.

        Args:
            arguments: Of the chat template; a conversation with others is another conversation.

        Raises:
            BadRequestError: The chat template refuses the messages.
        """
        chain = self.walk(messages, tools, arguments)
        known = self._by_place.get(chain[-1])
        if known is not None and (known.parent is not None or not renderer.varies):
            return known
        at = self._known(chain)
        added = list(messages[at:])
        if not at:
            setting = Setting(dict(arguments or {}))
            ids = array("i", renderer.render(messages, tools, setting))
            if known is not None and known.ids == ids:
                return known
            return Prompt(new_id("p"), None, 0, ids, chain[-1], added, list(tools) if tools else None, setting)
        turn = self._ends[chain[at]]
        setting = turn.setting()
        extension = renderer.bridge(turn.prompt.path_ids(), turn.ids, added, tools, setting, messages[:at])
        if extension is not None:
            return Prompt(new_id("p"), turn, turn.length, array("i", extension), chain[-1], added)
        ids = array("i", renderer.render(messages, tools, setting))
        keep = common_length(turn.path_ids(), ids)
        return Prompt(new_id("p"), turn, keep, ids[keep:], chain[-1], added)

    def begin(self, prompt: Prompt, text: str, ids: Sequence[int]) -> Prompt:
        """Find or make the prompt that goes on from ``prompt`` into an answer that the caller begins with ``text``."""
        place = _digest(prompt.digest, ["begun", text])
        if known := self._by_place.get(place):
            return known
        return replace(prompt, id=new_id("p"), ids=prompt.ids + array("i", ids), digest=place)

    def place_text(self, text: PlainText) -> Prompt:
        """Find or make the prompt of a text, or of ids, that the caller wrote as a whole.

        The longest beginning that was served before is extended. An id without text that ended it, such as the end of a
        turn, is left behind where the caller's text does not have it.
        """
        ends, whole = self._walk_text(text)
        if known := self._by_place.get(whole):
            return known
        added = [{"role": "text", "content": text.shown_from(0)}]
        if not ends:
            return Prompt(new_id("p"), None, 0, array("i", text.encode(0)), whole, added)
        end, turn = ends[-1]
        ids = array("i", text.encode(end))
        silent = turn.ids[len(turn.ids) - turn.message["silent"] :]
        keep = turn.length - len(silent)
        if silent and text.is_ids and ids[: len(silent)] == silent:
            keep, ids = turn.length, ids[len(silent) :]
        added = [{"role": "text", "content": text.shown_from(end)}]
        return Prompt(new_id("p"), turn, keep, ids, whole, added)

    def known_text(self, text: PlainText) -> int:
        """Bytes of the text up to the end of the last turn in it that was sampled here; 0 if none was."""
        ends, _ = self._walk_text(text)
        return ends[-1][0] if ends else 0

    def _walk_text(self, text: PlainText) -> tuple[list[tuple[int, Turn]], Digest]:
        """Turns that end within a text, by the bytes before their end, and the place at its end."""
        state = hashlib.blake2b(text.kind, digest_size=16)
        done, ends = 0, list[tuple[int, Turn]]()
        known = self._text_ends.copy()  # at once: another thread may commit meanwhile
        for end in sorted(end for end in known if end <= len(text.content)):
            state.update(text.content[done:end])
            done = end
            if turn := self._ends.get(state.digest()):
                ends.append((end, turn))
        state.update(text.content[done:])
        return ends, state.digest()

    def known_messages(
        self, messages: Sequence[Message], tools: Tools | None, arguments: Mapping[str, Any] | None = None
    ) -> int:
        """How many messages there are up to the last that is known to have been sampled here; 0 if none was."""
        return self._known(self.walk(messages, tools, arguments))

    def commit(
        self,
        prompt: Prompt,
        fed: "array[int]",
        completions: Sequence[Sampled],
        store: Callable[[Sequence[Turn]], None],
    ) -> list[Turn]:
        """Add what was sampled from ``prompt`` to the tree, and enforce its invariants.

        Args:
            fed: The ids that the engine was fed.
            store: Makes the turns durable. If it raises, the tree is unchanged.
        """
        if prompt.path_ids() != fed:
            raise AssertionError("the prompt's path is not what the engine was fed")
        if any(len(sampled.ids) != len(sampled.logprobs) for sampled in completions):
            raise AssertionError("the engine reported another number of log-probabilities than of ids")
        known = self._by_place.get(prompt.digest)
        if known is not None and known.parent is prompt.parent and known.path_ids() == fed:
            prompt = known  # a concurrent call of the same messages was first
        turns = [
            Turn(
                id=sampled.id,
                prompt=prompt,
                ids=sampled.ids,
                logprobs=sampled.logprobs,
                digest=sampled.digest or extend_digest(prompt.digest, sampled.message),
                message=sampled.message,
                policy_version=sampled.policy_version,
                sampling=sampled.sampling,
                untrainable=sampled.untrainable,
                finish_reason=sampled.finish_reason,
            )
            for sampled in completions
        ]
        store(turns)
        for turn in turns:
            self.add(turn)
        return turns

    def add(self, turn: Turn) -> None:
        """Put a turn in its place; also used when a tree is read back from disk."""
        prompt = turn.prompt
        if prompt.id not in self.prompts:
            self.prompts[prompt.id] = prompt
            self._by_place[prompt.digest] = prompt
            self.size += len(prompt.ids)
        self.turns[turn.id] = turn
        self.size += len(turn.ids)
        self._ends[turn.digest] = turn
        if "end" in turn.message:
            self._text_ends.add(turn.message["end"])
        if turn.message.get("tool_calls"):
            self._calls[_calls_digest(prompt.digest, turn.message)] = turn
        elif "reasoning_content" in turn.message:
            self._words.setdefault(extend_digest(prompt.digest, without_reasoning(turn.message)), turn)

    def walk(
        self, messages: Sequence[Message], tools: Tools | None, arguments: Mapping[str, Any] | None = None
    ) -> list[Digest]:
        """Digests of the conversation before its first message and after each: [len(messages) + 1]."""
        chain = [Toolset.of(tools).digest(arguments)]
        alone = not self.shared
        for message in messages:
            turn = self._recognise(chain[-1], message, alone=alone)
            chain.append(turn.digest if turn else extend_digest(chain[-1], message))
            alone = alone or (turn is not None and "tool_calls" in turn.message)
        return chain

    def _recognise(self, place: Digest, message: Message, *, alone: bool) -> Turn | None:
        """The turn that a message is, although it may differ from it; ``None`` where that is not proven.

        Args:
            alone: Whether the conversation up to ``place`` is known to be this agent's own.
        """
        if message["role"] != "assistant":
            return None
        if message.get("tool_calls"):
            turn = self._calls.get(_calls_digest(place, message))
            return turn if turn is not None and says_nothing_else(message, turn.message) else None
        if extend_digest(place, message) in self._ends:
            return None  # its place is that of a turn anyway
        turn = self._words.get(extend_digest(place, without_reasoning(message)))
        if turn is None or not thinks_nothing_else(message, turn.message):
            return None
        return turn if alone or message.get("reasoning_content") else None

    def _known(self, chain: Sequence[Digest]) -> int:
        return next((n for n in range(len(chain) - 2, 0, -1) if chain[n] in self._ends), 0)


def extend_digest(digest: Digest, message: Message) -> Digest:
    """Digest of the conversation after one more message. What is empty is the same as what is not there."""
    return _digest(digest, {name: value for name, value in message.items() if value})


def _calls_digest(digest: Digest, message: Message) -> Digest:
    return _digest(digest, [call["id"] for call in message["tool_calls"]])


def _digest(before: Digest, what: Any) -> Digest:
    return hashlib.blake2b(before + orjson.dumps(what, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"
