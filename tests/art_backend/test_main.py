"""The service as a command: one per directory, and Ctrl-C at any time."""

import os
import signal
import subprocess
import sys
import time

import pytest

from art_backend.command import claim_directory
from art_backend.errors import ConflictError


def test_a_directory_has_one_service_at_a_time(tmp_path, caplog):
    first = claim_directory(tmp_path / "art")
    with pytest.raises(ConflictError, match=rf"\(process {os.getpid()}\) uses .*RemoteBackend"):
        claim_directory(tmp_path / "art", wait_s=0.1)
    assert f"The ART service of process {os.getpid()} uses" in caplog.text
    assert "waiting up to 0.1 s" in caplog.text
    first.release()
    claim_directory(tmp_path / "art", wait_s=0.1).release()


@pytest.mark.parametrize("after_s", [0.15, 0.6, 1.5])
def test_ctrl_c_while_it_loads_is_no_traceback(tmp_path, after_s):
    command = [sys.executable, "-m", "art_backend", "serve", "--port", "0", "--path", str(tmp_path)]
    # as a shell leaves it to a command in the foreground, whatever runs these tests
    child = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(after_s)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert "Traceback" not in errors
    assert child.returncode in (0, 130, -signal.SIGINT)
