"""The packages and devices that this machine has for a backend of its own, found without importing anything heavy."""

import functools
import shutil
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec

BACKEND_PACKAGES = ("art_backend", "fastapi", "uvicorn", "torch", "transformers", "peft")


def find_missing(packages: Iterable[str] = BACKEND_PACKAGES) -> list[str]:
    """Those of the packages that are not installed."""
    return [name for name in packages if find_spec(name) is None]


def require(user: str, packages: Iterable[str] = BACKEND_PACKAGES, extra: str = "backend") -> None:
    """Check that packages are installed.

    Args:
        user: Who needs them.
        extra: The extra that brings them.

    Raises:
        MissingExtraError: Some are not; the message names them.
    """
    if missing := find_missing(packages):
        from art.errors import MissingExtraError  # the command line prints its help without loading pydantic

        raise MissingExtraError(f"{user} needs {', '.join(missing)}, which", extra)


@functools.cache
def query_gpus(fields: str) -> tuple[str, ...]:
    """A line for each NVIDIA device, with these fields of ``nvidia-smi``, which takes none of their memory."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, f"--query-gpu={fields}", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return tuple(line.strip() for line in found.stdout.splitlines() if line.strip()) if found.returncode == 0 else ()
