"""Prefix-tree packing: tokens that rows share are stored, and computed, once.

Sorted by their ids, rows with a common prefix stand side by side, and what each adds to the row before it is a branch of
their prefix tree. Laid end to end, these branches are the tree in depth-first order, in which a token's descendants are the
contiguous range that follows it. So one array, ``ends``, says who attends to whom::

    q attends to k   ⇔   k ≤ q < ends[k]

The log-probability of a token is read at its parent in the tree. Several rows may train the same token, each with its own
advantage; a target is therefore (parent position, token) plus the row's own numbers. What stands in a row from its last
trained token on predicts nothing, and is not stored.

Sorting spans all groups: a prompt that groups share is stored once per pack, too. Packs are cut where the least has to be
repeated; a row is never cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Objects = NDArray[np.object_]

PACK_OVERHEAD_TOKENS = 64
"""Cost of one more pack, in tokens: packs are not cut to save less than this."""


@dataclass(slots=True)
class TrainingRow:
    """One row, ready to be packed. Arrays are [length]."""

    token_ids: Ints
    trained: NDArray[np.bool_]
    """Never true at index 0: the first token has nothing to be predicted from."""
    logprobs: Floats
    """The engine's, at trained tokens; NaN where they are not known."""
    temperature: float
    advantage: float
    weight: float
    """Weight of each trained token in the step's loss: 1 / denominator."""
    masks: Objects | None = None
    """Packed bits of what could have been sampled, at tokens sampled under a structure; elsewhere ``None``."""


@dataclass(slots=True)
class Branch:
    """Tokens that one row adds to the tree: positions ``start`` to ``stop`` of the pack."""

    start: int
    stop: int
    ancestors: Ints
    """Packed positions of everything before ``start`` on the row's path, in order."""


@dataclass(slots=True)
class Targets:
    """The trained tokens of a pack. All arrays are [N]."""

    parents: Ints
    """Packed position whose output predicts the token."""
    token_ids: Ints
    engine_logprobs: Floats
    temperatures: Floats
    advantages: Floats
    weights: Floats
    rows: Ints
    """Index of the row in the list that was packed."""
    masks: Objects
    """Packed bits of the tokens among which it was sampled; ``None``: all."""


@dataclass(slots=True)
class Pack:
    """Rows merged into one sequence of T tokens."""

    token_ids: Ints
    """[T]"""
    depths: Ints
    """[T]; distance from the root, which is the position id."""
    ends: Ints
    """[T]; one past the last descendant of each token."""
    branches: list[Branch]
    targets: Targets
    row_tokens: int
    """Tokens of the rows before merging, whole."""

    @property
    def size(self) -> int:
        return int(self.token_ids.size)


def pack_rows(rows: Sequence[TrainingRow], budget: int, *, share: bool = True) -> list[Pack]:
    """Merge rows into packs of at most ``budget`` tokens; a single longer row gets its own pack.

    Rows without a trained token are left out. Without ``share``, every row is its own pack.

    The result depends on the rows, not on their order, except for ``Targets.rows``.
    """
    context = {i: row.token_ids[: _last_trained(row)] for i, row in enumerate(rows) if row.trained.any()}
    keys = {i: ids.tolist() for i, ids in context.items()}
    # Equal ids are ordered by content too, so that the sum over a pack does not depend on the order of arrival.
    order = sorted(context, key=lambda i: (keys[i], _content(rows[i])))
    shared = [0] + [common_prefix(context[a], context[b]) for a, b in pairwise(order)]
    lengths = [context[i].size for i in order]
    return [
        _merge([(i, rows[i], context[i]) for i in order[start:stop]], shared[start:stop])
        for start, stop in (_cut(lengths, shared, budget) if share else ((i, i + 1) for i in range(len(order))))
    ]


