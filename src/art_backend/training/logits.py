"""Log-probabilities of single tokens, without ever holding the logits of more than a few positions."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 48 * 2**20
"""Memory of one chunk's logits in float32. Buffers of this size are recycled by the allocator."""


@dataclass(slots=True)
class TargetLogprobs:
    """What the trained positions of a pack give. S slots are distinct (position, temperature) pairs."""

    logprobs: Tensor
    """[N] float32; log-probability of each target. Carries the gradient."""
    entropy: Tensor
    """[S] float32, in nats; carries the gradient."""


def target_logprobs(
    hidden: Tensor, head: Tensor, temperatures: Tensor, slots: Tensor, tokens: Tensor
) -> TargetLogprobs:
    """Log-probabilities of target tokens under ``softmax(hidden @ headᵀ / temperature)``.

    Args:
        hidden: [S, H]; the final hidden state of each slot, in the compute type.
        head: [V, H]; the output embedding, frozen.
        temperatures: [S] float32.
        slots: [N] int64, ascending; the slot that predicts each target.
        tokens: [N] int64; the target ids.
    """
    logprobs, entropy = _ChunkedLogprobs.apply(hidden, head, temperatures, slots, tokens)
    return TargetLogprobs(logprobs, entropy)


def greedy_logprobs(hidden: Tensor, head: Tensor) -> Tensor:
    """[S] float32: log-probability of the likeliest token at temperature 1, for hidden states [S, H]."""
    parts = [
        torch.log_softmax(_logits(hidden[start:stop], head), dim=-1).amax(dim=-1)
        for start, stop in _chunks(hidden.shape[0], head.shape[0])
    ]
    return torch.cat(parts) if parts else hidden.new_empty(0, dtype=torch.float32)


class _ChunkedLogprobs(torch.autograd.Function):
    """Chunk by chunk, forward and backward; the backward pass computes the logits again instead of keeping them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, temperatures: Tensor, slots: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(slots.shape[0], dtype=torch.float32, device=hidden.device)
        entropy = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        for start, stop in _chunks(hidden.shape[0], head.shape[0]):
            scaled = _logits(hidden[start:stop], head).div_(temperatures[start:stop, None])
            log_p = scaled.sub_(scaled.logsumexp(dim=-1, keepdim=True))
            first, last = _targets_of(slots, start, stop)
            logprobs[first:last] = log_p[slots[first:last] - start, tokens[first:last]]
            entropy[start:stop] = -log_p.exp().mul_(log_p).sum(dim=-1)
        ctx.save_for_backward(hidden, head, temperatures, slots, tokens, entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_logprobs, grad_entropy = grads
        hidden, head, temperatures, slots, tokens, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        entropy_matters = bool(torch.any(grad_entropy != 0))
        for start, stop in _chunks(hidden.shape[0], head.shape[0]):
            scaled = _logits(hidden[start:stop], head).div_(temperatures[start:stop, None])
            log_p = scaled.sub_(scaled.logsumexp(dim=-1, keepdim=True))
            first, last = _targets_of(slots, start, stop)
            at = slots[first:last] - start
            incoming = grad_logprobs[first:last]
            # d log p_t/dz = 1[t] − p, summed over the targets of a slot; dH/dz = −p · (log p + H)
            per_slot = torch.zeros(stop - start, dtype=torch.float32, device=hidden.device).index_add_(0, at, incoming)
            if entropy_matters:
                g = grad_entropy[start:stop, None]
                factor = log_p.add(entropy[start:stop, None]).mul_(g).add_(per_slot[:, None]).neg_()
                grad_logits = log_p.exp_().mul_(factor)
            else:
                grad_logits = log_p.exp_().mul_(per_slot[:, None]).neg_()
            grad_logits.index_put_((at, tokens[first:last]), incoming, accumulate=True)
            grad_logits.div_(temperatures[start:stop, None])
            grad_hidden[start:stop] = grad_logits.to(head.dtype) @ head
        return grad_hidden, None, None, None, None


def _logits(hidden: Tensor, head: Tensor) -> Tensor:
    return torch.nn.functional.linear(hidden, head).float()


def _chunks(slots: int, vocabulary: int) -> list[tuple[int, int]]:
    size = max(1, CHUNK_BYTES // (4 * vocabulary))
    return [(start, min(start + size, slots)) for start in range(0, slots, size)]


def _targets_of(slots: Tensor, start: int, stop: int) -> tuple[int, int]:
    """Range of the (ascending) targets that belong to slots start … stop−1."""
    bounds = torch.searchsorted(slots, torch.tensor([start, stop], device=slots.device))
    return int(bounds[0]), int(bounds[1])
