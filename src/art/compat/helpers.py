"""Helpers for scripts around a training run: what ``art.utils`` offers."""

import asyncio
import copy
import functools
import inspect
import json
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

import httpx
from openai.types.chat.chat_completion import Choice
from rich.console import Console
from rich.text import Text

from art.rollouts.references import read_reference

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger(__name__)
_console = Console(highlight=False)


def format_message(message: Mapping[str, Any]) -> str:
    """The role, the content, and each tool call as ``name(arguments)``."""
    lines = [f"{str(message['role']).capitalize()}:", str(message.get("content") or "")]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    lines += [f"{function['name']}({function['arguments']})" for function in calls]
    return "\n".join(lines)


Reduction = Literal["mean", "sum", "var", "std", "count", "min", "max"]


def group_aggregate(
    values: Sequence[float],
    *,
    by: Sequence[Hashable],
    reduce: Reduction = "mean",
    eps: float = 1e-8,
    broadcast: bool = True,
) -> list[float]:
    """Reduce ``values`` within each group.

    Args:
        values: N numbers.
        by: The group of each value.
        reduce: ``var`` and ``std`` are those of the population; ``std`` is the root of the variance plus ``eps``.
        broadcast: Give N results, each value's group's; else one per group, in order of appearance.

    Raises:
        ValueError: The lengths differ, or the reduction is unknown.
    """
    groups: dict[Hashable, list[float]] = {}
    for value, key in zip(values, by, strict=True):
        groups.setdefault(key, []).append(value)
    reduced = {key: _reduce(members, reduce, eps) for key, members in groups.items()}
    return [reduced[key] for key in by] if broadcast else list(reduced.values())


def _reduce(members: list[float], how: str, eps: float) -> float:
    mean = sum(members) / len(members)
    variance = sum((value - mean) ** 2 for value in members) / len(members)
    results = {
        "mean": mean,
        "sum": sum(members),
        "var": variance,
        "std": math.sqrt(variance + eps),
        "count": float(len(members)),
        "min": min(members),
        "max": max(members),
    }
    if how not in results:
        raise ValueError(f"reduce must be one of {', '.join(results)}, not {how!r}.")
    return results[how]


@dataclass
class DatasetBatch(Generic[T]):
    """The scenarios of one training step."""

    items: list[T]
    step: int
    """Counted over all epochs, from 0."""
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: Sequence[T], groups_per_step: int = 1, num_epochs: int = 1, initial_step: int = 0, use_tqdm: bool = True
) -> Generator[DatasetBatch[T]]:
    """Yield batches; each epoch is shuffled in its own way, the same in every run.

    Args:
        groups_per_step: Items per batch; the last batch of an epoch may be shorter.
        initial_step: Steps before this one are skipped, for resuming.
        use_tqdm: Show a progress bar.

    >>> for batch in iterate_dataset(["a", "b", "c"], groups_per_step=2, use_tqdm=False):
    ...     print(batch.step, len(batch.items))
    0 2
    1 1
    """
    per_epoch = math.ceil(len(dataset) / groups_per_step)
    bar = None
    if use_tqdm and dataset:
        from tqdm import tqdm

        bar = tqdm(total=per_epoch * num_epochs, initial=initial_step, desc="steps", disable=None)
    try:
        for epoch in range(num_epochs):
            order = list(range(len(dataset)))
            random.Random(epoch).shuffle(order)
            for epoch_step in range(per_epoch):
                step = epoch * per_epoch + epoch_step
                if step < initial_step:
                    continue
                chosen = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
                yield DatasetBatch([dataset[index] for index in chosen], step, epoch, epoch_step)
                if bar is not None:
                    bar.update(1)
    finally:
        if bar is not None:
            bar.close()


class _Gate:
    """A semaphore that knows how many use it or wait for it."""

    def __init__(self, n: int) -> None:
        self.semaphore = asyncio.Semaphore(n)
        self.users = 0


