"""Consumers of batches: they create the jobs of a submission, each exactly once even after kills, and report the
results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ferryman import crash
from ferryman.errors import DeliveryError, FerrymanError, PermanentError, TransientError, describe
from ferryman.intake import Batch, BatchState, JobQueue, NodeInvalid, Report
from ferryman.intake.overview import report_rows
from ferryman.intake.service.errors import SlowHost, StopRequested, TryLater
from ferryman.intake.service.fetch import Fetcher
from ferryman.intake.service.hosts import SlowHostQueue
from ferryman.intake.service.isolation import CurrentWork, Isolation
from ferryman.intake.service.payload import PlannedJob, has_payload, plan_jobs
from ferryman.intake.service.reports import BatchReports, Callback
from ferryman.intake.service.workers import HandOff
from ferryman.intake.service.workspace import Workspace

MANIFEST_RETRY_S: Final = 30.0
"""Seconds between two requests for a manifest whose server does not answer."""

MANIFEST_PATIENCE_S: Final = 24 * 3600.0
"""Seconds that a batch waits for its manifest, since the same batch cannot be submitted again; after that it fails."""


def has_all_jobs(batch: Batch) -> bool:
    """Return whether every job of the batch was created; until then its report is not due."""
    return batch.jobs_made is not None or not has_payload(batch.submission)


class DelayedBatches:
    """Batches to be tried again later, shared by all threads that create jobs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._retry_at: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._slow: list[str] = []
        self._closed = False

    def delay(self, batch_id: str, retry_at: float, now: float) -> float:
        """Schedule a batch to be tried again at ``retry_at``. Returns the time of its first attempt."""
        with self._changed:
            self._retry_at[batch_id] = retry_at
            return self._since.setdefault(batch_id, now)

    def not_due(self, now: float) -> set[str]:
        """Return the batches that are not due yet, and remove the others, which are added again if they fail again."""
        with self._changed:
            self._retry_at = {batch: at for batch, at in self._retry_at.items() if at > now}
            return {*self._retry_at, *self._slow}

    def add_slow(self, batch_id: str) -> None:
        """Record that the batch's manifest is on a slow host, so that it waits for a thread for slow hosts."""
        with self._changed:
            self._slow.append(batch_id)
            self._changed.notify()

    def wait_for_slow(self) -> None:
        """Wait until there is a batch on a slow host, or until ``close``."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._slow) or self._closed)

    def close(self) -> None:
        """Wake all waiting threads, so that they end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take_slow(self) -> str | None:
        """Return and remove the batch that has waited longest for a thread for slow hosts; None if there is none."""
        with self._changed:
            return self._slow.pop(0) if self._slow else None

    def __bool__(self) -> bool:
        with self._changed:
            return bool(self._retry_at or self._slow)


