"""From logits to tokens, with exact log-probabilities of the distribution that was sampled.

All arithmetic is in fp32, sums that decide a draw in fp64. Each sequence draws one uniform number per token from its own
generator and looks it up in the cumulative distribution, so its tokens do not depend on what else is in the batch.
"""

import math
from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from art_backend.engines.torch_engine.sequence import Sequence
from art_backend.tokens.grammar.guidance import StructureError

_MAX_BUCKET = 256


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token."""

    token: int
    logprob: float
    """Natural logarithm of its probability after temperature, penalties and filters. Greedy: at temperature 1."""
    top_logprobs: list[tuple[int, float]]


class NonFiniteLogitsError(RuntimeError):
    """The model's output is not a distribution."""


@torch.inference_mode()
def sample(logits_SV: Tensor, sequences: list[Sequence]) -> list[Sampled | NonFiniteLogitsError | StructureError]:
    """Sample one token per row.

    Args:
        logits_SV: Raw logits, one row per sequence.
    """
    processed = logits_SV.float()
    stuck = {row: error for row, s in enumerate(sequences) if (error := _mask(processed[row], s)) is not None}
    for row, sequence in enumerate(sequences):
        _penalise(processed[row], sequence)
    temperatures = [s.sampling.temperature or 1.0 for s in sequences]
    if any(temperature != 1.0 for temperature in temperatures):
        processed /= torch.tensor(temperatures, device=processed.device)[:, None]
    for row, sequence in enumerate(sequences):
        if sequence.sampling.temperature:
            _filter(processed[row], sequence)
    probabilities = torch.softmax(processed, -1)

    greedy = [row for row, s in enumerate(sequences) if not s.sampling.temperature]
    tokens = torch.empty(len(sequences), dtype=torch.long, device=processed.device)
    if len(greedy) < len(sequences):
        uniforms = [s.randomness.random() if s.sampling.temperature else 0.0 for s in sequences]
        tokens = _draw(probabilities, torch.tensor(uniforms, dtype=torch.float64, device=processed.device))
    if greedy:
        tokens[greedy] = processed[greedy].argmax(-1)
    logprobs = probabilities.gather(-1, tokens[:, None])[:, 0].log().tolist()
    result: list[Sampled | NonFiniteLogitsError | StructureError] = []
    for row, (sequence, token, logprob) in enumerate(zip(sequences, tokens.tolist(), logprobs, strict=True)):
        if row in stuck:
            result.append(stuck[row])
            continue
        if not math.isfinite(logprob):
            result.append(NonFiniteLogitsError("The model's logits are not finite: its weights or adapter are broken."))
            continue
        top = _likeliest(probabilities[row], sequence.sampling.top_logprobs)
        result.append(Sampled(token, logprob, top))
    return result


def _mask(logits_V: Tensor, sequence: Sequence) -> StructureError | None:
    """Remove tokens that would break the structure, in place. The error says that none is left; then nothing is removed."""
    if sequence.guide is None:
        return None
    try:
        allowed = sequence.guide.allowed()
    except StructureError as error:
        return error
    logits_V.masked_fill_(torch.from_numpy(~allowed).to(logits_V.device), float("-inf"))
    return None


def _penalise(logits_V: Tensor, sequence: Sequence) -> None:
    """Apply the penalties in place: repetition over all tokens, presence and frequency over the sampled ones."""
    sampling = sequence.sampling
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(sequence.tokens)), device=logits_V.device)
        values = logits_V[seen]
        logits_V[seen] = torch.where(
            values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
        )
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = Counter(sequence.tokens[sequence.prompt_length :])
        if counts:
            seen = torch.tensor(list(counts), device=logits_V.device)
            times = torch.tensor(list(counts.values()), dtype=logits_V.dtype, device=logits_V.device)
            logits_V[seen] -= sampling.presence_penalty + sampling.frequency_penalty * times


def _filter(logits_V: Tensor, sequence: Sequence) -> None:
    """Remove tokens outside top-k, then top-p, then min-p, in place."""
    sampling = sequence.sampling
    size = logits_V.numel()
    if sampling.top_k is not None and sampling.top_k < size:
        threshold = logits_V.topk(sampling.top_k).values[-1]
        logits_V.masked_fill_(logits_V < threshold, float("-inf"))
    if sampling.top_p < 1.0:
        probabilities, order = torch.softmax(logits_V, -1).sort(descending=True, stable=True)
        before = probabilities.cumsum(-1) - probabilities
        # the likeliest token always stays
        logits_V[order[1:][before[1:] >= sampling.top_p]] = float("-inf")
    if sampling.min_p > 0.0:
        floor = logits_V.max() + math.log(sampling.min_p)
        logits_V.masked_fill_(logits_V < floor, float("-inf"))


def _draw(probabilities_SV: Tensor, uniforms_S: Tensor) -> Tensor:
    """Invert the cumulative distribution at ``uniforms_S``, first over buckets of tokens, then within one."""
    size = probabilities_SV.shape[-1]
    bucket = math.gcd(size, _MAX_BUCKET)
    if bucket < _MAX_BUCKET // 8:
        bucket = _MAX_BUCKET
        probabilities_SV = F.pad(probabilities_SV, (0, -size % bucket))
    buckets_SKB = probabilities_SV.view(len(uniforms_S), -1, bucket)
    cumulative = buckets_SKB.sum(-1).double().cumsum(-1)
    targets = (uniforms_S * cumulative[:, -1])[:, None]
    chosen = torch.searchsorted(cumulative, targets, right=True).clamp_(max=cumulative.shape[-1] - 1)
    before = cumulative.gather(-1, (chosen - 1).clamp_(min=0)) * (chosen > 0)
    inside = buckets_SKB.gather(1, chosen[:, :, None].expand(-1, -1, bucket))[:, 0]
    offsets = torch.searchsorted(inside.double().cumsum(-1), targets - before, right=True)[:, 0]
    offsets.clamp_(max=bucket - 1)
    # the two sums may round apart at a bucket's end, on a token that cannot be sampled
    impossible = inside.gather(-1, offsets[:, None])[:, 0] == 0
    offsets = torch.where(impossible, inside.argmax(-1), offsets)
    return chosen[:, 0] * bucket + offsets


def _likeliest(probabilities_V: Tensor, count: int) -> list[tuple[int, float]]:
    """The ``count`` likeliest tokens that can be sampled, with their log-probabilities."""
    if not count:
        return []
    values, tokens = probabilities_V.topk(min(count, probabilities_V.numel()))
    return [(t, math.log(p)) for t, p in zip(tokens.tolist(), values.tolist(), strict=True) if p > 0]
