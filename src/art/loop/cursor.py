"""Which scenarios are done, so that a resumed run repeats none and leaves none out."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ScenarioCursor(Generic[T]):
    """Hands out scenarios, and remembers by number those that are settled: trained, discarded or failed for good.

    Rollouts end in any order, so a count does not say which scenarios are done: the cursor keeps the number below which
    all are, and those beyond it.
    """

    def __init__(self, scenarios: Iterable[T] | AsyncIterable[T]) -> None:
        self._source = _as_async(scenarios)
        self._next = 0
        self._all_below = 0
        self._beyond: set[int] = set()

    async def take(self) -> tuple[int, T] | None:
        """The next scenario that is not settled, with its number; ``None`` when there is none."""
        async for scenario in self._source:
            number = self._next
            self._next += 1
            if number >= self._all_below and number not in self._beyond:
                return number, scenario
        return None

    def settle(self, number: int) -> None:
        self._beyond.add(number)
        while self._all_below in self._beyond:
            self._beyond.remove(self._all_below)
            self._all_below += 1

    @property
    def settled(self) -> int:
        return self._all_below + len(self._beyond)

    def state(self) -> dict[str, Any]:
        return {
            "scenario_offset": self._all_below,
            "settled_beyond_offset": sorted(self._beyond),
            "total_scenarios_consumed": self.settled,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._all_below = int(state.get("scenario_offset", 0))
        self._beyond = set(state.get("settled_beyond_offset", ()))


async def _as_async(scenarios: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(scenarios, AsyncIterable):
        async for scenario in scenarios:
            yield scenario
    else:
        for scenario in scenarios:
            yield scenario
