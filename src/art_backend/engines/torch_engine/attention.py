"""Attention of one step over the paged KV cache, as an attention implementation of transformers.

All tokens of a step pass through the model as one row ``[1, N]``. Each layer first stores the keys and values of all of
them, so a sequence can read what another computes in the same step. Then the queries attend in groups of chunks of
similar size: gathered keys, batched matrix products and a softmax per group. On a CPU that is several times faster in
bf16 than the fused operator, which computes in fp32 there. Scores and softmax are float32, as in the trainer.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from art_backend.engines.torch_engine.kv_pool import KvPool, LayerShape
from art_backend.engines.torch_engine.sequence import BLOCK_SIZE, Chunk
from art_backend.models import exact

IMPLEMENTATION = "art_paged"
"""Name under which ``register`` makes this known to transformers."""

MAX_QUERIES = 256
"""Longer chunks attend in pieces: later pieces see more, earlier ones less."""
MAX_KEYS = 8192
"""Keys gathered at once, over a whole group; keeps them in the processor's cache."""


class UnsupportedModelError(ValueError):
    """The model's attention has a feature that this engine does not compute."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries ``row`` to ``row + count`` of the step: positions ``start`` on of a sequence with these blocks."""

    row: int
    start: int
    count: int
    blocks: list[int]

    @property
    def length(self) -> int:
        """Keys that its last query sees."""
        return self.start + self.count


class Group:
    """Pieces that attend together, padded to the longest."""

    def __init__(self, pieces: list[Piece], device: torch.device) -> None:
        self.pieces = pieces
        self.size = len(pieces)
        self.queries = max(piece.count for piece in pieces)
        width = max(len(piece.blocks) for piece in pieces)
        self.keys = width * BLOCK_SIZE
        self.blocks_BM = torch.tensor(
            [piece.blocks + [0] * (width - len(piece.blocks)) for piece in pieces], device=device
        )
        self.device = device
        first = pieces[0].row
        self.rows_BQ: slice | Tensor = slice(first, first + self.size * self.queries)
        """Where the queries are in the step; padding repeats a piece's last query."""
        self.rows_N = self.rows_BQ
        """The same without padding: where the results go."""
        self.real_N: Tensor | None = None
        """Which of the ``B * Q`` results are not padding; ``None`` where all are."""
        if any(piece.count < self.queries for piece in pieces):
            offsets = torch.arange(self.queries, device=device)
            counts = torch.tensor([piece.count for piece in pieces], device=device)[:, None]
            starts = torch.tensor([piece.row for piece in pieces], device=device)[:, None]
            self.rows_BQ = (starts + offsets.minimum(counts - 1)).flatten()
            self.real_N = (offsets < counts).flatten().nonzero()[:, 0]
            self.rows_N = slice(first, first + len(self.real_N))
        self._masks: dict[int | None, tuple[int, Tensor]] = {}

    def mask(self, window: int | None) -> tuple[int, Tensor]:
        """First masked key column ``c``, and an additive float32 mask ``[B, 1, Q, keys - c]``.

        Args:
            window: How many keys before it, itself included, a query sees; ``None`` sees all.
        """
        if window not in self._masks:
            first = 0 if window is not None else min(piece.start for piece in self.pieces)
            starts = torch.tensor([piece.start for piece in self.pieces], device=self.device)[:, None]
            counts = torch.tensor([piece.count for piece in self.pieces], device=self.device)[:, None]
            positions = starts + torch.arange(self.queries, device=self.device).minimum(counts - 1)
            distance = positions[:, :, None] - torch.arange(first, self.keys, device=self.device)
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            mask = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, float("-inf"))
            self._masks[window] = (first, mask[:, None])
        return self._masks[window]


@dataclass(frozen=True, slots=True)
class Attending:
    """What a layer does with its scores."""

    scaling: float
    window: int | None
    """How many keys before it, itself included, a query sees; ``None``: all."""
    softcap: float | None
    """Scores s become ``softcap · tanh(s / softcap)``."""


