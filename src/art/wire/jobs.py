"""Long work: started once, watched by anyone, resumable by event number."""

from typing import Any

from art.wire.base import Wire, WireEnum
from art.wire.errors import ApiErrorBody


class JobKind(WireEnum):
    """What a job does.

    >>> JobKind.SFT.value
    'sft'
    """

    TRAIN = "train"
    SFT = "sft"


class JobState(WireEnum):
    """Where a job stands.

    >>> JobState.RUNNING in TERMINAL_STATES
    False
    """

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """The service stopped while the job ran; nothing of it was kept, and it may be sent again."""


TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.INTERRUPTED})


class Job(Wire):
    """Work that goes on after the request that began it.

    >>> Job(id="job_1", kind=JobKind.TRAIN, state=JobState.QUEUED, project="p", model="m", created_at=0.0).result is None
    True
    """

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
    """One server-sent event. Its ``id`` is ``seq``; a client resumes with the ``Last-Event-ID`` header.

    >>> JobEvent(seq=1, type="progress", time=0.0, data={"phase": "training", "done": 5, "total": 10}).data["done"]
    5
    """

    seq: int
    """1 for a job's first event, without gaps."""
    type: str
    """``progress`` (data: ``TrainProgress``), ``warning`` (data: ``{"message"}``) or ``state`` (data: the ``Job``)."""
    time: float
    data: dict[str, Any]
