"""Consumers of batches: they create the jobs of a submission, each exactly once even after kills, and report the
results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from ferryman import crash
from ferryman.errors import DeliveryError, FerrymanError, PermanentError, TransientError, describe
from ferryman.intake import Batch, JobQueue, NodeInvalid, Report
from ferryman.intake.overview import report_rows
from ferryman.intake.service.errors import StopRequested, TryLater
from ferryman.intake.service.fetch import Fetcher
from ferryman.intake.service.isolation import CurrentWork, Isolation
from ferryman.intake.service.payload import PlannedJob, has_payload, plan_jobs
from ferryman.intake.service.reports import BatchReports, Callback
from ferryman.intake.service.workspace import Workspace

MANIFEST_RETRY_S: Final = 30.0
"""Seconds between two requests for a manifest whose server does not answer."""

MANIFEST_PATIENCE_S: Final = 24 * 3600.0
"""Seconds that a batch waits for its manifest, since the same batch cannot be submitted again; after that it fails."""


JOBS_AT_ONCE: Final = 64
GROUP_BYTES: Final = 128 << 10
"""Jobs, and bytes of their nodes, that are created in one change at most: servers refuse requests near 1 MiB."""


def group_jobs(jobs: Iterable[PlannedJob]) -> Iterator[list[PlannedJob]]:
    """Split jobs into groups that are created together. The first ones are small, so that work on them begins while the
    others are created."""
    group: list[PlannedJob] = []
    count, size = 1, 0
    for job in jobs:
        job_size = len(msgspec.json.encode(job.nodes()))
        if group and (len(group) >= count or size + job_size > GROUP_BYTES):
            yield group
            group, count, size = [], min(2 * count, JOBS_AT_ONCE), 0
        group.append(job)
        size += job_size
    if group:
        yield group


def has_all_jobs(batch: Batch) -> bool:
    """Return whether every job of the batch was created; until then its report is not due."""
    return batch.jobs_made is not None or not has_payload(batch.submission)


class BatchConsumer:
    """Consumer of pending batches.

    1. Acquire the batch, which is then locked and in Processing.
    2. Fetch its manifest, check it, and store it in the working space.
    3. Create a job for each object that has none yet, recognized by the ``jobID`` of existing jobs.
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
        at_work: CurrentWork,
        isolation: Isolation,
    ) -> None:
        self._queue, self._work, self._fetcher, self._callback = queue, work, fetcher, callback
        self._print_line, self._at_work, self._isolation = print_line, at_work, isolation
        self._failing_since: dict[str, float] = {}
        """Batch -> when its manifest could not be fetched for the first time."""

    def acquire(self, skip: AbstractSet[str] = frozenset()) -> Batch | None:
        """Acquire a batch whose jobs are to be created, except those in ``skip``; None if there is none."""  # 1
        return self._queue.acquire_pending_batch() or self._queue.acquire_batch_in_processing(skip)

    def create_jobs(self, batch: Batch) -> None:
        """Create the jobs of a locked batch, and unlock it.

        Raises:
            TryLater: it is to be tried again; the caller unlocks it.
            LockLost, QueueLost: another consumer continues with the batch.
            StopRequested.
        """
        try:
            if not has_all_jobs(batch):
                self._callback.check(batch.submission)
                self._create_jobs(batch)
            self._queue.finish_creating_jobs(batch)
        except TransientError as e:
            self._retry_later(batch, e)
        except PermanentError as e:
            self._give_up(batch, e)
        except NodeInvalid as e:
            self._queue.pass_over(batch.id, f"{batch.id}: {e}")
        except OSError as e:
            self._retry_later(batch, TransientError(describe(e)))  # a fault of our own disk
        except FerrymanError:
            raise
        except Exception as e:  # catch everything: an error fails this batch and no other
            self._give_up(batch, PermanentError(describe(e)))
        self._failing_since.pop(batch.id, None)
        batch.unlock()

    def _create_jobs(self, batch: Batch) -> None:
        planned_jobs = self._at_work.run(
            batch.id, lambda: self._plan_jobs(batch), lambda: self._isolation.plan_batch(batch)
        )  # 2
        crash.point("batch.planned")
        existing_keys = self._job_keys(batch)
        missing = [job for job in planned_jobs if job.configuration["jobID"] not in existing_keys]
        for jobs in group_jobs(missing):  # 3
            batch.create_jobs([(job.nodes(), job.priority) for job in jobs])
            crash.point("batch.job")
        crash.point("batch.made")
        batch.set_jobs_made(len(planned_jobs))  # 4
        self._print_line(f"{batch.id}: {batch.message}")

    def _plan_jobs(self, batch: Batch) -> list[PlannedJob]:
        return list(plan_jobs(batch.submission, batch.id, self._work, self._fetcher))

    def _job_keys(self, batch: Batch) -> set[str]:
        """Return the keys of the jobs that already exist."""
        ids = [*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs]
        return {str(self._queue.load_job(job).configuration.get("jobID")) for job in ids}

    def _retry_later(self, batch: Batch, error: TransientError) -> None:
        now = time.monotonic()
        if now - self._failing_since.setdefault(batch.id, now) >= MANIFEST_PATIENCE_S:
            self._give_up(batch, error)
            return
        batch.set_status("Processing", f"waits for its manifest: {error}")
        self._print_line(f"{batch.id}: {error}. It is tried again in {MANIFEST_RETRY_S:g} s.")
        raise TryLater(str(error), MANIFEST_RETRY_S)

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
        except (DeliveryError, StopRequested) as e:
            self._print_line(f"{batch.id}: its submitter could not be notified: {e}")
        batch.set_status("Failed", str(error))
        self._queue.finish_creating_jobs(batch)
        self._print_line(f"{batch.id}: failed: {error}")


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
    ) -> None:
        self._queue, self._work, self._callback = queue, work, callback
        self._print_line, self._clock = print_line, clock
        self._unsent_since: dict[str, float] = {}
        """Batch -> when its report could not be sent for the first time."""

    def acquire(self, skip: AbstractSet[str] = frozenset()) -> Batch | None:
        """Acquire a batch whose report is due, except those in ``skip``; None if there is none."""  # 1
        return self._queue.acquire_batch_for_reporting(has_all_jobs, skip)

    def report(self, batch: Batch) -> None:
        """Report a locked batch, and unlock it.

        Raises:
            TryLater: the report is to be sent again later; the caller unlocks the batch.
            LockLost, QueueLost: another consumer continues with the batch.
            StopRequested.
        """
        try:
            report = batch.report()
            update = batch.status == "UpdateReporting"
            changes = report.since(batch.kept_report) if update else report
            why = self._send(batch, changes, update) if changes or not update else ""  # 2
            crash.point("batch.told")
            self._close(batch, report, why)  # 3
        except NodeInvalid as e:
            self._queue.pass_over(batch.id, f"{batch.id}: {e}")
        batch.unlock()

    def _send(self, batch: Batch, changes: Report, update: bool) -> str:
        """Send a report. Returns why it could not be sent, for the batch's message; "" if it was sent."""
        try:
            self._callback.send(batch.submission, self._report_body(batch, changes, update))
        except TransientError as e:
            now = self._clock()
            if now - self._unsent_since.setdefault(batch.id, now) < REPORT_PATIENCE_S:
                self._print_line(f"{batch.id}: its report was not sent: {e}. Next try in {REPORT_RETRY_S:g} s.")
                raise TryLater(str(e), REPORT_RETRY_S) from None
            why = str(e)
        except DeliveryError as e:
            why = str(e)
        except FerrymanError:
            raise
        except Exception as e:  # catch everything: an error affects this report and no other
            why = describe(e)
        else:
            why = ""
        self._unsent_since.pop(batch.id, None)
        return why and f"; its report could not be sent: {why}"

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
