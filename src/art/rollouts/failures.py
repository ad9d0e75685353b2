"""Failures of the service and failures of rollouts, and how many of the latter a gathering tolerates."""

import asyncio
import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from art.errors import INFRASTRUCTURE_CODES, BackendDiedError, BackendError, BackendUnreachableError
from art.wire import ErrorCode

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")

_service_urls: set[str] = set()


def remember_service(url: str) -> None:
    """Note the address of a backend in use: a refused connection to it is a failure of the service."""
    _service_urls.add(url.rstrip("/") + "/")


def is_service_failure(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, says that the engine or the gateway is broken."""
    return any(_says_broken(one) for one in _chain(error))


def is_context_overflow(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, says that a prompt outgrew the model's context: an episode's normal end."""
    from openai import APIError

    known = (one for one in _chain(error) if isinstance(one, (APIError, BackendError)))
    return any(one.code == ErrorCode.CONTEXT_LENGTH_EXCEEDED for one in known)


def _says_broken(error: BaseException) -> bool:
    from openai import APIConnectionError, APIStatusError, APITimeoutError

    if isinstance(error, BackendError):
        return isinstance(error, (BackendDiedError, BackendUnreachableError)) or error.code in INFRASTRUCTURE_CODES
    if isinstance(error, APIStatusError):
        return error.code in INFRASTRUCTURE_CODES
    if isinstance(error, APITimeoutError):
        return False
    if isinstance(error, APIConnectionError):
        return _is_ours(str(error.request.url))
    if isinstance(error, httpx.HTTPStatusError):
        return _code(error.response) in INFRASTRUCTURE_CODES
    if isinstance(error, httpx.ConnectError):
        return _is_ours(str(error.request.url))
    return False


def _is_ours(url: str) -> bool:
    return any(url.startswith(known) for known in _service_urls)


def _code(response: httpx.Response) -> Any:
    try:
        return response.json()["error"]["code"]
    except (json.JSONDecodeError, httpx.ResponseNotRead, KeyError, TypeError):
        return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


@dataclass
class GatherContext:
    """The state of one gathering: its bar, its running means, and how many failures it tolerates."""

    pbar: "tqdm[Any] | None" = None
    metric_sums: dict[str, float] = field(default_factory=dict[str, float])
    """Sum of each metric; under ``"exceptions"``, the number of failures."""
    metric_divisors: dict[str, int] = field(default_factory=dict[str, int])
    max_metrics: int | None = None
    """Most metrics that the bar shows; ``None`` shows all."""
    max_exceptions: int | float = 0
    """How many failures to tolerate: a count, or, below 1, a fraction of the bar's total."""
    increment_pbar: bool = True
    recorded: int = 0
    """Trajectories recorded through this very object."""

    def update_pbar(self, n: int) -> None:
        """Show the means, and move the bar by ``n`` unless moving it is someone else's business."""
        if self.pbar is None:
            return
        shown = dict(list(self._means().items())[: self.max_metrics])
        shown |= {name: self.metric_sums[name] for name in ("exceptions", "truncated") if self.metric_sums.get(name)}
        self.pbar.set_postfix(shown)  # pyright: ignore[reportUnknownMemberType]
        if self.increment_pbar:
            self.pbar.update(n)

    def record_failure(self, error: BaseException) -> None:
        """Count a failed rollout. One that outgrew the context is counted apart, and not against the budget.

        Raises:
            BaseException: ``error`` itself, if it is a failure of the service.
        """
        if is_service_failure(error):
            raise error
        name = "truncated" if is_context_overflow(error) else "exceptions"
        self.metric_sums[name] = self.metric_sums.get(name, 0) + 1
        self.update_pbar(0)

    def too_many_exceptions(self) -> bool:
        failures = self.metric_sums.get("exceptions", 0)
        total = self.pbar.total if self.pbar is not None else None
        if 0 < self.max_exceptions < 1 and total and failures / total <= self.max_exceptions:
            return False
        return failures > self.max_exceptions

    def reset(self) -> None:
        """Forget bar, means, failures and limits."""
        self.pbar = None
        self.metric_sums = {}
        self.metric_divisors = {}
        self.max_metrics = None
        self.max_exceptions = 0
        self.increment_pbar = True

    def _means(self) -> dict[str, float]:
        return {name: self.metric_sums[name] / count for name, count in self.metric_divisors.items() if count}


_context: ContextVar[GatherContext | None] = ContextVar("art_gather_context", default=None)


@contextlib.contextmanager
def set_gather_context(context: GatherContext) -> Generator[GatherContext]:
    """Make ``context`` the current one inside the ``with`` block."""
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def get_gather_context() -> GatherContext:
    """The current context; outside of any gathering, a new one that tolerates no failure."""
    return _context.get() or GatherContext()


async def gather_or_cancel(tasks: Sequence[asyncio.Task[T]]) -> list[T]:
    """Results of all tasks, in order. When one fails, or this wait is cancelled, the rest are cancelled and awaited first."""
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
