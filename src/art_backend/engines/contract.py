"""What the rest of the service knows of an engine: values that go in and come out of ``inference/client``.

The wire format behind them is the subset of vLLM's public HTTP API that docs/architecture.md lists.
"""

from dataclasses import dataclass
from typing import Literal

from art_backend.tokens.grammar import Structure

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one completion."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    """``None`` samples from the whole vocabulary."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    """Sampling one of these ends the completion; the id itself is part of it."""
    seed: int | None = None
    top_logprobs: int = 0
    """How many alternatives to report per token, beside the sampled one."""
    structure: Structure | None = None
    """Tokens that would break it are not sampled; log-probabilities are those of what is left."""


@dataclass(slots=True)
class GenerationDelta:
    """Newly sampled tokens of one completion. All lists have one length."""

    token_ids: list[int]
    logprobs: list[float]
    """Natural-log probability of each token under the distribution that was sampled (after temperature)."""
    top_logprobs: list[list[tuple[int, float]]]
    """Per token, (id, log-probability) of the likeliest tokens; empty lists when not asked for."""
    finish_reason: FinishReason | None = None
    """Set on the last delta."""

    def extend(self, later: "GenerationDelta") -> None:
        """Append the delta that follows."""
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.top_logprobs += later.top_logprobs
        self.finish_reason = later.finish_reason


@dataclass(slots=True)
class Generation:
    """One whole completion."""

    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[list[tuple[int, float]]]
    finish_reason: FinishReason
