"""The cost of a call of a model's API: stated by the response, or computed from its token counts."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from art.errors import load_extra

__all__ = ["Prices", "TokenPricing"]

_LITELLM_HEADER = "llm_provider-x-litellm-response-cost"


@dataclass(frozen=True)
class TokenPricing:
    """Dollars per million tokens. ``None`` for cached tokens means the prompt's price."""

    prompt_per_million: float
    completion_per_million: float
    cached_prompt_per_million: float | None = None
    cache_creation_per_million: float | None = None
    cache_read_per_million: float | None = None


class Prices(TypedDict, total=False):
    """Dollars per million tokens, as keywords of a call. They override registered prices one by one."""

    prompt_price_per_million: float | None
    completion_price_per_million: float | None
    cached_prompt_price_per_million: float | None
    cache_creation_price_per_million: float | None
    cache_read_price_per_million: float | None


def check_prices(prices: Prices) -> None:
    """Raises TypeError: A price name that ``Prices`` does not have."""
    known = Prices.__annotations__
    if unknown := sorted(prices.keys() - known.keys()):
        raise TypeError(f"Unknown prices: {', '.join(unknown)}. Known prices: {', '.join(known)}.")


@dataclass(frozen=True)
class _Tokens:
    """The token counts of a response. ``prompt`` holds neither kind of cached tokens."""

    prompt: float
    completion: float
    cache_read: float
    cache_written: float = 0.0


def extract_response_cost(
    response: Any, *, provider: str, model_name: str, registered: TokenPricing | None = None, prices: Prices
) -> float:
    """Return the dollars ``response`` cost: as it states, else by the given prices, else by ``genai-prices``.

    Args:
        model_name: Model whose prices apply; the name in the response is ignored.

    Raises:
        TypeError: A price by an unknown name.
        ValueError: The response states no cost, and none can be computed.
        MissingExtraError: No prices are given, and ``genai-prices`` is not installed.
    """
    check_prices(prices)
    if (stated := _stated_cost(response)) is not None:
        return stated
    provider = provider.strip().lower()
    tokens = _count_tokens(response, provider)
    given = {
        name.replace("_price_", "_"): price
        for name, price in cast(Mapping[str, float | None], prices).items()
        if price is not None
    }
    if registered is not None:
        return _cost(tokens, dataclasses.replace(registered, **given), provider)
    if given:
        if not {"prompt_per_million", "completion_per_million"} <= given.keys():
            raise ValueError(
                f"No price is registered for {model_name!r}, so {', '.join(given)} is not enough: give the prices of prompt and "
                "completion, or call register_model_pricing."
            )
        return _cost(tokens, TokenPricing(**given), provider)
    return _look_up(tokens, provider, model_name)


def _stated_cost(response: Any) -> float | None:
    usage = _get(response, "usage")
    for candidate in (_get(usage, "cost"), _get(_get(usage, "model_extra"), "cost")):
        for value in (candidate, _get(candidate, "total_cost")):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    header = _get(_get(_get(response, "_hidden_params"), "additional_headers"), _LITELLM_HEADER)
    return float(header) if isinstance(header, (int, float, str)) and not isinstance(header, bool) else None


def _count_tokens(response: Any, provider: str) -> _Tokens:
    usage = _get(response, "usage")
    if provider not in ("openai", "anthropic"):
        raise ValueError(
            f"The response states no cost, and ART reads usage only of openai and anthropic, not {provider!r}."
        )
    if usage is None:
        raise ValueError(f"The response of {provider!r} states neither a cost nor its usage.")
    if provider == "anthropic":
        names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        return _Tokens(*(_count(usage, name) for name in names))
    prompt = _count(usage, "prompt_tokens")
    cached = min(_count(_get(usage, "prompt_tokens_details"), "cached_tokens"), prompt)
    return _Tokens(prompt - cached, _count(usage, "completion_tokens"), cached)


def _cost(tokens: _Tokens, pricing: TokenPricing, provider: str) -> float:
    prompt = pricing.prompt_per_million
    read = pricing.cached_prompt_per_million if provider == "openai" else pricing.cache_read_per_million
    written = pricing.cache_creation_per_million
    return (
        tokens.prompt * prompt
        + tokens.completion * pricing.completion_per_million
        + tokens.cache_read * (prompt if read is None else read)
        + tokens.cache_written * (prompt if written is None else written)
    ) / 1_000_000


def _look_up(tokens: _Tokens, provider: str, model_name: str) -> float:
    what = f"No price is registered for {model_name!r}: call register_model_pricing, or use genai-prices, which"
    genai_prices = load_extra("genai_prices", what, "prices")
    usage = genai_prices.Usage(
        input_tokens=int(tokens.prompt + tokens.cache_read + tokens.cache_written),
        output_tokens=int(tokens.completion),
        cache_read_tokens=int(tokens.cache_read),
        cache_write_tokens=int(tokens.cache_written),
    )
    try:
        price = genai_prices.calc_price(usage, model_name.removeprefix(f"{provider}/"), provider_id=provider)
    except LookupError as error:
        raise ValueError(
            f"genai-prices has no price for {model_name!r} by {provider!r}. Call register_model_pricing, or pass "
            "prompt_price_per_million and completion_price_per_million."
        ) from error
    return float(price.total_price)


def _count(holder: Any, name: str) -> float:
    value = _get(holder, name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _get(holder: Any, name: str) -> Any:
    """A field of a response, which may be an object of any SDK or a mapping."""
    if isinstance(holder, Mapping):
        return cast(Mapping[str, Any], holder).get(name)
    return getattr(holder, name, None)
