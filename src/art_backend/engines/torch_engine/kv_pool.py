"""The memory of the KV cache.

Per layer one tensor ``[2, kv_heads, num_blocks, BLOCK_SIZE, head_dim]``: keys, then values. A head's blocks are apart from
the other heads', so that what ``gather`` returns is ready for batched matrix products without another copy.
"""

import mmap
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from art_backend.engines.torch_engine.sequence import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer's key/value heads."""

    kv_heads: int
    head_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.kv_heads * self.head_dim * dtype.itemsize


class KvPool:
    """Keys and values of ``num_blocks`` blocks in every layer.

    On a CPU the memory is mapped on first use and can be handed back to the system without moving the tensors; on an
    accelerator it is allocated at once and moves to the host while the engine sleeps.
    """

    def __init__(self, layers: list[LayerShape], num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = layers
        self.num_blocks = num_blocks
        self.dtype = dtype
        self.device = device
        self._region: mmap.mmap | None = None
        self._tensors: list[Tensor] = []
        self._saved: tuple[Tensor, list[Tensor]] | None = None
        self._scratch: Tensor | None = None
        self._allocate()

    def _allocate(self) -> None:
        sizes = [2 * s.kv_heads * self.num_blocks * BLOCK_SIZE * s.head_dim for s in self.layers]
        if self.device.type == "cpu" and sys.platform == "linux":
            self._region = mmap.mmap(-1, sum(sizes) * self.dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._region.madvise(mmap.MADV_HUGEPAGE)
            flat = torch.frombuffer(self._region, dtype=self.dtype)
            self._tensors = [part.view(self._shape(s)) for part, s in zip(flat.split(sizes), self.layers, strict=True)]
        else:
            # zeros, not whatever was there: what is masked away must still be finite
            self._tensors = [torch.zeros(self._shape(s), dtype=self.dtype, device=self.device) for s in self.layers]

    def _shape(self, shape: LayerShape) -> tuple[int, int, int, int]:
        return (2 * shape.kv_heads, self.num_blocks, BLOCK_SIZE, shape.head_dim)

    def slots(self, layer: int, tokens_N: Tensor) -> Tensor:
        """Rows of ``write`` for token places ``block * BLOCK_SIZE + offset``, per kv head: ``[kv_heads * N]``."""
        heads = torch.arange(self.layers[layer].kv_heads, device=self.device)[:, None]
        return (heads * (self.num_blocks * BLOCK_SIZE) + tokens_N).flatten()

    def write(self, layer: int, slots_HN: Tensor, key_HND: Tensor, value_HND: Tensor) -> None:
        """Store keys and values ``[kv_heads, N, head_dim]`` at ``slots(layer, …)``."""
        head_dim = self.layers[layer].head_dim
        keys, values = self._tensors[layer].view(2, -1, head_dim)
        keys.index_copy_(0, slots_HN, key_HND.reshape(-1, head_dim))
        values.index_copy_(0, slots_HN, value_HND.reshape(-1, head_dim))

    def rows(self, layer: int, blocks_BM: Tensor) -> Tensor:
        """Rows of ``gather`` for block tables ``[B, M]``: ``[2 * kv_heads * B * M]``."""
        heads = torch.arange(2 * self.layers[layer].kv_heads, device=self.device)[:, None]
        return (heads * self.num_blocks + blocks_BM.flatten()).flatten()

    def gather(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of ``rows(layer, blocks_BM)``, each ``[kv_heads * B * M * BLOCK_SIZE * head_dim]``, flat.

        The result is overwritten by the next call.
        """
        shape = self.layers[layer]
        flat = self._tensors[layer].view(-1, BLOCK_SIZE * shape.head_dim)
        size = rows.numel() * BLOCK_SIZE * shape.head_dim
        scratch = self._scratch
        if scratch is None or scratch.numel() < size:
            scratch = self._scratch = torch.empty(size, dtype=self.dtype, device=self.device)
        out = scratch[:size].view(rows.numel(), -1)
        torch.index_select(flat, 0, rows, out=out)
        keys, values = out.view(2, -1)
        return keys, values

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks ``(from, to)``; all are read before any is written."""
        sources = torch.tensor([source for source, _ in pairs], device=self.device)
        targets = torch.tensor([target for _, target in pairs], device=self.device)
        for tensor in self._tensors:
            tensor.index_copy_(1, targets, tensor.index_select(1, sources))

    def release(self, keep: list[int]) -> None:
        """Give the memory back. On an accelerator the blocks ``keep`` are saved on the host for ``restore``.

        On a CPU memory is given back only when there is nothing to keep: saving it would need as much again.
        """
        self._scratch = None
        if self._region is not None:
            if not keep:
                self._region.madvise(mmap.MADV_DONTNEED)
            return
        kept = torch.tensor(keep, dtype=torch.long, device=self.device)
        self._saved = (kept, [tensor.index_select(1, kept).cpu() for tensor in self._tensors])
        self._tensors = []

    def restore(self) -> None:
        """Undo ``release``."""
        if self._saved is None:
            return
        kept, saved = self._saved
        self._saved = None
        self._allocate()
        for tensor, content in zip(self._tensors, saved, strict=True):
            tensor.index_copy_(1, kept, content.to(self.device))
