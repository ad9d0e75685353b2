"""Jobs run once, tell what happens, and are settled after a crash."""

import asyncio
from pathlib import Path

import pytest

from art.wire import JobState, TrainProgress, TrainResult
from art_backend import jobs
from art_backend.errors import BadRequestError, ConflictError, NotFoundError, StorageFailedError
from art_backend.jobs import JobBoard
from art_backend.store.checkpoints import CheckpointStore
from art_backend.store.database import open_database
from art_backend.store.runs import RunStore

KEY = "key-0001"


@pytest.fixture
def runs(tmp_path):
    return RunStore(open_database(tmp_path / "art.db"))


@pytest.fixture
def board(runs, tmp_path):
    return JobBoard(runs, lambda project, name: CheckpointStore(tmp_path))


async def collect(board, job, after=0):
    return [event async for event in board.events(job, after, keep_alive_s=5) if event is not None]


def working(calls, result=None, error=None, gate=None):
    async def work(on_start, report):
        calls.append("work")
        on_start(1)
        if gate is not None:
            await gate.wait()
        report(TrainProgress(phase="training", done=1, total=2))
        report(TrainProgress(phase="training", done=1, total=2))
        report(TrainProgress(phase="training", done=2, total=2))
        if error is not None:
            raise error
        return result or TrainResult(step=1, trained=True, metrics={"reward": 0.5}, warnings=["careful"])

    return work


async def test_a_job_reports_its_phases_warnings_and_result(runs, board):
    calls = []
    job = board.submit("p", "m", KEY, working(calls))
    events = await collect(board, job.id)
    assert [(e.seq, e.type) for e in events] == [
        (1, "state"),
        (2, "progress"),
        (3, "progress"),  # the second report of the same phase came too soon; the last one always passes
        (4, "warning"),
        (5, "state"),
    ]
    assert events[2].data["done"] == 2
    assert events[-1].data["state"] == "succeeded"
    assert TrainResult.model_validate(events[-1].data["result"]).metrics == {"reward": 0.5}
    assert runs.metric_rows("p", "m")[0].metrics == {"reward": 0.5}


async def test_the_same_key_never_trains_twice(runs, board):
    calls = []
    first = board.submit("p", "m", KEY, working(calls))
    again = board.submit("p", "m", KEY, working(calls))
    await collect(board, first.id)
    later = board.submit("p", "m", KEY, working(calls))
    assert first.id == again.id == later.id
    assert later.state is JobState.SUCCEEDED
    assert calls == ["work"]


async def test_a_watcher_that_comes_back_misses_nothing_and_sees_nothing_twice(runs, board):
    gate = asyncio.Event()
    job = board.submit("p", "m", KEY, working([], gate=gate))
    stream = board.events(job.id, 0, keep_alive_s=5)
    first = await anext(stream)
    await stream.aclose()  # the connection drops
    gate.set()
    rest = await collect(board, job.id, after=first.seq)
    assert [first.seq, *(e.seq for e in rest)] == [1, 2, 3, 4, 5]


async def test_a_silent_job_sends_keep_alives(runs, board):
    gate = asyncio.Event()
    job = board.submit("p", "m", KEY, working([], gate=gate))
    stream = board.events(job.id, 0, keep_alive_s=0.01)
    assert (await anext(stream)).type == "state"
    assert await anext(stream) is None
    gate.set()
    assert [e.type async for e in stream if e][-1] == "state"


async def test_a_failure_keeps_its_code_and_field_and_the_next_job_runs(runs, board):
    bad = board.submit("p", "m", KEY, working([], error=BadRequestError("row 3 is empty", param="groups.0")))
    (*_, last) = await collect(board, bad.id)
    assert last.data["state"] == "failed"
    assert last.data["error"] == {"code": "bad_request", "message": "row 3 is empty", "param": "groups.0"}
    good = board.submit("p", "m", "key-0002", working([]))
    assert (await collect(board, good.id))[-1].data["state"] == "succeeded"


async def test_a_bug_in_a_job_is_told_to_its_watchers(runs, board):
    job = board.submit("p", "m", KEY, working([], error=ZeroDivisionError("oops")))
    assert (await collect(board, job.id))[-1].data["error"]["message"] == "ZeroDivisionError: oops"


