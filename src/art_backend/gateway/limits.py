"""Limits of model calls: how large one may be, and how many completions of one project are sampled at the same time.

More wait in a bounded queue, in which callers take turns. One project's burst then neither starves the others in the engine's
queue nor grows without end, and one caller's burst does not keep the project's other callers waiting. The same holds for work
beside the event loop.
"""

import asyncio
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import orjson

from art_backend.errors import BadRequestError, BusyError

P = ParamSpec("P")
T = TypeVar("T")

MAX_CALLS = 256
MAX_QUEUE = 8192

MAX_WAITING_BYTES = 2**30
"""Bodies of one project's calls that are being answered or wait."""

MAX_CHOICES = 128
"""Completions of one call: prompts × ``n``."""

MAX_MESSAGES = 10_000
"""Messages of one call, and the parts and calls that they consist of."""

MAX_PROMPT_IDS = 2**20
"""Token ids of one call's prompts."""

MAX_TOOLS = 512
MAX_TOOL_BYTES = 2**20

MAX_ARGUMENT_BYTES = 2**20
"""Arguments of a chat template, documents included."""


def check_extent(body: Mapping[str, Any], size: int) -> None:
    """Refuse a call of more parts than any agent needs, before each of them is looked at.

    Args:
        size: Bytes of the body; no part of a small one needs measuring.

    Raises:
        BadRequestError: A list is too long; the error names it and the limit.
    """
    for name in ("messages", "input", "system"):
        if isinstance(messages := body.get(name), list):
            _check(name, _count_parts(messages), MAX_MESSAGES, "messages, parts and calls", "shorten the history")
    if isinstance(tools := body.get("tools"), list):
        _check("tools", len(tools), MAX_TOOLS, "tools", "offer fewer")
        if size > MAX_TOOL_BYTES:
            _check(
                "tools", len(orjson.dumps(tools)), MAX_TOOL_BYTES, "bytes", "offer fewer tools or shorten their schemas"
            )
    if size > MAX_ARGUMENT_BYTES and (arguments := body.get("chat_template_kwargs")):
        _check("chat_template_kwargs", len(orjson.dumps(arguments)), MAX_ARGUMENT_BYTES, "bytes", "send less")
    prompts = body.get("prompt")
    if isinstance(prompts, list) and prompts:
        if not isinstance(prompts[0], int):
            check_choices(len(prompts))
        ids = len(prompts) + sum(len(prompt) for prompt in prompts[:MAX_CHOICES] if isinstance(prompt, list))
        _check("prompt", ids, MAX_PROMPT_IDS, "token ids", "send fewer")


def _count_parts(messages: list[Any]) -> int:
    """Messages and all that they consist of; those of a list that is too long are not counted any more."""
    count, layer = 0, messages
    while layer:
        count += len(layer)
        if count > MAX_MESSAGES:
            return count
        holders = [one for one in layer if isinstance(one, dict)]
        parts = [one.get(name) for one in holders for name in ("content", "tool_calls", "output", "summary")]
        layer = [inner for part in parts if isinstance(part, list) for inner in part]
    return count


def check_choices(count: int) -> None:
    """Raise BadRequestError for a call that asks for too many completions."""
    _check("n", count, MAX_CHOICES, "completions (prompts times n)", "send several calls")


def _check(name: str, count: int, limit: int, unit: str, remedy: str) -> None:
    if count > limit:
        raise BadRequestError(f"{name}: {count} {unit}, the limit is {limit}; {remedy}.", param=name)


@dataclass(slots=True)
class _Waiting:
    caller: str
    places: int
    turn: "asyncio.Future[None]"


@dataclass(slots=True)
class _Project:
    running: int = 0
    """Places taken."""
    queued: int = 0
    """Places that those who wait need."""
    size: int = 0
    callers: OrderedDict[str, deque[_Waiting]] = field(default_factory=OrderedDict[str, deque[_Waiting]])
    """Calls that wait, by caller; whose turn it is comes first."""


