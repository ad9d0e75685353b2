"""The service itself, without models."""

import asyncio
import errno
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from peft import LoraConfig, get_peft_model
from tests.support.waiting import until
from transformers import AutoModelForCausalLM, AutoTokenizer

from art.wire import (
    TERMINAL_STATES,
    Example,
    LoraSpec,
    RegisterModel,
    TokenRow,
    TrainGroup,
    TrainOptions,
    TrainRequest,
    TrainSftRequest,
    TrainTrajectory,
)
from art_backend import service as service_module
from art_backend.devices import Device
from art_backend.engines.process import EngineSettings, Launch
from art_backend.errors import BadRequestError, ConflictError, NotFoundError, StorageFailedError
from art_backend.process import ProcessDiedError
from art_backend.service import Service
from art_backend.settings import Settings


async def test_old_captures_are_deleted_while_the_service_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "RETENTION_CHECK_S", 0.02)
    service = Service(Settings(path=tmp_path, api_key="k", capture_retention_days=1))
    deletions, delete_unused = [], service.captures.delete_unused

    def delete(seconds):
        deletions.append(delete_unused(seconds))
        return deletions[-1]

    service.captures.delete_unused = delete
    await service.restore()
    rollout = service.captures.create_rollout("p", "m").id
    await until(lambda: len(deletions) > 2)
    assert service.captures.get(rollout).id == rollout
    tomorrow = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + 86_401)
    monkeypatch.setattr("art_backend.store.database.time", tomorrow)
    await until(lambda: sum(deletions) == 1)
    with pytest.raises(NotFoundError):
        service.captures.get(rollout)
    await service.close()


async def test_background_work_that_fails_once_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(service_module, "RETENTION_CHECK_S", 0.01)
    monkeypatch.setattr(service_module, "WRITE_BACK_S", 0.01)
    written = []

    def write_back(path):
        written.append(path)
        if len(written) == 1:
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(service_module, "write_back", write_back)
    service = Service(Settings(path=tmp_path, api_key="k", engine="torch"))
    deletions = []

    def delete_unused(seconds):
        deletions.append(seconds)
        if len(deletions) == 1:
            raise StorageFailedError("The database could not be written (disk full).")

    service.captures.delete_unused = delete_unused
    await service.restore()
    await until(lambda: len(written) > 2 and len(deletions) > 2)
    assert "Checkpointing the database's write-ahead log failed; trying again in 0.01 s" in caplog.text
    assert "Deleting old captures failed; trying again in 0.01 s" in caplog.text
    await service.close()


@pytest.mark.parametrize("origin", [False, True])
@pytest.mark.parametrize("failure", ["full disk", "surrogate"])
async def test_a_registration_that_cannot_be_stored_leaves_nothing(tmp_path, tiny_model_path, origin, failure):
    service = Service(Settings(path=tmp_path, api_key="k", engine="torch"), _no_engine)
    spec = RegisterModel(
        project="p",
        name="m",
        base_model=str(tiny_model_path),
        lora=LoraSpec(rank=4, alpha=8),
        init_adapter=str(_save_adapter(tiny_model_path, tmp_path / "adapter")) if origin else None,
        metadata={"note": "x" * 100_000},
    )
    if failure == "full disk":
        pages = service._db.execute("PRAGMA page_count").fetchone()[0]
        service._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageFailedError):
            await service.register(spec)
        service._db.execute("PRAGMA max_page_count = 1000000")
    else:
        with pytest.raises(ValueError, match="surrogate"):
            await service.register(spec.model_copy(update={"metadata": {"note": "\ud800"}}))
    assert service.served() == []
    with pytest.raises(NotFoundError):
        service.describe("p", "m")
    assert not list(service.settings.path.rglob("origin.json"))
    assert not list(service.settings.path.rglob("checkpoints/*"))
    assert (await service.register(spec)).step == int(origin)
    assert [service.describe(one.project, one.name).name for one in service.served()] == ["m"]
    await service.close()