def plain_pack(token_ids: Ints) -> Pack:
    """One sequence without targets."""
    nothing, none, objects = np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.object_)
    return Pack(
        token_ids=token_ids,
        depths=np.arange(token_ids.size, dtype=np.int64),
        ends=np.full(token_ids.size, token_ids.size, np.int64),
        branches=[Branch(0, token_ids.size, nothing)],
        targets=Targets(nothing, nothing, none, none, none, none, nothing, objects),
        row_tokens=token_ids.size,
    )


def _last_trained(row: TrainingRow) -> int:
    return int(np.flatnonzero(row.trained)[-1])


def _content(row: TrainingRow) -> tuple[object, ...]:
    return (
        row.advantage,
        row.temperature,
        row.token_ids.tolist(),
        row.trained.tolist(),
        np.nan_to_num(row.logprobs).tolist(),
    )


def common_prefix(a: Ints, b: Ints) -> int:
    """Length of the longest common prefix."""
    n = min(a.size, b.size)
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if different.size else n


def _cut(lengths: Sequence[int], shared: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Cut sorted rows into consecutive packs with the fewest stored tokens in all, by dynamic programming.

    A pack that starts at row i repeats the ``shared[i]`` tokens that row i has in common with its predecessor.
    """
    n = len(lengths)
    best = [0.0] * (n + 1)
    previous = [0] * (n + 1)
    for stop in range(1, n + 1):
        best[stop] = float("inf")
        size = 0
        for start in range(stop - 1, -1, -1):
            # Size of the pack of rows start … stop−1, extended to the left one row at a time.
            size += lengths[start] - (shared[start + 1] if start + 1 < stop else 0)
            if size > budget and start < stop - 1:
                break
            cost = best[start] + size + PACK_OVERHEAD_TOKENS
            if cost < best[stop]:
                best[stop], previous[stop] = cost, start
    cuts: list[tuple[int, int]] = []
    stop = n
    while stop > 0:
        cuts.append((previous[stop], stop))
        stop = previous[stop]
    return cuts[::-1]


def _merge(rows: Sequence[tuple[int, TrainingRow, Ints]], shared: Sequence[int]) -> Pack:
    """Lay the branches of sorted rows end to end.

    Args:
        rows: (index, row, its context: the tokens to store).
        shared: What each has in common with its predecessor. The first is ignored: a pack starts with a whole row.
    """
    size = 0
    path: Ints = np.empty(0, np.int64)
    pieces: list[Ints] = []
    depths: list[Ints] = []
    branches: list[Branch] = []
    targets: list[tuple[Ints | Floats | Objects, ...]] = []
    ends = np.zeros(sum(context.size for _, _, context in rows), np.int64)
    for nth, (index, row, context) in enumerate(rows):
        stem = path[: shared[nth] if nth else 0]
        added = context.size - stem.size
        path = stem
        if added:
            branches.append(Branch(size, size + added, stem))
            pieces.append(context[stem.size :])
            depths.append(np.arange(stem.size, context.size, dtype=np.int64))
            path = np.concatenate([stem, np.arange(size, size + added, dtype=np.int64)])
            size += added
        ends[path] = size
        targets.append(_targets(row, path, index))
    columns = [np.concatenate(column) for column in zip(*targets, strict=True)]
    return Pack(
        token_ids=np.concatenate(pieces),
        depths=np.concatenate(depths),
        ends=ends[:size],
        branches=branches,
        targets=Targets(*columns),
        row_tokens=sum(row.token_ids.size for _, row, _ in rows),
    )


def _targets(row: TrainingRow, path: Ints, index: int) -> tuple[Ints | Floats | Objects, ...]:
    at = np.flatnonzero(row.trained)
    return (
        path[at - 1],
        row.token_ids[at],
        row.logprobs[at],
        np.full(at.size, row.temperature),
        np.full(at.size, row.advantage),
        np.full(at.size, row.weight),
        np.full(at.size, index, np.int64),
        np.full(at.size, None, np.object_) if row.masks is None else row.masks[at],
    )
