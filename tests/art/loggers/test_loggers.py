"""Each logger with its real package, offline: rows arrive, and a restarted process goes on in the same run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import art
from art.errors import MissingExtraError
from art.logs.loggers import LOGGERS, Logger, open_logger

REWARDS = [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


async def log_steps(path, kind, name="pupil", steps=(1, 2)):
    """What one process logs: a model object opens its loggers once."""
    model = art.Model(name=name, project="games", base_path=str(path), report_metrics=[kind])
    for step in steps:
        await model.log(metrics={"reward": step / 10, "nothing": float("nan")}, split="train", step=step)
    return model


async def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    await log_steps(tmp_path, "tensorboard")
    await log_steps(tmp_path, "tensorboard", steps=(3, 4))
    events = EventAccumulator(str(tmp_path / "games/models/pupil/tensorboard"))
    events.Reload()
    found = [(event.step, round(event.tensor_proto.float_val[0], 6)) for event in events.Tensors("train/reward")]
    assert found == REWARDS
    assert "train/nothing" not in events.Tags()["tensors"]


async def test_mlflow(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    await log_steps(tmp_path, "mlflow")
    await log_steps(tmp_path, "mlflow", steps=(3, 4))
    await log_steps(tmp_path, "mlflow", "it's another")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/games/mlflow.db")
    experiment = client.get_experiment_by_name("games")
    other, run = sorted(client.search_runs([experiment.experiment_id]), key=lambda found: found.info.run_name)
    assert (other.info.run_name, run.info.run_name) == ("it's another", "pupil")
    rewards = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "train/reward")]
    assert rewards == REWARDS
    assert "train/nothing" not in run.data.metrics


def test_trackio(tmp_path):
    """Two models by turns, then a restart of one. In a process of its own, since Trackio's directory is fixed at import."""
    code = f"""
import asyncio, json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_loggers import log_steps
async def main(path):
    first = await log_steps(path, "trackio", steps=(1,))
    other = await log_steps(path, "trackio", "other")
    await first.log(metrics={{"reward": 0.2}}, split="train", step=2)
    first._loggers["trackio"]._run.finish()
    restarted = await log_steps(path, "trackio", steps=(3, 4))
    for model in (other, restarted):
        model._loggers["trackio"]._run.finish()
asyncio.run(main(sys.argv[1]))
from trackio.sqlite_storage import SQLiteStorage
assert sorted(SQLiteStorage.get_runs("games")) == ["other", "pupil"], SQLiteStorage.get_runs("games")
print("FOUND", json.dumps([[row["step"], row["train/reward"]] for row in SQLiteStorage.get_logs("games", "pupil")]))
"""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [sys.executable, "-c", code, str(tmp_path)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    _, line = found.stdout.split("FOUND")
    assert json.loads(line.splitlines()[0]) == [list(pair) for pair in REWARDS]


async def test_wandb_offline(tmp_path, monkeypatch):
    import wandb

    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for process, steps in (("first", (1, 2)), ("second", (3, 4))):
        monkeypatch.setenv("WANDB_DIR", str(tmp_path / process))  # an offline run's directory is named by the second
        (tmp_path / process).mkdir()
        model = await log_steps(tmp_path, "wandb", steps=steps)
        model._get_wandb_run().finish()
        wandb.teardown()
    files = sorted(tmp_path.glob("*/wandb/offline-run-*-pupil/run-pupil.wandb"))
    rows = [row for file in files for row in read_wandb(file)]
    assert [(row["training_step"], row["train/reward"]) for row in rows] == REWARDS


def read_wandb(path):
    """The logged rows of an offline run: protocol buffers in LevelDB's log format, 32 KiB blocks after 7 bytes of header."""
    from wandb.proto import wandb_internal_pb2

    data, position, record = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        size, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        record += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            found = wandb_internal_pb2.Record()
            found.ParseFromString(record)
            record = b""
            if found.WhichOneof("record_type") == "history":
                yield {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in found.history.item
                }


def test_an_unknown_logger_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"unknown loggers: wandbb. Known: mlflow, tensorboard, trackio, wandb"):
        art.Model(name="m", project="p", base_path=str(tmp_path), report_metrics=["wandbb"])


@pytest.mark.parametrize("kind", sorted(set(LOGGERS) - {"wandb"}))
def test_a_logger_that_is_not_installed_is_one_line(tmp_path, monkeypatch, kind):
    package = {"tensorboard": "tensorboard.summary"}.get(kind, kind)
    monkeypatch.setitem(sys.modules, package, None)  # importing it raises ModuleNotFoundError
    with pytest.raises(MissingExtraError, match=rf"pip install 'art-trainer\[{kind}\]'"):
        open_logger(kind, "p", "m", tmp_path)


def test_the_protocol_is_the_one_of_all(tmp_path):
    logger: Logger = open_logger("tensorboard", "p", "m", tmp_path)
    logger.log({"train/reward": 1.0}, 1)
    assert list(tmp_path.glob("tensorboard/events.*"))
