"""Consumer of jobs in Processing: runs their documents through the plan, many jobs of many batches in one wave."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ferryman import crash
from ferryman.account.families import DocumentResult, FailedDelivery, NewResults, document_results
from ferryman.errors import FerrymanError, UsageError, describe, plain_text
from ferryman.intake import Job, JobQueue, JobState, LockLost, NodeInvalid, StateError
from ferryman.intake.job import Advance, advance_all, load_all
from ferryman.intake.nodes import node_name
from ferryman.intake.service.errors import TurnFailed
from ferryman.intake.service.payload import MintedIdentifiers
from ferryman.intake.service.stages import StageResult
from ferryman.intake.source import collection_of, local_id_of, partition_of
from ferryman.intake.store.base import COMMITS_AT_ONCE
from ferryman.plan import Plan, SourceNode
from ferryman.sources import Jobs, Listed
from ferryman.state.commands import queue_retry
from ferryman.storage import files

if TYPE_CHECKING:
    from ferryman.engine.run import Run
    from ferryman.intake.service.workers import JobWorker
    from ferryman.state.state import State

log = logging.getLogger("ferryman.intake")

WAVE_JOBS: Final = 1000
"""Jobs that share a turn: enough that its few commits cost little per job, few enough to decide on in a second."""

FAULTS_IN_A_ROW: Final = 10
"""Consecutive jobs that fail with unforeseen errors, after which the plan, its state or Spark is blamed instead."""

REASONS_SHOWN: Final = 5
"""Documents whose reasons are included in a failed job's message; `ferryman deliveries PLAN` lists all."""

RESCAN_S: Final = 5.0
"""Seconds until documents that a turn did not process, because the listing was incomplete, are listed again."""


KEPT_DOCUMENTS: Final = 100
"""Documents of a job up to which their listing is kept until the job is decided on; longer ones are read again."""

GATHER_S: Final = 0.2
GATHER_MAX_S: Final = 1.0
"""Jobs that arrive one after another share a turn: it begins when none has arrived for ``GATHER_S`` seconds, but waits
for no longer than the last turn took, and ``GATHER_MAX_S`` at most."""

UNFINISHED_POLL_S: Final = 0.5
"""Seconds between two checks of jobs that are not finished."""


def jobs_sources(plan: Plan) -> dict[str, Jobs]:
    """Return the plan's sources of jobs by name.

    Raises:
        UsageError: the plan has no source of jobs.
    """
    sources = {n.name: n.source for n in plan.nodes if isinstance(n, SourceNode) and isinstance(n.source, Jobs)}
    if not sources:
        raise UsageError(
            f"plan {plan.name} takes no jobs: give it a source of jobs, plan.source('jobs', Jobs()), with Jobs from "
            "ferryman.sources."
        )
    return sources


class TurnSize:
    """Decides how many jobs share a turn. ``serve`` keeps a single one, though it may open the plan's state several
    times.

    After a turn of several jobs that ended in an unforeseen error, jobs get turns of their own until one of these ends
    in an error, too: that job fails, and the others share turns again. After ``FAULTS_IN_A_ROW`` such jobs, the plan,
    its state or Spark is blamed instead of the jobs.
    """

    def __init__(self, jobs: int = WAVE_JOBS) -> None:
        self._most = self.jobs = jobs
        self._faults = 0

    def reset_faults(self) -> None:
        """Record that a turn with jobs in it succeeded."""
        self._faults = 0

    def blame_jobs(self, jobs: int) -> bool:
        """Record that a turn with this many jobs failed; return whether a job may be to blame. False:
        ``FAULTS_IN_A_ROW`` turns of single jobs have failed in a row."""
        self._faults += jobs == 1
        self.jobs = 1 if jobs > 1 else self._most
        return self._faults < FAULTS_IN_A_ROW


def gather(
    arrived_at: Callable[[], float], turn_s: float, clock: Callable[[], float], wait: Callable[[float], bool]
) -> None:
    """Wait for jobs that follow those that have just arrived.

    Args:
        arrived_at: returns when the last one arrived; 0: nobody has to wait for others.
        turn_s: seconds that the last turn took.
        wait: waits so many seconds; returns whether to end.
    """
    until = clock() + min(max(turn_s, GATHER_S), GATHER_MAX_S)
    while (wait_s := min(until, arrived_at() + GATHER_S) - clock()) > 0.0:
        if wait(wait_s):
            return


