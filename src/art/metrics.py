"""Metrics that accumulate over a run: costs, times and amounts of data."""

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextvars import ContextVar, Token
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast

from art.logs.costs import Prices, TokenPricing, check_prices, extract_response_cost

__all__ = [
    "MetricsBuilder",
    "is_builder_managed_metric",
    "is_cumulative_metric_key",
    "to_cumulative_metric_key",
    "track_api_cost",
]

P = ParamSpec("P")
R = TypeVar("R")

_CUMULATIVE_SECTIONS = ("costs", "time", "data")
_STEP_SECTIONS = ("time", "data", "throughput")
_IDLE_KEYS = ("throughput/step_trainer_idle_s", "throughput/step_actor_idle_s")


def is_cumulative_metric_key(key: str) -> bool:
    """Whether ``key`` is a running total, ``section/cum/…``."""
    parts = key.split("/")
    return len(parts) > 2 and parts[1] == "cum"


def is_builder_managed_metric(key: str) -> bool:
    """Whether ``key`` is summed by a builder instead of averaged over trajectories."""
    section, _, rest = key.partition("/")
    return (section == "costs" and bool(rest)) or (section in _STEP_SECTIONS and rest.startswith("step_"))


def to_cumulative_metric_key(key: str) -> str:
    """The name of the running total of ``key``: ``time/step_wall_s`` becomes ``time/cum/wall_s``."""
    section, _, rest = key.partition("/")
    return f"{section}/cum/{rest.removeprefix('step_')}"


