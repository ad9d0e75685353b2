"""Checkpoints: one directory per step, which appears whole by one atomic rename and is never written again.

A checkpoint ``{directory}/{step:04d}`` holds a PEFT adapter (``ADAPTER_CONFIG``, ``ADAPTER_WEIGHTS``), the
trainer's state, and ``manifest.json`` with the size and SHA-256 of every file. What is being written, or being deleted,
lies in a hidden directory beside it until it is whole, or gone; ``kill -9`` leaves nothing but such a leftover.

This module knows files, not tensors: the caller passes a function that fills the directory.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from art.wire import Checkpoint
from art_backend.errors import ConflictError, NotFoundError, StorageFailedError

MANIFEST = "manifest.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_STEP_NAME = re.compile(r"\d{4,}")
_LEFTOVER_NAME = re.compile(r"\.(?:saving|deleting)-\d+-(?P<pid>\d+)-[0-9a-f]+")


class CheckpointStore:
    """The checkpoints of one model.

    Args:
        directory: Holds one directory per step. It is made with the first checkpoint.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending."""
        try:
            entries = list(self.directory.iterdir())
        except FileNotFoundError:
            return []
        return sorted(int(entry.name) for entry in entries if _STEP_NAME.fullmatch(entry.name) and entry.is_dir())

    def latest_step(self) -> int:
        """The highest step with a checkpoint; 0 when there is none, which is the base model itself."""
        return max(self.steps(), default=0)

    def path(self, step: int) -> Path:
        return self.directory / f"{step:04d}"

    def describe(self, step: int) -> Checkpoint:
        """Raises NotFoundError when the step has no checkpoint."""
        path = self._existing(step)
        return Checkpoint(
            step=step,
            path=str(path),
            created_at=(path / MANIFEST).stat().st_mtime,
            size_bytes=sum(file.stat().st_size for file in path.iterdir()),
        )

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Make the checkpoint of ``step``.

        Args:
            write: Fills the (empty) directory that it is given with flat files.

        Raises:
            ConflictError: The step has a checkpoint already.
            StorageFailedError: The disk is full or not writable. Nothing is left behind; older checkpoints are whole.
        """
        target = self.path(step)
        if target.exists():
            raise self._taken(step)
        with self._reporting(f"saving the checkpoint of step {step}"):
            self.directory.mkdir(parents=True, exist_ok=True)
            staging = self.directory / f".saving-{step}-{os.getpid()}-{secrets.token_hex(4)}"
            staging.mkdir()
            try:
                write(staging)
                _write_manifest(staging)
                for file in (*staging.iterdir(), staging):
                    _flush_to_disk(file)
                # A rename may replace an empty directory, but never one with files: what is published stays.
                staging.rename(target)
            except OSError as error:
                shutil.rmtree(staging, ignore_errors=True)
                if target.exists():
                    raise self._taken(step) from error
                raise
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
            _flush_to_disk(self.directory)
        return target

    def link(self, source: int, step: int, write: Callable[[Path], None]) -> Path:
        """Make the checkpoint of ``step`` from the files of ``source``, as hard links: no weight is copied.

        Args:
            write: Replaces those files that differ, such as the one that holds the step's number.
        """
        origin = self._existing(source)

        def copy(staging: Path) -> None:
            for file in origin.iterdir():
                if file.name != MANIFEST:
                    os.link(file, staging / file.name)
            write(staging)

        return self.save(step, copy)

    def verify(self, step: int) -> Path:
        """Compare every file of a checkpoint with its manifest; return its directory.

        Raises:
            NotFoundError: There is no such checkpoint.
            StorageFailedError: A file is missing or was changed. The message says what to do.
        """
        path = self._existing(step)
        try:
            files: dict[str, dict[str, str | int]] = json.loads((path / MANIFEST).read_text())["files"]
            damaged = [name for name, entry in files.items() if _fingerprint(path / name) != entry]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._corrupt(step, f"its {MANIFEST} cannot be read ({error})") from error
        if damaged:
            raise self._corrupt(step, f"these files are missing or changed: {', '.join(sorted(damaged))}")
        return path

    def prune(self, keep: Collection[int]) -> list[int]:
        """Delete all checkpoints but those of ``keep`` and the latest; return the deleted steps."""
        latest = self.latest_step()
        deleted = [step for step in self.steps() if step not in keep and step != latest]
        with self._reporting("deleting checkpoints"):
            for step in deleted:
                grave = self.directory / f".deleting-{step}-{os.getpid()}-{secrets.token_hex(4)}"
                self.path(step).rename(grave)
                shutil.rmtree(grave)
        return deleted

    def clean(self) -> int:
        """Delete what killed processes left half written or half deleted; return how many directories."""
        if not self.directory.is_dir():
            return 0
        leftovers = [
            entry
            for entry in self.directory.iterdir()
            if (match := _LEFTOVER_NAME.fullmatch(entry.name)) and not _is_alive(int(match["pid"]))
        ]
        with self._reporting("cleaning up after a killed process"):
            for entry in leftovers:
                shutil.rmtree(entry)
        return len(leftovers)

    def _existing(self, step: int) -> Path:
        path = self.path(step)
        if not path.is_dir():
            raise NotFoundError(f"There is no checkpoint of step {step}. Steps: {self.steps()}.", param="step")
        return path

    def _taken(self, step: int) -> ConflictError:
        return ConflictError(
            f"Step {step} has a checkpoint already, at {self.path(step)}; checkpoints are never overwritten. "
            f"The next step is {self.latest_step() + 1}.",
            param="step",
        )

    def _corrupt(self, step: int, what: str) -> StorageFailedError:
        older = [other for other in self.steps() if other < step]
        remedy = (
            f"Move {self.path(step)} away to continue from step {older[-1]}"
            if older
            else f"Move {self.path(step)} away to restart from the base model"
        )
        return StorageFailedError(
            f"The checkpoint of step {step} is damaged: {what}. {remedy}, or restore it from a backup."
        )

    @contextlib.contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageFailedError(
                f"{doing[0].upper()}{doing[1:]} failed: {error}. Free space on, or get write access to, {self.directory} "
                "and try again; the checkpoints in it are intact."
            ) from error


def _write_manifest(directory: Path) -> None:
    files = {file.name: _fingerprint(file) for file in sorted(directory.iterdir())}
    (directory / MANIFEST).write_text(json.dumps({"files": files}, indent=1))


def _fingerprint(file: Path) -> dict[str, str | int] | None:
    if not file.is_file():
        return None
    with file.open("rb") as content:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