def is_unforeseen(error: Exception) -> bool:
    """Return whether an error is neither Ferryman's, nor a disk's, nor Spark's, so that the turn's jobs may have caused
    it."""
    of_spark = type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
    return not isinstance(error, FerrymanError | OSError) and not of_spark


class ProcessingConsumer:
    """Consumer of jobs in Processing, and driver of the plan's state; one process per plan.

    1. Acquire as many jobs as share a turn, and lock their objects' local ids: a second job for the same object waits
       until the first is finished, since their files would replace each other's. Earlier failures of the same files are
       retried.
    2. Run a turn: the jobs' files are listed, and pass through waves like any documents.
    3. Read the outcome of each job from the ledger: whether all its documents, in the versions that were downloaded,
       are settled.
    4. Settled jobs move on, or fail with the reasons. The others stay locked, and their pending deliveries are sent
       when due.

    After a kill the jobs are still in Processing. Settled documents are not processed again, since the digests of their
    files are known.
    """

    def __init__(
        self,
        queue: JobQueue,
        run: Run,
        state: State,
        print_line: Callable[[str], None],
        stop: threading.Event,
        *,
        turn_size: TurnSize | None = None,
        jobs: JobWorker | None = None,
    ) -> None:
        self._queue, self._run, self._state, self._jobs = queue, run, state, jobs
        self._print_line, self._stop, self._clock = print_line, stop, time.monotonic
        self._turn_size = turn_size or TurnSize()
        self._sources = jobs_sources(state.plan)
        self._minted = MintedIdentifiers(state.plan)
        self._new_results = NewResults(state)
        self._delivered: dict[str, dict[str, DocumentResult]] = {}
        """Source -> document -> its result, for those that the last turn has processed and that have ended well."""
        self._held: dict[str, Job] = {}
        self._retries_checked: set[str] = set()
        """Locked jobs for which earlier failures of their files have been looked up."""
        self._waiting: dict[str, Job] = {}
        """Job -> the job, for those that wait because another job of the same object is being processed."""
        self._locked_ids: dict[str, str] = {}
        """Job -> the local id that it has locked."""
        self._documents: dict[str, ExpectedDocuments] = {}
        """Locked job -> its documents, for jobs of few documents."""
        self._listed: set[str] = set()
        """Jobs that a complete turn has listed: there is nothing new to learn about them until something is due."""
        self._scan_at = 0.0
        self._turn_s = GATHER_MAX_S
        """Seconds that the last turn took; as many as count if there was none."""
        for source in self._sources.values():
            source.serve(queue, {})

    @property
    def has_unfinished(self) -> bool:
        """Return whether any job is unfinished."""
        return bool(self._held or self._waiting)

    def turn(self) -> bool:
        """Acquire jobs, run the plan, and decide on the jobs. Returns False if there was nothing to do.

        Raises:
            QueueLost: the locks may be lost; call ``turn`` again.
            StateError, EngineError: raised by the plan's state; this consumer cannot continue.
            StopRequested.
        """
        self._drop_lost()
        if self._jobs is not None:
            gather(self._jobs.arrived_at, self._turn_s, self._clock, self._stop.wait)
        began = self._clock()
        self._acquire()  # 1
        self._retry_failures()
        new = self._held.keys() - self._listed
        due = self._run.due_s()
        if not (new and self._clock() >= self._scan_at) and (due is None or due > 0):
            return False
        for source in self._sources.values():
            source.serve(self._queue, self._held)
        with self._blame_jobs_for_faults():
            complete = self._run.turn(scan=bool(new))  # 2
        if new:
            self._scan_at = 0.0 if complete else self._clock() + RESCAN_S
        if complete:
            self._listed |= new
        crash.point("job.waved")
        self._decide()
        self._turn_s = self._clock() - began
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until a job arrives, pending work is due, or the stop; at most ``timeout_s`` seconds."""
        due = self._run.due_s()
        if self.has_unfinished or due is not None:
            timeout_s = min(timeout_s, UNFINISHED_POLL_S, max(UNFINISHED_POLL_S if due is None else due, 0.01))
        if self._jobs is not None and self.free_places() > 0:
            self._jobs.wait_for_processing(timeout_s)
        else:
            self._stop.wait(timeout_s)

    def release(self) -> None:
        """Unlock all jobs, leaving them in their states."""
        for job in [*self._held.values(), *self._waiting.values()]:
            self._release(job)
        self._waiting.clear()

    # --- 1 ------------------------------------------------------------------------------------------------------------

    def _acquire(self) -> None:
        self._hold_unlocked(list(self._waiting.values()))
        free_places = self.free_places()
        if self._jobs is None:
            self._hold_or_wait(self._queue.acquire_many(JobState.PROCESSING, free_places))
        else:
            for jobs in self._jobs.take_processing(free_places):
                self._hold_or_wait(jobs)

    def free_places(self) -> int:
        """Return how many more jobs can share the turn."""
        return max(0, self._turn_size.jobs - len(self._held) - len(self._waiting))

    def _hold_or_wait(self, jobs: Sequence[Job]) -> None:
        """Lock the objects of jobs, or let jobs wait for other jobs of the same object. A bad job fails alone."""
        self._waiting |= {job.id: job for job in jobs}  # unlocked at the end if an error ends this
        loaded = []
        for job, error in zip(jobs, load_all(self._queue.tree, jobs), strict=True):
            if error is None:
                loaded.append(job)
            else:  # a damaged node would make the whole listing incomplete
                self._queue.pass_over(job.id, f"{job.id}: {error}")
                del self._waiting[job.id]
                job.unlock()
        self._hold_unlocked(loaded)

    def _hold_unlocked(self, jobs: Sequence[Job]) -> None:
        """Process those of the waiting jobs whose objects nobody else processes."""
        for job_id, is_locked in self._lock_local_ids(jobs).items():
            if is_locked:
                self._held[job_id] = self._waiting.pop(job_id)

    def _lock_local_ids(self, jobs: Sequence[Job]) -> dict[str, bool]:
        """Lock the local ids of jobs. Returns for each whether it was locked; not if another job of the same object is
        being processed, or the job failed."""
        is_locked: dict[str, bool] = {}
        names: dict[str, str] = {}
        for job in jobs:
            try:
                local = local_id_of(job.identifiers)
                name = f"{local}_{collection_of(job)}"
                if local:
                    node_name(name)
                    names[job.id] = name
                is_locked[job.id] = not local
            except UsageError as e:  # no lock can have such a name
                self._fail(job, [plain_text(e)])
            except FerrymanError:
                raise
            except Exception as e:
                self._give_up(job, e)
        locked = self._queue.locks.lock_all("localid", list(names.values()))
        for (job_id, name), was_free in zip(names.items(), locked, strict=True):
            is_locked[job_id] = was_free
            if was_free:
                self._locked_ids[job_id] = name
        return is_locked

    def _retry_failures(self) -> None:
        """Retry earlier failures among the files of new jobs: once per job, and once more each time it is requeued,
        which a note in the working space records."""
        self._delivered = self._new_results.read()
        new = [job for id, job in self._held.items() if id not in self._retries_checked]
        notes: dict[str, Path] = {}
        documents_by_source: dict[str, dict[str, tuple[Listed, str]]] = {name: {} for name in self._sources}
        for job in new:
            with _ignore_faults():
                listed = self._documents_of(job)
                suspects = {name: self._new_results.may_have_failed(name, listed[name]) for name in listed}
                if not any(suspects.values()):
                    continue
                note = Path(partition_of(job).list).parent / f"retry-{job.retry_count}"
                if not note.exists():
                    notes[job.id] = note
                    for name, ids in suspects.items():
                        documents_by_source[name] |= {each: (listed[name][each], job.id) for each in ids}
        retried: set[str] = set()
        for name, documents in documents_by_source.items():
            results = self._results(name, documents)
            failed = [d for d, e in results.items() if e.failures and e.is_about(documents[d][0].fingerprint)]
            if failed:
                jobs = sorted({documents[d][1] for d in failed})
                queue_retry(self._state, name, failed, f"intake {_join_first(jobs, ', ')}")
                retried.update(jobs)
        for job_id in retried:
            files.publish(notes[job_id], b"")
        self._retries_checked |= self._held.keys()

    # --- 3, 4 ---------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Move every job on whose documents are settled."""
        self._delivered = self._new_results.read()
        expected: dict[str, ExpectedDocuments] = {}
        for job in list(self._held.values()):
            if job.id not in self._listed:
                continue
            try:
                expected[job.id] = self._documents_of(job)
            except NodeInvalid as e:
                self._fail(job, [f"{plain_text(e)} Download the job again."])
            except FerrymanError:
                raise
            except Exception as e:
                self._give_up(job, e)
        results = {
            name: self._results(name, [document for each in expected.values() for document in each[name]])
            for name in self._sources
        }
        delivered: list[tuple[Job, StageResult]] = []
        for job_id, by_source in expected.items():
            outcome = _outcome(by_source, results)
            if outcome is not None:
                delivered += self._finish(self._held[job_id], outcome, by_source)
            elif not _are_known(by_source, results):
                self._listed.discard(job_id)
                self._scan_at = self._clock() + RESCAN_S
        for first in range(0, len(delivered), COMMITS_AT_ONCE):
            self._move_on(delivered[first : first + COMMITS_AT_ONCE])
        self._drop_lost()

    def _documents_of(self, job: Job) -> ExpectedDocuments:
        """Return the documents that the plan's sources list, or refuse, for a locked job.

        Raises:
            NodeInvalid: the job does not say where its files are.
        """
        found = self._documents.get(job.id)
        if found is None:
            partition = partition_of(job)
            found = {
                name: {source.full_id(one.id): one for one in source.listing(partition) if isinstance(one, Listed)}
                for name, source in self._sources.items()
            }
            if sum(map(len, found.values())) <= KEPT_DOCUMENTS and job.id in self._held:
                self._documents[job.id] = found
        return found

    def _results(self, source: str, documents: Iterable[str]) -> dict[str, DocumentResult]:
        delivered, ids = self._delivered.get(source, {}), list(documents)
        results = {document: delivered[document] for document in ids if document in delivered}
        unknown = [document for document in ids if document not in delivered]
        return results | document_results(self._state.root, self._state.plan, source, unknown) if unknown else results

    def _finish(self, job: Job, failures: list[str], by_source: ExpectedDocuments) -> Iterator[tuple[Job, StageResult]]:
        """Yield the job and its result, with the identifiers minted for it, if it is to move on; otherwise fail it."""
        documents = [(source, document) for source, each in by_source.items() for document in each]
        try:
            identifiers = None if failures else self._minted.merge_identifiers(job, documents)
        except (ValueError, NodeInvalid) as e:
            failures, identifiers = [plain_text(e)], None
        except FerrymanError:
            raise
        except Exception as e:
            self._give_up(job, e)
            return
        if failures:
            self._fail(job, failures)
        else:
            yield job, StageResult("delivered", values={} if identifiers is None else {"identifiers": identifiers})

    @contextmanager
    def _blame_jobs_for_faults(self) -> Iterator[None]:
        """Blame the turn's jobs for an unforeseen error in the block, as ``TurnSize`` decides.

        Raises:
            TurnFailed: the plan's state must be opened again.
        """
        try:
            yield
        except Exception as e:
            jobs = sorted(self._held)
            if not jobs or not is_unforeseen(e) or not self._turn_size.blame_jobs(len(jobs)):
                raise
            if len(jobs) == 1:
                self._give_up(self._held[jobs[0]], e)
            else:
                log.error("a turn of %d jobs (%s)", len(jobs), _join_first(jobs, ", "), exc_info=e)
            raise TurnFailed(jobs, describe(e)) from e
        if self._held:
            self._turn_size.reset_faults()

    def _give_up(self, job: Job, error: Exception) -> None:
        """Fail one job because of an unforeseen error."""
        log.error("%s: a fault in Processing", job.id, exc_info=error)
        self._fail(job, [describe(error)])

    def _fail(self, job: Job, failures: list[str]) -> None:
        crash.point("job.judged")
        why = _join_first(failures, "; ")
        self._print_line(f"{job.id}: failed in Processing: {why}")
        self._waiting.pop(job.id, None)
        try:
            job.fail(why, unlock=True)
        except (NodeInvalid, LockLost, StateError) as e:
            self._report_error(job, e)
        self._release(job)

    def _move_on(self, moves: list[tuple[Job, StageResult]]) -> None:
        """Move delivered jobs to the next state, together."""
        for _ in moves:
            crash.point("job.judged")
        jobs = [job for job, _ in moves]
        self._forget(*jobs)  # other threads continue with them
        if self._jobs is None:
            to = [Advance(job, result.message, values=result.values) for job, result in moves]
            results: Sequence[object] = advance_all(self._queue.tree, to)
        else:
            results = self._jobs.advance_all(JobState.PROCESSING, moves, goes_on=False)
        crash.point("minted.moved")
        errors = [(job, e) for job, e in zip(jobs, results, strict=True) if isinstance(e, Exception)]
        for job, error in errors:
            self._report_error(job, error)
            job.unlock()
        for _, error in errors:
            if not isinstance(error, NodeInvalid | LockLost | StateError):
                raise error

    def _report_error(self, job: Job, error: Exception) -> None:
        if isinstance(error, NodeInvalid):
            self._queue.pass_over(job.id, f"{job.id}: {error}")
        else:
            self._print_line(f"{job.id}: {error}")

    def _release(self, job: Job) -> None:
        self._forget(job)
        job.unlock()

    def _forget(self, *jobs: Job) -> None:
        """Forget jobs, and unlock their local ids."""
        for job in jobs:
            self._held.pop(job.id, None)
            self._documents.pop(job.id, None)
            self._retries_checked.discard(job.id)
            self._listed.discard(job.id)
        names = [self._locked_ids.pop(job.id) for job in jobs if job.id in self._locked_ids]
        self._queue.locks.unlock_all("localid", names)

    def _drop_lost(self) -> None:
        """Drop jobs whose locks were lost, since other processes may be working on them."""
        for job in [job for job in self._held.values() if not job.locked]:
            self._print_line(f"{job.id}: its lock was lost; it will be acquired again")
            self._release(job)
        self._waiting = {id: job for id, job in self._waiting.items() if job.locked}


