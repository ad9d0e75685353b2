"""Prices of training and sampling open models by the token, and what an amount of tokens costs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

TokenCount: TypeAlias = int
CostCalculator: TypeAlias = Callable[[TokenCount | None, TokenCount | None, str], dict[str, float]]
"""(prompt tokens, completion tokens, cost context) → costs by their logged names."""


@dataclass(frozen=True)
class ModelPricing:
    """Dollars per million tokens.

    >>> ModelPricing(prefill=0.13, sample=0.40, train=0.40).sample
    0.4
    """

    prefill: float
    sample: float
    train: float


def _family(prefix: str, prices: dict[str, tuple[float, float, float]]) -> dict[str, ModelPricing]:
    return {f"{prefix}/{name}": ModelPricing(*price) for name, price in prices.items()}


MODEL_PRICING: dict[str, ModelPricing] = {
    **_family(
        "Qwen",
        {
            "Qwen3.5-4B": (0.22, 0.67, 0.67),
            "Qwen3.5-27B": (1.24, 3.73, 3.73),
            "Qwen3.5-35B-A3B": (0.36, 0.89, 1.07),
            "Qwen3.5-397B-A17B": (2.0, 5.0, 6.0),
            "Qwen3-4B-Instruct-2507": (0.07, 0.22, 0.22),
            "Qwen3-8B": (0.13, 0.40, 0.40),
            "Qwen3-8B-Base": (0.13, 0.40, 0.40),
            "Qwen3-30B-A3B": (0.12, 0.30, 0.36),
            "Qwen3-30B-A3B-Base": (0.12, 0.30, 0.36),
            "Qwen3-30B-A3B-Instruct-2507": (0.12, 0.30, 0.36),
            "Qwen3-32B": (0.49, 1.47, 1.47),
            "Qwen3-235B-A22B-Instruct-2507": (0.68, 1.70, 2.04),
            "Qwen3-VL-30B-A3B-Instruct": (0.18, 0.44, 0.53),
            "Qwen3-VL-235B-A22B-Instruct": (1.02, 2.56, 3.07),
        },
    ),
    **_family(
        "meta-llama",
        {
            "Llama-3.2-1B": (0.03, 0.09, 0.09),
            "Llama-3.2-3B": (0.06, 0.18, 0.18),
            "Llama-3.1-8B": (0.13, 0.40, 0.40),
            "Llama-3.1-8B-Instruct": (0.13, 0.40, 0.40),
            "Llama-3.1-70B": (1.05, 3.16, 3.16),
            "Llama-3.3-70B-Instruct": (1.05, 3.16, 3.16),
        },
    ),
    **_family("deepseek-ai", {"DeepSeek-V3.1": (1.13, 2.81, 3.38), "DeepSeek-V3.1-Base": (1.13, 2.81, 3.38)}),
    **_family("openai", {"gpt-oss-120b": (0.18, 0.44, 0.52), "gpt-oss-20b": (0.12, 0.30, 0.36)}),
    **_family("moonshotai", {"Kimi-K2-Thinking": (0.98, 2.44, 2.93), "Kimi-K2.5": (1.47, 3.66, 4.40)}),
}


def get_model_pricing(name: str | None, *, strict: bool = False) -> ModelPricing | None:
    """The prices of a model.

    Raises:
        ValueError: With ``strict``, for a model without known prices.

    >>> get_model_pricing("Qwen/Qwen3-8B").train
    0.4
    """
    pricing = MODEL_PRICING.get(name) if name is not None else None
    if pricing is None and strict:
        raise ValueError(f"No pricing configured for {name!r}; known are {', '.join(MODEL_PRICING)}.")
    return pricing


def tokens_to_cost(n: float, price: float) -> float:
    """Dollars of ``n`` tokens at ``price`` dollars per million.

    >>> tokens_to_cost(500_000, price=0.4)
    0.2
    """
    return n * price / 1_000_000


def compute_sample_costs(
    *, prompt_tokens: TokenCount | None, completion_tokens: TokenCount | None, cost_context: str, pricing: ModelPricing
) -> dict[str, float]:
    """Costs of one call, by their logged names.

    >>> compute_sample_costs(
    ...     prompt_tokens=1_000_000, completion_tokens=0, cost_context="train", pricing=ModelPricing(0.5, 1.0, 1.0)
    ... )
    {'costs/train/tinker_prefill': 0.5, 'costs/train/tinker_sample': 0.0}
    """
    return {
        f"costs/{cost_context}/tinker_prefill": tokens_to_cost(prompt_tokens or 0, pricing.prefill),
        f"costs/{cost_context}/tinker_sample": tokens_to_cost(completion_tokens or 0, pricing.sample),
    }


def build_cost_calculator(pricing: ModelPricing) -> CostCalculator:
    """A function for ``model.set_cost_calculator``.

    >>> model.set_cost_calculator(build_cost_calculator(ModelPricing(0.5, 1.0, 1.0)))
    >>> model.cost_calculator(1_000_000, 0, "eval")["costs/eval/tinker_prefill"]
    0.5
    """

    def calculate(
        prompt_tokens: TokenCount | None, completion_tokens: TokenCount | None, cost_context: str
    ) -> dict[str, float]:
        return compute_sample_costs(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost_context=cost_context,
            pricing=pricing,
        )

    return calculate


def compute_train_cost(tokens: float, pricing: ModelPricing) -> float:
    """Dollars of training on ``tokens``.

    >>> compute_train_cost(2_000_000, ModelPricing(0.5, 1.0, 1.0))
    2.0
    """
    return tokens_to_cost(tokens, pricing.train)