class ProjectLimits:
    """Counts the completions of each project.

    Args:
        calls: Most completions of one project that are sampled at the same time.
        queue: Most completions of one project that wait beside them; further calls get a ``BusyError``.
        timeout_s: How long one call waits before it gets a ``BusyError``.
    """

    def __init__(self, calls: int = MAX_CALLS, queue: int = MAX_QUEUE, timeout_s: float = 900.0) -> None:
        self._calls = calls
        self._queue = queue
        self._timeout_s = timeout_s
        self._projects: dict[str, _Project] = {}

    def waiting(self, project: str) -> int:
        """Calls that wait."""
        return sum(map(len, self._projects[project].callers.values())) if project in self._projects else 0

    @asynccontextmanager
    async def enter(self, project: str, caller: str = "", choices: int = 1, size: int = 0) -> AsyncGenerator[None]:
        """Hold a place for each of a call's choices; wait for them if need be. A call that is cancelled leaves the queue.

        Args:
            caller: Who takes turns with the project's other callers: a rollout.
            choices: More than the project has places count as all of them.
            size: Bytes of the call's body.

        Raises:
            BusyError: The queue is full, or its front was not reached in time.
        """
        state = self._projects.setdefault(project, _Project())
        places = min(choices, self._calls)
        if state.size + size > MAX_WAITING_BYTES:
            raise BusyError(
                f"Project {project!r} is at its limit: its calls hold {state.size} bytes, the limit is {MAX_WAITING_BYTES}. "
                "Run fewer rollouts at the same time.",
                retry_after_s=5,
            )
        state.size += size
        try:
            await self._take(project, state, caller, places)
            try:
                yield
            finally:
                state.running -= places
                self._admit(state)
        finally:
            state.size -= size
            if not state.running and not state.callers:
                self._projects.pop(project, None)

    async def _take(self, project: str, state: _Project, caller: str, places: int) -> None:
        if not state.callers and state.running + places <= self._calls:
            state.running += places
            return
        if state.queued + places > self._queue:
            raise BusyError(
                f"Project {project!r} is at its limit: {state.running} completions running, {state.queued} queued. Run fewer "
                "rollouts at the same time, or start the service with a larger --max-project-queue.",
                retry_after_s=5,
            )
        mine = _Waiting(caller, places, asyncio.get_running_loop().create_future())
        state.callers.setdefault(caller, deque()).append(mine)
        state.queued += places
        try:
            await asyncio.wait({mine.turn}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            if mine.turn.done():  # its turn came while it left
                state.running -= places
            else:
                self._leave(state, mine)
            self._admit(state)
            raise
        if not mine.turn.done():
            self._leave(state, mine)
            self._admit(state)
            raise BusyError(
                f"Other model calls of project {project!r} have kept this one waiting for {self._timeout_s:g} s. Try again.",
                retry_after_s=5,
            )

    def _leave(self, state: _Project, mine: _Waiting) -> None:
        state.callers[mine.caller].remove(mine)
        state.queued -= mine.places
        if not state.callers[mine.caller]:
            del state.callers[mine.caller]

    def _admit(self, state: _Project) -> None:
        """Give free places to those who wait: to each caller in turn, in the order of its calls."""
        while state.callers:
            first = next(iter(state.callers.values()))[0]
            if state.running + first.places > self._calls:
                return
            state.callers.move_to_end(first.caller)
            self._leave(state, first)
            state.running += first.places
            first.turn.set_result(None)


class FairThreads:
    """A few threads for work beside the event loop: no caller's second piece of work goes before another's first.

    Args:
        threads: How many pieces of work run at the same time.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._callers: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def run(self, caller: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` when the caller's earlier work is done and a thread is free; return its result."""
        lock = self._callers.setdefault(caller, asyncio.Lock())
        async with lock:
            return await asyncio.wrap_future(self._threads.submit(work, *args, **kwargs))
