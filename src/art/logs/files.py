"""The files of a model: ``history.jsonl`` and ``state.json``, replaced or appended to as a whole, for several processes."""

import fcntl
import json
import math
import operator
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, SupportsIndex, cast

HISTORY, STATE = "history.jsonl", "state.json"
TOTALS = "_metrics_builder_state"
"""Where ``state.json`` keeps what a builder of metrics has summed so far."""


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; ``None`` if there is no file."""
    try:
        return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file in one step: readers see the old content or the new, also after a crash or a full disk.

    Raises:
        TypeError: The value is no dict, or not JSON-serialisable; the message says where. The file is as before.
    """
    write_bytes(path, dump_json(path, value).encode())


def dump_json(path: Path, value: Mapping[str, Any]) -> str:
    """A value as what the file at ``path`` is to hold. Raises TypeError: It is no dict, or not JSON-serialisable."""
    if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{path} must hold a dict, not {type(value).__name__}. The file is unchanged.")
    try:
        return json.dumps(value, indent=2)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{path} can only hold JSON values: {error}. The file is unchanged.") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step."""
    with replacing(path) as partial:
        partial.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield a path to write to; it takes the place of ``path`` when the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Append a line with one write, so that lines of several processes do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = (line + "\n").encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        if os.write(handle, content) != len(content):
            os.ftruncate(handle, size)  # a full disk: leave no half line
            raise OSError(f"{path}: the disk is full; the line was not written.")
    finally:
        os.close(handle)


@contextmanager
def writing(what: str, directory: Path) -> Generator[None]:
    """Say in an ``OSError`` what could not be written, where, and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"{what} failed: {reason}. Free space, or get write access; then the same call works: nothing of it was counted"
        raise OSError(error.errno, message, str(error.filename or directory)) from error


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock that goes with ``path`` against other processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def held_alone(path: Path, refusal: Exception) -> Generator[None]:
    """Hold the lock that goes with ``path``, or fail at once. The death of the process that holds it frees it.

    Raises:
        Exception: ``refusal``: another caller holds it, in this process or another.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
        yield


def deep_merge(base: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict in which nested dicts are merged and everything else is taken from ``update``."""
    merged = dict(base)
    for key, value in update.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = deep_merge(cast(Mapping[str, Any], old), cast(Mapping[str, Any], value))
        else:
            merged[key] = value
    return merged


def read_history(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, in order; none if there is no file. A last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number + 1 < len(lines):
                raise
    return rows


def best_step(rows: list[dict[str, Any]], metric: str) -> int | None:
    """The step with the highest mean of a metric, the earliest of several; ``None`` if it was never logged."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if isinstance(value := row.get(metric), (int, float)):
            values.setdefault(int(row["step"]), []).append(float(value))
    means = {step: sum(found) / len(found) for step, found in sorted(values.items())}
    return max(means, key=means.__getitem__) if means else None


def write_row(
    directory: Path, row: Mapping[str, float] | None, totals: Mapping[str, Any], step: int, stamps: Mapping[str, float]
) -> None:
    """Append a row of full names to ``history.jsonl`` and keep the totals in ``state.json``: both, or neither."""
    state = directory / STATE
    with locked(state):
        merged = deep_merge(read_json(state) or {}, {TOTALS: totals})
        with replacing(state) as partial:  # it takes its place, which needs no space, when the row is written
            partial.write_text(json.dumps(merged, indent=2), encoding="utf-8")
            if row is not None:
                record = {
                    **finite(row),
                    **stamps,
                    "step": step,
                    "recorded_at": datetime.now().isoformat(),
                }
                append_line(directory / HISTORY, json.dumps(record))


def check_place(split: Any, step: Any) -> int:
    """The step as an ``int``. Raises TypeError, ValueError: ``split`` cannot be part of a path, or ``step`` is no number."""
    if not isinstance(split, str):
        raise TypeError(f"split={split!r} must be a word, such as 'train' or 'val', not {type(split).__name__}.")
    if not split.isprintable() or split in ("", ".", "..") or set(split) & set("/\\"):
        raise ValueError(
            f"split={split!r} cannot name a directory; give a word without slashes, such as 'train' or 'val'."
        )
    if not isinstance(step, SupportsIndex):
        raise TypeError(f"step={step!r} must be a whole number, not {type(step).__name__}.")
    return operator.index(step)


def finite(row: Mapping[str, float]) -> dict[str, float]:
    """As floats, without NaN and infinities."""
    return {name: float(value) for name, value in row.items() if math.isfinite(value)}
