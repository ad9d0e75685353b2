"""The service as a command: one per directory, and Ctrl-C at any time."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys

import pytest
import uvloop

from art_backend.command import _listen, claim_directory
from art_backend.errors import ConflictError
from art_backend.process import ChildProcess
from art_backend.service import Service
from art_backend.settings import Settings
from art_backend.store.database import open_database


def test_a_directory_has_one_service_at_a_time(tmp_path, caplog):
    first = claim_directory(tmp_path / "art")
    with pytest.raises(ConflictError, match=rf"\(process {os.getpid()}\) uses .*RemoteBackend"):
        claim_directory(tmp_path / "art", wait_s=0.1)
    assert f"The ART service of process {os.getpid()} uses" in caplog.text
    assert "waiting up to 0.1 s" in caplog.text
    first.release()
    claim_directory(tmp_path / "art", wait_s=0.1).release()


async def test_only_its_user_may_read_what_a_service_stores(tmp_path):
    directory = tmp_path / "art"
    private = {"art.db": 0o600, "secret": 0o600, "logs/engine.log": 0o600}
    before = os.umask(0)
    try:
        for _ in range(2):
            claim_directory(directory).release()
            service = Service(Settings(path=directory, api_key="k", engine="torch"))
            await service.restore()
            service.captures.create_rollout("p", "m")
            child = await ChildProcess.start(
                [sys.executable, "-c", ""], name="child", log_path=service.settings.log_dir / "engine.log"
            )
            await child.wait()
            stored = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.glob("art.db*")}
            assert set(stored.values()) == {0o600}, stored
            await service.close()
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            assert {name: stat.S_IMODE((directory / name).stat().st_mode) for name in private} == private
            directory.chmod(0o755)  # as a release before made them
            for name in ("art.db", "logs/engine.log"):
                (directory / name).chmod(0o644)
    finally:
        os.umask(before)


async def has(descriptor):
    """Whether a child of this process has a descriptor."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import os; os.fstat({descriptor})", stderr=asyncio.subprocess.DEVNULL
    )
    return await child.wait() == 0


def test_a_socket_to_listen_on_is_not_handed_on_to_children():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        given = os.dup(bound.fileno())
        os.set_inheritable(given, True)  # as it comes from LocalBackend
        assert uvloop.run(has(given))
        with _listen("127.0.0.1", 0, given) as listener:
            assert not uvloop.run(has(listener.fileno()))
            socket.create_connection(bound.getsockname()).close()


@pytest.mark.parametrize("loaded", ["asyncio", "fastapi", "transformers"])
def test_ctrl_c_while_it_loads_is_no_traceback(tmp_path, loaded):
    """As soon as a module is loaded: early, in the middle, and late."""
    command = [sys.executable, "-X", "importtime", "-m", "art_backend", "serve", "--port", "0", "--path", str(tmp_path)]
    # as a shell leaves it to a command in the foreground, whatever runs these tests
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:
        for line in child.stderr:
            if line.startswith("import time:") and line.split()[-1] == loaded:
                break
        child.send_signal(signal.SIGINT)
        errors = child.stderr.read()
    assert "Traceback" not in errors
    assert child.returncode in (0, 130, -signal.SIGINT)


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_damaged_database_is_named(tmp_path, damage):
    database = open_database(tmp_path / "art.db")
    database.execute("CREATE TABLE t (content BLOB)")
    database.execute("INSERT INTO t VALUES (zeroblob(400000))")
    database.close()
    with (tmp_path / "art.db").open("r+b") as file:
        if damage == "truncated":
            file.truncate(100_000)
        else:
            file.write(b"x" * 5000)
    for command in (["serve", "--port", "0", "--engine", "torch"], ["export", "m", str(tmp_path / "out")]):
        done = subprocess.run(
            [sys.executable, "-m", "art_backend", *command, "--path", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"Error: The database in {tmp_path} cannot be read: "), done.stderr
        assert "restore it from a backup" in done.stderr
        assert "Traceback" not in done.stderr
