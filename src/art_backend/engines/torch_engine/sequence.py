"""One completion on its way through the engine, and the blocks of the KV cache that it holds."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from art_backend.engines.contract import FinishReason, GenerationDelta, Sampling
from art_backend.engines.torch_engine.adapters import Adapter
from art_backend.tokens.grammar.vocabulary import Guide

Delivery = Callable[[GenerationDelta | Exception], None]

BLOCK_SIZE = 16
"""Tokens per block."""

Key = tuple[int, ...]


class Block:
    """``BLOCK_SIZE`` token slots of the KV pool. ``index`` is their place; the root of a tree has none (-1)."""

    __slots__ = ("children", "filled", "filled_in", "holders", "index", "key", "parent", "writer")

    def __init__(self, index: int) -> None:
        self.index = index
        self.key: Key | None = None
        """Its tokens, once it is in a tree."""
        self.parent: Block | None = None
        self.children: dict[Key, Block] = {}
        self.holders = 0
        self.filled = 0
        """How many of its slots hold keys and values, once the step being planned is done."""
        self.filled_in = 0
        """The step that last wrote into it."""
        self.writer: Sequence | None = None
        """The sequence that fills it, while it is shared but not full."""


@dataclass(eq=False, slots=True)
class Sequence:
    """A prompt, what was sampled after it, and where its keys and values are.

    Invariant: keys and values of ``tokens[:num_computed]`` are in ``blocks``, or are written in the step being planned.
    """

    tokens: list[int]
    """Prompt, then sampled tokens."""
    sampling: Sampling
    adapter: Adapter | None
    """``None`` samples from the base model."""
    max_length: int
    """Prompt plus completion do not grow beyond this."""
    stream: bool
    """Whether each token is delivered at once, or all together at the end."""
    deliver: Delivery
    """Called in the server's thread with new tokens, or with the error that ended the sequence."""
    guide: Guide | None = None
    """Of a completion that must have a structure: which tokens may come next."""
    prompt_length: int = field(init=False)
    randomness: random.Random = field(init=False)
    """Of this sequence alone, so that a seeded completion does not depend on what runs beside it."""
    blocks: list[Block] = field(default_factory=list)
    num_computed: int = 0
    num_sealed: int = 0
    """The first ``num_sealed`` blocks are in the prefix tree, where other sequences find them."""
    unsent: GenerationDelta = field(default_factory=lambda: GenerationDelta([], [], []))
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)
        self.randomness = random.Random(self.sampling.seed)

    @property
    def adapter_id(self) -> int:
        """Which prefix tree it belongs to; 0 is the base model's."""
        return self.adapter.id if self.adapter else 0

    @property
    def num_sampled(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def num_pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.num_computed

    def append(self, token: int, logprob: float, top_logprobs: list[tuple[int, float]]) -> None:
        """Add one sampled token, and finish if it is the last."""
        if self.guide is not None:
            self.guide.accept(token)
        self.tokens.append(token)
        self.unsent.token_ids.append(token)
        self.unsent.logprobs.append(logprob)
        self.unsent.top_logprobs.append(top_logprobs)
        if token in (self.guide.stop_token_ids if self.guide else self.sampling.stop_token_ids):
            self.finish_reason = "stop"
        elif self.num_sampled >= self.sampling.max_tokens or len(self.tokens) >= self.max_length:
            self.finish_reason = "length"

    def take_unsent(self) -> GenerationDelta:
        """What has been sampled since the last call."""
        delta = self.unsent
        delta.finish_reason = self.finish_reason
        self.unsent = GenerationDelta([], [], [])
        return delta


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``start`` to ``end`` of one sequence, computed in one step."""

    sequence: Sequence
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start

    @property
    def samples(self) -> bool:
        """Whether the step yields the sequence's next token."""
        return self.end == len(self.sequence.tokens)

    def place(self, position: int) -> int:
        """Token slot of the KV pool for a position of the sequence."""
        return self.sequence.blocks[position // BLOCK_SIZE].index * BLOCK_SIZE + position % BLOCK_SIZE
