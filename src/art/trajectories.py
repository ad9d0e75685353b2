"""Trajectories: one scored agent run each, and groups of them that training compares."""

import asyncio
import copy
import inspect
import time
import traceback as tracebacks
import warnings
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Self, TypeAlias, cast, overload

from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, Field, PrivateAttr, model_validator

from art.rollouts import environment
from art.rollouts.failures import GatherContext, gather_or_cancel, get_gather_context
from art.types import Messages, MessagesAndChoices, Tools, TrajectoryExchanges

__all__ = ["History", "MetadataValue", "PydanticException", "Trajectory", "TrajectoryGroup", "get_messages"]

MetadataValue: TypeAlias = float | int | str | bool | list[Any] | dict[str, Any] | None
"""Any JSON value."""

active_trajectory: "ContextVar[Trajectory | None]" = ContextVar("art_active_trajectory", default=None)
"""The innermost open trajectory; a new task inherits it from the task that created it."""

NOTHING_RECORDED = (
    "No model call was recorded in this trajectory. ART records calls made through a model's own client "
    "(model.openai_client()) and through clients built on art.capture.async_http_client() or http_client(), but not through "
    "other clients. For agents that build their own clients, use `async with model.rollout()`. docs/capture.md "
    "explains the options."
)


class PydanticException(BaseModel):
    """An exception that can be stored and sent: its type's name, its message and its formatted traceback."""

    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        return cls(type=str(type(error)), message=str(error), traceback="".join(tracebacks.format_exception(error)))


class History(BaseModel):
    """One conversation with the model."""

    messages_and_choices: MessagesAndChoices
    tools: Tools | None = None

    def messages(self) -> Messages:
        """The conversation as plain messages."""
        return get_messages(self.messages_and_choices)