def limit_concurrency(
    n: int, derive_key: Callable[..., Hashable] | None = None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Decorate an async function so that at most ``n`` of its calls run at once.

    Args:
        derive_key: Maps a call's arguments to a key; each key has its own ``n``. ``None``: one for all.
    """

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Gate]] = WeakKeyDictionary()

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            key = derive_key(*args, **kwargs) if derive_key is not None else None
            mine = gates.setdefault(asyncio.get_running_loop(), {})
            gate = mine.setdefault(key, _Gate(n))
            gate.users += 1
            try:
                async with gate.semaphore:
                    return await function(*args, **kwargs)
            finally:
                gate.users -= 1
                if not gate.users:
                    mine.pop(key, None)

        return limited

    return decorate


def convert_litellm_choice_to_openai(litellm_choice: Any) -> Choice:
    """Turn a finished litellm choice of an assistant into the object that trajectories hold."""
    choice, message = litellm_choice, litellm_choice.message
    assert message.role == "assistant", f"expected an assistant's message, got {message.role!r}"
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in message.tool_calls or ()
    ]
    logprobs = getattr(choice, "logprobs", None)
    fields: dict[str, Any] = {
        "index": choice.index,
        "finish_reason": choice.finish_reason,
        "message": {"role": "assistant", "content": message.content, "tool_calls": calls or None},
        "logprobs": None if logprobs is None else {"content": _tokens(logprobs), "refusal": None},
    }
    if (reference := read_reference(choice)) is not None:
        fields["art"] = reference
    return Choice.model_validate(fields)


def _tokens(logprobs: Any) -> list[dict[str, Any]]:
    return [
        {
            "token": entry.token,
            "bytes": entry.bytes,
            "logprob": entry.logprob,
            "top_logprobs": [
                {"token": top.token, "bytes": top.bytes, "logprob": top.logprob} for top in entry.top_logprobs or ()
            ],
        }
        for entry in logprobs.content or ()
    ]


def log_http_errors(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Decorate an async function: a status error whose body has a ``detail`` becomes an exception that shows it."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await function(*args, **kwargs)
        except httpx.HTTPStatusError as error:
            detail = _detail(error.response)
            if detail is None:
                raise
            raise RuntimeError(f"{error.response.status_code} from {error.request.url}: {detail}") from error

    return call


def _detail(response: httpx.Response) -> Any:
    try:
        body: Any = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError, httpx.ResponseNotRead):
        return None
    return cast(dict[str, Any], body).get("detail") if isinstance(body, dict) else None


def _line(mark: str, style: str, message: str) -> None:
    _console.print(Text.assemble((mark, style), " ", message))


def info(message: str) -> None:
    """Something worth knowing."""
    _line("[INFO]", "cyan", message)


def step(message: str) -> None:
    """The beginning of a stage."""
    _line("[STEP]", "bold blue", message)


def ok(message: str) -> None:
    """Something that succeeded."""
    _line("[OK]", "green", message)


def warn(message: str) -> None:
    """Something that may be wrong."""
    _line("[WARN]", "yellow", message)


def err(message: str) -> None:
    """Something that failed."""
    _line("[ERR]", "bold red", message)


def dim(message: str) -> None:
    """A detail, without a mark."""
    _console.print(Text(message, "dim"))


def record_provenance(run: Any, provenance: str) -> None:
    """Append to ``run.config["provenance"]``, unless it is the last entry already."""
    entries = list(run.config.get("provenance") or [])
    if not entries or entries[-1] != provenance:
        run.config.update({"provenance": [*entries, provenance]}, allow_val_change=True)


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, sync or async, to be called again when it raises.

    Args:
        max_attempts: Calls in all; the last one's exception propagates.
        delay: Seconds before the second call.
        backoff_factor: What the delay is multiplied by after each call.
        exceptions: Types to try again for; others propagate at once.
        on_retry: Called with the exception and the number of the failed call, from 1; ``None`` logs a warning.

    >>> @retry(max_attempts=3, delay=0.01, exceptions=(TimeoutError,))
    ... async def ask():
    ...     return "answer"
    >>> await ask()
    'answer'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        def failed(error: Exception, attempt: int) -> None:
            if on_retry is not None:
                on_retry(error, attempt)
            else:
                name = getattr(function, "__name__", repr(function))
                _log.warning("%s failed (attempt %d of %d): %s", name, attempt, max_attempts, error)

        def pauses() -> Generator[tuple[int, float]]:
            for attempt in range(1, max_attempts):
                yield attempt, delay * backoff_factor ** (attempt - 1)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                for attempt, pause in pauses():
                    try:
                        return await cast(Any, function)(*args, **kwargs)
                    except exceptions as error:
                        failed(error, attempt)
                        await asyncio.sleep(pause)
                return await cast(Any, function)(*args, **kwargs)

            return cast(Callable[P, R], call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for attempt, pause in pauses():
                try:
                    return function(*args, **kwargs)
                except exceptions as error:
                    failed(error, attempt)
                    time.sleep(pause)
            return function(*args, **kwargs)

        return call

    return decorate


def strip_logprobs(obj: Any) -> Any:
    """A copy of ``obj`` without log-probabilities: dict keys dropped, attributes set to ``None``, at any depth.

    Where ``obj`` cannot be copied it is returned as it is, with a warning in the log.
    """
    try:
        twin = copy.deepcopy(obj)
    except Exception as error:  # noqa: BLE001
        _log.warning("Failed to deepcopy object in strip_logprobs: %s. Returning original object unchanged.", error)
        return obj
    return _strip(twin)


def _strip(value: Any) -> Any:
    kind = value.__class__
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return {key: _strip(inner) for key, inner in items if key != "logprobs"}
    if isinstance(value, (list, tuple)):
        members = [_strip(inner) for inner in cast(list[Any], value)]
        return (
            kind(*members) if hasattr(kind, "_fields") else kind(members)
        )  # a named tuple takes its fields one by one
    if hasattr(value, "__dict__") and not isinstance(value, type):
        attributes: dict[str, Any] = dict(value.__dict__)
        for name, inner in attributes.items():
            setattr(value, name, None if name == "logprobs" else _strip(inner))
    return value
