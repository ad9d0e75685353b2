"""Matrix products whose rows do not depend on what else is computed, and float32 results at the speed of bfloat16.

A bfloat16 product keeps 8 bits of each result: scores and logits of 16 and more are off by several hundredths, and so are
the log-probabilities made from them. The product is accumulated in float32 inside; a second one, from which the rounded
first is subtracted before rounding, returns what was lost; it takes the first one's place in memory.

A product of a single row is summed in another order than one of several, and now and then rounds to another value. A
single row is therefore computed twice: no row's result depends on how many rows there are, but for two kinds of kernels. In
float32, MKL chooses them by the number of rows; only its strict mode gives each row the same bits (``process.EQUAL_ROWS``). With
AMX, oneDNN sums long products of many rows in another order.
"""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x·weightᵀ in float32, for [n, D] and [m, D] of one type."""
    if x.shape[0] == 1:
        return linear(x.expand(2, -1), weight)[:1]
    if x.dtype == torch.float32:
        return torch.nn.functional.linear(x, weight)
    rounded = torch.nn.functional.linear(x, weight)
    result = rounded.float()
    return result.add_(rounded.addmm_(x, weight.t(), beta=-1))


def batched(a: Tensor, b: Tensor) -> Tensor:
    """a·bᵀ in float32, for [B, n, D] and [B, m, D] of one type."""
    if a.shape[1] == 1:
        return batched(a.expand(-1, 2, -1), b)[:, :1]
    b = b.transpose(1, 2)
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    rounded = torch.bmm(a, b)
    result = rounded.float()
    return result.add_(rounded.baddbmm_(a, b, beta=-1))


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """weights·values in the type of ``values``, for weights [B, n, L] float32 and values [B, L, D]."""
    if weights.shape[1] == 1:
        return weighted(weights.expand(-1, 2, -1), values)[:, :1]
    return torch.bmm(weights.to(values.dtype), values)


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(x / cap), in place; x as it is without a cap. Engine and trainer cap scores and logits alike by it."""
    return x if cap is None else x.div_(cap).tanh_().mul_(cap)
