"""Files that only the service's user may read: they hold prompts, keys and weights."""

import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)


def private_directory(path: Path) -> None:
    """Make a directory that only its owner can enter; one that exists is closed to others."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _restrict(path, 0o700)


def private_file(path: Path) -> None:
    """Make an empty file that only its owner can read and write; one that exists is closed to others."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    _restrict(path, 0o600)


def _restrict(path: Path, mode: int) -> None:
    if path.stat().st_mode & 0o777 == mode:
        return
    try:
        path.chmod(mode)
    except PermissionError:
        _log.warning("%s belongs to another user, so its permissions stay as they are", path)