async def test_closing_interrupts_and_the_job_may_be_sent_again(runs, board):
    calls = []
    job = board.submit("p", "m", KEY, working(calls, gate=asyncio.Event()))
    await asyncio.sleep(0)
    await board.close()
    assert runs.job(job.id).state is JobState.INTERRUPTED
    again = board.submit("p", "m", KEY, working(calls))
    assert again.id == job.id
    await collect(board, job.id)
    assert calls == ["work", "work"]
    assert runs.job(job.id).state is JobState.SUCCEEDED


async def test_unknown_jobs_are_named(runs, board):
    with pytest.raises(NotFoundError, match="job_nope"):
        await collect(board, "job_nope")


@pytest.mark.parametrize(("saved", "state"), [(True, JobState.SUCCEEDED), (False, JobState.INTERRUPTED)])
async def test_after_a_crash_a_job_counts_as_done_exactly_if_its_checkpoint_exists(runs, board, tmp_path, saved, state):
    job, _ = runs.create_job("p", "m", KEY)
    runs.start_job(job.id, target_step=1)
    if saved:
        _fake_checkpoint(tmp_path, 1)
    board.recover()
    assert runs.job(job.id).state is state


async def test_a_job_sent_again_that_waits_behind_the_one_that_makes_its_old_step_has_not_succeeded(
    runs, board, tmp_path
):
    again, _ = runs.create_job("p", "m", KEY)
    runs.start_job(again.id, target_step=1)
    board.recover()
    other, _ = runs.create_job("p", "m", "key-0002")
    runs.start_job(other.id, target_step=1)
    assert runs.create_job("p", "m", KEY)[1], "it is to be started again"
    _fake_checkpoint(tmp_path, 1)
    board.recover()
    assert [runs.job(job.id).state for job in (again, other)] == [JobState.INTERRUPTED, JobState.SUCCEEDED]


@pytest.mark.parametrize(("saved", "state"), [(True, JobState.SUCCEEDED), (False, JobState.INTERRUPTED)])
async def test_a_service_that_stops_while_it_publishes_keeps_the_step(runs, board, tmp_path, saved, state):
    async def work(on_start, report):
        on_start(1)
        if saved:
            _fake_checkpoint(tmp_path, 1)
        await asyncio.Event().wait()

    job = board.submit("p", "m", KEY, work)
    await asyncio.sleep(0)
    await board.close()
    assert runs.job(job.id).state is state


@pytest.mark.parametrize("state", list(JobState))
def test_a_key_with_another_request_is_a_conflict(runs, board, state):
    job, _ = runs.create_job("p", "m", KEY, digest="one")
    runs.finish_job(job.id, state)
    found = board.find("p", "m", KEY, "one")
    assert found == (None if state is JobState.INTERRUPTED else runs.job(job.id))
    assert board.find("p", "m", "key-0002", "two") is None
    for ask in (board.find, lambda *names: runs.create_job(*names[:3], digest=names[3])):
        with pytest.raises(ConflictError, match=f"'{KEY}' belongs to another request .{job.id}.") as caught:
            ask("p", "m", KEY, "two")
        assert caught.value.param == "idempotency_key"


async def test_a_disk_that_is_full_for_a_while_delays_the_end_of_a_job(runs, board, monkeypatch):
    """Neither news of progress nor what came of the step ends with it."""
    monkeypatch.setattr(jobs, "STORE_RETRY_S", 0.01)
    full = [True]
    limit = runs._db.execute("PRAGMA max_page_count").fetchone()[0]

    async def work(on_start, report):
        on_start(1)
        pages = runs._db.execute("PRAGMA page_count").fetchone()[0]
        runs._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageFailedError):
            for _ in range(1000):
                runs.append_event(job.id, "filler", {"text": "x" * 3000})
        report(TrainProgress(phase="training", done=1, total=1))
        asyncio.get_running_loop().call_later(0.1, free)
        return TrainResult(step=1, trained=True, metrics={"reward": 0.5}, warnings=["careful" * 1000])

    def free():
        full.clear()
        runs._db.execute(f"PRAGMA max_page_count = {limit}")

    job = board.submit("p", "m", KEY, work)
    events = await asyncio.wait_for(collect(board, job.id), 60)
    assert not full
    assert events[-1].data["state"] == "succeeded"
    assert [e.type for e in events if e.type == "warning"] == ["warning"]
    assert runs.metric_rows("p", "m")[0].metrics == {"reward": 0.5}


def _fake_checkpoint(directory: Path, step: int) -> None:
    (directory / f"{step:04d}").mkdir(parents=True)
