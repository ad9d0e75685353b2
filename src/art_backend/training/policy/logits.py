"""Log-probabilities of single tokens, without ever holding the logits of more than a few positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from art_backend.models import exact

CHUNK_BYTES = 48 * 2**20
"""Memory of one chunk's logits in float32. Buffers of this size are recycled by the allocator."""

KEPT_BYTES = 128 * 2**20
"""Most memory for probabilities that are kept between forward and backward."""


@dataclass(frozen=True, slots=True)
class Head:
    """How final hidden states h become logits: ``z = h @ weightᵀ · scale``, and with a cap ``cap · tanh(z / cap)``."""

    weight: Tensor
    """[V, H]; the output embedding. Where it is trained it gets a gradient, too."""
    scale: float = 1.0
    cap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, V] float32, for hidden states [n, H] in the compute type."""
        logits = exact.linear(hidden, self.weight)
        if self.scale != 1:
            logits.mul_(self.scale)
        return exact.soft_cap(logits, self.cap)

    def slope(self, logits: Tensor) -> Tensor | float:
        """d logits / d (h @ weightᵀ): one number, or [n, V] float32 behind a cap."""
        return self.scale if self.cap is None else (logits / self.cap).square_().neg_().add_(1).mul_(self.scale)


def read_head(model: PreTrainedModel) -> Head:
    """The output head of a causal language model, with what its configuration says happens to the logits.

    Raises:
        ValueError: The head is not one matrix.
    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear) or layer.bias is not None:
        raise ValueError(f"the output head of {type(model).__name__} is not one matrix.")
    values = model.config.get_text_config().to_dict()
    scale = (values.get("logit_scale") or 1.0) / (values.get("logits_scaling") or 1.0)
    return Head(layer.weight, scale, values.get("final_logit_softcapping"))


@dataclass(slots=True)
class TargetLogprobs:
    """Results at the trained positions of a pack. S slots are distinct (position, temperature) pairs."""

    logprobs: Tensor
    """[N] float32; log-probability of each target. Carries the gradient."""
    entropy: Tensor
    """[S] float32, in nats. Carries the gradient where it was asked for."""


@dataclass(slots=True)
class SlotMasks:
    """Which tokens the distributions of slots are restricted to."""

    bits: Tensor
    """[M, ceil(V / 8)] uint8; M distinct masks, the lowest bit first."""
    index: Tensor
    """[S] int64; the mask of each slot, −1 for none."""

    @classmethod
    def of(cls, masks: Sequence[bytes], index: Tensor) -> "SlotMasks | None":
        """``None`` where there are none."""
        if not masks:
            return None
        bits = torch.stack([torch.frombuffer(bytearray(mask), dtype=torch.uint8) for mask in masks])
        return cls(bits.to(index.device), index)

    def apply(self, logits: Tensor, start: int, stop: int) -> None:
        """Remove what slots start … stop−1 do not allow from their logits [stop − start, V], in place."""
        masked = (self.index[start:stop] >= 0).nonzero()[:, 0]
        if not masked.numel():
            return
        packed = self.bits[self.index[start:stop][masked]]
        shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
        allowed = (packed[:, :, None] >> shifts & 1).flatten(1)[:, : logits.shape[1]].bool()
        # finite, so that 0 · log 0 is 0
        logits[masked] = logits[masked].masked_fill_(~allowed, -1e30)


def target_logprobs(
    hidden: Tensor,
    head: Head,
    temperatures: Tensor,
    slots: Tensor,
    tokens: Tensor,
    masks: SlotMasks | None = None,
    *,
    entropy_gradient: bool = False,
) -> TargetLogprobs:
    """Log-probabilities of target tokens under ``softmax(logits / temperature)``, over what the masks allow.

    Args:
        hidden: [S, H]; the final hidden state of each slot, in the compute type.
        temperatures: [S] float32.
        slots: [N] int64, ascending; the slot that predicts each target.
        tokens: [N] int64; the target ids.
        entropy_gradient: Whether the entropy is differentiated; costs one more product with the head.
    """
    logprobs, entropy = _ChunkedLogprobs.apply(
        hidden, head.weight, head, temperatures, slots, tokens, masks, entropy_gradient
    )
    return TargetLogprobs(logprobs, entropy)


def greedy_logprobs(hidden: Tensor, head: Head) -> Tensor:
    """[S] float32: log-probability of the likeliest token at temperature 1, for hidden states [S, H]."""
    parts = [
        torch.log_softmax(head.logits(hidden[start:stop]), dim=-1).amax(dim=-1)
        for start, stop in _chunks(hidden.shape[0], head.weight.shape[0])
    ]
    return torch.cat(parts) if parts else hidden.new_empty(0, dtype=torch.float32)