@contextmanager
def _ignore_faults() -> Iterator[None]:
    """Ignore faults of a job here: they are found again when its outcome is decided, and make it fail then."""
    try:
        yield
    except NodeInvalid:
        return
    except FerrymanError:
        raise
    except Exception:
        log.debug("the files of a job cannot be listed yet", exc_info=True)


def _join_first(texts: list[str], separator: str) -> str:
    """Join the first ``REASONS_SHOWN`` texts, and append how many more there are."""
    rest = [f"and {len(texts) - REASONS_SHOWN} more"] if len(texts) > REASONS_SHOWN else []
    return separator.join([*texts[:REASONS_SHOWN], *rest])


ExpectedDocuments = dict[str, dict[str, Listed]]
"""Source -> id of a document with the prefix -> its entry in the listing."""

ResultsBySource = dict[str, dict[str, DocumentResult]]


def _are_known(expected: ExpectedDocuments, results: ResultsBySource) -> bool:
    """Return whether the ledger has all these documents in the listed versions."""
    return all(
        document in results[source] and results[source][document].is_about(listed.fingerprint)
        for source, documents in expected.items()
        for document, listed in documents.items()
    )


def _outcome(expected: ExpectedDocuments, results: ResultsBySource) -> list[str] | None:
    """Return the reasons why a job has failed; [] if it is delivered; None if something is pending or not known yet."""
    if not _are_known(expected, results):
        return None
    documents_results = [results[source][document] for source, documents in expected.items() for document in documents]
    if not all(ending.settled for ending in documents_results):
        return None
    return [why for ending in documents_results for why in _reasons(ending.failures)]


def _reasons(failures: Iterable[FailedDelivery]) -> list[str]:
    """Return the distinct reasons of failures, since several destinations may have the same one."""
    reasons: dict[str, None] = {}
    for failure in failures:
        why = failure.why.removeprefix(f"{failure.document}: ")
        if failure.status == "INDEXING":
            why = (
                f"it is in doubt whether {failure.destination} has it: record what you find out with "
                "`ferryman resolve PLAN --as delivered` or `--as failed`"
            )
        elif failure.status == "DEAD":
            why = f"{failure.destination}: {why}"
        reasons[f"{failure.document}: {why}"] = None
    return list(reasons)
