"""What a call of a model's API cost: stated by the response, or computed from its token counts."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from art.costs import MODEL_PRICING, tokens_to_cost

__all__ = ["MODEL_TOKEN_PRICING", "TokenPricing", "track_api_cost"]

P = ParamSpec("P")
R = TypeVar("R")

CostExtractor: TypeAlias = Callable[[Any], float | None]
_LITELLM_HEADER = "llm_provider-x-litellm-response-cost"


@dataclass(frozen=True)
class TokenPricing:
    """Dollars per million tokens. Prices of cached tokens that are ``None`` are those of the prompt.

    >>> TokenPricing(prompt_per_million=2.0, completion_per_million=8.0).cached_prompt_per_million is None
    True
    """

    prompt_per_million: float
    completion_per_million: float
    cached_prompt_per_million: float | None = None
    cache_creation_per_million: float | None = None
    cache_read_per_million: float | None = None


MODEL_TOKEN_PRICING: dict[str, TokenPricing] = {
    "openai/gpt-4.1": TokenPricing(2.0, 8.0, cached_prompt_per_million=0.5),
    "anthropic/claude-sonnet-4-6": TokenPricing(
        3.0, 15.0, cache_creation_per_million=3.75, cache_read_per_million=0.30
    ),
}


def extract_response_cost(
    response: Any,
    *,
    provider: str,
    model_name: str,
    extractor: CostExtractor | None = None,
    registered: TokenPricing | None = None,
    prices: Mapping[str, float | None] | None = None,
) -> float:
    """Dollars that ``response`` cost.

    A cost that the response states comes first, then the provider's ``extractor``, then prices times tokens.

    Args:
        model_name: Whose prices are taken; never the name that the response gives.
        registered: Prices that stand before the built-in ones.
        prices: Single prices, by the names of ``TokenPricing``, that override all others.

    Raises:
        ValueError: No cost is stated and it cannot be computed.
    """
    if (stated := _stated_cost(response)) is not None:
        return stated
    if extractor is not None and (found := extractor(response)) is not None:
        return float(found)
    pricing = _pricing(
        model_name, registered, {name: price for name, price in (prices or {}).items() if price is not None}
    )
    usage = _get(response, "usage")
    estimate = {"openai": _openai_cost, "anthropic": _anthropic_cost}.get(provider.strip().lower())
    if estimate is None:
        raise ValueError(
            f"The response states no cost, and how {provider!r} counts tokens is unknown; register a cost extractor for it."
        )
    if usage is None:
        raise ValueError(f"The response of {provider!r} states neither a cost nor its usage.")
    return estimate(usage, pricing)


def track_api_cost(
    *,
    source: str,
    provider: str,
    model_name: str,
    response_getter: Callable[[Any], Any] | None = None,
    prompt_price_per_million: float | None = None,
    completion_price_per_million: float | None = None,
    cached_prompt_price_per_million: float | None = None,
    cache_creation_price_per_million: float | None = None,
    cache_read_price_per_million: float | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, sync or async, that calls a model's API: its cost is booked with the active builder.

    Args:
        source: Where it is booked: ``costs/{context}/{source}``.
        response_getter: Finds the response in what the function returns; ``None``: it returns the response.

    Raises:
        ValueError: A name is blank; when called, the cost cannot be known.

    >>> @track_api_cost(source="judge", provider="openai", model_name="openai/gpt-4.1")
    ... async def ask():
    ...     return {"usage": {"prompt_tokens": 1000, "completion_tokens": 100}}
    >>> builder = art.metrics.MetricsBuilder("train")
    >>> with builder.activate_context():
    ...     answer = await ask()
    >>> (await builder.flush())["costs/train/judge"]
    0.0028
    """
    for label, value in (("source", source), ("provider", provider), ("model_name", model_name)):
        if not value.strip():
            raise ValueError(f"{label} must not be blank.")

    def book(result: Any) -> None:
        from art.metrics import MetricsBuilder

        try:
            builder = MetricsBuilder.get_active()
        except LookupError:
            return
        builder.add_response_cost(
            source,
            (response_getter(result) if response_getter is not None else None) or result,
            provider=provider,
            model_name=model_name,
            prompt_price_per_million=prompt_price_per_million,
            completion_price_per_million=completion_price_per_million,
            cached_prompt_price_per_million=cached_prompt_price_per_million,
            cache_creation_price_per_million=cache_creation_price_per_million,
            cache_read_price_per_million=cache_read_price_per_million,
        )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                result = await cast(Any, function)(*args, **kwargs)
                book(result)
                return result

            return cast(Callable[P, R], call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            book(result)
            return result

        return call

    return decorate


def _stated_cost(response: Any) -> float | None:
    usage = _get(response, "usage")
    for candidate in (_get(usage, "cost"), _get(_get(usage, "model_extra"), "cost")):
        for value in (candidate, _get(candidate, "total_cost")):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    header = _get(_get(_get(response, "_hidden_params"), "additional_headers"), _LITELLM_HEADER)
    return float(header) if isinstance(header, (int, float, str)) and not isinstance(header, bool) else None


def _pricing(model_name: str, registered: TokenPricing | None, explicit: dict[str, float]) -> TokenPricing:
    known = registered or MODEL_TOKEN_PRICING.get(model_name)
    if known is None and (open_model := MODEL_PRICING.get(model_name)) is not None:
        known = TokenPricing(open_model.prefill, open_model.sample)
    if known is not None:
        return dataclasses.replace(known, **explicit)
    if {"prompt_per_million", "completion_per_million"} <= explicit.keys():
        return TokenPricing(**explicit)
    raise ValueError(
        f"No pricing configured for {model_name!r}: give prompt and completion prices, or call register_model_pricing."
    )


def _openai_cost(usage: Any, pricing: TokenPricing) -> float:
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cached = min(_count(_get(usage, "prompt_tokens_details"), "cached_tokens"), prompt)
    cached_price = _or(pricing.cached_prompt_per_million, pricing.prompt_per_million)
    return (
        tokens_to_cost(prompt - cached, pricing.prompt_per_million)
        + tokens_to_cost(cached, cached_price)
        + tokens_to_cost(completion, pricing.completion_per_million)
    )


def _anthropic_cost(usage: Any, pricing: TokenPricing) -> float:
    prompt_price = pricing.prompt_per_million
    return (
        tokens_to_cost(_count(usage, "input_tokens"), prompt_price)
        + tokens_to_cost(
            _count(usage, "cache_creation_input_tokens"), _or(pricing.cache_creation_per_million, prompt_price)
        )
        + tokens_to_cost(_count(usage, "cache_read_input_tokens"), _or(pricing.cache_read_per_million, prompt_price))
        + tokens_to_cost(_count(usage, "output_tokens"), pricing.completion_per_million)
    )


def _or(price: float | None, fallback: float) -> float:
    return fallback if price is None else price


def _count(holder: Any, name: str) -> float:
    value = _get(holder, name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _get(holder: Any, name: str) -> Any:
    """A field of a response, which may be an object of any SDK or a mapping."""
    if isinstance(holder, Mapping):
        return cast(Mapping[str, Any], holder).get(name)
    return getattr(holder, name, None)
