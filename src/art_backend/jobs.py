"""Jobs: long work that starts once, that anyone can watch, and that an idempotency key identifies.

Every event is stored before it is sent, so a client resumes by number after a lost connection or a restart of the service. Work
that no request started, such as retention, runs in the ``Background``.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

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
from art_backend.errors import ServiceError, StorageFailedError
from art_backend.store.checkpoints import CheckpointStore
from art_backend.store.runs import RunStore

T = TypeVar("T")

STORE_RETRY_S = 1.0
"""Seconds between attempts to store the outcome of a job."""

PROGRESS_INTERVAL_S = 0.5
"""Progress of one phase is stored at most this often."""

Work = Callable[[Callable[[int], None], Callable[[TrainProgress], None]], Awaitable[TrainResult]]
"""What a job runs: it gets ``on_start(step)`` and ``report(progress)``."""

_log = logging.getLogger(__name__)


class JobBoard:
    """Starts jobs and streams their events.

    Args:
        checkpoints: Returns the checkpoints of a model, by project and name.
    """

    def __init__(self, runs: RunStore, checkpoints: Callable[[str, str], CheckpointStore]) -> None:
        self._runs = runs
        self._checkpoints = checkpoints
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def submit(
        self,
        project: str,
        model: str,
        idempotency_key: str,
        work: Work,
        kind: JobKind = JobKind.TRAIN,
        digest: str | None = None,
    ) -> Job:
        """Start ``work`` as a job, unless a job with this key has been started before; return the job.

        Raises:
            ConflictError: The key belongs to a request with another digest.
        """
        job, is_new = self._runs.create_job(project, model, idempotency_key, kind, digest)
        if is_new:
            self._tasks[job.id] = asyncio.create_task(self._run(job, work), name=job.id)
        return job

    def find(self, project: str, model: str, idempotency_key: str, digest: str) -> Job | None:
        """Return the job that a repeated request has started before; ``None`` where its work is still to be started.

        Raises:
            ConflictError: The key belongs to a request with another digest.
        """
        job = self._runs.find_job(project, model, idempotency_key, digest)
        return None if job is None or job.state is JobState.INTERRUPTED else job

    async def _run(self, job: Job, work: Work) -> None:
        throttle = _Throttle()
        making: int | None = None

        def on_start(step: int) -> None:
            nonlocal making
            self._announce(self._runs.start_job(job.id, step), job.id)
            making = step

        def report(progress: TrainProgress) -> None:
            if not throttle.lets_pass(progress):
                return
            try:
                self._announce(self._runs.append_event(job.id, "progress", progress.model_dump()), job.id)
            except StorageFailedError as error:  # a lost progress event must not fail the step
                _log.error("Could not report the progress of job %s: %s", job.id, error.message)

        try:
            result = await work(on_start, report)
            for warning in result.warnings:
                event = await self._stored(lambda text=warning: self._warn(job.id, text))
                self._announce(event, job.id)
            row = MetricRow(step=result.step, split="train", metrics=result.metrics)
            await self._stored(lambda: self._runs.merge_metrics(job.project, job.model, row))
            event = await self._stored(lambda: self._succeed(job.id, result))
        except asyncio.CancelledError:
            self._settle(job, making)
            raise
        except ServiceError as error:
            body = ApiErrorBody(code=error.code, message=error.message, param=error.param)
            event = await self._stored(lambda: self._runs.finish_job(job.id, JobState.FAILED, error=body))
        except Exception as error:  # noqa: BLE001 — a bug in one job must reach its watchers, not end the service
            _log.exception("Job %s failed", job.id)
            bug = ApiErrorBody(code=ErrorCode.INTERNAL, message=f"{type(error).__name__}: {error}")
            event = await self._stored(lambda: self._runs.finish_job(job.id, JobState.FAILED, error=bug))
        finally:
            self._tasks.pop(job.id, None)
        self._announce(event, job.id)

    async def _stored(self, store: Callable[[], T]) -> T:
        """Store the outcome of a job, retrying for as long as the disk is full: this is the only copy."""
        while True:
            try:
                return store()
            except StorageFailedError as error:
                _log.error(
                    "Could not store the outcome of a job; trying again in %g s: %s", STORE_RETRY_S, error.message
                )
                await asyncio.sleep(STORE_RETRY_S)

    def _warn(self, job_id: str, message: str) -> JobEvent:
        return self._runs.append_event(job_id, "warning", {"message": message})

    def _succeed(self, job_id: str, result: TrainResult) -> JobEvent:
        return self._runs.finish_job(job_id, JobState.SUCCEEDED, result=result.model_dump())

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

    def recover(self) -> None:
        """Settle the jobs that a stopped service left behind."""
        for job, step in self._runs.unfinished_jobs():
            self._settle(job, step)

    def _settle(self, job: Job, step: int | None) -> None:
        """End a job that was broken off: it has done its work if its step has a checkpoint, else it may be sent again.

        Args:
            step: What it was making; ``None`` for a job that waited for its turn. While a job makes a step, nobody else
                makes checkpoints of its model.
        """
        store = self._checkpoints(job.project, job.model)
        if step is None or step not in store.steps():
            self._runs.finish_job(job.id, JobState.INTERRUPTED, error=_interrupted())
            return
        result = TrainResult(
            step=step,
            trained=True,
            metrics={},
            checkpoint=str(store.path(step)),
            warnings=["The service restarted after this step was saved; its metrics were lost."],
        )
        self._succeed(job.id, result)

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
        message="The service stopped during this step. The step was not saved; send it again.",
    )


class Background:
    """Tasks that run until ``close``."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Awaitable[None]], *, what: str) -> None:
        """Run ``work`` once.

        Args:
            what: Names it in the log.
        """
        task = asyncio.create_task(_logged(work, f"{what} failed"), name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def repeat(self, work: Callable[[], Awaitable[None]], *, every_s: float, what: str) -> None:
        """Run ``work`` now and every ``every_s`` seconds, whatever it raises: a full disk, say, is not full for ever."""

        async def go_on() -> None:
            while True:
                await _logged(work, f"{what} failed; trying again in {every_s:g} s")
                await asyncio.sleep(every_s)

        self.start(go_on, what=what)

    async def close(self) -> None:
        """Cancel what runs."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _logged(work: Callable[[], Awaitable[None]], message: str) -> None:
    try:
        await work()
    except Exception:  # noqa: BLE001 — nothing awaits the task, so only the log can show its failure
        _log.exception("%s", message)
