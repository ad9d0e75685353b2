"""LoRA linear layers whose adapter is added inside the matrix products instead of in passes of its own.

PEFT's layer computes ``base(x) + B(A(x)) · scaling`` in four operations over all tokens, each with a counterpart in the backward
pass. Here the adapter's product accumulates into the base's output (and its gradient into the input's), so nothing of the
size of the output is read or written twice. PEFT makes these layers and knows them as its own: saving, loading and
switching the adapter off work as ever.
"""

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor
from torch.nn.functional import linear


class FusedLoraLinear(Linear):
    """PEFT's LoRA layer with one adapter, no dropout and a frozen base."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.disable_adapters:
            return self.base_layer(x)
        (name,) = self.active_adapters
        base = self.get_base_layer()
        output = _LoraLinear.apply(
            x.flatten(0, -2),
            base.weight,
            base.bias,
            self.lora_A[name].weight,
            self.lora_B[name].weight,
            self.scaling[name],
        )
        return output.view(*x.shape[:-1], -1)  # pyright: ignore[reportOptionalMemberAccess]


class _LoraLinear(torch.autograd.Function):
    """x Wᵀ + b + s · (x Aᵀ) Bᵀ, for x [T, in], W [out, in], A [r, in], B [out, r]; gradients for x, A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        low = (x @ a.t()).mul_(scale)
        output = linear(x, weight, bias)
        output.addmm_(low, b.t())
        ctx.save_for_backward(x, weight, a, b, low)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight, a, b, low = ctx.saved_tensors
        grad_low = (grad @ b).mul_(ctx.scale)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ weight
            grad_x.addmm_(grad_low, a)
        return grad_x, None, None, grad_low.t() @ x, grad.t() @ low, None