class BatchConsumer:
    """Consumer of pending batches.

    1. Acquire the batch, which is then locked and in Processing.
    2. Fetch its manifest, check it, and store it in the working space.
    3. Create a job for each object that has none yet, as told by the ``jobID`` of existing jobs.
    4. Record in the batch's status node how many jobs there are, which means that all were created.

    If a batch in Processing has no such number, its consumer was killed in between, and it is acquired again.
    """

    def __init__(
        self,
        queue: JobQueue,
        work: Workspace,
        fetcher: Fetcher,
        callback: Callback | BatchReports,
        print_line: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        delayed: DelayedBatches,
        hand_off: HandOff,
        at_work: CurrentWork,
        isolation: Isolation,
    ) -> None:
        self._delayed, self._hand_off = delayed, hand_off
        self._at_work, self._isolation = at_work, isolation
        self._queue, self._work, self._fetcher, self._callback = queue, work, fetcher, callback
        self._print_line, self._clock = print_line, clock
        self._finished: set[str] = set()

    def turn(self) -> bool:
        """Create the jobs of one batch. Returns False if there was none.

        Raises:
            LockLost, QueueLost: another consumer continues with the batch.
            StopRequested.
        """
        batch = self._acquire()  # 1
        if batch is None:
            return False
        self._hand_off.wake_one()  # there may be more
        try:
            if not has_all_jobs(batch):
                self._create_jobs(batch)
            self._finished.add(batch.id)
        except TransientError as e:
            self._retry_later(batch, e)
        except PermanentError as e:
            self._give_up(batch, e)
        except SlowHost:
            self._delayed.add_slow(batch.id)
        except TryLater as e:
            now = self._clock()
            self._delayed.delay(batch.id, now + e.after_s, now)
        except NodeInvalid as e:
            self._queue.pass_over(batch.id, f"{batch.id}: {e}")
        except OSError as e:
            self._retry_later(batch, TransientError(describe(e)))  # a fault of our own disk
        except FerrymanError:
            raise
        except Exception as e:  # catch everything: an error fails this batch and no other
            self._give_up(batch, PermanentError(describe(e)))
        finally:
            batch.unlock()
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until there may be a batch, or until the end. Waits at most ``timeout_s`` while batches are to be tried
        again."""
        self._hand_off.wait(timeout_s if self._delayed else None)

    def _acquire(self) -> Batch | None:
        skip = self._finished | self._delayed.not_due(self._clock())
        return self._queue.acquire_pending_batch() or self._queue.acquire_batch_in_processing(skip)

    def _create_jobs(self, batch: Batch) -> None:
        planned_jobs = self._at_work.run(
            batch.id, lambda: self._plan_jobs(batch), lambda: self._isolation.plan_batch(batch)
        )  # 2
        crash.point("batch.planned")
        existing_keys = self._job_keys(batch)
        for job in planned_jobs:  # 3
            if job.configuration["jobID"] not in existing_keys:
                self._create_job(batch, job)
                crash.point("batch.job")
        crash.point("batch.made")
        batch.set_jobs_made(len(planned_jobs))  # 4
        self._print_line(f"{batch.id}: {batch.message}")

    def _plan_jobs(self, batch: Batch) -> list[PlannedJob]:
        return list(plan_jobs(batch.submission, batch.id, self._work, self._fetcher))

    def _create_job(self, batch: Batch, job: PlannedJob) -> None:
        batch.create_job(job.configuration, job.priority, identifiers=job.identifiers, metadata=job.metadata)

    def _job_keys(self, batch: Batch) -> set[str]:
        """Return the keys of the jobs that already exist."""
        ids = [*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs]
        return {str(self._queue.load_job(job).configuration.get("jobID")) for job in ids}

    def _retry_later(self, batch: Batch, error: TransientError) -> None:
        now = self._clock()
        since = self._delayed.delay(batch.id, now + MANIFEST_RETRY_S, now)
        if now - since >= MANIFEST_PATIENCE_S:
            self._give_up(batch, error)
            return
        batch.set_status("Processing", f"waits for its manifest: {error}")
        self._print_line(f"{batch.id}: {error}. It is tried again in {MANIFEST_RETRY_S:g} s.")

    def _give_up(self, batch: Batch, error: DeliveryError) -> None:
        """Fail the batch permanently, and notify its submitter if possible."""
        body = {
            "id": f"{batch.id}/refused",
            "batch": batch.id,
            "batchID": batch.submission.get("batchID"),
            "status": "Failed",
            "why": str(error),
        }
        try:
            self._callback.send(batch.submission, body)
        except SlowHost:
            self._delayed.add_slow(batch.id)
            return
        except (DeliveryError, StopRequested) as e:
            self._print_line(f"{batch.id}: its submitter could not be notified: {e}")
        batch.set_status("Failed", str(error))
        self._finished.add(batch.id)
        self._print_line(f"{batch.id}: failed: {error}")


class SlowBatchConsumer(BatchConsumer):
    """Consumer of batches on slow hosts that other threads have put aside; its fetcher waits for slow hosts."""

    def wait(self, timeout_s: float) -> None:
        self._delayed.wait_for_slow()

    def _acquire(self) -> Batch | None:
        batch_id = self._delayed.take_slow()
        if batch_id is None:
            return None
        batch = self._queue.load_batch(batch_id)
        return batch if batch.acquire(BatchState.PROCESSING) is not None else None


# Reports of finished batches, stored with the batch and sent to its submitter.

REPORT_RETRY_S: Final = 30.0
"""Seconds between two attempts to reach a submitter who does not answer."""

REPORT_PATIENCE_S: Final = 24 * 3600.0
"""Seconds for which sending a report is attempted. After that the batch is closed anyway; the report is kept with
it."""


class ReportConsumer:
    """Consumer of batches in Reporting and UpdateReporting, and of those whose last job is finished.

    1. Acquire the batch, which is then in Reporting.
    2. Post its report: all of it, or in UpdateReporting only what has changed since the last one, if anything.
    3. Move the batch to Completed, or to Failed if a job has failed, and store the report in the same commit.

    After a kill between 2 and 3, the same report is posted again, with the same ``id``.
    """

    def __init__(
        self,
        queue: JobQueue,
        work: Workspace,
        callback: Callback | BatchReports,
        print_line: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        slow_queue: SlowHostQueue[Batch] | None = None,
    ) -> None:
        self._slow_queue = slow_queue
        self._queue, self._work, self._callback = queue, work, callback
        self._print_line, self._clock = print_line, clock
        self._unsent: list[tuple[float, float, Batch]] = []
        """(when to try again, when it was first tried, batch) of reports that could not be sent; each batch is
        locked."""

    @property
    def has_unsent(self) -> bool:
        """Return whether a report waits to be sent again."""
        return bool(self._unsent)

    def turn(self) -> bool:
        """Report one batch. Returns False if there was none.

        Raises:
            LockLost, QueueLost: another consumer continues with the batch.
            StopRequested.
        """
        now = self._clock()
        for index, unsent in enumerate(self._unsent):
            if unsent[0] <= now:
                del self._unsent[index]
                self._report(unsent[2], unsent[1])
                return True
        batch = self._acquire()  # 1
        if batch is None:
            return False
        self._report(batch, now)
        return True

    def _acquire(self) -> Batch | None:
        return self._queue.acquire_batch_for_reporting(has_all_jobs)

    def release(self) -> None:
        """Unlock the batches whose reports wait to be sent again."""
        for _, _, batch in self._unsent:
            batch.unlock()
        self._unsent.clear()

    def _report(self, batch: Batch, since: float) -> None:
        keep_lock = False
        try:
            report = batch.report()
            update = batch.status == "UpdateReporting"
            changes = report.since(batch.kept_report) if update else report
            why = ""
            if changes or not update:
                try:
                    self._callback.send(batch.submission, self._report_body(batch, changes, update))  # 2
                except TransientError as e:
                    if self._clock() - since < REPORT_PATIENCE_S:
                        keep_lock = True
                        self._unsent.append((self._clock() + REPORT_RETRY_S, since, batch))
                        self._print_line(f"{batch.id}: its report was not sent: {e}. Next try in {REPORT_RETRY_S:g} s.")
                        return
                    why = f"; its report could not be sent: {e}"
                except SlowHost:
                    if self._slow_queue is not None:
                        keep_lock = True
                        self._slow_queue.put(batch)
                    return
                except DeliveryError as e:
                    why = f"; its report could not be sent: {e}"
                except FerrymanError:
                    raise
                except Exception as e:  # catch everything: an error affects this report and no other
                    why = f"; its report could not be sent: {describe(e)}"
            crash.point("batch.told")
            self._close(batch, report, why)  # 3
        except NodeInvalid as e:
            self._queue.pass_over(batch.id, f"{batch.id}: {e}")
        finally:
            if not keep_lock:
                batch.unlock()

    def _close(self, batch: Batch, report: Report, why: str) -> None:
        total = len(report.completed) + len(report.failed)
        if report.failed:
            batch.fail(f"{len(report.failed)} of {total} jobs failed{why}")
        elif not total and has_payload(batch.submission):
            batch.fail(f"no jobs were made of it{why}")
        else:
            batch.success(f"{total} {'job' if total == 1 else 'jobs'} completed{why}")
            self._work.drop_batch(batch.id)
        self._print_line(f"{batch.id}: {batch.message}")

    def _report_body(self, batch: Batch, report: Report, update: bool) -> dict[str, Any]:
        """Return the content of the request."""
        last_report = batch.kept_report or {}
        return {
            "id": f"{batch.id}/{'update' if update else 'report'}/{last_report.get('last_modified', '')}",
            "batch": batch.id,
            "batchID": batch.submission.get("batchID"),
            "status": "Failed" if report.failed else "Completed",
            "update": update,
            "completed_jobs": list(report_rows(self._queue.tree, report.completed)),
            "failed_jobs": [
                {**job, "why": report.reasons.get(job["job"], "")}
                for job in report_rows(self._queue.tree, report.failed)
            ],
        }


class SlowReportConsumer(ReportConsumer):
    """Consumer of batches whose receivers other threads have found slow; its callback waits for slow receivers."""

    def __init__(self, *args: Any, takes_from: SlowHostQueue[Batch]) -> None:
        super().__init__(*args)
        self._takes_from = takes_from

    def _acquire(self) -> Batch | None:
        return self._takes_from.take()

    def wait(self, timeout_s: float) -> None:
        """Wait until a batch is handed over, or until the end. Waits at most ``timeout_s`` while reports are to be sent
        again."""
        self._takes_from.wait(timeout_s if self._unsent else None)

    def release(self) -> None:
        super().release()
        self._takes_from.close()
