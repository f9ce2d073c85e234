"""Reports: what became of a batch, kept and sent, once all its jobs are done with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ferryman import crash
from ferryman.errors import DeliveryError, FerrymanError, TransientError, describe
from ferryman.intake import Batch, NodeInvalid, Queue, Report
from ferryman.intake.overview import reported
from ferryman.service.batches import is_made
from ferryman.service.callback import Callback
from ferryman.service.mail import BatchReports
from ferryman.service.payload import has_payload
from ferryman.service.slow import SlowHost, SlowLane
from ferryman.service.workspace import Workspace

AGAIN_S: Final = 30.0
"""Between two tries to reach a submitter who does not answer."""

PATIENCE_S: Final = 24 * 3600.0
"""So long a report is tried. Then the batch goes on without: the report stays with the batch."""


class Reporting:
    """The consumer of batches in Reporting and UpdateReporting, and of those whose last job is done with.

    1. The batch is acquired, in Reporting.
    2. Its report is posted: all of it, or in UpdateReporting what has changed since the last one; nothing, nothing.
    3. The batch is Completed, or Failed if a job has; in the same change the report is kept.

    Killed between 2 and 3, the same report is posted again, with the same ``id``.
    """

    def __init__(
        self,
        queue: Queue,
        work: Workspace,
        callback: Callback | BatchReports,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        lane: SlowLane[Batch] | None = None,
    ) -> None:
        self._lane = lane
        self._queue, self._work, self._callback = queue, work, callback
        self._say, self._clock = say, clock
        self._unsent: list[tuple[float, float, Batch]] = []
        """(when to try again, since when it is tried, batch), each locked."""

    @property
    def waiting(self) -> bool:
        """Is a report to be sent again?"""
        return bool(self._unsent)

    def turn(self) -> bool:
        """Report one batch. False: there was none.

        Raises:
            LockLost, QueueLost: another goes on with it.
            Stopping.
        """
        now = self._clock()
        for at, waiting in enumerate(self._unsent):
            if waiting[0] <= now:
                del self._unsent[at]
                self._report(waiting[2], waiting[1])
                return True
        batch = self._next()  # 1
        if batch is None:
            return False
        self._report(batch, now)
        return True

    def _next(self) -> Batch | None:
        return self._queue.acquire_batch_for_reporting(is_made)

    def release(self) -> None:
        """Give back what waits."""
        for _, _, batch in self._unsent:
            batch.unlock()
        self._unsent.clear()

    def _report(self, batch: Batch, since: float) -> None:
        keeps = False
        try:
            told = batch.report()
            update = batch.status == "UpdateReporting"
            news = told.since(batch.kept_report) if update else told
            why = ""
            if news or not update:
                try:
                    self._callback.tell(batch.submission, self._body(batch, news, update))  # 2
                except TransientError as e:
                    if self._clock() - since < PATIENCE_S:
                        keeps = True
                        self._unsent.append((self._clock() + AGAIN_S, since, batch))
                        self._say(f"{batch.id}: its report was not sent: {e}. Next try in {AGAIN_S:g} s.")
                        return
                    why = f"; its report could not be sent: {e}"
                except SlowHost:
                    if self._lane is not None:
                        keeps = True
                        self._lane.give(batch)
                    return
                except DeliveryError as e:
                    why = f"; its report could not be sent: {e}"
                except FerrymanError:
                    raise
                except Exception as e:  # whatever it is, it is this report's end and no other's
                    why = f"; its report could not be sent: {describe(e)}"
            crash.point("batch.told")
            self._close(batch, told, why)  # 3
        except NodeInvalid as e:
            self._queue.pass_over(batch.id, f"{batch.id}: {e}")
        finally:
            if not keeps:
                batch.unlock()

    def _close(self, batch: Batch, told: Report, why: str) -> None:
        total = len(told.completed) + len(told.failed)
        if told.failed:
            batch.fail(f"{len(told.failed)} of {total} jobs failed{why}")
        elif not total and has_payload(batch.submission):
            batch.fail(f"no jobs were made of it{why}")
        else:
            batch.success(f"{total} {'job' if total == 1 else 'jobs'} completed{why}")
            self._work.drop_batch(batch.id)
        self._say(f"{batch.id}: {batch.message}")

    def _body(self, batch: Batch, news: Report, update: bool) -> dict[str, Any]:
        """What is posted."""
        kept = batch.kept_report or {}
        return {
            "id": f"{batch.id}/{'update' if update else 'report'}/{kept.get('last_modified', '')}",
            "batch": batch.id,
            "batchID": batch.submission.get("batchID"),
            "status": "Failed" if news.failed else "Completed",
            "update": update,
            "completed_jobs": list(reported(self._queue.tree, news.completed)),
            "failed_jobs": [
                {**job, "why": news.reasons.get(job["job"], "")} for job in reported(self._queue.tree, news.failed)
            ],
        }


class SlowReporting(Reporting):
    """Reports the batches whose receivers another one has found slow. Its callback waits for slow receivers."""

    def __init__(self, *given: Any, takes: SlowLane[Batch]) -> None:
        super().__init__(*given)
        self._takes = takes

    def _next(self) -> Batch | None:
        return self._takes.take()

    def wait(self, timeout_s: float) -> None:
        """Until one is handed over, or the end; while reports are to be sent again, at most so long."""
        self._takes.wait(timeout_s if self._unsent else None)

    def release(self) -> None:
        super().release()
        self._takes.close()
