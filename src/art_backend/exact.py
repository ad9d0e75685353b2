"""Matrix products in float32 at the speed of bfloat16.

A bfloat16 product keeps 8 bits of each result: scores and logits of 16 and more are off by several hundredths, and so are
the log-probabilities made from them. The product is accumulated in float32 inside; a second one, from which the rounded
first is subtracted before rounding, returns what was lost.
"""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x·weightᵀ in float32, for [n, D] and [m, D] of one type."""
    if x.dtype == torch.float32:
        return torch.nn.functional.linear(x, weight)
    rounded = torch.nn.functional.linear(x, weight)
    lost = torch.addmm(rounded, x, weight.t(), beta=-1)
    return rounded.float().add_(lost)


def batched(a: Tensor, b: Tensor) -> Tensor:
    """a·bᵀ in float32, for [B, n, D] and [B, m, D] of one type."""
    b = b.transpose(1, 2)
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    rounded = torch.bmm(a, b)
    lost = torch.baddbmm(rounded, a, b, beta=-1)
    return rounded.float().add_(lost)
