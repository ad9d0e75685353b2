"""The service as a child of this process: started, watched, and ended by id."""

import atexit
import contextlib
import errno
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path

from art.backend.machine import require
from art.errors import BackendDiedError

_LAUNCHER = Path(__file__).with_name("launch.py")
_LOG_TAIL_LINES = 30
_GRACE_S = 10.0


class ServiceProcess:
    """One ``python -m art_backend serve`` on a free loopback port.

    This process binds the port and keeps it until it ends; the service only listens on it. So no other process can take the port
    while the service is down, and receive the keys that clients go on sending there.

    Args:
        path: Directory of everything the service stores.
        arguments: More arguments of ``serve``.
    """

    def __init__(self, path: Path, arguments: list[str]) -> None:
        self.path = path
        self.api_key = f"art-{secrets.token_urlsafe(24)}"
        self.url: str | None = None
        self.log_path = path / "logs" / "service.log"
        self._arguments = arguments
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_file: Path | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def add_arguments(self, arguments: list[str]) -> None:
        """More arguments of ``serve``, for a child that was not started yet."""
        self._arguments += arguments

    def start(self) -> None:
        """Start the child if it does not run. A restarted child listens on the port of the one before.

        Raises:
            MissingExtraError: The packages of the backend are not installed.
        """
        with self._lock:
            if self._process is not None and not self._ended.is_set():
                return
            require("LocalBackend")
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            self.log_path.touch(mode=0o600)
            self.log_path.chmod(0o600)  # it may be an older one
            listener = self._listener or self._bind()
            self.url = None
            self._ready_file = Path(tempfile.mkdtemp(prefix="art-")) / "ready.json"
            command = [
                *(sys.executable, "-m", "art_backend", "serve", "--listener", str(listener.fileno())),
                *("--path", str(self.path), "--ready-file", str(self._ready_file), "--watch-stdin", *self._arguments),
            ]
            self._ended = threading.Event()
            started: Future[None] = Future()
            threading.Thread(
                target=self._run, args=(command, listener, started, self._ended), name="art-service", daemon=True
            ).start()
            started.result()
            _running.add(self)

    def other_holder(self) -> str | None:
        """The process whose service uses the directory, if that is not this one's; ``"unknown"`` where it left no id."""
        lock, holder = self.path / "service.lock", self.path / "service.pid"
        if self._process is not None or not lock.exists():
            return None
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return holder.read_text() if holder.exists() else "unknown"
        return None

    def read_ready(self) -> str | None:
        """The service's URL once it listens, else ``None``."""
        if self.url is not None or self._ready_file is None or not self._ready_file.exists():
            return self.url
        self.url = str(json.loads(self._ready_file.read_text())["url"])
        self._ready_file.unlink()
        self._ready_file.parent.rmdir()
        self._ready_file = None
        return self.url

    def death(self) -> BackendDiedError | None:
        """The error to raise if the child ended without being asked to."""
        process = self._process
        if process is None or not self._ended.is_set():
            return None
        code = process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return BackendDiedError(
            f"The local backend (process {process.pid}) {how}. The end of its log, {self.log_path}:\n{self.log_tail()}",
            503,
        )

    def forget(self) -> None:
        """Let the next ``start`` begin a new child, after a death was reported."""
        with self._lock:
            if self._ended.is_set():
                self._process = None

    def log_tail(self) -> str:
        if not self.log_path.exists() or not self.log_path.stat().st_size:
            return "(the log is empty)"
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    def stop(self) -> None:
        """End the child: politely, then by force."""
        process = self._process
        if process is None:
            return
        self._process = None
        _running.discard(self)
        if not self._ended.is_set():
            process.terminate()
            if not self._ended.wait(_GRACE_S):
                process.kill()
                self._ended.wait()

    def _bind(self) -> socket.socket:
        """Reserve a port. Without ``SO_REUSEADDR``, no other process can bind it, whatever its options."""
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                address = probe.getsockname()
            listener = socket.socket()
            try:
                listener.bind(address)  # by its number: a port that the system chose is lost when the service dies
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            self._listener = listener
            weakref.finalize(self, listener.close)
            return listener

    def _run(
        self,
        command: list[str],
        listener: socket.socket,
        started: "Future[None]",
        ended: threading.Event,
    ) -> None:
        """Start the child and wait for its end.

        The kernel ends a child when the *thread* that started it ends, so that thread lives as long as the child.
        """
        try:
            with self.log_path.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", str(_LAUNCHER), str(os.getpid()), *command],
                    stdin=subprocess.PIPE,  # closes when this process ends, which ends the service everywhere
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "ART_API_KEY": self.api_key, "PYTHONUNBUFFERED": "1"},
                    process_group=0,  # Ctrl-C in the terminal is ours to handle, not the service's
                    pass_fds=[listener.fileno()],
                )
        except (OSError, ValueError) as error:  # no such program, or an argument that no process can be given
            ended.set()
            started.set_exception(error)
            return
        self._process = process
        started.set_result(None)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(OSError):  # where a listener cannot be shut down, calls wait for the next service
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # which the service sets in order to listen
            listener.shutdown(socket.SHUT_RDWR)  # refuses calls, and keeps the port
        ended.set()


_running: "weakref.WeakSet[ServiceProcess]" = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for service in list(_running):
        service.stop()
