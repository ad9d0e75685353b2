"""Modules of common models that read, write and keep less than those they replace.

**LoRA layers.** PEFT's layer computes ``base(x) + B(A(x)) · scaling`` in four operations over all tokens, each with a counterpart
in the backward pass. Here the adapter's product accumulates into the base's output (and its gradient into the input's), so nothing
of the output's size is read or written twice. PEFT makes these layers and knows them as its own: saving, loading and switching the
adapter off work as before.

**MLP and norm.** What is cheap to compute is computed again in the backward pass. Of a SwiGLU layer, the gate is kept and neither
its activation, nor what it is multiplied with, nor the product; of an RMSNorm, the input in the compute type instead of a copy in
float32. The forward pass does the same operations in the same order as the module it replaces, so every bit of a log-probability
stays the same.
"""

from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralMLP, MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm
from transformers.models.smollm3.modeling_smollm3 import SmolLM3MLP, SmolLM3RMSNorm

_MLPS = (LlamaMLP, MistralMLP, Qwen2MLP, Qwen3MLP, SmolLM3MLP)
_NORMS = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm, SmolLM3RMSNorm)


def fuse(model: PreTrainedModel) -> None:
    """Replace the modules of a frozen model that are known here; others stay."""
    plain_silu = model.config.get_text_config().to_dict().get("hidden_act") == "silu"
    for name, module in list(model.named_modules()):
        if isinstance(module, _NORMS):
            model.set_submodule(name, FrozenRmsNorm(module.weight, module.variance_epsilon))
        elif isinstance(module, _MLPS) and plain_silu:
            model.set_submodule(name, SwiGluMlp(module.gate_proj, module.up_proj, module.down_proj))


class LoraFactors(NamedTuple):
    """The factors of one layer: W [out, in], its bias [out], A [r, in], B [out, r], and the scale s of B·A."""

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
        """The layer's factors while the adapter is on."""
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


class FrozenRmsNorm(nn.Module):
    """weight · x / √(mean x² + ε), with a frozen weight (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return _RmsNorm.apply(x, self.weight, self.variance_epsilon)  # pyright: ignore[reportReturnType]


class _RmsNorm(torch.autograd.Function):
    """x [..., H], weight [H]; gradient for x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        return weight * (wide * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed = x.to(torch.float32).mul_(scale)
        grad = (grads[0] * weight).to(torch.float32)
        # d(x·s)/dx = s · (g − n · mean(g·n)), with n = x·s
        shared = torch.linalg.vecdot(grad, normed).unsqueeze(-1).div_(x.shape[-1])
        return grad.addcmul_(normed, shared, value=-1).mul_(scale).to(x.dtype), None, None


class SwiGluMlp(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, gate_proj: nn.Module, up_proj: nn.Module, down_proj: nn.Module) -> None:
        super().__init__()
        self.gate_proj = gate_proj
        self.up_proj = up_proj
        self.down_proj = down_proj

    def forward(self, x: Tensor) -> Tensor:
        layers = (self.gate_proj, self.up_proj, self.down_proj)
        if not all(isinstance(layer, FusedLoraLinear) and not layer.disable_adapters for layer in layers):
            return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        factors = [layer.factors() for layer in layers if isinstance(layer, FusedLoraLinear)]
        tensors = [tensor for f in factors for tensor in (f.weight, f.bias, f.a, f.b)]
        output = _SwiGlu.apply(x.flatten(0, -2), [f.scale for f in factors], *tensors)
        return output.view(*x.shape[:-1], -1)  # pyright: ignore[reportOptionalMemberAccess]


class _SwiGlu(torch.autograd.Function):
    """The whole layer, for x [T, H]; gradients for x and the adapters' A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: list[float], *tensors: Tensor) -> Tensor:
        gate_f, up_f, down_f = _factors(scales, tensors)
        gate, gate_low = multiply(x, gate_f)
        up, _ = multiply(x, up_f)
        output, down_low = multiply(silu(gate).mul_(up), down_f)
        ctx.save_for_backward(x, gate, gate_low, down_low, *tensors)
        ctx.scales = scales
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, gate_low, down_low, *tensors = ctx.saved_tensors
        gate_f, up_f, down_f = _factors(ctx.scales, tensors)
        up, up_low = multiply(x, up_f)
        active = silu(gate)
        inner, down_a, down_b = multiply_backward(grads[0], active * up, down_low, down_f)
        assert inner is not None
        wants_x = ctx.needs_input_grad[0]
        grad_up, up_a, up_b = multiply_backward(active.mul_(inner), x, up_low, up_f, wants_x)
        grad_gate = torch.ops.aten.silu_backward(inner.mul_(up), gate)
        grad_x, gate_a, gate_b = multiply_backward(grad_gate, x, gate_low, gate_f, wants_x, into=grad_up)
        return grad_x, None, None, None, gate_a, gate_b, None, None, up_a, up_b, None, None, down_a, down_b


def _factors(scales: list[float], tensors: Any) -> list[LoraFactors]:
    layers = [tensors[start : start + 4] for start in range(0, len(tensors), 4)]
    return [LoraFactors(w, bias, a, b, scale) for (w, bias, a, b), scale in zip(layers, scales, strict=True)]
