"""Frontend and backend on two hosts: TLS by a proxy under a prefix, connections that break, a service that is killed.

As root the hosts are two network namespaces with one cable between them; else they share the loopback device.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trustme

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PREFIX = "/some/where"


@pytest.fixture(scope="module")
def hosts():
    """The backend's address, and what to put before a command to run it on either host."""
    name = f"art{os.getpid()}"
    near, far = f"{name}f", f"{name}b"
    commands = [
        f"netns add {near}",
        f"netns add {far}",
        f"link add {near} netns {near} type veth peer name {far} netns {far}",
        f"-n {near} addr add 10.77.0.2/24 dev {near}",
        f"-n {far} addr add 10.77.0.1/24 dev {far}",
        *(f"-n {ns} link set {device} up" for ns in (near, far) for device in (ns, "lo")),
    ]
    try:
        if os.getuid() == 0 and all(_ip(command) for command in commands):
            yield "10.77.0.1", ["ip", "netns", "exec", far], ["ip", "netns", "exec", near]
        else:
            yield "127.0.0.1", [], []
    finally:
        for namespace in (near, far):
            _ip(f"netns del {namespace}")


def _ip(command: str) -> bool:
    try:
        return subprocess.run(["ip", *command.split()], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def free_port() -> int:
    """A port that nobody is given who asks for any: it stays free while its service is down."""
    while True:
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(10_000, 30_000)))
            return probe.getsockname()[1]


class Far:
    """The backend's host: a service that can be killed and started again, and the proxy in front of it."""

    def __init__(self, directory: Path, address: str, place: list[str]) -> None:
        self.directory, self.place = directory, place
        self.port, self.proxy_port = free_port(), free_port()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "authority.pem")
        authority.issue_cert(address).private_key_and_cert_chain_pem.write_to_path(directory / "host.pem")
        self.url = f"https://{address}:{self.proxy_port}{PREFIX}"
        self.environment = {**os.environ, "ART_API_KEY": "the-key", "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        self.service = self.start_service()
        proxy = ["tests.support.tls_proxy", address, str(self.proxy_port), "127.0.0.1", str(self.port)]
        self.proxy = self._start("-m", *proxy, str(directory / "host.pem"), PREFIX)

    def start_service(self) -> subprocess.Popen[bytes]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--path", str(self.directory / "art")]
        (self.directory / "ready").unlink(missing_ok=True)
        return self._start("-m", "art_backend", "serve", *where, "--ready-file", str(self.directory / "ready"))

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [*self.place, sys.executable, *arguments], env=self.environment, stdout=log, stderr=log, cwd=ROOT
            )

    def wait_until_up(self) -> None:
        while not ((self.directory / "ready").exists() and b"listening" in (self.directory / "log").read_bytes()):
            assert self.service.poll() is None, (self.directory / "log").read_text()
            time.sleep(0.05)

    def cut_connections(self) -> None:
        self.proxy.send_signal(signal.SIGUSR1)

    def kill_service(self) -> None:
        self.service.kill()
        self.service.wait()

    def close(self) -> None:
        for process in (self.proxy, self.service):
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def far(tmp_path_factory, hosts):
    address, place, _ = hosts
    host = Far(tmp_path_factory.mktemp("far"), address, place)
    try:
        host.wait_until_up()
        yield host
    finally:
        host.close()


@pytest.mark.timeout(400)
def test_training_survives_cut_connections_and_a_killed_service(far, hosts, tmp_path, tiny_model_path):
    _, _, near = hosts
    environment = {
        **os.environ,
        "KEY": "the-key",
        "SSL_CERT_FILE": str(far.directory / "authority.pem"),
        "PYTHONPATH": f"{ROOT}/src:{ROOT}",
    }
    command = [*near, sys.executable, "-m", "tests.support.remote_client", far.url, str(tmp_path / "near")]
    script = subprocess.Popen(
        [*command, str(tiny_model_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert script.stdout is not None
    said: list[str] = []
    try:
        for line in script.stdout:
            said.append(line.strip())
            if line.startswith("training 1"):
                for _ in range(8):
                    far.cut_connections()
                    time.sleep(0.25)
            elif line.startswith("training 2"):
                time.sleep(0.3)
                far.kill_service()
                time.sleep(1.0)
                far.service = far.start_service()
    finally:
        script.kill()
        script.wait()
    assert [line for line in said if line.startswith(("training", "trained", "rows"))] == [
        "training 1",
        "trained 1",
        "training 2",
        "trained 2",
        "rows 2 step 2",
    ], "\n".join(said) + (far.directory / "log").read_text()[-3000:]
    assert "also True 2 twin 2 kept [2]" in said, said
    assert "too long: length ''" in said, "five megabytes arrive, and end the episode without asking the engine"


def test_an_unknown_authority_is_told_at_once_with_the_remedy(far, hosts):
    _, _, near = hosts
    code = (
        "import asyncio, sys, art\n"
        "try:\n    asyncio.run(art.RemoteBackend(sys.argv[1], 'k').get_health())\n"
        "except art.errors.BackendUnreachableError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src"}
    command = [*near, sys.executable, "-c", code, far.url]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=True)
    assert "SSL_CERT_FILE" in found.stdout, found.stdout + found.stderr
    assert "certificate" in found.stdout