@pytest.mark.parametrize("shows_calls", [False, True])
async def test_a_template_whose_calls_are_not_read_back_is_named_at_registration(
    tmp_path, tiny_model_path, shows_calls, caplog
):
    path = tmp_path / "model"
    shutil.copytree(tiny_model_path, path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    if not shows_calls:
        tokenizer.chat_template += "{#- tools are not shown, but known #}"
    tokenizer.save_pretrained(path)
    service = Service(Settings(path=tmp_path / "data", api_key="k", engine="torch"), _no_engine)
    told = await service.register(RegisterModel(project="p", name="m", base_model=str(path)))
    assert [("does not write tool calls" in warning) for warning in told.warnings] == [True] * (not shows_calls)
    assert ("does not write tool calls" in caplog.text) == (not shows_calls)
    await service.close()


async def test_captures_outlive_a_restart_within_their_time(tmp_path):
    first = Service(Settings(path=tmp_path, api_key="k"))
    await first.restore()
    made = first.captures.create_rollout("p", "m")
    await first.close()
    second = Service(Settings(path=tmp_path, api_key="k"))
    await second.restore()
    await asyncio.sleep(0.01)
    assert second.captures.get(made.id).model_copy(update={"api_key": made.api_key}) == made
    assert second.keyring.identify(made.api_key).rollout == made.id
    await second.close()


async def test_a_step_that_the_device_cannot_hold_is_refused_before_it_begins(tmp_path, tiny_model_path):
    settings = Settings(path=tmp_path, api_key="k", engine="torch")
    service = Service(settings, _no_engine, devices=(Device("NVIDIA Small", 2**30),))
    await service.register(RegisterModel(project="p", name="m", base_model=str(tiny_model_path)))
    row = TokenRow(token_ids=[5, 6], sampled=[False, True], logprobs=[0, -1], policy_versions=[-1, 0], temperature=1)
    groups = [TrainGroup(trajectories=[TrainTrajectory(reward=r, rows=[row]) for r in (0, 1)])]
    with pytest.raises(BadRequestError, match=r"does not fit into 1\.0 GB"):
        await service.train(TrainRequest(project="p", model="m", groups=groups, idempotency_key="a" * 8))
    assert service.runs.unfinished_jobs() == []
    await service.close()


async def test_a_repeated_request_returns_its_job_and_its_key_is_not_for_another(tmp_path, tiny_model_path):
    service = Service(Settings(path=tmp_path, api_key="k", engine="torch"), _no_engine)
    await service.register(RegisterModel(project="p", name="m", base_model=str(tiny_model_path)))
    row = TokenRow(token_ids=[5, 6], sampled=[False, True], logprobs=[0, -1], policy_versions=[-1, 0], temperature=1)
    groups = [TrainGroup(trajectories=[TrainTrajectory(reward=r, rows=[row]) for r in (0, 1)])]
    request = TrainRequest(project="p", model="m", groups=groups, idempotency_key="a" * 8)
    job = await service.train(request)
    assert (await service.train(request.model_copy(deep=True))).id == job.id
    others = [
        service.train(request.model_copy(update={"groups": groups * 2})),
        service.train(request.model_copy(update={"options": TrainOptions(learning_rate=1e-3)})),
        service.train(
            TrainSftRequest(
                project="p", model="m", examples=[Example(rows=[row])], idempotency_key=request.idempotency_key
            )
        ),
    ]
    for other in others:
        with pytest.raises(ConflictError, match="belongs to another request"):
            await other
    await service.close()


async def test_a_model_is_not_deleted_while_it_is_trained(tmp_path, tiny_model_path):
    service = Service(Settings(path=tmp_path, api_key="k", engine="torch"), _no_engine)
    for name in ("busy", "idle"):
        await service.register(RegisterModel(project="p", name=name, base_model=str(tiny_model_path)))
    row = TokenRow(token_ids=[5, 6], sampled=[False, True], logprobs=[0, -1], policy_versions=[-1, 0], temperature=1)
    groups = [TrainGroup(trajectories=[TrainTrajectory(reward=r, rows=[row]) for r in (0, 1)])]
    async with service._device:  # the step waits for its turn
        job = await service.train(TrainRequest(project="p", model="busy", groups=groups, idempotency_key="a" * 8))
        with pytest.raises(ConflictError, match="Model 'busy' is being trained; delete it when the step is done"):
            await service.delete_model("p", "busy")
        assert service.describe("p", "busy").name == "busy"
        assert (await service.delete_model("p", "idle")).name == "idle"
    await until(lambda: service.runs.job(job.id).state in TERMINAL_STATES)  # there is no engine: it fails
    assert (await service.delete_model("p", "busy")).name == "busy"
    with pytest.raises(NotFoundError):
        service.describe("p", "busy")
    await service.close()


def _save_adapter(base, directory):
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(directory)
    return directory


def _no_engine(settings: EngineSettings, socket: Path, api_key: str) -> Launch:
    raise ProcessDiedError("this test has no engine")