class _ChunkedLogprobs(torch.autograd.Function):
    """Chunk by chunk, forward and backward.

    The probabilities are kept for the backward pass, in the type of the head, while they are few; otherwise they are computed
    again, which takes one more product with the head. A capped head's are, because its slope is needed, too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        head: Head,
        temperatures: Tensor,
        slots: Tensor,
        tokens: Tensor,
        masks: SlotMasks | None,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(slots.shape[0], dtype=torch.float32, device=hidden.device)
        entropy = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        small = hidden.shape[0] * weight.shape[0] * weight.element_size() <= KEPT_BYTES
        keep = small and ctx.needs_input_grad[0] and not entropy_gradient and head.cap is None
        kept: list[Tensor] = []
        for start, stop in _chunks(hidden.shape[0], weight.shape[0]):
            scaled = _divide(head.logits(hidden[start:stop]), temperatures[start:stop])
            if masks is not None:
                masks.apply(scaled, start, stop)
            probabilities = torch.softmax(scaled, dim=-1)
            largest, where = scaled.max(dim=-1, keepdim=True)
            normaliser = (largest - probabilities.gather(1, where).log())[:, 0]
            first, last = _targets_of(slots, start, stop)
            at = slots[first:last] - start
            logprobs[first:last] = scaled[at, tokens[first:last]] - normaliser[at]
            entropy[start:stop] = normaliser - torch.linalg.vecdot(probabilities, scaled)
            if keep:
                kept.append(probabilities.to(weight.dtype))
        ctx.save_for_backward(hidden, weight, temperatures, slots, tokens, logprobs, entropy, *kept)
        ctx.head, ctx.masks, ctx.entropy_gradient = head, masks, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, temperatures, slots, tokens, logprobs, entropy, *kept = ctx.saved_tensors
        size, dtype = weight.shape[0], weight.dtype
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, device=weight.device) if ctx.needs_input_grad[1] else None
        for i, (start, stop) in enumerate(_chunks(hidden.shape[0], size)):
            temperature = temperatures[start:stop]
            of_entropy = None
            if kept:
                probabilities, slope = kept[i], ctx.head.scale
            else:
                logits = ctx.head.logits(hidden[start:stop])
                slope = ctx.head.slope(logits)
                scaled = _divide(logits, temperature)
                if ctx.masks is not None:
                    ctx.masks.apply(scaled, start, stop)
                if ctx.entropy_gradient:
                    of_entropy = _entropy_gradient(scaled, entropy[start:stop], grads[1][start:stop] / temperature)
                probabilities = torch.softmax(scaled, dim=-1, out=scaled).to(dtype)
            first, last = _targets_of(slots, start, stop)
            at = slots[first:last] - start
            incoming = grads[0][first:last] / temperature[at]
            # d log p_t/dz = 1[t] − p, summed over the targets of a slot
            per_slot = torch.zeros(stop - start, dtype=torch.float32, device=hidden.device).index_add_(0, at, incoming)
            grad_logits = probabilities.mul_(-per_slot[:, None].to(dtype))
            # At the targets, 1 − p would lose its digits to the rounding of p. They are written from float32 instead.
            pairs, which = (at * size + tokens[first:last]).unique(return_inverse=True)
            wanted = torch.zeros(pairs.shape[0], device=hidden.device).index_add_(0, which, incoming)
            found = torch.zeros_like(wanted).index_copy_(0, which, logprobs[first:last].exp())
            row = pairs // size
            grad_logits[row, pairs % size] = (wanted - found * per_slot[row]).to(dtype)
            if of_entropy is not None:
                grad_logits = grad_logits + of_entropy.to(dtype)
            if isinstance(slope, Tensor) or slope != 1:
                grad_logits.mul_(slope)
            grad_hidden[start:stop] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight += grad_logits.t() @ hidden[start:stop]
        return grad_hidden, None if grad_weight is None else grad_weight.to(dtype), *[None] * 6


def _entropy_gradient(scaled: Tensor, entropy: Tensor, incoming: Tensor) -> Tensor:
    """[n, V] float32: dH/dz = −p · (log p + H), times ``incoming`` [n]."""
    log_p = torch.log_softmax(scaled, dim=-1)
    return log_p.exp().mul_(log_p.add_(entropy[:, None])).mul_(-incoming[:, None])


def _divide(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Logits [n, V] / temperature, in place."""
    return logits if bool((temperatures == 1).all()) else logits.div_(temperatures[:, None])


def _chunks(slots: int, vocabulary: int) -> list[tuple[int, int]]:
    size = max(1, CHUNK_BYTES // (4 * vocabulary))
    return [(start, min(start + size, slots)) for start in range(0, slots, size)]


def _targets_of(slots: Tensor, start: int, stop: int) -> tuple[int, int]:
    """Range of the (ascending) targets that belong to slots start … stop−1."""
    bounds = torch.searchsorted(slots, torch.tensor([start, stop], device=slots.device))
    return int(bounds[0]), int(bounds[1])
