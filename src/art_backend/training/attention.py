"""Attention along the ancestry of a packed prefix tree.

Three ways to the same numbers, chosen by the device:

- ``branches`` (CPU): each branch of the tree is one attention call over its own path, so nothing is computed for pairs that
  do not attend to each other.
- ``flex`` (CUDA): FlexAttention with the block mask of the tree.
- ``dense``: SDPA with a [T, T] mask. Simple; what the others are tested against.

The model is told through transformers' public ``AttentionInterface`` and the keyword arguments that its layers pass on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from art_backend.training.packing import Pack

Kind = Literal["branches", "flex", "dense"]

BRANCH_ATTENTION = "art_prefix_tree"
"""Name under which branch attention is known to transformers."""

IMPLEMENTATIONS: dict[Kind, str] = {"branches": BRANCH_ATTENTION, "flex": "flex_attention", "dense": "sdpa"}
"""The ``attn_implementation`` that a model is loaded with."""


@dataclass(slots=True)
class TreeBranch:
    """One branch, as attention needs it."""

    start: int
    stop: int
    path: Tensor
    """[L] int64; packed positions of the ancestors and of the branch itself, in order."""
    mask: Tensor
    """[stop − start, L] bool; true where a token of the branch may look."""


def attention_arguments(kind: Kind, pack: Pack, device: torch.device) -> dict[str, Any]:
    """Keyword arguments for the model's forward pass over ``pack``."""
    ends = torch.from_numpy(pack.ends).to(device)
    match kind:
        case "branches":
            return {
                "attention_mask": None,
                "tree": [_branch(b.start, b.stop, b.ancestors, device) for b in pack.branches],
            }
        case "flex":
            return {"attention_mask": block_mask(ends)}
        case "dense":
            return {"attention_mask": dense_mask(ends)[None, None]}


def dense_mask(ends: Tensor) -> Tensor:
    """[T, T] bool: query q attends to key k iff k ≤ q < ends[k]."""
    position = torch.arange(ends.shape[0], device=ends.device)
    return (position[None, :] <= position[:, None]) & (position[:, None] < ends[None, :])


def block_mask(ends: Tensor) -> BlockMask:
    """The same as ``dense_mask``, for FlexAttention. The closure reads ``ends``, so one compiled kernel serves every tree."""

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    size = ends.shape[0]
    return create_block_mask(attends, None, None, size, size, device=str(ends.device))


def _branch(start: int, stop: int, ancestors: Any, device: torch.device) -> TreeBranch:
    own = torch.arange(start, stop, device=device)
    path = torch.cat([torch.from_numpy(ancestors).to(device), own])
    mask = torch.ones(stop - start, path.shape[0], dtype=torch.bool, device=device).tril(path.shape[0] - (stop - start))
    return TreeBranch(start, stop, path, mask)


def branch_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: list[TreeBranch],
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention of every branch over its path.

    Args:
        query: [1, heads, T, D].
        key: [1, key heads, T, D].
        value: [1, key heads, T, D].

    Returns:
        Output [1, T, heads, D], and no weights.
    """
    grouped = query.shape[1] != key.shape[1]
    outputs = [
        scaled_dot_product_attention(
            query[:, :, branch.start : branch.stop],
            key.index_select(2, branch.path),
            value.index_select(2, branch.path),
            attn_mask=branch.mask[None, None],
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=grouped,
        )
        for branch in tree
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


_forward: Callable[..., tuple[Tensor, None]] = branch_attention
AttentionInterface.register(BRANCH_ATTENTION, _forward)
