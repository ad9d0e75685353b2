"""The control API: who may ask, how much, and what odd values come to."""

import asyncio
import json
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from tests.support.scripted_engine import serve

from art.wire import RegisterModel
from art_backend.app import build_app
from art_backend.auth import SECRET_BYTES, Keyring
from art_backend.errors import BadRequestError, BusyError, StorageFailedError
from art_backend.gateway.ports import Identity
from art_backend.service import Service
from art_backend.settings import Settings, contained
from art_backend.web import bodies
from art_backend.web.bodies import BodyReader

KEY = "service-key"


@pytest.fixture
async def service(tmp_path, tiny_model_path):
    service = Service(Settings(path=tmp_path, api_key=KEY, engine="torch"), _no_engine, devices=())
    await service.register(RegisterModel(project="p", name="m", base_model=str(tiny_model_path)))
    yield service
    await service.close()


async def _no_engine(settings):
    raise RuntimeError("this test has no engine")


@pytest.fixture
async def http(service):
    async with serve(build_app(service)) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        yield http


def bearer(key=KEY):
    return {"authorization": f"Bearer {key}"}


async def send_head(http, head):
    """Send a request's headers, and never its body; return the status."""
    address = urlsplit(str(http.base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write("\r\n".join([*head, "Host: x", "Content-Type: application/json", "", ""]).encode())
    async with asyncio.timeout(60):
        line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@pytest.mark.parametrize("path", ["train", "train_sft", "models", "rollouts", "models/p/m/metrics"])
async def test_a_body_is_not_read_before_its_sender_is_known(service, http, path):
    size = "Content-Length: 400000000"
    head = f"POST /api/v1/{path} HTTP/1.1"
    rollout = service.captures.create_rollout("p", "m").api_key
    assert await send_head(http, [head, size]) == 401
    assert await send_head(http, [head, size, "Authorization: Bearer wrong"]) == 401
    assert await send_head(http, [head, size, f"Authorization: Bearer {rollout}"]) == 403
    assert await send_head(http, [head, size, f"Authorization: Bearer {KEY}"]) == 400
    assert await send_head(http, [head, f"Content-Length: {'9' * 5000}", f"Authorization: Bearer {KEY}"]) == 400


async def test_bodies_of_unknown_size_are_read_to_the_limit(monkeypatch):
    reader, endless = BodyReader(1000), asyncio.Event()

    def request(chunks):
        async def receive():
            if chunks:
                return {"type": "http.request", "body": b"x" * chunks.pop(), "more_body": True}
            await endless.wait()
            return {"type": "http.disconnect"}

        return Request({"type": "http", "headers": []}, receive)

    with pytest.raises(BadRequestError, match="1000 bytes"):
        await reader.read(request([100] * 11))
    monkeypatch.setattr(bodies, "MAX_READING_BYTES", 1500)
    waiting = asyncio.create_task(reader.read(request([900]), "a"))
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="1500 bytes"):
        await reader.read(request([900]), "a")
    other = asyncio.create_task(reader.read(request([900]), "b"))
    endless.set()
    for task in (waiting, other):
        with pytest.raises(BadRequestError, match="closed before"):
            await task
    assert not reader._reading


async def test_what_answers_without_a_key(http):
    for path in ("/docs", "/redoc"):
        assert (await http.get(path, headers=bearer())).status_code == 404
    assert (await http.get("/openapi.json")).status_code == 401
    assert "/api/v1/train" in (await http.get("/openapi.json", headers=bearer())).json()["paths"]
    for key in ({}, bearer("wrong")):
        health = (await http.get("/api/v1/health", headers=key)).json()
        assert health["status"] in ("ok", "degraded")
        assert health["processes"] == []
    assert (await http.get("/api/v1/health", headers=bearer())).json()["processes"] != []
    assert (await http.get("/api/v1/version")).status_code == 200


DEEP = b"[" * 900 + b"]" * 900
ROLLOUT = b'{"project": "p", "model": "m", "step": %s, "metadata": %s}'


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("rollouts", ROLLOUT % (b"0", b'{"a": %s}' % DEEP), "nested too deeply"),
        ("rollouts", ROLLOUT % (b"0", b'{"a": "\\ud800"}'), "JSON"),
        ("rollouts", ROLLOUT % (b"0", b'{"\\udc00": 1}'), "JSON"),
        ("rollouts", ROLLOUT % (str(2**70).encode(), b"{}"), "step"),
        ("rollouts", ROLLOUT % (b"-5", b"{}"), "step"),
        ("rollouts", b'{"project": "p", "model": "m", "step": NaN}', "JSON"),
        ("rollouts", b"[]", "object"),
        ("models", b'{"project": "p", "name": "n", "base_model": "x", "metadata": {"a": %s}}' % DEEP, "deeply"),
        ("models", b'{"project": "p", "name": "n", "base_model": "\\ud800"}', "JSON"),
        ("models", b'{"project": "art.db", "name": "n", "base_model": "x"}', "Choose another name"),
        ("models", b'{"project": "p", "name": "n", "base_model": "x", "lora": {"seed": %d}}' % 2**70, "seed"),
        ("models/p/m/metrics", b'{"rows": [{"step": %d, "split": "val", "metrics": {}}]}' % 2**70, "step"),
        ("models/p/m/metrics", b'{"rows": [{"step": -5, "split": "val", "metrics": {}}]}', "step"),
        ("models/p/m/checkpoints/prune", b'{"keep": [%d]}' % 2**70, "keep"),
    ],
)
async def test_odd_values_are_named(http, path, body, said):
    answer = await http.post(f"/api/v1/{path}", content=body, headers={**bearer(), "content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


async def test_metadata_that_is_kept_is_told_again(http):
    metadata = {"a": json.loads("[" * 200 + "]" * 200), "é": "\U0001f600"}
    made = await http.post(
        "/api/v1/rollouts", json={"project": "p", "model": "m", "metadata": metadata}, headers=bearer()
    )
    told = await http.get(f"/api/v1/rollouts/{made.json()['id']}", headers=bearer())
    assert told.json()["metadata"] == metadata


async def test_an_event_number_beyond_all_numbers(http):
    answer = await http.get("/api/v1/jobs/job_1/events", headers={**bearer(), "last-event-id": str(2**70)})
    assert answer.status_code == 400


@pytest.mark.parametrize("version", ["9" * 5000, "-1", "1" * 10, "٣", "", "@0"])
async def test_a_version_that_is_no_number_is_no_model(service, http, version):
    key = service.captures.create_rollout("p", "m").api_key
    body = {"model": f"m@{version}", "messages": [{"role": "user", "content": "Hello"}]}
    answer = await http.post("/v1/chat/completions", json=body, headers=bearer(key))
    assert answer.status_code == 404
    assert "Models: " in answer.json()["error"]["message"]


ROW = {"token_ids": [5, 6], "sampled": [False, True], "policy_versions": [-1, 0], "logprobs": [0, -1], "temperature": 1}


async def test_rows_of_versions_that_do_not_exist_are_refused(http):
    groups = [{"trajectories": [{"reward": r, "rows": [{**ROW, "policy_versions": [-1, 999]}]} for r in (0, 1)]}]
    body = {"project": "p", "model": "m", "groups": groups, "idempotency_key": "0123456789"}
    error = (await http.post("/api/v1/train", json=body, headers=bearer())).json()["error"]
    assert error["param"] == "groups.0.trajectories.0.rows.0.policy_versions"
    assert "999" in error["message"]


async def test_nothing_is_deleted_outside_the_directory(service, http, tmp_path):
    for path in ("/api/v1/models/%2e%2e/%2e%2e", "/api/v1/models/p/%2e%2e", "/api/v1/models/%2e/m"):
        assert await send_head(http, [f"DELETE {path} HTTP/1.1", f"Authorization: Bearer {KEY}"]) == 400
    assert (tmp_path / "art.db").exists()
    for project, name in (("..", ".."), ("p", "../../.."), ("/", "etc"), ("..", "x")):
        with pytest.raises(BadRequestError, match="is outside"):
            service.settings.model_dir(project, name)
    assert contained(tmp_path / "a/../b", tmp_path)
    link = tmp_path / "linked"
    link.symlink_to("/")
    assert contained(link / "models", tmp_path), "a link that the user made is theirs"


@pytest.mark.parametrize("content", [b"", b"x", b"x" * (SECRET_BYTES - 1)])
def test_a_secret_that_is_cut_makes_no_keys(tmp_path, content):
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(StorageFailedError, match="Restore it"):
        Keyring("k", tmp_path / "secret", captures=None)
    (tmp_path / "secret").unlink()
    keys = Keyring("k", tmp_path / "secret", captures=None)
    key = keys.issue_model_key("p", "m")
    assert Keyring("k", tmp_path / "secret", captures=None).issue_model_key("p", "m") == key
    assert keys.identify(key) == Identity("model", project="p", model="m")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
