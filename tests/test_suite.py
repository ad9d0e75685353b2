"""The suite's own settings: what happens to a run when a worker process dies or hangs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

DIES = """
import os, signal
def test_of_a_dying_worker():
    os.kill(os.getpid(), signal.SIGSEGV)
"""

HANGS = """
import ctypes
def test_of_a_dying_worker():
    ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock: no signal handler in Python can run
"""

OTHERS = """
import time, pytest
@pytest.mark.parametrize("n", range(20))
def test_beside_it(n):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("content", [DIES, HANGS], ids=["dies", "hangs"])
def test_a_run_ends_with_the_name_of_the_test_that_killed_its_worker(content, tmp_path):
    (tmp_path / "test_first.py").write_text(content)
    for other in "abc":
        (tmp_path / f"test_{other}.py").write_text(OTHERS)
    argv = ["-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider"]
    argv += ["--numprocesses", "2", "--dist", "loadfile", "-o", "faulthandler_timeout=5", tmp_path]
    run = subprocess.run(
        [sys.executable, *argv], cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "crashed while running 'test_first.py::test_of_a_dying_worker'" in run.stdout
