"""Which tokens the next step computes: continuous batching with chunked prefill.

Decoding sequences come first, one token each; what remains of the token budget goes to prompts in the order of arrival.
A sequence whose prefix is being computed by another waits for it (see ``blocks``).
"""

from collections import deque

from art_backend.engines.torch_engine.blocks import BlockCache, OutOfBlocksError
from art_backend.engines.torch_engine.sequence import BLOCK_SIZE, Chunk, Sequence


class Scheduler:
    """Waiting and running sequences.

    Args:
        max_num_seqs: Most sequences that run at the same time.
        token_budget: Most tokens that one step computes.
    """

    def __init__(self, cache: BlockCache, *, max_num_seqs: int, token_budget: int) -> None:
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.prompt_tokens_computed = 0
        self.preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that is finished or no longer wanted. Its computed prefix stays cached."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.cache.detach(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def plan(self) -> tuple[list[Chunk], list[tuple[int, int]]]:
        """Choose the chunks of the next step.

        Returns:
            The chunks, and block copies ``(from, to)`` to make before computing them.
        """
        self.cache.step += 1
        chunks: list[Chunk] = []
        budget = self.token_budget
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):
            if not budget:
                return chunks, []
            if sequence.blocks and self._reserve(sequence, chunks):
                budget -= self._plan_chunk(sequence, budget, chunks)
        copies: list[tuple[int, int]] = []
        while budget and self.waiting and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            try:
                copies += self.cache.attach(sequence)
            except OutOfBlocksError:
                break
            self.running.append(self.waiting.popleft())
            budget -= self._plan_chunk(sequence, budget, chunks)
        return chunks, copies

    def _plan_chunk(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """Plan as much of ``sequence`` as ``budget`` allows and its prefix is ready for; return how many tokens."""
        self._skip_computed(sequence)
        start = end = sequence.num_computed
        limit = min(len(sequence.tokens), start + budget)
        while end < limit:
            position = end // BLOCK_SIZE
            block = sequence.blocks[position]
            if position < sequence.num_sealed:
                if block.writer is None:
                    block.writer = sequence
                elif block.writer is not sequence:
                    break
            end = min(limit, (position + 1) * BLOCK_SIZE)
            block.filled = max(block.filled, end - position * BLOCK_SIZE)
            block.filled_in = self.cache.step
            if block.filled == BLOCK_SIZE:
                block.writer = None
        if end > start:
            chunks.append(Chunk(sequence, start, end))
            sequence.num_computed = end
            self.prompt_tokens_computed += max(0, min(end, sequence.prompt_length) - start)
        return end - start

    @staticmethod
    def _skip_computed(sequence: Sequence) -> None:
        """Move past shared blocks that somebody else has computed meanwhile."""
        while (
            (position := sequence.num_computed // BLOCK_SIZE) < sequence.num_sealed
            and sequence.blocks[position].filled == BLOCK_SIZE
            and (position + 1) * BLOCK_SIZE < len(sequence.tokens)
        ):
            sequence.num_computed = (position + 1) * BLOCK_SIZE

    def _reserve(self, sequence: Sequence, chunks: list[Chunk]) -> bool:
        """Make sure that ``sequence`` has blocks for all its tokens, taking them from younger sequences if need be."""
        while len(sequence.blocks) * BLOCK_SIZE < len(sequence.tokens):
            try:
                self.cache.extend(sequence)
            except OutOfBlocksError:
                planned = {chunk.sequence for chunk in chunks}
                victim = next(s for s in reversed(self.running) if s not in planned)
                self._preempt(victim)
                if victim is sequence:
                    return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Send the sequence back to the queue; it is computed again, from what is still cached, when there is room."""
        self.preemptions += 1
        self.remove(sequence)
        self.waiting.appendleft(sequence)
