"""Attention along the ancestry of a packed prefix tree.

Ways to the same numbers, chosen by the device:

- ``branches`` (CPU): each branch of the tree attends to its own path and nothing else, by plain matrix products.
- ``flex`` (CUDA): FlexAttention with the block mask of the tree.
- ``dense``: SDPA with a [T, T] mask. Simple; what the others are tested against.
- ``rows``: causal attention, for models whose kernels know no other (Unsloth). Packs hold one row each.

It plugs into transformers' public ``AttentionInterface``, through the keyword arguments that layers pass on.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, PretrainedConfig

from art_backend.models import exact
from art_backend.training.rows.packing import Branch, Pack

Kind = Literal["branches", "flex", "dense", "rows"]

BRANCH_ATTENTION = "art_prefix_tree"
"""Name under which branch attention is known to transformers."""

QUERY_BLOCK = 256
"""Most queries of one block of branch attention."""

MASK_BLOCK = 128
"""Queries and keys of one block of FlexAttention's mask."""

_HARMLESS = frozenset({"position_ids", "use_cache", "output_attentions", "cache_position", "is_causal"})
"""Arguments of attention functions that change nothing here."""

IMPLEMENTATIONS: dict[Kind, str] = {
    "branches": BRANCH_ATTENTION,
    "flex": "flex_attention",
    "dense": "sdpa",
    "rows": "sdpa",
}
"""The ``attn_implementation`` that a model is loaded with."""


Window = int | None
"""How many tokens of its path a query sees, itself included; ``None``: all."""

Windows = Window | Mapping[str, Window]
"""The window of every layer, or of each type of layer."""


def layer_windows(config: PretrainedConfig) -> Windows:
    """How far back the layers of a decoder look, as its configuration says.

    Raises:
        ValueError: A type of layer attends in another way.
    """
    window: Window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is None:
        return window if getattr(config, "use_sliding_window", True) else None
    windows: dict[str, Window] = {"full_attention": None, "sliding_attention": window}
    if unknown := sorted(set(types) - windows.keys()):
        raise ValueError(f"layers of {', '.join(unknown)} do not follow a tree.")
    found = {kind: windows[kind] for kind in types}
    return found if len(found) > 1 or None not in found.values() else None


@dataclass(slots=True)
class QueryBlock:
    """Consecutive tokens of one branch, and where they look."""

    start: int
    stop: int
    keys: slice | Tensor
    """Packed positions on the path to ``stop`` that a query of the block sees, L in all: a range where they are one, else [L]
    int64."""
    length: int
    """L"""
    slack: int
    """Query i does not see the first i − slack of these keys, which lie before its window."""


class QueryBlocks:
    """The branches of a pack, cut into blocks of queries.

    A part of a branch is a branch itself, whose ancestors include the parts before it; small blocks leave out most of the
    pairs that causality forbids, and bound the memory of the scores.

    Args:
        size: Most tokens of a block.
    """

    def __init__(self, pack: Pack, device: torch.device, size: int = QUERY_BLOCK) -> None:
        self._pack = pack
        self._device = device
        self._size = size
        self._made: dict[Window, list[QueryBlock]] = {}

    def within(self, window: Window) -> list[QueryBlock]:
        """The blocks of a layer that looks ``window`` tokens back."""
        if window not in self._made:
            self._made[window] = [block for branch in self._pack.branches for block in self._cut(branch, window)]
        return self._made[window]

    def _cut(self, branch: Branch, window: Window) -> Iterator[QueryBlock]:
        path = np.concatenate([branch.ancestors, np.arange(branch.start, branch.stop)])
        for start in range(branch.start, branch.stop, self._size):
            stop = min(start + self._size, branch.stop)
            end = branch.ancestors.size + stop - branch.start
            reach = end if window is None else window
            first = end - (stop - start) + 1 - reach  # where the window of the block's first query begins
            seen = path[max(0, first) : end]
            together = int(seen[-1] - seen[0]) == seen.size - 1
            keys = slice(int(seen[0]), stop) if together else torch.from_numpy(seen).to(self._device)
            yield QueryBlock(start, stop, keys, seen.size, slack=max(0, -first))


def attention_arguments(kind: Kind, pack: Pack, device: torch.device, windows: Windows) -> dict[str, Any]:
    """Keyword arguments for the model's forward pass over ``pack``."""
    if kind == "branches":  # each layer says itself how far back it looks
        return {"attention_mask": None, "blocks": QueryBlocks(pack, device)}
    if kind == "rows":
        if len(pack.branches) > 1:
            raise ValueError("A pack of several rows needs attention that follows its tree.")
        return {"attention_mask": None}
    ends, depths = torch.from_numpy(pack.ends).to(device), torch.from_numpy(pack.depths).to(device)

    def mask(window: Window) -> Tensor | BlockMask:
        return block_mask(ends, depths, window) if kind == "flex" else dense_mask(ends, depths, window)[None, None]

    if isinstance(windows, Mapping):
        return {"attention_mask": {layer: mask(window) for layer, window in windows.items()}}
    return {"attention_mask": mask(windows)}