class Trajectory(BaseModel):
    """One scored run of the agent.

    Its tokens are found either through the sampled ``Choice`` objects in its conversations or through ``rollout_id``.

    >>> trajectory = art.Trajectory(reward=0.5, metrics={"turns": 3}, metadata={"scenario_id": "a"})
    >>> trajectory.messages_and_choices.append({"role": "user", "content": "Hi."})
    >>> print(trajectory)
    Trajectory(reward=0.5, metrics={'turns': 3}, metadata={'scenario_id': 'a'})
    """

    messages_and_choices: MessagesAndChoices = []
    tools: Tools | None = None
    additional_histories: list[History] = []
    """Further conversations of the same run, such as those of sub-agents."""
    reward: float = 0.0
    rollout_id: str | None = None
    """The keyed rollout that captured this run; everything sampled under its key is trained."""
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    metrics: dict[str, float | int | bool] = {}
    metadata: dict[str, MetadataValue] = {}
    logs: list[str] = []
    exchanges: TrajectoryExchanges = Field(default_factory=TrajectoryExchanges, exclude=True)
    """The recorded model calls, unchanged. Not part of dumps: their conversations are."""
    start_time: datetime = Field(default_factory=datetime.now, exclude=True)

    _variables: dict[str, str | None] | None = PrivateAttr(default=None)
    _outer: "list[tuple[Trajectory | None, environment.Overlay | None]]" = PrivateAttr(default_factory=list[Any])
    """The enclosing trajectory, once for each time this one was entered."""
    _encloses: bool = PrivateAttr(default=False)
    """Whether a trajectory was opened inside, which records its own calls."""

    @model_validator(mode="before")
    @classmethod
    def _tell_unknown_fields(cls, given: Any) -> Any:
        """Warn about unknown fields: a misspelt reward would be lost silently, but fields of other versions must load."""
        if isinstance(given, dict):
            names = cast(dict[str, Any], given)
            if unknown := [name for name in names if name not in cls.model_fields]:
                known = ", ".join(cls.model_fields)
                warnings.warn(f"Trajectory has no field {', '.join(unknown)}; left out. Fields: {known}.", stacklevel=3)
        return cast(Any, given)

    def log(self, message: str) -> None:
        """Append a line to the trajectory's logs."""
        self.logs.append(message)

    def finish(self) -> Self:
        """Set ``metrics["duration"]`` to the seconds since ``start_time``."""
        self.metrics["duration"] = (datetime.now(self.start_time.tzinfo) - self.start_time).total_seconds()
        return self

    @asynccontextmanager
    async def track_duration(self, metric_name: str) -> AsyncGenerator[None]:
        """Add the seconds spent inside to ``metrics[f"{metric_name}_duration"]``, also when the body raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            key = f"{metric_name}_duration"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - started

    def with_environment(self, variables: Mapping[str, str | None]) -> Self:
        """Set these environment variables while the trajectory is open, in its context only; ``None`` hides one.

        ``rollout.trajectory()`` sets those that name the rollout's endpoint.
        """
        self._variables = dict(variables)
        return self

    def __enter__(self) -> Self:
        """Record the model calls made until the block ends. If there were none, warn with possible reasons."""
        variables = None if self._variables is None else environment.enter(self._variables)
        outer = active_trajectory.get()
        if outer is not None:
            outer._encloses = True
        self._outer.append((outer, variables))
        active_trajectory.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._leave(kind, stacklevel=3)

    def _leave(self, kind: type[BaseException] | None, stacklevel: int) -> None:
        if active_trajectory.get() is not self:
            raise RuntimeError("Nested trajectories must be closed in reverse order.")
        trajectory, variables = self._outer.pop()
        active_trajectory.set(trajectory)
        if variables is not None:
            environment.leave(variables)
        self.finish()
        seen = self.messages_and_choices or self.additional_histories or self.exchanges or self.rollout_id
        if kind is None and not (seen or self._encloses):
            warnings.warn(NOTHING_RECORDED, stacklevel=stacklevel)

    async def __aenter__(self) -> Self:
        """Like ``with``, for use on one line with ``async with model.rollout()``."""
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._leave(kind, stacklevel=3)

    def messages(self) -> Messages:
        """Return the main conversation as plain messages."""
        return get_messages(self.messages_and_choices)

    def for_logging(self) -> dict[str, Any]:
        """Return a JSON-able summary; each message says whether it is ``trainable``, that is, was sampled."""
        messages = [
            {**message, "trainable": is_choice(item)}
            for item, message in zip(self.messages_and_choices, self.messages(), strict=True)
        ]
        return {
            "reward": self.reward,
            "initial_policy_version": self.initial_policy_version,
            "final_policy_version": self.final_policy_version,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "messages": messages,
            "tools": self.tools,
            "logs": self.logs,
        }

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={self.metrics}, metadata={self.metadata})"


def get_messages(messages_and_choices: MessagesAndChoices) -> Messages:
    """Turn sampled choices into plain assistant messages; missing content becomes an empty string.

    Args:
        messages_and_choices: In order. They are not changed.

    >>> get_messages([{"role": "assistant", "content": None}])
    [{'role': 'assistant', 'content': ''}]
    """
    messages: list[dict[str, Any]] = []
    for item in messages_and_choices:
        if isinstance(item, Choice):
            message: dict[str, Any] = {"role": "assistant", "content": item.message.content or ""}
            if item.message.tool_calls:
                message["tool_calls"] = [call.model_dump(mode="json") for call in item.message.tool_calls]
        elif isinstance(item, BaseModel):  # an SDK message object that the agent appended as it came
            message = cast(BaseModel, item).model_dump(mode="json", exclude_none=True)
        else:
            message = dict(cast(Mapping[str, Any], item))
        if is_choice(message):
            message = {key: value for key, value in message["message"].items() if key in _SPOKEN and value is not None}
        if message.get("content") is None:
            message["content"] = ""
        messages.append(message)
    return cast(Messages, messages)


_SPOKEN = ("role", "content", "tool_calls")
"""Fields of a choice that a plain message keeps."""


def is_choice(item: Any) -> bool:
    """Whether an item was sampled: a choice of OpenAI's SDK, of a wrapper such as litellm, or one that became a dict."""
    fields = cast("Mapping[str, Any]", vars(item) if isinstance(item, BaseModel) else item)
    return "finish_reason" in fields and "message" in fields


