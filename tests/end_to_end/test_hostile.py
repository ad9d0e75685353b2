"""The real service under attack: every bad call is refused, and the service answers the next good one."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.hostile import DEEP, FLAT

HELLO = [{"role": "user", "content": "Hello"}]


class Service:
    """A service as ``art serve`` starts it, with one model."""

    def __init__(self, directory, base_model, prefix=()):
        ready = directory / "ready.json"
        command = ["serve", "--port", "0", "--path", str(directory / "data"), "--ready-file", str(ready)]
        self.process = subprocess.Popen([*prefix, sys.executable, "-m", "art_backend", *command, "--engine", "torch"])
        deadline = time.monotonic() + 120
        while not ready.exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        told = json.loads(ready.read_text())
        self.directory = directory / "data"
        self.url, self.key = told["url"], told["api_key"]
        # A connection of its own for each call: one that was kept may have made room for others, and httpx does not try again.
        limits = httpx.Limits(max_keepalive_connections=0)
        headers = {"authorization": f"Bearer {self.key}"}
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=120, limits=limits)
        self.post("/api/v1/models", {"project": "p", "name": "m", "base_model": str(base_model)}).raise_for_status()

    def post(self, path, body, key=None):
        return self.http.post(path, json=body, headers={"authorization": f"Bearer {key or self.key}"})

    def rollout(self):
        return self.post("/api/v1/rollouts", {"project": "p", "model": "m"}).raise_for_status().json()

    def chat(self, key, **options):
        body = {"model": "m", "messages": HELLO, "max_tokens": 3, **options}
        return self.post("/v1/chat/completions", body, key)

    def learn(self):
        """Train one step."""
        lesson = {"conversations": [{"messages": [*HELLO, {"role": "assistant", "content": "Good day."}]}]}
        body = {"project": "p", "model": "m", "examples": [lesson], "idempotency_key": f"{time.time()}"}
        job = self.post("/api/v1/train_sft", body).raise_for_status().json()
        while job["state"] in ("queued", "running"):
            time.sleep(0.2)
            job = self.http.get(f"/api/v1/jobs/{job['id']}").json()
        assert job["state"] == "succeeded", job

    def check(self):
        """It is the same process, and answers."""
        assert self.process.poll() is None
        answer = self.chat(self.rollout()["api_key"])
        assert answer.status_code == 200, answer.text

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


@pytest.fixture(scope="module")
def service(tmp_path_factory, tiny_model_path):
    service = Service(tmp_path_factory.mktemp("hostile"), tiny_model_path)
    yield service
    service.stop()


def as_format(structure):
    if structure.kind == "grammar":
        return {"type": "grammar", "grammar": structure.text}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": json.loads(structure.text)}}


@pytest.mark.parametrize("name", [*FLAT, *DEEP])
def test_a_structure_that_kills_its_compiler_is_a_400(service, name):
    key = service.rollout()["api_key"]
    structure = {**FLAT, **DEEP}[name]
    for _ in range(2):  # as an SDK would retry
        answer = service.chat(key, response_format=as_format(structure))
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("response_format.")
    if structure.kind == "json":
        function = {"name": "f", "parameters": json.loads(structure.text), "strict": True}
        answer = service.chat(key, tools=[{"type": "function", "function": function}], tool_choice="required")
        assert answer.json()["error"]["param"] == "tools.0.function.parameters"
    assert service.chat(key, response_format={"type": "json_object"}).status_code == 200
    service.check()


@pytest.mark.parametrize("bad", [".", "..", "%2e", "%2E%2e", "..%2f..", "%2e%2e%2f%2e%2e", "a%00b", "a%0ab", "x" * 200])
def test_a_name_never_leads_out_of_the_directory(service, bad):
    """Sent as written: clients would tidy the path up."""
    witness = service.directory.parent / "witness"
    witness.mkdir(exist_ok=True)
    key = service.rollout()["api_key"]
    api, seen = "/api/v1", {}
    for method, path in [
        *[(method, f"{api}/models/{a}/{b}") for method in ("GET", "DELETE") for a, b in ((bad, "m"), ("p", bad), (bad, bad))],
        *[("GET", f"{api}/models/{bad}/{bad}/{what}") for what in ("checkpoints", "metrics")],
        ("POST", f"{api}/models/{bad}/{bad}/metrics"),
        ("POST", f"{api}/models/{bad}/{bad}/checkpoints/prune"),
        *[("GET", f"{api}/rollouts/{bad}{what}") for what in ("", "/trajectory")],
        ("DELETE", f"{api}/rollouts/{bad}"),
        ("GET", f"{api}/jobs/{bad}"),
        ("GET", f"/r/{bad}/v1/models"),
        ("POST", f"/r/{bad}/v1/chat/completions"),
    ]:  # fmt: skip
        for who in (service.key, key):
            seen[method, path, who] = send_raw(service, method, path, who)
    refused = {400, 401, 403} if "%2f" not in bad else {400, 401, 403, 404, 405}  # those are other paths
    assert all(status in refused for status in seen.values()), seen
    assert witness.exists()
    assert (service.directory / "art.db").exists()
    service.check()


def send_raw(service, method, path, key):
    """Send a request with this very path; return the status."""
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        body = b"{}" if method == "POST" else b""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "../..", "a/b", "a\\b", "a\x00", "a\n", "ä", "x" * 200, "art.db", "Secret"]
)
def test_a_name_in_a_body_is_checked_too(service, tiny_model_path, bad):
    model = {"base_model": str(tiny_model_path)}
    answers = [service.post("/api/v1/models", {"project": bad, "name": "m", **model})]
    if bad not in ("art.db", "Secret"):  # good names for models
        train = {"groups": [], "idempotency_key": "0123456789"}
        answers += [
            service.post("/api/v1/models", {"project": "p", "name": bad, **model}),
            *[service.post("/api/v1/rollouts", {"project": a, "model": b}) for a, b in ((bad, "m"), ("p", bad))],
            *[service.post("/api/v1/train", {"project": a, "model": b, **train}) for a, b in ((bad, "m"), ("p", bad))],
        ]
    for answer in answers:
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] in ("project", "name", "model")
    service.check()


def test_idle_and_unfinished_connections_lock_nobody_out(tmp_path, tiny_model_path):
    """With 220 open files: 260 connections that say nothing, then 900 that say half of something."""
    service = Service(tmp_path, tiny_model_path, ["bash", "-c", 'ulimit -n 220; exec "$@"', "bash"])
    service.check()
    address = urlsplit(service.url)
    half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
    for count, said in ((260, b""), (300, half), (300, half + b"\r\n{"), (300, half + b"X: ")):
        held = []
        for _ in range(count):
            connection = socket.create_connection((address.hostname, address.port), timeout=30)
            with contextlib.suppress(OSError):
                connection.sendall(said)
            held.append(connection)
        service.check()
        for connection in held:
            connection.close()
    service.stop()


@pytest.mark.long
def test_a_damaged_adapter_is_not_served(tmp_path, tiny_model_path):
    service = Service(tmp_path, tiny_model_path)
    service.learn()
    service.check()
    service.stop()
    (adapter,) = tmp_path.glob("data/p/models/m/checkpoints/0001/adapter_model.safetensors")
    content = bytearray(adapter.read_bytes())
    content[-9] ^= 0x40
    adapter.write_bytes(content)
    (tmp_path / "ready.json").unlink()
    service = Service(tmp_path, tiny_model_path)
    # Waits for the engine; a call that waits long is kept alive, and then no longer free to answer with another status.
    assert service.chat(service.rollout()["api_key"], model="m@0").status_code == 200
    answer = service.chat(service.rollout()["api_key"])
    assert answer.status_code == 507, answer.text
    message = answer.json()["error"]["message"]
    assert "checkpoint of step 1 is damaged" in message
    assert adapter.name in message
    service.stop()
