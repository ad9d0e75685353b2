"""LoRA linear layers whose adapter is added inside the matrix products instead of in passes of its own.

PEFT's layer computes ``base(x) + B(A(x)) · scaling`` in four operations over all tokens, each with a counterpart in the backward
pass. Here the adapter's product accumulates into the base's output (and its gradient into the input's), so nothing of the
size of the output is read or written twice. PEFT makes these layers and knows them as its own: saving, loading and
switching the adapter off work as ever.
"""

from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear
from torch import Tensor
from torch.nn.functional import linear


class LoraFactors(NamedTuple):
    """What one layer computes with: W [out, in], its bias [out], A [r, in], B [out, r], and the scale s of B·A."""

    weight: Tensor
    bias: Tensor | None
    a: Tensor
    b: Tensor
    scale: float


def multiply(x: Tensor, factors: LoraFactors) -> tuple[Tensor, Tensor]:
    """x Wᵀ + b + s · (x Aᵀ) Bᵀ for x [T, in], and s · x Aᵀ [T, r], which the backward pass needs."""
    weight, bias, a, b, scale = factors
    low = (x @ a.t()).mul_(scale)
    output = linear(x, weight, bias)
    return output.addmm_(low, b.t()), low


def multiply_backward(
    grad: Tensor, x: Tensor, low: Tensor, factors: LoraFactors, wants_x: bool = True, into: Tensor | None = None
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients for x, A and B.

    Args:
        grad: [T, out]
        low: [T, r]; as ``multiply`` returned it.
        wants_x: Whether the gradient for x is needed.
        into: [T, in]; what that gradient is added to, in place.
    """
    weight, _, a, b, scale = factors
    grad_low = (grad @ b).mul_(scale)
    grad_x = None
    if wants_x:
        grad_x = grad @ weight if into is None else into.addmm_(grad, weight)
        grad_x.addmm_(grad_low, a)
    return grad_x, grad_low.t() @ x, grad.t() @ low


class FusedLoraLinear(Linear):
    """PEFT's LoRA layer with one adapter, no dropout and a frozen base."""

    def factors(self) -> LoraFactors:
        """What the layer computes with while the adapter is on."""
        (name,) = self.active_adapters
        base, a, b = self.get_base_layer(), self.lora_A[name], self.lora_B[name]
        assert isinstance(base, torch.nn.Linear)
        assert isinstance(a, torch.nn.Linear)
        assert isinstance(b, torch.nn.Linear)
        return LoraFactors(base.weight, base.bias, a.weight, b.weight, self.scaling[name])

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.disable_adapters:
            return self.base_layer(x)
        output = _LoraLinear.apply(x.flatten(0, -2), *self.factors())
        return output.view(*x.shape[:-1], -1)  # pyright: ignore[reportOptionalMemberAccess]


class _LoraLinear(torch.autograd.Function):
    """``multiply`` with gradients for x, A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        output, low = multiply(x, LoraFactors(weight, bias, a, b, scale))
        ctx.save_for_backward(x, weight, a, b, low)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, low = ctx.saved_tensors
        factors = LoraFactors(weight, None, a, b, ctx.scale)
        grad_x, grad_a, grad_b = multiply_backward(grads[0], x, low, factors, ctx.needs_input_grad[0])
        return grad_x, None, None, grad_a, grad_b, None
