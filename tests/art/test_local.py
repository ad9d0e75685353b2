"""LocalBackend against the real service, without any model; where only the child's death matters, against a stand-in."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from pydantic import BaseModel

import art
from art.backend import machine
from art.errors import BackendDiedError, BackendError, ConflictError, MissingExtraError, NotFoundError
from art.wire import TrainOptions, TrainResult

STAND_IN = """
import json, os, pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

if "--no-such-option" in sys.argv:
    sys.exit("No such option")

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        answer = {"version": "0", "protocol": 1} if "version" in self.path else {"status": "ok", "uptime_s": 0, "processes": []}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

server = HTTPServer(("127.0.0.1", 0), Handler)
ready = pathlib.Path(sys.argv[sys.argv.index("--ready-file") + 1])
ready.with_suffix(".partial").write_text(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid()}))
ready.with_suffix(".partial").replace(ready)
server.serve_forever()
"""


async def test_life_and_death_of_the_service(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("art.local.backend.DIRECTORY_WAIT_S", 0.5)
    async with art.LocalBackend(path=tmp_path) as backend:
        assert backend._service.pid is None  # nothing runs before it is needed
        assert (await backend.get_health()).status == "ok"
        first, url = backend._service.pid, backend._service.url
        async with art.LocalBackend(path=tmp_path) as second:
            with pytest.raises(ConflictError, match=rf"Another ART service \(process {first}\) uses {tmp_path}"):
                await second.get_health()
            assert second._service.pid is None, "nothing was started"
        told = f"The ART service of process {first} uses {tmp_path}; waiting up to 0.5 s for its end."
        assert told in capsys.readouterr().err
        os.kill(first, signal.SIGKILL)
        with pytest.raises(BackendDiedError, match=rf"process {first}\) was ended by SIGKILL"):
            await backend.get_health()
        refuses_connections(url)
        refuses_to_be_bound(url)
        assert (await backend.get_health()).status == "ok"  # the next call works, at the same address
        second = backend._service.pid
        assert (second != first, backend._service.url) == (True, url)
    assert not psutil.pid_exists(second)
    refuses_to_be_bound(url)


def refuses_connections(url):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rsplit(":")[-1])), timeout=5)


def refuses_to_be_bound(url):
    """No other process can listen where clients go on sending their keys."""
    for host in ("127.0.0.1", "0.0.0.0"):
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.setsockopt(socket.SOL_SOCKET, option, 1)
                other.bind((host, int(url.rsplit(":")[-1])))


@pytest.fixture
def quick_service(tmp_path, monkeypatch):
    """Let the child be a service that starts at once, since it imports nothing heavy."""
    package = tmp_path / "stand_in" / "art_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def test_the_service_ends_when_its_starter_is_killed(tmp_path, quick_service):
    code = f"""