class _Shared:
    """State shared by the builders of all contexts of one model."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.scenario_ids: dict[str, None] = {}
        self.pending: dict[str, dict[str, float]] = {}
        self.pending_ids: dict[str, list[str]] = {}
        self.pricing: dict[str, TokenPricing] = {}
        self.builders: dict[tuple[str, str], MetricsBuilder] = {}


class MetricsBuilder:
    """Collects the step's values of one context and turns them, at ``flush``, into a row with running totals.

    Args:
        cost_context: Where costs are recorded, such as ``"train"`` or ``"eval"``: ``costs/{cost_context}/{source}``.

    >>> builder = MetricsBuilder("train")
    >>> builder.add_cost("train/judge", 0.5)
    >>> await builder.flush()
    {'costs/train/judge': 0.5, 'costs/train': 0.5, 'costs/all': 0.5, ...}
    """

    def __init__(self, cost_context: str) -> None:
        if not cost_context.strip():
            raise ValueError("cost_context must not be empty.")
        self.cost_context = cost_context
        self._scope = cost_context
        self._shared = _Shared()
        self._shared.builders[cost_context, cost_context] = self

    # Collecting

    def add_cost(self, path: str, usd: float) -> None:
        """Add dollars at ``costs/{path}``."""
        if not path.strip("/ "):
            raise ValueError("The path of a cost must not be empty.")
        self.add_metric(f"costs/{path}", usd)

    def add_metric(self, key: str, value: float) -> None:
        """Add ``value`` to the step's sum of ``key``.

        Raises:
            ValueError: The key has no section, names a running total, or is an ancestor or descendant of another key.
        """
        section, slash, rest = key.partition("/")
        if not slash or not section or not rest:
            raise ValueError(f"The metric {key!r} needs a section, such as costs/{key}.")
        if rest.split("/")[0] == "cum":
            raise ValueError(f"{key!r} is a running total; totals are computed; do not set them.")
        pending = self._pending
        for other in pending:
            if other.startswith(f"{key}/") or key.startswith(f"{other}/"):
                raise ValueError(f"{key!r} and {other!r} cannot both hold values: one would contain the other.")
        pending[key] = pending.get(key, 0.0) + float(value)

    def add_data(
        self,
        step_num_scenarios: float | None = None,
        step_actor_tokens: float | None = None,
        scenario_ids: Iterable[str] | None = None,
    ) -> None:
        """Add amounts of data, and scenarios for the count of unique ones."""
        self._add_given("data", step_num_scenarios=step_num_scenarios, step_actor_tokens=step_actor_tokens)
        if scenario_ids is not None:
            self._shared.pending_ids.setdefault(self._scope, []).extend(scenario_ids)

    def add_user_timing(
        self,
        step_wall_s: float | None = None,
        step_actor_s: float | None = None,
        step_eval_s: float | None = None,
    ) -> None:
        """Add seconds."""
        self._add_given("time", step_wall_s=step_wall_s, step_actor_s=step_actor_s, step_eval_s=step_eval_s)

    @contextlib.contextmanager
    def measure(self, key: str) -> Generator[None]:
        """Add the seconds spent inside to ``key``."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_metric(key, time.monotonic() - started)

    # Costs of responses

    def register_model_pricing(
        self,
        model_name: str,
        *,
        prompt_per_million: float,
        completion_per_million: float,
        cached_prompt_per_million: float | None = None,
        cache_creation_per_million: float | None = None,
        cache_read_per_million: float | None = None,
    ) -> None:
        """Set the prices of a model, in dollars per million tokens."""
        self._shared.pricing[model_name] = TokenPricing(
            prompt_per_million=prompt_per_million,
            completion_per_million=completion_per_million,
            cached_prompt_per_million=cached_prompt_per_million,
            cache_creation_per_million=cache_creation_per_million,
            cache_read_per_million=cache_read_per_million,
        )

    def add_response_cost(
        self,
        source: str,
        response: Any,
        *,
        provider: str,
        model_name: str,
        **prices: Unpack[Prices],
    ) -> float:
        """Record a response's cost under ``costs/{cost_context}/{source}``.

        Args:
            prices: Dollars per million tokens; without them, ``genai-prices`` supplies the prices.

        Returns:
            The dollars.

        Raises:
            ValueError: The response states no cost, and none can be computed.
            MissingExtraError: No prices are given, and ``genai-prices`` is not installed.
        """
        cost = extract_response_cost(
            response,
            provider=provider,
            model_name=model_name,
            registered=self._shared.pricing.get(model_name),
            prices=prices,
        )
        self.add_cost(f"{self.cost_context}/{source}", cost)
        return cost

    # Contexts

    def for_cost_context(self, cost_context: str, *, buffer_scope: str | None = None) -> "MetricsBuilder":
        """Return a builder of another context over the same totals.

        Args:
            buffer_scope: Whose flush collects its values; ``None``: the context's own.
        """
        if not cost_context.strip():
            raise ValueError("cost_context must not be empty.")
        key = (cost_context, buffer_scope or cost_context)
        if key == (self.cost_context, self._scope):
            return self
        if key not in self._shared.builders:
            sibling = MetricsBuilder(cost_context)
            sibling._scope = key[1]
            sibling._shared = self._shared
            self._shared.builders[key] = sibling
        return self._shared.builders[key]

    def activate(self) -> "Token[MetricsBuilder | None]":
        """Make this the active builder for costs. Undo with ``token.var.reset(token)``."""
        return _active.set(self)

    @contextlib.contextmanager
    def activate_context(self) -> Generator[Self]:
        """``activate``, for the ``with`` block."""
        token = self.activate()
        try:
            yield self
        finally:
            _active.reset(token)

    @staticmethod
    def get_active() -> "MetricsBuilder":
        """The active builder.

        Raises:
            LookupError: None is active.
        """
        builder = _active.get()
        if builder is None:
            raise LookupError("No metrics builder is active; use `with builder.activate_context()`.")
        return builder

    # Rows

    async def flush(self) -> dict[str, float]:
        """The step's sums with roll-ups of costs, running totals and rates; the step's sums are then forgotten."""
        shared = self._shared
        step = shared.pending.pop(self._scope, {})
        ids = shared.pending_ids.pop(self._scope, None)
        row = {**step, **_roll_up_costs(step)}
        for key, value in list(row.items()):
            if key.split("/")[0] in _CUMULATIVE_SECTIONS or key in _IDLE_KEYS:
                total = to_cumulative_metric_key(key)
                row[total] = self._accumulate(total, value)
        if ids is not None:
            shared.scenario_ids.update(dict.fromkeys(ids))
            row["data/cum/num_unique_scenarios"] = float(len(shared.scenario_ids))
        for who in ("trainer", "actor"):
            seconds = shared.totals.get(f"time/cum/{who}_s", 0.0)
            if seconds > 0 and (f"data/step_{who}_tokens" in step or f"time/step_{who}_s" in step):
                row[f"throughput/avg_{who}_tok_per_s"] = shared.totals.get(f"data/cum/{who}_tokens", 0.0) / seconds
        return row

    @contextlib.contextmanager
    def kept_on_failure(self) -> Generator[None]:
        """If the block raises, what was pending before it is pending again, and totals are as before."""
        shared = self._shared
        totals, ids = dict(shared.totals), dict(shared.scenario_ids)
        pending = {scope: dict(values) for scope, values in shared.pending.items()}
        pending_ids = {scope: list(values) for scope, values in shared.pending_ids.items()}
        try:
            yield
        except BaseException:
            shared.totals, shared.scenario_ids, shared.pending, shared.pending_ids = totals, ids, pending, pending_ids
            raise

    def state_dict(self) -> dict[str, Any]:
        """The totals with which another process continues the run."""
        return {"cum_state": dict(self._shared.totals), "unique_scenario_ids": list(self._shared.scenario_ids)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the totals by stored ones; pending values are dropped."""
        self._shared.totals = {str(key): float(value) for key, value in state.get("cum_state", {}).items()}
        self._shared.scenario_ids = dict.fromkeys(map(str, state.get("unique_scenario_ids", [])))
        self._shared.pending = {}
        self._shared.pending_ids = {}

    @property
    def _pending(self) -> dict[str, float]:
        return self._shared.pending.setdefault(self._scope, {})

    def _add_given(self, section: str, **values: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self.add_metric(f"{section}/{name}", value)

    def _accumulate(self, key: str, value: float) -> float:
        total = self._shared.totals.get(key, 0.0) + value
        self._shared.totals[key] = total
        return total


def _roll_up_costs(step: Mapping[str, float]) -> dict[str, float]:
    """Each parent is the sum of the leaves below it, and ``costs/all`` the sum of everything."""
    sums: dict[str, float] = {}
    for key, value in step.items():
        parts = key.split("/")
        if parts[0] != "costs":
            continue
        for depth in range(2, len(parts)):
            parent = "/".join(parts[:depth])
            sums[parent] = sums.get(parent, 0.0) + value
        if parts[1:] != ["all"]:
            sums["costs/all"] = sums.get("costs/all", 0.0) + value
    return sums


_active: ContextVar[MetricsBuilder | None] = ContextVar("art_metrics_builder", default=None)


def track_api_cost(
    *,
    source: str,
    provider: str,
    model_name: str,
    response_getter: Callable[[Any], Any] | None = None,
    **prices: Unpack[Prices],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, sync or async, that calls a model's API: its cost is booked with the active builder.

    Args:
        source: Where to record it: ``costs/{context}/{source}``.
        response_getter: Extracts the response from the function's return value; ``None``: the value is the response.
        prices: Dollars per million tokens; see ``Prices``.

    Raises:
        TypeError: A price by an unknown name.
        ValueError: A name is blank; when called, the cost cannot be known.

    >>> @track_api_cost(
    ...     source="judge",
    ...     provider="openai",
    ...     model_name="my-judge",
    ...     prompt_price_per_million=2.0,
    ...     completion_price_per_million=8.0,
    ... )
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
    check_prices(prices)

    def book(result: Any) -> None:
        try:
            builder = MetricsBuilder.get_active()
        except LookupError:
            return
        response = (response_getter(result) if response_getter is not None else None) or result
        builder.add_response_cost(source, response, provider=provider, model_name=model_name, **prices)

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