class TrajectoryGroup(BaseModel):
    """Trajectories of one scenario. Training compares them with each other.

    Given awaitables, the constructor returns an awaitable of the group instead, which runs them concurrently:

        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(rollout(model, scenario) for _ in range(8)) for scenario in scenarios
        )

    >>> group = art.TrajectoryGroup([art.Trajectory(reward=1.0), ValueError("lost")], metadata={"scenario_id": "a"})
    >>> len(group), group.exceptions[0].message
    (1, 'lost')
    """

    trajectories: list[Trajectory] = []
    exceptions: list[PydanticException] = []
    """Runs that failed."""
    metadata: dict[str, MetadataValue] = {}
    metrics: dict[str, float | int | bool] = {}
    logs: list[str] = []

    @overload
    def __new__(
        cls,
        trajectories: Iterable[Trajectory | BaseException] = (),
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: Mapping[str, MetadataValue] | None = None,
        metrics: Mapping[str, float | int | bool] | None = None,
        logs: Iterable[str] | None = None,
    ) -> "TrajectoryGroup": ...

    @overload
    def __new__(
        cls,
        trajectories: Iterable[Awaitable[Trajectory] | Trajectory | BaseException],
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: Mapping[str, MetadataValue] | None = None,
        metrics: Mapping[str, float | int | bool] | None = None,
        logs: Iterable[str] | None = None,
    ) -> "Awaitable[TrajectoryGroup]": ...

    def __new__(
        cls,
        trajectories: Iterable[Awaitable[Trajectory] | Trajectory | BaseException] = (),
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: Mapping[str, MetadataValue] | None = None,
        metrics: Mapping[str, float | int | bool] | None = None,
        logs: Iterable[str] | None = None,
    ) -> "TrajectoryGroup | Awaitable[TrajectoryGroup]":
        items = list(trajectories)
        if any(isinstance(item, Awaitable) for item in items):
            parts = {"exceptions": exceptions, "metadata": metadata, "metrics": metrics, "logs": logs}
            return PendingGroup(cls, items, parts)
        group = super().__new__(cls)
        vars(group)["_items"] = items  # a one-shot generator is spent by now; __init__ takes them from here
        return group

    def __init__(
        self,
        trajectories: Iterable[Awaitable[Trajectory] | Trajectory | BaseException] = (),
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: Mapping[str, MetadataValue] | None = None,
        metrics: Mapping[str, float | int | bool] | None = None,
        logs: Iterable[str] | None = None,
    ) -> None:
        items: list[Any] = vars(self).pop("_items", None) or list(trajectories)
        errors = [item for item in items if isinstance(item, BaseException)]
        super().__init__(
            trajectories=[item for item in items if not isinstance(item, BaseException)],
            exceptions=[
                PydanticException.of(error) if isinstance(error, BaseException) else error
                for error in (*errors, *exceptions)
            ],
            metadata=dict(metadata or {}),
            metrics=dict(metrics or {}),
            logs=list(logs or ()),
        )

    def log(self, message: str) -> None:
        """Append a line to the group's logs."""
        self.logs.append(message)

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    def __copy__(self) -> Self:
        twin = super().__copy__()
        for name in type(self).model_fields:
            setattr(twin, name, copy.copy(getattr(self, name)))
        return twin


def record_metrics(context: GatherContext, trajectory: Trajectory) -> None:
    """Set ``metrics["completion_tokens"]`` where it can be known, and add everything to the running means."""
    lengths = [
        len(item.logprobs.content or item.logprobs.refusal or [])
        for item in trajectory.messages_and_choices
        if isinstance(item, Choice) and item.logprobs is not None
    ]
    if lengths:
        trajectory.metrics["completion_tokens"] = sum(lengths) / len(lengths)
    context.recorded += 1
    for name, value in {"reward": trajectory.reward, **trajectory.metrics}.items():
        context.metric_sums[name] = context.metric_sums.get(name, 0) + value
        context.metric_divisors[name] = context.metric_divisors.get(name, 0) + 1


class PendingGroup:
    """The awaitable of a group: runs its members concurrently and keeps their order."""

    def __init__(self, kind: type[TrajectoryGroup], items: list[Any], parts: dict[str, Any]) -> None:
        self._kind = kind
        self._items = items
        self._parts = parts
        self._num_trajectories = sum(not isinstance(item, BaseException) for item in items)
        self._started = False

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        return self._gather().__await__()

    async def _gather(self) -> TrajectoryGroup:
        self._started = True
        tasks = [asyncio.ensure_future(self._run(item)) for item in self._items]
        try:
            members = await gather_or_cancel(tasks)
        finally:
            for item in self._items:  # of a member whose task was cancelled before its first step
                if asyncio.iscoroutine(item) and inspect.getcoroutinestate(item) == inspect.CORO_CREATED:
                    item.close()
        return self._kind(members, **self._parts)

    async def _run(self, item: Any) -> Trajectory | BaseException:
        context = get_gather_context()
        if isinstance(item, BaseException):
            return item
        try:
            member: Any = await cast(Awaitable[Any], item) if isinstance(item, Awaitable) else item
            if not isinstance(member, Trajectory):
                raise TypeError(f"A member of a TrajectoryGroup returned {type(member).__name__}, not a Trajectory.")
        except Exception as error:
            context.record_failure(error)
            if context.too_many_exceptions():
                raise
            return error
        record_metrics(context, member)
        context.update_pbar(1)
        return member

    def close(self) -> None:
        """Close members that were never started, so that they are not reported as never awaited."""
        if self._started:
            return
        for item in self._items:
            if asyncio.iscoroutine(item):
                item.close()
            elif isinstance(item, asyncio.Future):
                cast("asyncio.Future[Any]", item).cancel()
