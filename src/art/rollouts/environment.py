"""Environment variables that hold in one context only, so that many rollouts of one process each see their own.

Programs that build their own clients read ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` from ``os.environ``, which belongs to
the whole process. While a scope is open, ``os.environ`` is a mapping of the same type over the same variables that puts
those of the current context (``contextvars``: a task, or a thread made by ``asyncio.to_thread``) before the process's own.

- Other contexts see the process's variables, never another rollout's. A thread without the context, for instance one of
  a ``ThreadPoolExecutor`` that did not copy it, is such another context.
- What is written inside goes to the process, except to the variables of the scope, which take it until the scope ends.
- A child process inherits the process's variables: start it with ``env=os.environ``, or with ``rollout.environment``.
- When the last scope ends, ``os.environ`` is the very object that it was before.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TypeAlias

Overlay: TypeAlias = dict[str, str | None]
"""Variables by name; ``None`` hides one that the process has set."""

_overlay: ContextVar[Overlay | None] = ContextVar("art_environment", default=None)


class _ContextEnviron(os._Environ[str]):  # pyright: ignore[reportPrivateUsage]  the type that os.environ has
    """The process's variables, behind those of the current context."""

    def __init__(self, process: "os._Environ[str]") -> None:  # pyright: ignore[reportPrivateUsage]
        vars(self).update(vars(process))  # one store for both: what either writes, both have

    def __getitem__(self, key: str) -> str:
        overlay = _overlay.get() or {}
        if key not in overlay:
            return super().__getitem__(key)
        if (value := overlay[key]) is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        overlay = _overlay.get() or {}
        if key in overlay:
            self.encodevalue(value)  # refuses what is no text, as for any variable
            overlay[key] = value
        else:
            super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        overlay = _overlay.get() or {}
        if key in overlay:
            self[key]  # raises KeyError when it is hidden already
            overlay[key] = None
        else:
            super().__delitem__(key)

    def __iter__(self) -> Iterator[str]:
        overlay = _overlay.get() or {}
        yield from (key for key in super().__iter__() if key not in overlay)
        yield from [key for key, value in overlay.items() if value is not None]

    def __len__(self) -> int:
        return sum(1 for _ in self)


_lock = threading.Lock()
_open_scopes = 0
_process: "os._Environ[str]" = os.environ  # pyright: ignore[reportPrivateUsage]


def enter(variables: Mapping[str, str | None]) -> Overlay:
    """Put variables before the process's own, in this context; return what ``leave`` needs to undo it."""
    global _open_scopes, _process
    with _lock:
        if not isinstance(os.environ, _ContextEnviron):
            _process = os.environ
            os.environ = _ContextEnviron(_process)  # noqa: B003  the process's variables stay as they are
        _open_scopes += 1
    outer = _overlay.get() or {}
    _overlay.set({**outer, **variables})
    return outer


def leave(outer: Overlay) -> None:
    """Undo the ``enter`` that returned ``outer``."""
    global _open_scopes
    _overlay.set(outer)
    with _lock:
        _open_scopes -= 1
        if _open_scopes == 0 and isinstance(os.environ, _ContextEnviron):
            os.environ = _process  # noqa: B003