def dense_mask(ends: Tensor, depths: Tensor, window: Window = None) -> Tensor:
    """[T, T] bool: query q attends to key k iff k ≤ q < ends[k], and k is among the last ``window`` tokens of q's path."""
    position = torch.arange(ends.shape[0], device=ends.device)
    seen = (position[None, :] <= position[:, None]) & (position[:, None] < ends[None, :])
    return seen if window is None else seen & (depths[:, None] - depths[None, :] < window)


def block_mask(ends: Tensor, depths: Tensor, window: Window = None) -> BlockMask:
    """The same as ``dense_mask``, for FlexAttention. The closure reads tensors, so one compiled kernel serves every tree.

    Whether a block of queries looks at a block of keys follows from the largest and the smallest end and depth in each, so that
    nothing of size [T, T] is computed, as ``create_block_mask`` would.
    """

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    def attends_within(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert window is not None
        return attends(batch, head, query, key) & (depths[query] - depths[key] < window)

    size = ends.shape[0]
    count = -(-size // MASK_BLOCK)
    ends_BK = torch.nn.functional.pad(ends, (0, count * MASK_BLOCK - size)).view(count, MASK_BLOCK)
    block = torch.arange(count, device=ends.device)
    starts, before = block * MASK_BLOCK, block[None, :] < block[:, None]
    some = (block[None, :] == block[:, None]) | (before & (starts[:, None] < ends_BK.amax(1)[None, :]))
    every = before & (starts[:, None] + MASK_BLOCK <= ends_BK.amin(1)[None, :])
    if window is not None:
        # the last block is filled up with its last token, which changes neither its smallest nor its largest depth
        filled = torch.cat([depths, depths[-1:].expand(count * MASK_BLOCK - size)]).view(count, MASK_BLOCK)
        low, high = filled.amin(1), filled.amax(1)
        some &= low[:, None] - high[None, :] < window
        every &= high[:, None] - low[None, :] < window
    return BlockMask.from_kv_blocks(
        *_block_indices(some & ~every),
        *_block_indices(every),
        BLOCK_SIZE=MASK_BLOCK,
        mask_mod=attends if window is None else attends_within,
        seq_lengths=(size, size),
    )


def _block_indices(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Of blocks [query block, key block]: how many key blocks each query block has, and which, those first, as FlexAttention
    takes them."""
    counts = chosen.sum(1, dtype=torch.int32)
    return counts[None, None], torch.argsort(chosen.int(), dim=1, descending=True, stable=True).int()[None, None]


def branch_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    blocks: QueryBlocks,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: Window = None,
    softcap: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention of every block over its path, as transformers calls it.

    Args:
        query: [1, heads, T, D].
        key: [1, key heads, T, D].
        value: [1, key heads, T, D].
        softcap: Scores s become ``softcap · tanh(s / softcap)`` (Gemma 2, arXiv:2408.00118).

    Returns:
        Output [1, T, heads, D], and no weights.

    Raises:
        ValueError: The layer passes an argument that is not known here, and might change the result.
    """
    if dropout:
        raise ValueError("Tree attention has no dropout; set attention_dropout to 0.")
    if unknown := sorted(name for name, value in others.items() if value is not None and name not in _HARMLESS):
        raise ValueError(
            f"{type(module).__name__} attends with {', '.join(unknown)}, which tree attention does not know."
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = _BranchAttention.apply(query[0], key[0], value[0], blocks.within(sliding_window), scale, softcap)
    return output[None], None  # pyright: ignore[reportOptionalSubscript]


class _BranchAttention(torch.autograd.Function):
    """softmax(q·kᵀ·scale)·v, block by block; the weights are computed again in the backward pass instead of kept.

    Query heads that share a key head (G of them) are folded into the rows of one matrix, so each block is a few batched
    products [key heads, G·n, …]. Scores and softmax of the forward pass are float32, whatever the compute type.

    The backward pass touches each score as little as it can. What is subtracted from a product (a row's largest score
    before the softmax; Σ P·dP, as grad·output, Dao et al. 2022, arXiv:2205.14135) is two more columns of its factors, so
    the difference is rounded to the compute type once, and small numbers keep their digits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: list[QueryBlock],
        scale: float,
        cap: float | None,
    ) -> Tensor:
        heads, size, width = query.shape
        output = torch.empty(size, heads, width, dtype=query.dtype, device=query.device)
        peaks = torch.empty(heads, size, 1, device=query.device)
        for block in blocks:
            q, k, v = _fold(query, block, key.shape[0]), _select(key, block), _select(value, block)
            scores = _mask(exact.soft_cap(exact.batched(q, k).mul_(scale), cap), block)
            _unfold(peaks, block, scores.amax(-1, keepdim=True))
            mixed = exact.weighted(torch.softmax(scores, dim=-1, out=scores), v)
            _unfold(output.transpose(0, 1), block, mixed)
        ctx.save_for_backward(query, key, value, output, peaks)
        ctx.blocks, ctx.scale, ctx.cap = blocks, scale, cap
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, peaks = ctx.saved_tensors
        width, groups = query.shape[-1], key.shape[0]
        grad_output = grads[0].transpose(0, 1)
        drops = (grad_output.float() * output.transpose(0, 1)).sum(-1, keepdim=True)
        queries, keys = _less(query, peaks / ctx.scale), _plus(key)
        gradients, values = _less(grad_output, drops), _plus(value)
        # Σ dS over the keys is 0 but for rounding, which a part that all keys share would magnify; behind a cap it is not 0.
        centred = key if ctx.cap is not None else (key - key.float().mean(1, keepdim=True)).to(key.dtype)
        grad_query = torch.empty_like(query)
        grad_key = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        grad_value = torch.zeros_like(grad_key)
        for block in ctx.blocks:
            q, k = _fold(queries, block, groups), _select(keys, block)
            g, v = _fold(gradients, block, groups), _select(values, block)
            slope = None
            if ctx.cap is None:
                scores = torch.bmm(q, k.transpose(1, 2)).mul_(ctx.scale)
            else:
                squashed = exact.batched(q[..., :width], k[..., :width]).mul_(ctx.scale / ctx.cap).tanh_()
                scores = squashed * ctx.cap
                slope = squashed.square_().neg_().add_(1).to(q.dtype)
            weights = torch.softmax(_mask(scores, block), dim=-1).to(q.dtype)
            # dS = P · (dP − Σ P·dP), and with a cap its slope times that
            grad_scores = torch.bmm(g, v.transpose(1, 2)).mul_(weights)
            if slope is not None:
                grad_scores.mul_(slope)
            _accumulate(grad_value, block, torch.bmm(weights.transpose(1, 2), g[..., :width]))
            _accumulate(grad_key, block, torch.bmm(grad_scores.transpose(1, 2), q[..., :width]))
            _unfold(grad_query, block, torch.bmm(grad_scores, _select(centred, block)).mul_(ctx.scale))
        return grad_query, grad_key.mul_(ctx.scale).to(key.dtype), grad_value.to(value.dtype), None, None, None


def _less(x: Tensor, amount: Tensor) -> Tensor:
    """[…, D + 2]: a factor whose product with ``_plus`` is x·yᵀ − amount, for amounts […, 1] in float32."""
    high = amount.to(x.dtype)
    return torch.cat([x, -high, (high.float() - amount).to(x.dtype)], dim=-1)


def _plus(y: Tensor) -> Tensor:
    """[…, D + 2]: the other factor."""
    return torch.cat([y, torch.ones_like(y[..., :2])], dim=-1)


def _mask(scores: Tensor, block: QueryBlock) -> Tensor:
    """Remove, in place, what causality and the window forbid from scores [key heads, G·n, L]."""
    n = block.stop - block.start
    each = scores.view(scores.shape[0], -1, n, block.length)
    each[..., block.length - n :].add_(_causal(n, scores.dtype, scores.device))
    if (hidden := min(n - 1 - block.slack, block.length)) > 0:
        each[..., :hidden].add_(_before_window(n, hidden, block.slack, scores.dtype, scores.device))
    return scores


@functools.lru_cache(maxsize=256)
def _causal(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, n]: −inf above the diagonal, 0 elsewhere."""
    return torch.full((n, n), float("-inf"), dtype=dtype, device=device).triu_(1)


@functools.lru_cache(maxsize=256)
def _before_window(n: int, keys: int, slack: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, keys]: −inf for the first i − slack keys of query i, 0 elsewhere."""
    return torch.full((n, keys), float("-inf"), dtype=dtype, device=device).tril_(-1 - slack)


def _fold(x: Tensor, block: QueryBlock, groups: int) -> Tensor:
    """[heads, T, D] → the block's [groups, heads/groups · n, D]."""
    return x[:, block.start : block.stop].reshape(groups, -1, x.shape[-1])


def _unfold(target: Tensor, block: QueryBlock, x: Tensor) -> None:
    """The inverse of ``_fold``, written into ``target`` [heads, T, D]."""
    n = block.stop - block.start
    target[:, block.start : block.stop] = x.view(target.shape[0], n, x.shape[-1])


def _select(x: Tensor, block: QueryBlock) -> Tensor:
    """The block's keys or values: [key heads, L, D]."""
    return x[:, block.keys] if isinstance(block.keys, slice) else x.index_select(1, block.keys)


def _accumulate(total: Tensor, block: QueryBlock, x: Tensor) -> None:
    """Add [key heads, L, D] at the block's keys."""
    if isinstance(block.keys, slice):
        total[:, block.keys] += x
    else:
        total.index_add_(1, block.keys, x.float())


_forward: Callable[..., tuple[Tensor, None]] = branch_attention
AttentionInterface.register(BRANCH_ATTENTION, _forward)
