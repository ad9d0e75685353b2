"""The trainer as a process: driven by its real client, killed, and resumed."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch

from art.wire import TrainOptions
from art_backend.errors import BadRequestError, ModelNotAvailableError
from art_backend.process import ProcessDiedError
from art_backend.training import worker
from art_backend.training.process import TrainerProcess
from art_backend.training.trainer import Trainer
from art_backend.training.types import StepInput


def step_of(groups, step):
    return StepInput(groups=groups, options=TrainOptions(learning_rate=1e-2, micro_batch_tokens=16), step=step)


def tensors(checkpoint):
    return {
        name: tensor
        for file in ("adapter_model.safetensors", "optimizer.safetensors")
        for name, tensor in safetensors.torch.load_file(checkpoint / file).items()
    }


def timeless(metrics):
    """Metrics that do not depend on how fast the machine is."""
    return {name: value for name, value in metrics.items() if not name.startswith(("time/", "throughput/"))}


async def test_a_killed_trainer_resumes_bit_for_bit(setup, make_groups, tmp_path):
    """6 steps straight, here, against 3 + kill -9 in mid-step + 3, in processes; with bad input on the way."""
    batches = [make_groups(seed) for seed in range(6)]
    straight = Trainer(setup)
    expected = [straight.train(step_of(batch, i + 1)) for i, batch in enumerate(batches)]
    setup.checkpoints = tmp_path / "killed"
    log = tmp_path / "trainer.log"
    trainer = await TrainerProcess.start(setup, log_path=log, threads=1)
    try:
        seen: list[tuple[int, int]] = []
        outputs = [await trainer.train(step_of(batches[0], 1), lambda done, total: seen.append((done, total)))]
        assert seen[-1][0] == seen[-1][1] == expected[0].metrics["data/step_packed_tokens"]
        assert len(seen) > 1
        with pytest.raises(BadRequestError) as caught:
            await trainer.train(step_of([[]], 2))
        assert caught.value.param == "groups.0"
        await trainer.rest()
        outputs += [await trainer.train(step_of(batches[i], i + 1)) for i in (1, 2)]

        started = asyncio.Event()
        step = asyncio.create_task(trainer.train(step_of(batches[3] * 40, 4), lambda done, total: started.set()))
        await asyncio.wait_for(started.wait(), 60)
        os.kill(trainer.pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(ProcessDiedError, match="SIGKILL"):
            await step
        assert time.monotonic() - killed < 30, "not when a step would have ended"
        assert not trainer.alive
        with pytest.raises(ProcessDiedError):
            await trainer.train(step_of(batches[3], 4))
    finally:
        await trainer.close()

    trainer = await TrainerProcess.start(setup, log_path=log, threads=1)
    try:
        outputs += [await trainer.train(step_of(batches[i], i + 1)) for i in (3, 4, 5)]
    finally:
        await trainer.close()
    for ours, theirs in zip(outputs, expected, strict=True):
        a, b = tensors(ours.checkpoint), tensors(theirs.checkpoint)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert timeless(ours.metrics) == timeless(theirs.metrics)
        assert ours.canaries == theirs.canaries


async def test_a_stopped_trainer_is_noticed_and_treated_as_dead(setup, make_groups, tmp_path):
    trainer = await TrainerProcess.start(setup, log_path=tmp_path / "log", threads=1)
    try:
        started = asyncio.Event()
        groups = make_groups() * 40
        step = asyncio.create_task(trainer.train(step_of(groups, 1), lambda done, total: started.set()))
        await asyncio.wait_for(started.wait(), 60)
        os.kill(trainer.pid, signal.SIGSTOP)
        with pytest.raises(ProcessDiedError, match="computed nothing for 10 s, so it was ended"):
            await asyncio.wait_for(step, 60)
        assert not trainer.alive
    finally:
        await trainer.close()


def test_a_worker_says_that_it_lives_while_a_command_takes_long(monkeypatch):
    monkeypatch.setattr(worker, "BEAT_S", 0.05)
    said = io.StringIO()
    events = worker._Events(said)
    with events.alive():
        deadline = time.monotonic() + 60
        while said.getvalue().count("alive") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    events.send("result")
    assert set(said.getvalue().splitlines()[:-1]) == {'{"event": "alive"}'}
    assert said.getvalue().endswith('{"event": "result"}\n')
    size = len(said.getvalue())
    time.sleep(10 * worker.BEAT_S)
    assert len(said.getvalue()) == size, "and no longer"


async def test_a_missing_model_is_an_answer_and_not_a_death(setup, make_groups, tmp_path):
    setup.base_path = tmp_path
    trainer = await TrainerProcess.start(setup, log_path=tmp_path / "log", threads=1)
    try:
        with pytest.raises(ModelNotAvailableError, match=r"config\.json is not a model configuration"):
            await trainer.train(step_of(make_groups(), 1))
        assert trainer.alive
    finally:
        await trainer.close()
    assert not trainer.alive


def test_the_worker_ends_when_its_input_ends():
    worker = subprocess.run(
        [sys.executable, "-m", "art_backend.training.worker"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=150,
    )
    assert worker.returncode == 0
    assert worker.stdout == b""
