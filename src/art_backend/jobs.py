"""Jobs: long work that is started once, watched by anyone, and told apart by an idempotency key.

Every event is stored before it is sent, so a client that lost its connection, or the whole service, resumes by number.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable

from art.wire import (
    TERMINAL_STATES,
    ApiErrorBody,
    ErrorCode,
    Job,
    JobEvent,
    JobKind,
    JobState,
    MetricRow,
    TrainProgress,
    TrainResult,
)
from art_backend.errors import ServiceError
from art_backend.store.checkpoints import CheckpointStore
from art_backend.store.runs import RunStore

PROGRESS_INTERVAL_S = 0.5
"""Progress of one phase is stored at most this often."""

Work = Callable[[Callable[[int], None], Callable[[TrainProgress], None]], Awaitable[TrainResult]]
"""What a job runs: it gets ``on_start(step)`` and ``report(progress)``."""

_log = logging.getLogger(__name__)


class JobBoard:
    """Starts jobs and streams their events."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def submit(self, project: str, model: str, idempotency_key: str, work: Work, kind: JobKind = JobKind.TRAIN) -> Job:
        """Start ``work`` as a job, unless a job with this key has been started before; return the job."""
        job, is_new = self._runs.create_job(project, model, idempotency_key, kind)
        if is_new:
            self._tasks[job.id] = asyncio.create_task(self._run(job, work), name=job.id)
        return job

    async def _run(self, job: Job, work: Work) -> None:
        throttle = _Throttle()

        def on_start(step: int) -> None:
            self._announce(self._runs.start_job(job.id, step), job.id)

        def report(progress: TrainProgress) -> None:
            if throttle.lets_pass(progress):
                self._announce(self._runs.append_event(job.id, "progress", progress.model_dump()), job.id)

        try:
            result = await work(on_start, report)
            for warning in result.warnings:
                self._announce(self._runs.append_event(job.id, "warning", {"message": warning}), job.id)
            row = MetricRow(step=result.step, split="train", metrics=result.metrics)
            self._runs.merge_metrics(job.project, job.model, row)
            event = self._runs.finish_job(job.id, JobState.SUCCEEDED, result=result.model_dump())
        except asyncio.CancelledError:
            event = self._runs.finish_job(job.id, JobState.INTERRUPTED, error=_interrupted())
            raise
        except ServiceError as error:
            body = ApiErrorBody(code=error.code, message=error.message, param=error.param)
            event = self._runs.finish_job(job.id, JobState.FAILED, error=body)
        except Exception as error:  # noqa: BLE001 — a bug in one job must be told to its watchers, not end the service
            _log.exception("Job %s failed", job.id)
            body = ApiErrorBody(code=ErrorCode.INTERNAL, message=f"{type(error).__name__}: {error}")
            event = self._runs.finish_job(job.id, JobState.FAILED, error=body)
        finally:
            self._tasks.pop(job.id, None)
        self._announce(event, job.id)

    def _announce(self, event: JobEvent, job_id: str) -> None:
        self._news.pop(job_id, asyncio.Event()).set()

    async def events(self, job_id: str, after: int, keep_alive_s: float) -> AsyncIterator[JobEvent | None]:
        """Yield a job's events beyond number ``after`` until it ends; ``None`` when nothing happened for a while."""
        self._runs.job(job_id)
        while True:
            news = self._news[job_id]
            for event in self._runs.events_after(job_id, after):
                after = event.seq
                yield event
            if self._runs.job(job_id).state in TERMINAL_STATES and not self._runs.events_after(job_id, after):
                self._news.pop(job_id, None)
                return
            try:
                await asyncio.wait_for(news.wait(), keep_alive_s)
            except TimeoutError:
                yield None

    def recover(self, checkpoints: Callable[[str, str], CheckpointStore]) -> None:
        """Settle the jobs that a stopped service left behind.

        A job whose checkpoint exists has done its work; any other left nothing and may be sent again.
        """
        for job, target_step in self._runs.unfinished_jobs():
            store = checkpoints(job.project, job.model)
            if target_step is not None and target_step <= store.latest_step():
                result = TrainResult(
                    step=target_step,
                    trained=True,
                    metrics={},
                    checkpoint=str(store.path(target_step)),
                    warnings=["The service restarted after this step was saved; its metrics were lost."],
                )
                self._runs.finish_job(job.id, JobState.SUCCEEDED, result=result.model_dump())
            else:
                self._runs.finish_job(job.id, JobState.INTERRUPTED, error=_interrupted())

    async def close(self) -> None:
        """Interrupt what runs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Throttle:
    """Lets every change of phase pass, and the last report of a phase, but not each report between."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._last = 0.0

    def lets_pass(self, progress: TrainProgress) -> bool:
        now = asyncio.get_running_loop().time()
        is_last = progress.total > 0 and progress.done >= progress.total
        if progress.phase == self._phase and not is_last and now - self._last < PROGRESS_INTERVAL_S:
            return False
        self._phase, self._last = progress.phase, now
        return True


def _interrupted() -> ApiErrorBody:
    return ApiErrorBody(
        code=ErrorCode.INTERNAL,
        message="The service stopped during this step. Nothing of the step was kept; send it again.",
    )
