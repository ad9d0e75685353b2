"""Long-running jobs: started once, watched by anyone, resumable by event number."""

from enum import StrEnum
from typing import Any

from art.wire.base import Wire
from art.wire.errors import ApiErrorBody


class JobKind(StrEnum):
    """The kind of work that a job does."""

    TRAIN = "train"
    SFT = "sft"


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """The service stopped while the job ran; nothing was saved, and it can be sent again."""


TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.INTERRUPTED})


class Job(Wire):
    """Work that outlives the request that started it."""

    id: str
    kind: JobKind
    state: JobState
    project: str
    model: str
    created_at: float
    """Unix time in seconds."""
    finished_at: float | None = None
    result: dict[str, Any] | None = None
    """For a job that succeeded: the fields of ``TrainResult``."""
    error: ApiErrorBody | None = None


class JobEvent(Wire):
    """One server-sent event. Its ``id`` is ``seq``; a client resumes with the ``Last-Event-ID`` header."""

    seq: int
    """1 for a job's first event, without gaps."""
    type: str
    """``progress`` (data: ``TrainProgress``), ``warning`` (data: ``{"message"}``) or ``state`` (data: the ``Job``)."""
    time: float
    data: dict[str, Any]