class AttentionStep:
    """What every layer of one forward pass needs to know of the batch.

    Args:
        chunks: In the order of their rows. Rows after theirs are padding: they attend to nothing and are not stored.
    """

    def __init__(self, chunks: list[Chunk], pool: KvPool) -> None:
        self.pool = pool
        places = [chunk.place(position) for chunk in chunks for position in range(chunk.start, chunk.end)]
        self._places_N = torch.tensor(places, device=pool.device)
        self._groups = [Group(pieces, pool.device) for pieces in _group(_pieces(chunks))]
        self._slots: dict[LayerShape, Tensor] = {}
        self._gather_rows: dict[LayerShape, list[Tensor]] = {}

    def attend(self, layer: int, query_HND: Tensor, key_HND: Tensor, value_HND: Tensor, how: Attending) -> Tensor:
        """Store this step's keys and values, attend over all of each sequence's; return ``[N, heads, head_dim]``."""
        pool, shape = self.pool, self.pool.layers[layer]
        if shape not in self._slots:
            self._slots[shape] = pool.slots(layer, self._places_N)
            self._gather_rows[shape] = [pool.rows(layer, group.blocks_BM) for group in self._groups]
        real = len(self._places_N)
        pool.write(layer, self._slots[shape], key_HND[:, :real], value_HND[:, :real])

        heads, tokens, dim = query_HND.shape
        kv = shape.kv_heads
        query_NHD = query_HND.transpose(0, 1)
        out_NHD = torch.empty(tokens, heads, dim, dtype=query_HND.dtype, device=query_HND.device)
        out_NHD[real:] = 0
        for group, rows in zip(self._groups, self._gather_rows[shape], strict=True):
            B, Q, L = group.size, group.queries, group.keys
            keys, values = pool.gather(layer, rows)
            queries = query_NHD[group.rows_BQ].view(B, Q, kv, heads // kv, dim)
            queries = queries.permute(2, 0, 3, 1, 4).reshape(kv * B, -1, dim)
            first, mask = group.mask(how.window)
            keys, values = keys.view(kv * B, L, dim), values.view(kv * B, L, dim)
            if pool.device.type == "cpu" or how.softcap is not None:
                scores = exact.soft_cap(exact.batched(queries, keys).mul_(how.scaling), how.softcap)
                scores.view(kv, B, -1, Q, L)[..., first:].add_(mask)
                weights = torch.softmax(scores, -1, out=scores)
                mixed = exact.weighted(weights, values)
            else:
                full = F.pad(mask.to(queries.dtype), (first, 0)).expand(kv, B, heads // kv, Q, L).reshape(kv * B, -1, L)
                mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=full, scale=how.scaling)
            mixed = mixed.view(kv, B, heads // kv, Q, dim).permute(1, 3, 0, 2, 4)
            if group.real_N is None:
                out_NHD[group.rows_N].view(mixed.shape).copy_(mixed)
            else:
                out_NHD[group.rows_N] = mixed.reshape(B * Q, heads, dim)[group.real_N]
        return out_NHD


class ProbeStep:
    """Stands in for an ``AttentionStep`` to find out which key/value shapes a model's layers have."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def attend(self, layer: int, query_HND: Tensor, key_HND: Tensor, value_HND: Tensor, how: Attending) -> Tensor:
        if key_HND.shape[-1] != value_HND.shape[-1]:
            raise UnsupportedModelError("Keys and values of different head sizes are not supported by this engine.")
        self.shapes[layer] = LayerShape(key_HND.shape[0], key_HND.shape[-1])
        return query_HND.transpose(0, 1)


def register() -> None:
    """Make ``attn_implementation=IMPLEMENTATION`` known to transformers."""
    AttentionInterface.register(IMPLEMENTATION, _paged_attention)


def _paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    paged_step: AttentionStep | ProbeStep,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The signature that transformers calls; ``paged_step`` comes through the model's keyword arguments."""
    if s_aux is not None:
        raise UnsupportedModelError("Attention with sinks is not supported by this engine; use vLLM.")
    how = Attending(scaling, sliding_window, softcap)
    out_NHD = paged_step.attend(module.layer_idx, query[0], key[0], value[0], how)
    return out_NHD[None], None


def _pieces(chunks: list[Chunk]) -> list[Piece]:
    """Cut long chunks; give each piece its row in the step."""
    pieces: list[Piece] = []
    row = 0
    for chunk in chunks:
        indices = [block.index for block in chunk.sequence.blocks]
        for start in range(chunk.start, chunk.end, MAX_QUERIES):
            end = min(start + MAX_QUERIES, chunk.end)
            pieces.append(Piece(row, start, end - start, indices[: -(-end // BLOCK_SIZE)]))
            row += end - start
    return pieces


def _group(pieces: list[Piece]) -> list[list[Piece]]:
    """Put neighbours together as long as padding stays small. Decoding rows come first, sorted by length."""
    groups: list[list[Piece]] = []
    for piece in pieces:
        if groups:
            group = groups[-1]
            longest = max(piece.length, max(p.length for p in group))
            shortest = min(piece.length, min(p.length for p in group))
            most = max(piece.count, max(p.count for p in group))
            fewest = min(piece.count, min(p.count for p in group))
            if (
                longest * (len(group) + 1) <= MAX_KEYS
                and longest <= shortest * 1.25 + 2 * BLOCK_SIZE
                and most <= fewest * 1.25
                and most * (len(group) + 1) <= MAX_QUERIES
            ):
                group.append(piece)
                continue
        groups.append([piece])
    return groups
