"""What the KV cache holds: fixed-size blocks in prefix trees, one tree per adapter version.

Invariants:

- A block in a tree stands for its own tokens *after all tokens of its ancestors*, under one adapter version.
- Whoever holds a block holds all its ancestors. A block is only evicted when nobody holds it; since holders let go of
  their last block first, the least recently released block never has children.
- A full prompt block enters the tree before its keys and values are computed, with the sequence that will compute it as
  ``writer``. Others share it at once and wait for it instead of computing it again.
- Nobody writes into a block that somebody else can read. A partly filled block is copied, or taken over when it is free.
"""

from collections import OrderedDict

from art_backend.engines.torch_engine.sequence import BLOCK_SIZE, Block, Key, Sequence


class OutOfBlocksError(RuntimeError):
    """Every block is held by a running sequence."""


class BlockCache:
    """Hands out blocks, shares prefixes, evicts what was not used for longest.

    Args:
        num_blocks: Size of the KV pool, in blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.step = 0
        """Number of the step being planned."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[Block, None] = OrderedDict()
        self._roots: dict[int, Block] = {}

    @property
    def num_available(self) -> int:
        """Blocks that are free or can be evicted."""
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        """Unheld blocks, kept for later prompts."""
        return len(self._idle)

    def root(self, adapter_id: int) -> Block:
        """The root of the tree of one adapter version."""
        if adapter_id not in self._roots:
            self._roots[adapter_id] = Block(-1)
        return self._roots[adapter_id]

    def attach(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Give ``sequence`` blocks for all its tokens, sharing what the tree already has.

        Sets ``blocks``, ``num_computed``, ``num_sealed``. At least the last token is left to compute.

        Returns:
            Copies ``(from, to)`` of block contents that must happen before the next forward pass.

        Raises:
            OutOfBlocksError: Not enough blocks; the sequence is unchanged.
        """
        tokens = sequence.tokens
        reusable = len(tokens) - 1
        parent = self.root(sequence.adapter_id)
        shared: list[Block] = []
        while (end := (len(shared) + 1) * BLOCK_SIZE) <= reusable:
            child = parent.children.get(tuple(tokens[end - BLOCK_SIZE : end]))
            if child is None:
                break
            shared.append(child)
            parent = child
        for block in shared:
            self._hold(block)
        start = len(shared) * BLOCK_SIZE
        donor, overlap = self._find_donor(parent, tokens[start : min(start + BLOCK_SIZE, reusable)])
        if donor is not None:
            self._hold(donor)
        takes_over = donor is not None and donor.holders == 1 and len(donor.key or ()) == overlap
        needed = -(-len(tokens) // BLOCK_SIZE) - len(shared) - takes_over
        if needed > self.num_available:
            for block in reversed(shared if donor is None else [*shared, donor]):
                self._let_go(block)
            raise OutOfBlocksError
        own = [self._allocate() for _ in range(needed)]
        copies: list[tuple[int, int]] = []
        if donor is not None:
            if takes_over:
                self._unlink(donor)
                own.insert(0, donor)
            else:
                copies.append((donor.index, own[0].index))
                self._let_go(donor)
            own[0].filled = overlap
        sequence.blocks = shared + own
        sequence.num_sealed = len(shared)
        filled = sum(block.filled == BLOCK_SIZE for block in shared)
        sequence.num_computed = filled * BLOCK_SIZE + (overlap if filled == len(shared) else 0)
        self.seal(sequence)
        return copies

    def extend(self, sequence: Sequence) -> None:
        """Add one block. Raises ``OutOfBlocksError`` when every block is held."""
        sequence.blocks.append(self._allocate())

    def seal(self, sequence: Sequence) -> None:
        """Put those blocks of ``sequence`` in the tree whose tokens are all known.

        Where the tree has an equal block already, the sequence takes that one and gives its own back, as soon as both
        are computed.
        """
        while (end := (sequence.num_sealed + 1) * BLOCK_SIZE) <= len(sequence.tokens):
            position = sequence.num_sealed
            block = sequence.blocks[position]
            parent = sequence.blocks[position - 1] if position else self.root(sequence.adapter_id)
            key = tuple(sequence.tokens[end - BLOCK_SIZE : end])
            twin = parent.children.get(key)
            if twin is None:
                self._link(block, parent, key)
                if block.filled < BLOCK_SIZE:
                    block.writer = sequence
            elif twin.filled == BLOCK_SIZE and block.filled == BLOCK_SIZE:
                self._hold(twin)
                sequence.blocks[position] = twin
                self._let_go(block)
            else:
                return
            sequence.num_sealed += 1

    def detach(self, sequence: Sequence) -> None:
        """Take all blocks from ``sequence``. What it computed stays in the tree until the room is needed."""
        sealed = sequence.num_sealed
        key = tuple(sequence.tokens[sealed * BLOCK_SIZE : sequence.num_computed][:BLOCK_SIZE])
        if key:
            parent = sequence.blocks[sealed - 1] if sealed else self.root(sequence.adapter_id)
            if key not in parent.children:
                self._link(sequence.blocks[sealed], parent, key)
                sequence.blocks[sealed].filled = len(key)
        for block in reversed(sequence.blocks):
            if block.writer is sequence:
                block.writer = None
            self._let_go(block)
        sequence.blocks = []
        sequence.num_computed = sequence.num_sealed = 0

    def forget(self, adapter_id: int | None = None) -> None:
        """Free every unheld block, of one adapter version or of all."""
        wanted = None if adapter_id is None else self._roots.get(adapter_id)
        for block in list(self._idle):
            if adapter_id is None or _root_of(block) is wanted:
                del self._idle[block]
                self._unlink(block)
                self._free.append(block.index)
        if wanted is not None and not wanted.children:
            del self._roots[adapter_id or 0]

    def _find_donor(self, parent: Block, tokens: list[int]) -> tuple[Block | None, int]:
        """The child of ``parent`` whose tokens share the longest prefix with ``tokens``, and its length.

        What the step being planned will write cannot be copied yet: copies happen before it.
        """
        best, length = None, 0
        for key, child in parent.children.items():
            if child.filled_in == self.step:
                continue
            overlap = 0
            for mine, theirs in zip(tokens, key[: child.filled], strict=False):
                if mine != theirs:
                    break
                overlap += 1
            if overlap > length:
                best, length = child, overlap
        return best, length

    def _allocate(self) -> Block:
        if not self._free:
            if not self._idle:
                raise OutOfBlocksError
            oldest, _ = self._idle.popitem(last=False)
            self._unlink(oldest)
            self._free.append(oldest.index)
        block = Block(self._free.pop())
        block.holders = 1
        return block

    def _hold(self, block: Block) -> None:
        if not block.holders:
            del self._idle[block]
        block.holders += 1

    def _let_go(self, block: Block) -> None:
        block.holders -= 1
        if block.holders:
            return
        if block.parent is None or block.filled < len(block.key or ()):
            # outside any tree, or promised but never computed: of no use to anyone
            self._unlink(block)
            self._free.append(block.index)
        else:
            self._idle[block] = None

    @staticmethod
    def _link(block: Block, parent: Block, key: Key) -> None:
        block.parent = parent
        block.key = key
        parent.children[key] = block

    @staticmethod
    def _unlink(block: Block) -> None:
        if block.parent is not None and block.key is not None:
            del block.parent.children[block.key]
        block.parent = block.key = None


def _root_of(block: Block) -> Block:
    while block.parent is not None:
        block = block.parent
    return block
