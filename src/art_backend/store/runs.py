"""Models, jobs, job events and metric histories.

Everything here is written in one transaction before the caller is answered, so a restarted service knows what was
registered, what ran, and what came of it.
"""

import json
import sqlite3
import time
import uuid
from typing import Any

from art.wire import (
    TERMINAL_STATES,
    ApiErrorBody,
    Job,
    JobEvent,
    JobKind,
    JobState,
    MetricRow,
    RegisterModel,
)
from art_backend.errors import ConflictError, NotFoundError
from art_backend.store.database import add_column, transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS models (
    project TEXT NOT NULL, name TEXT NOT NULL, id TEXT NOT NULL UNIQUE, spec TEXT NOT NULL, created_at REAL NOT NULL,
    PRIMARY KEY (project, name)
);
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, project TEXT NOT NULL, model TEXT NOT NULL, idempotency_key TEXT NOT NULL, kind TEXT NOT NULL,
    state TEXT NOT NULL, created_at REAL NOT NULL, finished_at REAL, result TEXT, error TEXT, target_step INTEGER,
    UNIQUE (project, model, idempotency_key)
);
CREATE TABLE IF NOT EXISTS job_events (
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, seq INTEGER NOT NULL, type TEXT NOT NULL,
    time REAL NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (job, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (
    project TEXT NOT NULL, model TEXT NOT NULL, step INTEGER NOT NULL, split TEXT NOT NULL, recorded_at REAL NOT NULL,
    metrics TEXT NOT NULL,
    PRIMARY KEY (project, model, step, split)
) WITHOUT ROWID;
"""


class RunStore:
    """Rows in, wire models out."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._db.executescript(_SCHEMA)
        add_column(connection, "jobs", "digest", "TEXT")

    # Models

    def check_model(self, spec: RegisterModel) -> bool:
        """Return whether a model of this name is registered; raise ConflictError where ``register_model`` would."""
        row = self._db.execute(
            "SELECT spec FROM models WHERE project = ? AND name = ?", (spec.project, spec.name)
        ).fetchone()
        if row is not None:
            _refuse_change(RegisterModel.model_validate_json(row["spec"]), spec)
        return row is not None

    def register_model(self, spec: RegisterModel) -> str:
        """Store a model and return its id. The same registration again returns the same id.

        A new ``max_sequence_length`` or ``metadata`` replaces the stored one.

        Raises:
            ConflictError: The name is taken by a model with another base model or adapter shape.
        """
        known = self.check_model(spec)
        with transaction(self._db):
            if known:
                self._db.execute(
                    "UPDATE models SET spec = ? WHERE project = ? AND name = ?",
                    (spec.model_dump_json(), spec.project, spec.name),
                )
            else:
                self._db.execute(
                    "INSERT INTO models VALUES (?, ?, ?, ?, ?)",
                    (spec.project, spec.name, f"m_{uuid.uuid4().hex[:16]}", spec.model_dump_json(), time.time()),
                )
        return self.find_model(spec.project, spec.name)[0]

    def find_model(self, project: str, name: str) -> tuple[str, RegisterModel]:
        """Return a model's id and registration.

        Raises:
            NotFoundError: No such model.
        """
        row = self._db.execute("SELECT id, spec FROM models WHERE project = ? AND name = ?", (project, name)).fetchone()
        if row is None:
            raise NotFoundError(
                f"No model {name!r} is registered in project {project!r}. Register it first.", param="model"
            )
        return row["id"], RegisterModel.model_validate_json(row["spec"])

    def list_models(self) -> list[RegisterModel]:
        rows = self._db.execute("SELECT spec FROM models ORDER BY project, name")
        return [RegisterModel.model_validate_json(row["spec"]) for row in rows]

    def delete_model(self, project: str, name: str) -> None:
        """Forget a model with its jobs and metrics."""
        with transaction(self._db):
            for table, column in (("jobs", "model"), ("metrics", "model"), ("models", "name")):
                self._db.execute(f"DELETE FROM {table} WHERE project = ? AND {column} = ?", (project, name))

    # Jobs

    def find_job(self, project: str, model: str, idempotency_key: str, digest: str | None = None) -> Job | None:
        """Find the job that has this idempotency key.

        Args:
            digest: Digest of the request; ``None`` matches any.

        Raises:
            ConflictError: The key belongs to another request.
        """
        row = self._db.execute(
            "SELECT * FROM jobs WHERE project = ? AND model = ? AND idempotency_key = ?",
            (project, model, idempotency_key),
        ).fetchone()
        if row is None:
            return None
        if None not in (digest, row["digest"]) and digest != row["digest"]:
            raise ConflictError(
                f"idempotency_key: {idempotency_key!r} belongs to another request ({row['id']}). Repeat that request word for "
                "word, or send this one under a new key.",
                param="idempotency_key",
            )
        return _job(row)

    def create_job(
        self,
        project: str,
        model: str,
        idempotency_key: str,
        kind: JobKind = JobKind.TRAIN,
        digest: str | None = None,
    ) -> tuple[Job, bool]:
        """Create a job, or find the one that has this idempotency key. Raises ConflictError as ``find_job`` does.

        Returns:
            The job, and whether its work is still to be started: True for a new job and for one that was interrupted.
        """
        known = self.find_job(project, model, idempotency_key, digest)
        if known is not None and known.state is not JobState.INTERRUPTED:
            return known, False
        job_id = f"job_{uuid.uuid4().hex[:16]}" if known is None else known.id
        with transaction(self._db):
            if known is None:
                self._db.execute(
                    "INSERT INTO jobs (id, project, model, idempotency_key, kind, state, created_at, digest)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (job_id, project, model, idempotency_key, kind, JobState.QUEUED, time.time(), digest),
                )
            else:  # the step that it was making may be another job's by now
                self._db.execute(
                    "UPDATE jobs SET state = ?, finished_at = NULL, error = NULL, target_step = NULL WHERE id = ?",
                    (JobState.QUEUED, job_id),
                )
        return self.job(job_id), True

    def job(self, job_id: str) -> Job:
        """Raises NotFoundError for an unknown id."""
        row = self._db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise NotFoundError(f"No job {job_id!r}.", param="job")
        return _job(row)

    def unfinished_jobs(self) -> list[tuple[Job, int | None]]:
        """Jobs that have not ended, each with the step that it is making; ``None`` for one that waits for its turn."""
        rows = self._db.execute(
            "SELECT * FROM jobs WHERE state IN (?, ?)", (JobState.QUEUED, JobState.RUNNING)
        ).fetchall()
        return [(_job(row), row["target_step"]) for row in rows]

    def start_job(self, job_id: str, target_step: int) -> JobEvent:
        return self._set_state(job_id, JobState.RUNNING, target_step=target_step)

    def finish_job(
        self,
        job_id: str,
        state: JobState,
        *,
        result: dict[str, Any] | None = None,
        error: ApiErrorBody | None = None,
    ) -> JobEvent:
        return self._set_state(job_id, state, result=result, error=error)

    def _set_state(
        self,
        job_id: str,
        state: JobState,
        *,
        target_step: int | None = None,
        result: dict[str, Any] | None = None,
        error: ApiErrorBody | None = None,
    ) -> JobEvent:
        finished = time.time() if state in TERMINAL_STATES else None
        with transaction(self._db):
            self._db.execute(
                "UPDATE jobs SET state = ?, finished_at = ?, result = ?, error = ?, target_step = coalesce(?, target_step)"
                " WHERE id = ?",
                (
                    state,
                    finished,
                    json.dumps(result) if result else None,
                    error.model_dump_json() if error else None,
                    target_step,
                    job_id,
                ),
            )
            return self._append_event(job_id, "state", self.job(job_id).model_dump(mode="json"))

    # Events

    def append_event(self, job_id: str, kind: str, data: dict[str, Any]) -> JobEvent:
        with transaction(self._db):
            return self._append_event(job_id, kind, data)

    def _append_event(self, job_id: str, kind: str, data: dict[str, Any]) -> JobEvent:
        seq = self._db.execute("SELECT coalesce(max(seq), 0) + 1 FROM job_events WHERE job = ?", (job_id,)).fetchone()[
            0
        ]
        event = JobEvent(seq=seq, type=kind, time=time.time(), data=data)
        self._db.execute(
            "INSERT INTO job_events VALUES (?, ?, ?, ?, ?)", (job_id, seq, kind, event.time, json.dumps(data))
        )
        return event

    def events_after(self, job_id: str, seq: int) -> list[JobEvent]:
        rows = self._db.execute("SELECT * FROM job_events WHERE job = ? AND seq > ? ORDER BY seq", (job_id, seq))
        return [
            JobEvent(seq=row["seq"], type=row["type"], time=row["time"], data=json.loads(row["data"])) for row in rows
        ]

    # Metrics

    def merge_metrics(self, project: str, model: str, row: MetricRow) -> None:
        """Store a row; an earlier row of the same step and split keeps the metrics that the new one does not name."""
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " metrics = json_patch(metrics, excluded.metrics), recorded_at = excluded.recorded_at",
                (project, model, row.step, row.split, row.recorded_at or time.time(), json.dumps(row.metrics)),
            )

    def metric_rows(self, project: str, model: str) -> list[MetricRow]:
        rows = self._db.execute(
            "SELECT * FROM metrics WHERE project = ? AND model = ? ORDER BY step, split", (project, model)
        )
        return [
            MetricRow(
                step=row["step"], split=row["split"], metrics=json.loads(row["metrics"]), recorded_at=row["recorded_at"]
            )
            for row in rows
        ]


def _refuse_change(stored: RegisterModel, wanted: RegisterModel) -> None:
    for field, old, new in (
        ("base_model", stored.base_model, wanted.base_model),
        ("lora", stored.lora.model_dump(), wanted.lora.model_dump()),
        ("full_finetune", stored.full_finetune, wanted.full_finetune),
    ):
        if old != new:
            raise ConflictError(
                f"Model {stored.name!r} of project {stored.project!r} is registered with {field} = {old!r}, not {new!r}. "
                "Choose another name, or delete the model's directory to start over.",
                param=field,
            )


def _job(row: sqlite3.Row) -> Job:
    return Job(
        id=row["id"],
        kind=JobKind(row["kind"]),
        state=JobState(row["state"]),
        project=row["project"],
        model=row["model"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        result=json.loads(row["result"]) if row["result"] else None,
        error=ApiErrorBody.model_validate_json(row["error"]) if row["error"] else None,
    )
