"""Models, jobs, events and metrics survive being asked for twice, and being reopened."""

import pytest

from art.wire import JobState, LoraSpec, MetricRow, RegisterModel
from art_backend.errors import ConflictError, NotFoundError
from art_backend.store.database import open_database, transaction
from art_backend.store.runs import RunStore


@pytest.fixture
def runs(tmp_path):
    return RunStore(open_database(tmp_path / "art.db"))


def spec(**changes):
    return RegisterModel(**{"project": "p", "name": "m", "base_model": "base", **changes})


def test_registering_again_returns_the_same_model(runs):
    first = runs.register_model(spec())
    assert runs.register_model(spec(metadata={"note": "again"})) == first
    assert runs.find_model("p", "m") == (first, spec(metadata={"note": "again"}))


@pytest.mark.parametrize(
    ("change", "field"), [({"base_model": "other"}, "base_model"), ({"lora": LoraSpec(rank=8)}, "lora")]
)
def test_a_name_cannot_change_what_it_stands_for(runs, change, field):
    runs.register_model(spec())
    with pytest.raises(ConflictError) as error:
        runs.register_model(spec(**change))
    assert error.value.param == field
    assert runs.find_model("p", "m")[1] == spec()


def test_unknown_models_and_jobs_are_named(runs):
    with pytest.raises(NotFoundError, match="'m' is registered in project 'p'"):
        runs.find_model("p", "m")
    with pytest.raises(NotFoundError, match="job_x"):
        runs.job("job_x")


def test_an_idempotency_key_names_one_job_per_model(runs):
    job, is_new = runs.create_job("p", "m", "key-0001")
    assert is_new
    assert runs.create_job("p", "m", "key-0001") == (job, False)
    other, is_new = runs.create_job("p", "other", "key-0001")
    assert is_new and other.id != job.id


def test_an_interrupted_job_may_be_sent_again_and_a_finished_one_may_not(runs):
    job, _ = runs.create_job("p", "m", "key-0001")
    runs.start_job(job.id, target_step=1)
    runs.finish_job(job.id, JobState.INTERRUPTED)
    again, to_start = runs.create_job("p", "m", "key-0001")
    assert (again.id, again.state, to_start) == (job.id, JobState.QUEUED, True)
    runs.finish_job(job.id, JobState.SUCCEEDED, result={"step": 1})
    assert runs.create_job("p", "m", "key-0001")[1] is False
    assert runs.job(job.id).result == {"step": 1}


def test_events_are_numbered_without_gaps_and_read_from_any_number(runs):
    job, _ = runs.create_job("p", "m", "key-0001")
    runs.start_job(job.id, target_step=7)
    runs.append_event(job.id, "progress", {"phase": "training"})
    runs.finish_job(job.id, JobState.SUCCEEDED)
    events = runs.events_after(job.id, 0)
    assert [(e.seq, e.type) for e in events] == [(1, "state"), (2, "progress"), (3, "state")]
    assert runs.events_after(job.id, 2) == events[2:]
    assert events[-1].data["state"] == "succeeded"


def test_unfinished_jobs_are_found_after_a_restart_with_the_step_they_were_making(tmp_path):
    runs = RunStore(open_database(tmp_path / "art.db"))
    job, _ = runs.create_job("p", "m", "key-0001")
    runs.start_job(job.id, target_step=3)
    reopened = RunStore(open_database(tmp_path / "art.db"))
    assert [(j.id, step) for j, step in reopened.unfinished_jobs()] == [(job.id, 3)]


def test_metrics_of_one_step_and_split_merge(runs):
    runs.merge_metrics("p", "m", MetricRow(step=1, split="train", metrics={"reward": 0.5, "loss": 1.0}))
    runs.merge_metrics("p", "m", MetricRow(step=1, split="train", metrics={"loss": 2.0}, recorded_at=9.0))
    runs.merge_metrics("p", "m", MetricRow(step=0, split="val", metrics={"reward": 0.1}))
    rows = runs.metric_rows("p", "m")
    assert [(r.step, r.split) for r in rows] == [(0, "val"), (1, "train")]
    assert rows[1].metrics == {"reward": 0.5, "loss": 2.0}
    assert rows[1].recorded_at == 9.0


def test_a_transaction_that_fails_leaves_nothing(tmp_path):
    db = open_database(tmp_path / "x.db")
    db.execute("CREATE TABLE t (x INTEGER)")
    with pytest.raises(RuntimeError), transaction(db):
        db.execute("INSERT INTO t VALUES (1)")
        raise RuntimeError
    assert db.execute("SELECT count(*) FROM t").fetchone()[0] == 0
