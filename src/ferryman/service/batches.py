"""Batches: what was handed in becomes jobs, each once, whatever is killed in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ferryman import crash
from ferryman.errors import DeliveryError, FerrymanError, PermanentError, TransientError, describe
from ferryman.intake import Batch, BatchState, NodeInvalid, Queue
from ferryman.service.at_work import AtWork
from ferryman.service.callback import Callback
from ferryman.service.desk import Desk
from ferryman.service.errors import Later, Stopping
from ferryman.service.fetch import Fetcher
from ferryman.service.isolation import Isolation
from ferryman.service.mail import BatchReports
from ferryman.service.payload import Planned, has_payload, planned
from ferryman.service.slow import SlowHost
from ferryman.service.workspace import Workspace

AGAIN_S: Final = 30.0
"""Between two looks at a manifest whose server does not answer."""

PATIENCE_S: Final = 24 * 3600.0
"""So long a batch waits for its manifest, as nobody can hand the same batch in again. Then it has failed."""


def is_made(batch: Batch) -> bool:
    """Was every job of it made? Until then its report is not due."""
    return batch.jobs_made is not None or not has_payload(batch.submission)


class Waits:
    """Batches that are to be tried again, and since when they are tried; of all threads that make batches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._slow: list[str] = []
        self._closed = False

    def put(self, batch_id: str, at: float, now: float) -> float:
        """To be tried again then. Since when is it tried?"""
        with self._changed:
            self._at[batch_id] = at
            return self._since.setdefault(batch_id, now)

    def later(self, now: float) -> set[str]:
        """Those that are not due yet. The others are forgotten: whoever gets them says so again."""
        with self._changed:
            self._at = {batch: at for batch, at in self._at.items() if at > now}
            return {*self._at, *self._slow}

    def is_slow(self, batch_id: str) -> None:
        """Its manifest is on a slow host: it waits for a thread that waits for those."""
        with self._changed:
            self._slow.append(batch_id)
            self._changed.notify()

    def wait_for_slow(self) -> None:
        """Until one waits for these threads, or the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._slow) or self._closed)

    def close(self) -> None:
        """Nobody waits for any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def slow(self) -> str | None:
        """The one of these that waits longest; it waits no more."""
        with self._changed:
            return self._slow.pop(0) if self._slow else None

    def __bool__(self) -> bool:
        with self._changed:
            return bool(self._at or self._slow)


class Batches:
    """The consumer of pending batches.

    1. The batch is acquired: locked, and in Processing.
    2. Its manifest is fetched, checked, and laid into the working space.
    3. A job is made of each object that has none yet; which those are, their ``jobID`` says.
    4. The batch's status node says how many were made: all.

    A batch in Processing that does not say so is one that was killed in between: it is acquired again.
    """

    def __init__(
        self,
        queue: Queue,
        work: Workspace,
        fetcher: Fetcher,
        callback: Callback | BatchReports,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        waits: Waits,
        desk: Desk,
        at_work: AtWork,
        isolation: Isolation,
    ) -> None:
        self._waits, self._desk = waits, desk
        self._at_work, self._isolation = at_work, isolation
        self._queue, self._work, self._fetcher, self._callback = queue, work, fetcher, callback
        self._say, self._clock = say, clock
        self._made: set[str] = set()

    def turn(self) -> bool:
        """Make the jobs of one batch. False: there was none.

        Raises:
            LockLost, QueueLost: another goes on with it.
            Stopping.
        """
        batch = self._acquired()  # 1
        if batch is None:
            return False
        self._desk.call()  # there may be more
        try:
            if not is_made(batch):
                self._make(batch)
            self._made.add(batch.id)
        except TransientError as e:
            self._wait(batch, e)
        except PermanentError as e:
            self._give_up(batch, e)
        except SlowHost:
            self._waits.is_slow(batch.id)
        except Later as e:
            now = self._clock()
            self._waits.put(batch.id, now + e.after_s, now)
        except NodeInvalid as e:
            self._queue.pass_over(batch.id, f"{batch.id}: {e}")
        except OSError as e:
            self._wait(batch, TransientError(describe(e)))  # our own disk
        except FerrymanError:
            raise
        except Exception as e:  # whatever it is, it is this batch's end and no other's
            self._give_up(batch, PermanentError(describe(e)))
        finally:
            batch.unlock()
        return True

    def wait(self, timeout_s: float) -> None:
        """Until there may be a batch, or the desk is closed; while batches are to be tried again, at most so long."""
        self._desk.wait(timeout_s if self._waits else None)

    def _acquired(self) -> Batch | None:
        skip = self._made | self._waits.later(self._clock())
        return self._queue.acquire_pending_batch() or self._queue.acquire_batch_in_processing(skip)

    def _make(self, batch: Batch) -> None:
        jobs = self._at_work.work(batch.id, lambda: self._planned(batch), lambda: self._isolation.planned(batch))  # 2
        crash.point("batch.planned")
        there = self._keys(batch)
        for job in jobs:  # 3
            if job.configuration["jobID"] not in there:
                self._place(batch, job)
                crash.point("batch.job")
        crash.point("batch.made")
        batch.set_jobs_made(len(jobs))  # 4
        self._say(f"{batch.id}: {batch.message}")

    def _planned(self, batch: Batch) -> list[Planned]:
        return list(planned(batch.submission, batch.id, self._work, self._fetcher))

    def _place(self, batch: Batch, job: Planned) -> None:
        batch.create_job(job.configuration, job.priority, identifiers=job.identifiers, metadata=job.metadata)

    def _keys(self, batch: Batch) -> set[str]:
        """Of the jobs that were made before."""
        ids = [*batch.processing_jobs, *batch.completed_jobs, *batch.failed_jobs, *batch.deleted_jobs]
        return {str(self._queue.load_job(job).configuration.get("jobID")) for job in ids}

    def _wait(self, batch: Batch, error: TransientError) -> None:
        now = self._clock()
        since = self._waits.put(batch.id, now + AGAIN_S, now)
        if now - since >= PATIENCE_S:
            self._give_up(batch, error)
            return
        batch.set_status("Processing", f"waits for its manifest: {error}")
        self._say(f"{batch.id}: {error}. It is tried again in {AGAIN_S:g} s.")

    def _give_up(self, batch: Batch, error: DeliveryError) -> None:
        """It has failed permanently; its submitter is notified, if possible."""
        told = {
            "id": f"{batch.id}/refused",
            "batch": batch.id,
            "batchID": batch.submission.get("batchID"),
            "status": "Failed",
            "why": str(error),
        }
        try:
            self._callback.tell(batch.submission, told)
        except SlowHost:
            self._waits.is_slow(batch.id)
            return
        except (DeliveryError, Stopping) as e:
            self._say(f"{batch.id}: its submitter could not be notified: {e}")
        batch.set_status("Failed", str(error))
        self._made.add(batch.id)
        self._say(f"{batch.id}: failed: {error}")


class SlowBatches(Batches):
    """Makes the jobs of batches that another one met a slow host with. Its fetcher waits for slow hosts."""

    def wait(self, timeout_s: float) -> None:
        self._waits.wait_for_slow()

    def _acquired(self) -> Batch | None:
        batch_id = self._waits.slow()
        if batch_id is None:
            return None
        batch = self._queue.load_batch(batch_id)
        return batch if batch.acquire(BatchState.PROCESSING) is not None else None