import asyncio, sys, time, art
backend = art.LocalBackend(path={str(tmp_path)!r})
asyncio.run(backend.get_health())
print(backend._service.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        child = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
    child.wait(timeout=60)


def test_a_service_that_cannot_start_shows_the_tail_of_its_log(tmp_path, quick_service):
    refused = pytest.raises(BackendDiedError, match=r"(?s)exited with code 1.*No such option")
    with art.LocalBackend(path=tmp_path, serve_arguments=["--no-such-option"]) as backend, refused:
        asyncio.run(backend.get_health())


@pytest.mark.parametrize("given", [["--port", "8123"], ["--host=0.0.0.0"]])
def test_the_address_of_the_service_is_not_the_callers_to_choose(tmp_path, given):
    with pytest.raises(ValueError, match=rf"serve_arguments: {given[0].split('=')[0]}.* RemoteBackend"):
        art.LocalBackend(path=tmp_path, serve_arguments=given)


def dedicated(name: str, trainer: list[int], inference: list[int]) -> art.TrainableModel:
    devices = {"trainer_gpu_ids": trainer, "inference_gpu_ids": inference}
    return art.TrainableModel(name=name, project="p", base_model="b", _internal_config=devices)


async def test_a_models_devices_become_those_of_the_service(tmp_path, quick_service):
    async with art.LocalBackend(path=tmp_path) as backend:
        for name in ("one", "two"):  # the stand-in answers nothing else than that it lives
            with warnings.catch_warnings(), pytest.raises(BackendError):
                warnings.simplefilter("error")
                await backend.register(dedicated(name, [0], [1]))
        service = psutil.Process(backend._service.pid).cmdline()
        assert service[service.index("--engine-devices") + 1] == "1"
        assert service[service.index("--trainer-devices") + 1] == "0"
        assert service.count("--engine-devices") == 1
        with pytest.raises(ValueError, match=r"model 'other' asks for --engine-devices 2.*has --engine-devices 1"):
            await backend.register(dedicated("other", [0, 1], [2]))


async def test_devices_cannot_be_asked_for_later(tmp_path, quick_service):
    async with art.LocalBackend(path=tmp_path) as backend:
        await backend.get_health()
        with pytest.raises(ValueError, match="no separate devices"):
            await backend.register(dedicated("m", [0], [1]))
    with pytest.raises(ValueError, match="must not share devices"):
        await art.LocalBackend(path=tmp_path).register(dedicated("m", [0], [0]))


def test_missing_packages_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with pytest.raises(MissingExtraError, match=r"needs torch.*pip install 'art-trainer\[backend\]'") as caught:
        art.LocalBackend(path=tmp_path)._service.start()
    assert "\n" not in str(caught.value)


def test_in_process_has_no_effect(tmp_path):
    with pytest.warns(UserWarning, match="in_process has no effect"):
        art.LocalBackend(path=tmp_path, in_process=True)


def test_the_default_path_is_in_the_repository(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert art.LocalBackend()._path == tmp_path / ".art"
    assert (tmp_path / ".art").is_dir()


@pytest.mark.parametrize(
    ("names", "price", "config", "rate"),
    [
        (("NVIDIA H200", "NVIDIA H200"), None, None, 6.0),
        (("NVIDIA H200",), None, {"trainer_gpu_ids": [0], "inference_gpu_ids": [1]}, 6.0),
        (("NVIDIA H200", "Other"), None, None, None),
        (("Other",), None, None, None),
        (("Other",), 1.5, None, 1.5),
        ((), 1.5, None, None),
    ],
)
def test_price_of_the_devices(tmp_path, monkeypatch, names, price, config, rate):
    monkeypatch.setattr("art.local.backend.query_gpus", lambda fields: names)
    model = art.TrainableModel(name="m", project="p", base_model="b", _internal_config=config)
    backend = art.LocalBackend(path=tmp_path, gpu_cost_per_hour_usd=price)
    assert backend.automatic_gpu_cost_per_hour_usd(model) == rate


def test_closing_twice_is_harmless(tmp_path):
    backend = art.LocalBackend(path=tmp_path)
    backend.close_sync()
    backend.close_sync()
    assert Path(tmp_path).is_dir()


async def test_a_checkpoint_is_found_and_copied(tmp_path):
    backend = art.LocalBackend(path=tmp_path / "art")
    model = art.TrainableModel(name="m", project="p", base_model="b")
    with pytest.raises(NotFoundError, match="p/m has no checkpoint of step 0"):
        await backend._experimental_pull_model_checkpoint(model)
    for step in ("0001", "0003"):
        (tmp_path / "art/p/models/m/checkpoints" / step).mkdir(parents=True)
        (tmp_path / "art/p/models/m/checkpoints" / step / "weights").write_text(step)
    latest = await backend._experimental_pull_model_checkpoint(model)
    assert await backend._experimental_pull_model_checkpoint(model, step="latest", verbose=True) == latest
    assert latest == str(tmp_path / "art/p/models/m/checkpoints/0003")
    copy = await backend._experimental_pull_model_checkpoint(model, step=1, local_path=tmp_path / "copy")
    assert (copy, (tmp_path / "copy/weights").read_text()) == (str(tmp_path / "copy"), "0001")
    with pytest.raises(FileExistsError):
        await backend._experimental_pull_model_checkpoint(model, local_path=tmp_path / "copy")


async def test_registering_takes_a_model_in(tmp_path):
    class Config(BaseModel):
        rounds: int = 3

    model = art.Model(name="m", project="p", config=Config(), inference_api_key="secret", inference_base_url="http://x")
    backend = art.LocalBackend(path=tmp_path)
    for _ in range(2):
        await model.register(backend)
    assert model.base_path == str(tmp_path)
    record = json.loads((tmp_path / "p/models/m/model.json").read_text())
    assert (record["name"], record["config"], record["inference_api_key"]) == ("m", {"rounds": 3}, None)
    assert backend._service.pid is None, "a model that is not trained needs no service"


async def test_a_step_is_one_job_and_logs_nothing(tmp_path):
    backend = art.LocalBackend(path=tmp_path)
    model = art.TrainableModel(name="m", project="p", base_model="b", base_path=str(tmp_path))
    asked = []

    async def run_job(request, verbose):
        asked.append((request.options, verbose))
        return TrainResult(
            step=4, trained=True, metrics={"loss/train": 2.0, "data/step_num_trajectories": 9.0}, checkpoint="/c/0004"
        )

    backend._run_job = run_job
    members = [art.Trajectory(reward=0), art.Trajectory(reward=1)]
    groups = [art.TrajectoryGroup(members, exceptions=[ValueError("x")])]
    result = await backend.train(model, groups, epsilon=0.1, epsilon_high=None, kl_coef=0.5, verbose=True)
    assert asked == [(TrainOptions(epsilon=0.1, kl_coef=0.5), True)]
    assert (result.step, result.checkpoint_path) == (4, "/c/0004")
    assert result.metrics.pop("time/step_trainer_s") >= 0
    assert result.metrics == {
        "loss/train": 2.0,
        "data/step_num_trajectories": 9.0,  # the trainer's own count stands
        "data/step_num_scenarios": 1.0,
        "data/step_num_groups_submitted": 1.0,
        "data/step_num_groups_trainable": 1.0,
    }
    assert list(tmp_path.iterdir()) == [], "nothing is logged, and no service was started"
