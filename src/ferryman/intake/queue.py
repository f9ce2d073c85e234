"""The queue, and the acquisition of work from it: the order in which items are acquired, and when they are not."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, Self

from ferryman.errors import FerrymanError, UsageError, plain_text
from ferryman.intake import items, overview
from ferryman.intake.audit import AuditFinding, audit, dump_tree, restore_tree
from ferryman.intake.batch import AWAITS_OPERATOR, Batch
from ferryman.intake.errors import BatchExists, LockLost, NodeInvalid, QueueLost, StateError
from ferryman.intake.items import Assembly
from ferryman.intake.job import Job
from ferryman.intake.nodes import (
    ACCESS,
    ACCESS_SIZES,
    BATCH_UUIDS,
    BATCHES,
    COLLECTION_LOCKS,
    JOBS,
    PAUSE_PATH,
    access_path,
    batch_path,
    decode_node,
    decode_text,
    encode_node,
    job_of_entry,
    layout_folders,
    node_name,
    numbered_name,
    state_path,
    submission_uuid,
    without_date,
)
from ferryman.intake.states import AccessState, BatchState, JobList, JobState
from ferryman.intake.store import SESSION_TIMEOUT_S, open_store
from ferryman.intake.store.base import COMMITS_AT_ONCE, Check, Conflict, Create, Op, Store, StoredNode, Watch
from ferryman.intake.tree import KINDS, Locks, NodeTree

log = logging.getLogger("ferryman.intake")


class Cleanup(NamedTuple):
    """Result of a cleanup."""

    removed: list[str]
    """Ids of the removed batches."""
    passed_over: list[tuple[str, str]]
    """(id, reason) of batches that were not removed: a node is damaged, or somebody works on one of their jobs."""


class JobQueue:
    """Batches, jobs, access requests and locks, in the store that a URL names. May be used from many threads."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._tree = NodeTree(store, clock)
        self.locks = Locks(self._tree)
        self._acquirer = Acquirer(self._tree, self.locks, log.warning)
        self._create_layout_folders()

    @classmethod
    def open(
        cls, url: str, *, session_timeout_s: float = SESSION_TIMEOUT_S, clock: Callable[[], float] = time.time
    ) -> Self:
        """Open a queue; create it if it does not exist.

        Args:
            url: ``sqlite:///queue.db``, ``zookeeper://h1:2181,h2:2181/chroot`` (``zookeeper://user:password@…`` for
                digest auth), or ``memory:``.
            session_timeout_s: seconds after which a consumer that is dead, stopped or disconnected loses its locks.
            clock: returns the time in seconds since 1970, as written to status nodes.

        Raises:
            QueueRefused: there is no such store, or it holds something else.
            QueueLost: the server does not answer.
        """
        store = open_store(url, session_timeout_s=session_timeout_s, clock=clock)
        try:
            return cls(store, clock=clock)
        except BaseException:
            store.close()
            raise

    @property
    def url(self) -> str:
        """Return the queue's URL without passwords."""
        return self._tree.store.url

    @property
    def tree(self) -> NodeTree:
        """Return the nodes of the queue, for audits, dumps and tests."""
        return self._tree

    def close(self) -> None:
        """Close the queue, and release all locks acquired through this object."""
        self._tree.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<JobQueue {self.url}>"

    def _create_layout_folders(self) -> None:
        while missing := self._tree.create_missing(layout_folders()):
            try:
                self._tree.store.commit(missing)
            except Conflict:
                continue  # another process created it at the same moment

    # --- batches ------------------------------------------------------------------------------------------------------

    def create_batch(self, submission: Mapping[str, Any], *, held: str = "") -> Batch:
        """Submit a batch, which is then Pending and not locked. The same submission with the same ``batchID`` returns
        the same batch.

        Args:
            submission: see the layout.
            held: if given, the batch is Held, with this message.

        Raises:
            BatchExists: another submission has this ``batchID``.
            UsageError: the submission cannot be written as JSON, or is too large.
        """
        batch_id = ""
        uuid = submission_uuid(submission)
        uuid_path = f"{BATCH_UUIDS}/{node_name(uuid)}" if uuid else ""

        def plan() -> list[Op]:
            nonlocal batch_id
            if uuid and (existing_id := self._find_repeated(uuid_path, uuid, submission)):
                batch_id = existing_id
                return []
            batch_id = numbered_name("bid", self._tree.next_number(BATCHES))
            path = batch_path(batch_id)
            state = BatchState.HELD if held else BatchState.PENDING
            status = {"status": state.value, "last_modified": self._tree.now(), "message": held}
            return [
                *([Create(uuid_path, batch_id.encode())] if uuid else []),
                Create(path, numbered=True),
                Create(f"{path}/submission", encode_node(f"{path}/submission", dict(submission))),
                Create(f"{path}/status", encode_node(f"{path}/status", status)),
            ]

        self._tree.change(plan)
        return Batch(self._tree, batch_id)

    def _find_repeated(self, uuid_path: str, uuid: str, submission: Mapping[str, Any]) -> str:
        """Return the id of the batch that the same submission created before; "" if its batchID is not used."""
        node = self._tree.find(uuid_path)
        if node is None:
            return ""
        batch_id = decode_text(uuid_path, node.data)
        path = batch_path(batch_id, "submission")
        submission_node = self._tree.find(path)
        if submission_node is None or without_date(decode_node(path, submission_node.data)) != without_date(submission):
            raise BatchExists(uuid, batch_id)
        return batch_id

    def acquire_pending_batch(self) -> Batch | None:
        """Acquire the oldest pending batch that nobody holds; it is then locked and in Processing. None if there is
        none."""
        return self._acquirer.acquire_pending_batch()

    def acquire_batch_for_reporting(
        self, ready: Callable[[Batch], bool] | None = None, skip: Collection[str] = ()
    ) -> Batch | None:
        """Acquire the oldest batch whose report is due, except those in ``skip``; it is then locked and in Reporting or
        UpdateReporting. None if there is none.

        A batch in Processing is due when all its jobs are Completed or Failed. Then ``ready`` is called under the lock:
        it returns whether every job of the manifest was created. If not, the batch stays in Processing.
        """
        return self._acquirer.acquire_batch_for_reporting(ready, skip)

    def acquire_batch_in_processing(self, skip: Collection[str] = ()) -> Batch | None:
        """Acquire the oldest batch in Processing that nobody holds, except those in ``skip``; it is then locked. None
        if there is none.

        A consumer that died while it was creating a batch's jobs leaves the batch in this state.
        """
        return self._acquirer.acquire_batch_in_processing(skip)

    def finish_creating_jobs(self, batch: Batch) -> None:
        """Remember in this process that no more jobs of this batch are created, so that
        ``acquire_batch_in_processing`` does not return it again."""
        self._acquirer.finish_creating_jobs(batch)

    def find_batch_by_uuid(self, uuid: str) -> Batch | None:
        """Return the batch that was submitted with this ``batchID``; None if there is none.

        Raises:
            NodeInvalid: it is damaged.
        """
        try:
            path = f"{BATCH_UUIDS}/{node_name(uuid)}"
        except UsageError:
            return None
        node = self._tree.find(path)
        if node is None:
            return None
        batch = Batch(self._tree, decode_text(path, node.data))
        return batch.load() if submission_uuid(batch.submission) == uuid else None

    def load_batch(self, id: str) -> Batch:
        """Load a batch, without locking it.

        Raises:
            NodeInvalid: the batch does not exist, or is damaged.
        """
        return Batch(self._tree, _check_id(id)).load()

    def list_batches(self, state: str | None = None) -> list[str]:
        """List the ids of batches, oldest first: in one state, or all. A damaged batch is in no state.

        Raises:
            UsageError: there is no such state.
        """
        ids = self._tree.store.children(BATCHES)
        if state is None:
            return ids
        wanted = _parse_state(BatchState, state)
        matching = []
        for batch_id, batch_state, why in overview.batch_states(self._tree, ids):
            if why:
                self.pass_over(batch_id, why)
            elif batch_state == wanted:
                matching.append(batch_id)
        return matching

    def delete_completed_batches(self) -> list[str]:
        """Remove all completed and deleted batches; damaged ones are skipped. Returns the ids removed."""
        return self.cleanup().removed

    def cleanup(self) -> Cleanup:
        """Remove all completed and deleted batches with their jobs. The result lists batches that could not be removed,
        with reasons."""
        result = Cleanup([], [])
        for batch_id in self._tree.store.children(BATCHES):
            batch = Batch(self._tree, batch_id)
            try:
                if not batch.deletable:
                    continue
                if at_work := self._locked_job(batch):
                    result.passed_over.append((batch_id, f"{at_work} is in progress"))
                    continue
                batch.delete()
            except (NodeInvalid, UsageError) as e:
                log.warning("%s", plain_text(e))
                result.passed_over.append((batch_id, plain_text(e)))
            else:
                result.removed.append(batch_id)
        return result

    def _locked_job(self, batch: Batch) -> str:
        """Return the id of a job of the batch that somebody holds; "" if there is none."""
        jobs = batch.processing_jobs
        locks = self._tree.store.read([Job(self._tree, job).path + "/lock" for job in jobs])
        return next((job for job, held in zip(jobs, locks, strict=True) if held), "")

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def acquire_job(self, state: str, skip: Container[str] = ()) -> Job | None:
        """Acquire the most urgent job in this state that nobody holds, the oldest of equals, except those in ``skip``;
        it is then locked. None if there is none.

        Raises:
            UsageError: there is no such state.
        """
        return self._acquirer.acquire_job(_parse_state(JobState, state), skip)

    def acquire_jobs(self, state: str) -> Iterator[Job]:
        """Acquire jobs one after another, each locked when it is requested; cheaper than repeated calls of
        ``acquire_job``."""
        return self._acquirer.acquire_jobs(_parse_state(JobState, state))

    def acquire_many(self, state: str, count: int, skip: Container[str] = ()) -> list[Job]:
        """Acquire up to ``count`` jobs as ``acquire_job`` does, all in one change."""
        return self._acquirer.acquire_many(_parse_state(JobState, state), count, skip)

    def acquire_again(self, item: Job | Batch) -> bool:
        """Acquire a job or batch that this object held and has released, if it is still in that state and nobody holds
        it. Returns whether it is locked now."""
        return self._acquirer.acquire_again(item)

    def pass_over(self, id: str, why: str) -> None:
        """Skip a damaged batch or job in this process for a minute. Each reason is logged only once."""
        self._acquirer.damaged.add(id, why)

    def is_passed_over(self, id: str) -> bool:
        """Return whether this process skips the item because it is damaged."""
        return id in self._acquirer.damaged

    def load_job(self, id: str) -> Job:
        """Load a job, without locking it.

        Raises:
            NodeInvalid: the job does not exist, or is damaged.
        """
        return Job(self._tree, _check_id(id)).load()

    def list_jobs(self, state: str | None = None) -> list[str]:
        """List the ids of jobs in the order in which they would be acquired: in one state, or all.

        Raises:
            UsageError: there is no such state.
        """
        states = [_parse_state(JobState, state)] if state is not None else list(JobState)
        entries = [name for one in states for name in self._tree.store.children(state_path(one))]
        return list(dict.fromkeys(job_of_entry(name) for name in sorted(entries)))

    def watch_jobs(self, state: str, on_change: Callable[[], None] | None = None) -> Watch:
        """Watch the jobs in a state from now on: ``watch.wait(10)`` returns as soon as a job enters or leaves the
        state.

        Create the watch first, then try to acquire, then wait, so that no change in between is missed. ``on_change`` is
        called when there may be a change, in any thread; it must neither block nor use the queue.

        Raises:
            UsageError: there is no such state.
        """
        return self._tree.store.watch(state_path(_parse_state(JobState, state)), on_change or _ignore)

    def watch_batches(self, on_change: Callable[[], None] | None = None) -> Watch:
        """Watch for batches that are submitted or removed from now on, as ``watch_jobs`` does for jobs."""
        return self._tree.store.watch(BATCHES, on_change or _ignore)

    # --- access requests ----------------------------------------------------------------------------------------------

    def create_assembly(self, size: str, token: Mapping[str, Any]) -> Assembly:
        """Request a bundle; the request is then Pending and not locked. ``size``: the access queue, "small" or "large".

        Raises:
            UsageError: there is no such queue, or the token cannot be written as JSON.
        """
        folder = f"{ACCESS}/{_check_access_size(size)}"
        request_id = ""

        def plan() -> list[Op]:
            nonlocal request_id
            request_id = numbered_name("qid", self._tree.next_number(folder))
            return items.new_assembly_ops(access_path(size, request_id), token, self._tree.now())

        self._tree.change(plan)
        return Assembly(self._tree, size, request_id)

    def acquire_pending_assembly(self, size: str) -> Assembly | None:
        """Acquire the oldest pending request of an access queue that nobody holds; it is then locked, and still
        Pending. None if there is none.

        Raises:
            UsageError: there is no such queue.
        """
        return self._acquirer.acquire_pending_assembly(_check_access_size(size))

    def load_assembly(self, size: str, id: str) -> Assembly:
        """Load an access request, without locking it.

        Raises:
            NodeInvalid: the request does not exist, or is damaged.
        """
        return Assembly(self._tree, _check_access_size(size), _check_id(id)).load()

    def list_assemblies(self, size: str, state: str | None = None) -> list[str]:
        """List the ids of requests of a queue, oldest first: in one state, or all.

        Raises:
            UsageError: there is no such queue, or no such state.
        """
        ids = self._tree.store.children(f"{ACCESS}/{_check_access_size(size)}")
        if state is None:
            return ids
        wanted = _parse_state(AccessState, state)
        return [one for one in ids if self._is_in(Assembly(self._tree, size, one), wanted)]

    # --- the whole ----------------------------------------------------------------------------------------------------

    def audit(self, repair: bool = False) -> list[AuditFinding]:
        """Check every node against the layout; ``repair`` fixes what is unambiguous."""
        return audit(self._tree, repair=repair)

    def dump(self) -> dict[str, Any]:
        """Return all nodes except ephemeral ones, as JSON values. For a dump of a single moment, pause the queue."""
        return dump_tree(self._tree)

    def restore(self, data: Mapping[str, Any]) -> None:
        """Create the nodes of a dump in an empty queue. Ids that were issued before are never issued again.

        Raises:
            UsageError: this is not a dump, or the queue is not empty; nothing was changed.
        """
        restore_tree(self._tree, data)

    def _is_in(self, item: Assembly, state: str) -> bool:
        try:
            return item.status == state
        except NodeInvalid as e:
            log.warning("%s", plain_text(e))
            return False


def _parse_state(states: Any, text: str) -> Any:
    """Return the state of this name, in any letter case.

    Raises:
        UsageError: there is none; names all.
    """
    for state in states:
        if state.value.lower() == str(text).strip().lower():
            return state
    raise UsageError(f"state {text}: there is no such state; choose one of {', '.join(s.value for s in states)}.")


def _check_access_size(size: str) -> str:
    if size not in ACCESS_SIZES:
        raise UsageError(f"access queue {size}: choose {' or '.join(ACCESS_SIZES)}.")
    return size


def _check_id(name: str) -> str:
    """Return the id if it can be a node's name; with a slash in it, it would be the path of another node."""
    if not name or "/" in name or name in (".", ".."):
        raise NodeInvalid(f"/{name}", "is not an id")
    return name


# Acquisition: finds the next item to work on, the most urgent first, locks it, and reads it again under the lock.
#
# Nothing is acquired while its queue is paused. A pending job of a collection that is on hold becomes Held instead of
# being acquired.

READ_AT_ONCE: Final = 64
"""Status nodes that are read in one call."""

OPERATOR_POLL_S: Final = 0.1
"""Seconds between two checks of a batch that waits for an operator, for each such batch, since other tools may move it
without writing to the folder of batches."""


class _Holds(NamedTuple):
    """Restrictions on acquiring jobs."""

    is_paused: bool
    of_collections: bool
    """Whether any collection is on hold, which matters to pending jobs."""


class Acquirer:
    """Finds, locks and returns the next item to work on. ``warn`` is called once for each damaged node, which is
    skipped."""

    def __init__(
        self,
        tree: NodeTree,
        locks: Locks,
        warn: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree, self._locks, self._monotonic = tree, locks, monotonic
        self.damaged = DamagedItems(warn)
        self._paused = False
        self._prefetched: dict[JobState, set[str]] = defaultdict(set)
        """State -> names of JSON nodes that its consumers have read; from then on they are read together with the
        lock."""
        self._batch_names: dict[str, tuple[tuple[int, int], list[str]]] = {}
        self._awaiting_operator: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
        """Purpose -> batch that only an operator can move -> (version of the folder of batches at the last check, time
        of the next check if that version stays)."""
        self._finished: dict[str, set[str]] = {"pending": set(), "making": set(), "reporting": set()}

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def acquire_job(self, state: JobState, skip: Container[str] = ()) -> Job | None:
        """Acquire the most urgent job in this state that nobody holds, locked."""
        return next(self.acquire_jobs(state, skip), None)

    def acquire_jobs(self, state: JobState, skip: Container[str] = ()) -> Iterator[Job]:
        """Acquire one job after another. Locked jobs are skipped by one check for many of them."""
        if self._paused:
            self._paused = self._tree.find(PAUSE_PATH) is not None  # a check that needs no lock
        if self._paused:
            return
        for name in self._tree.store.unlocked_entries(state_path(state), JOBS):
            job = Job(self._tree, job_of_entry(name))
            if job.id in self.damaged or job.id in skip:
                continue
            if self._acquire_entry(job, state, name):
                yield job
            elif self._paused:
                return

    def acquire_many(self, state: JobState, count: int, skip: Container[str] = ()) -> list[Job]:
        """Acquire the most urgent jobs in this state that nobody holds, at most ``count``, locked. There may be others
        if fewer are returned, except if none is: others may have been faster."""
        if count == 1:
            job = self.acquire_job(state, skip)
            return [] if job is None else [job]
        if self._paused:
            self._paused = self._tree.find(PAUSE_PATH) is not None
        acquired: list[Job] = []
        if self._paused:
            return acquired
        names = self._tree.store.unlocked_entries(state_path(state), JOBS, min(count, COMMITS_AT_ONCE))
        entries = ((Job(self._tree, job_of_entry(name)), name) for name in names)
        candidates = (each for each in entries if each[0].id not in self.damaged and each[0].id not in skip)
        while not self._paused and len(acquired) < count:
            chunk = list(islice(candidates, min(count - len(acquired), COMMITS_AT_ONCE)))
            if not chunk:
                break
            try:
                acquired += self._acquire_entries(chunk, state)
            except QueueLost:
                if not acquired:
                    raise
                break  # the next request raises it again
        return acquired

    def _acquire_entries(self, entries: Sequence[tuple[Job, str]], state: JobState) -> list[Job]:
        """Acquire the jobs with these entries in a state together; return those that are locked now."""
        prefetch = sorted(self._prefetched[state])
        requests = [
            job.lock_request(
                Check(f"{state_path(state)}/{name}"), read_after=[f"{job.path}/{each}" for each in prefetch]
            )
            for job, name in entries
        ]
        locked = []
        for (job, name), lock in zip(entries, self._tree.lock_all(requests), strict=True):
            if lock is not None:
                job.hold(lock[0])
                locked.append((job, name, lock[1]))
        try:
            holds = self._read_holds(state) if locked else None
            return [
                job
                for job, name, nodes in locked
                if self._accept(job, state, name, prefetch, partial(job.keep_lock_in, state, nodes), holds)
            ]
        except QueueLost:
            for job, *_ in locked:
                with suppress(FerrymanError):
                    job.unlock()
            raise

    def _acquire_entry(self, job: Job, state: JobState, name: str) -> bool:
        """Acquire the job with this entry in a state, unless the queue is paused or the job's collection is on hold.
        Returns whether it is locked now."""
        prefetch = sorted(self._prefetched[state])
        paths = [f"{job.path}/{each}" for each in prefetch]
        check = Check(f"{state_path(state)}/{name}")
        return self._accept(job, state, name, prefetch, lambda: job.acquire(state, check, read_after=paths))

    def _accept(
        self,
        job: Job,
        state: JobState,
        name: str,
        prefetch: list[str],
        acquire: Callable[[], Sequence[StoredNode | None] | None],
        holds: _Holds | None = None,
    ) -> bool:
        """Keep a job that ``acquire`` locks, unless the queue is paused or the job's collection is on hold. Returns
        whether it is locked now.

        Args:
            holds: as read since it was locked; None: read them.
        """
        try:
            nodes = acquire()
            if nodes is None:
                return False
            job.cache_nodes(dict(zip(prefetch, nodes, strict=True)), self._prefetched[state])
            holds = holds or self._read_holds(state)
            self._paused = holds.is_paused
            if holds.is_paused:
                job.unlock()
                return False
            job.note_entry(name)
            if holds.of_collections and self._is_on_hold(job):
                job.set_status(JobState.HELD, "its collection is on hold")
                job.unlock()
                return False
        except (LockLost, StateError):  # an operator moved it first
            job.unlock()
            return False
        except NodeInvalid as e:
            job.unlock()
            self.damaged.add(job.id, plain_text(e))
            return False
        return True

    def acquire_again(self, item: Job | Batch) -> bool:
        """Acquire a job or batch that this process has released, if it is still in the same state and nobody holds
        it."""
        state = item.held_state
        if state is None or self._tree.is_paused():
            return False
        try:
            if isinstance(item, Job):
                return self._acquire_entry(item, state, item.entry)
            return self._try_lock(item, state)
        except NodeInvalid:  # it was removed, or the next poll finds it damaged
            return False

    def _read_holds(self, state: JobState) -> _Holds:
        of_collections = state is JobState.PENDING and bool(self._tree.store.watched_children(COLLECTION_LOCKS))
        return _Holds(self._tree.is_paused(), of_collections)

    def _is_on_hold(self, job: Job) -> bool:
        name = effective_collection(self._tree, job)
        with suppress(UsageError):  # no lock can have such a name; the job's own consumer reports what is wrong with it
            return bool(name) and self._locks.check("collection", name)
        return False

    # --- batches ------------------------------------------------------------------------------------------------------

    def acquire_pending_batch(self) -> Batch | None:
        """Acquire the oldest pending batch that nobody holds, locked and moved to Processing."""
        for batch in self._acquire_batches("pending", {BatchState.PENDING}, {BatchState.HELD}):
            try:
                batch.start_processing()
            except (LockLost, StateError):  # an operator moved it first
                batch.unlock()
            else:
                return batch
        return None

    def acquire_batch_for_reporting(
        self, ready: Callable[[Batch], bool] | None, skip: Collection[str] = ()
    ) -> Batch | None:
        """Acquire the oldest batch whose report is due and that nobody holds, locked, in Reporting or
        UpdateReporting."""
        due = {BatchState.PROCESSING, BatchState.REPORTING, BatchState.UPDATE_REPORTING}
        revisited = {BatchState.PENDING, BatchState.HELD, BatchState.FAILED}
        for batch in self._acquire_batches("reporting", due, revisited, skip):
            if batch.status != BatchState.PROCESSING.value:
                return batch
            try:
                if (ready is None or ready(batch)) and batch.start_reporting():
                    return batch
            except NodeInvalid as e:
                self.damaged.add(batch.id, plain_text(e))
            batch.unlock()
        return None

    def acquire_batch_in_processing(self, skip: Collection[str]) -> Batch | None:
        """Acquire the oldest batch in Processing that nobody holds, locked."""
        for batch in self._acquire_batches(
            "making", {BatchState.PROCESSING}, {BatchState.PENDING, BatchState.HELD}, skip
        ):
            return batch
        return None

    def finish_creating_jobs(self, batch: Batch) -> None:
        self._finished["making"].add(batch.id)

    def _acquire_batches(
        self, purpose: str, wanted: set[BatchState], revisited: set[BatchState], skip: Collection[str] = ()
    ) -> Iterator[Batch]:
        """Acquire and yield, one by one, the batches in the states ``wanted``.

        A batch in one of the states ``revisited`` is checked again later; one in any other state is never checked
        again.
        """
        finished, awaiting = self._finished[purpose], self._awaiting_operator[purpose]
        for batch, state, version in self._read_candidates(purpose, skip):
            awaiting.pop(batch.id, None)
            if state not in wanted:
                if state not in revisited:
                    finished.add(batch.id)
                elif state in AWAITS_OPERATOR:
                    awaiting[batch.id] = version, self._monotonic() + OPERATOR_POLL_S * len(awaiting)
                continue
            if state is BatchState.PROCESSING and purpose == "reporting" and not self._has_no_open_jobs(batch):
                continue
            if self._try_lock(batch, state):
                yield batch

    def _read_candidates(self, purpose: str, skip: Collection[str]) -> Iterator[tuple[Batch, BatchState, int]]:
        """Yield batches that may be wanted, their states, and the version of their folder from before these were
        read."""
        paused, folder = self._tree.store.read([PAUSE_PATH, BATCHES])
        if paused is not None or folder is None:
            return
        names = (n for n in self._due_names(purpose, folder) if n not in skip and n not in self.damaged)
        while chunk := list(islice(names, READ_AT_ONCE)):
            nodes = self._tree.store.read([batch_path(name, "status") for name in chunk])
            for name, node in zip(chunk, nodes, strict=True):
                batch = Batch(self._tree, name)
                try:
                    state = batch.decode_status(node).state
                except NodeInvalid as e:
                    self.damaged.add(batch.id, plain_text(e))
                    continue
                yield batch, state, folder.version

    def _due_names(self, purpose: str, folder: StoredNode) -> Iterator[str]:
        """Yield the ids of batches that may be wanted; batches that are finished or wait for an operator are not
        read."""
        now, awaiting = self._monotonic(), self._awaiting_operator[purpose]
        for name in self._unfinished_names(purpose, folder):
            version, retry_at = awaiting.get(name, (-1, 0.0))
            if version != folder.version or retry_at <= now:
                yield name

    def _unfinished_names(self, purpose: str, folder: StoredNode) -> list[str]:
        """Return the ids of batches that are not finished for this purpose; the folder is listed again only after a
        change."""
        counts = folder.children, folder.next_number
        counts_before, names = self._batch_names.get(purpose, ((0, 0), []))
        if counts_before != counts:
            names = self._tree.store.children(BATCHES)
            awaiting = self._awaiting_operator[purpose]
            for removed in set(awaiting).difference(names):
                awaiting.pop(removed, None)
            self._finished[purpose].intersection_update(names)
        names = [name for name in names if name not in self._finished[purpose]]
        self._batch_names[purpose] = counts, names
        return names

    def _has_no_open_jobs(self, batch: Batch) -> bool:
        """Return whether the batch has jobs, and all of them are finished. A list without its folder is empty; a batch
        without any folder has no jobs yet."""
        folder = self._tree.find(batch_path(batch.id, "states", JobList.PROCESSING))
        if folder is not None:
            return not folder.children
        others = [batch_path(batch.id, "states", name) for name in JobList if name is not JobList.PROCESSING]
        return any(node is not None and node.children for node in self._tree.store.read(others))

    def _try_lock(self, batch: Batch, state: BatchState) -> bool:
        try:
            return batch.acquire(state) is not None
        except NodeInvalid as e:
            self.damaged.add(batch.id, plain_text(e))
            return False

    # --- access requests ----------------------------------------------------------------------------------------------

    def acquire_pending_assembly(self, size: str) -> Assembly | None:
        """Acquire the oldest pending request of a size that nobody holds, locked."""
        finished = self._finished.setdefault(size, set())
        kind = KINDS[f"access-{size}"]
        if self._is_paused(f"{kind.folder}/{kind.node}"):
            return None
        for name in self._tree.store.children(f"{ACCESS}/{size}"):
            if name in finished or f"{size}/{name}" in self.damaged:
                continue
            request = Assembly(self._tree, size, name)
            try:
                if request.status != AccessState.PENDING.value:
                    finished.add(name)
                elif request.acquire(AccessState.PENDING) is not None:
                    return request
            except NodeInvalid as e:
                self.damaged.add(f"{size}/{name}", plain_text(e))
        return None

    def _is_paused(self, path: str) -> bool:
        return self._tree.find(path) is not None


def effective_collection(tree: NodeTree, job: Job) -> str:
    """Return the job's collection: the profile that the job, or else its batch, was submitted with; "" if neither has
    one."""
    name = job.configuration.get("profile_name")
    if not name:
        name = Batch(tree, job.batch_id).submission.get("profile_name")
    return "" if name is None else str(name)


# Damaged items, which are logged once and then skipped for a while.

DAMAGED_RETRY_S: Final = 60.0
"""Seconds until a damaged item is tried again, since an operator may have repaired it. The same fault is not logged
again."""


class DamagedItems:
    """Damaged items that this process skips for a while. Safe to use from many threads.

    Args:
        warn: called with the reason, once for each item, and again if the reason changes.
        clock: in seconds.
    """

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._warn, self._clock = warn, clock
        self._lock = threading.Lock()
        self._skip_until: dict[str, float] = {}
        self._last_reason: dict[str, str] = {}

    def add(self, id: str, why: str) -> None:
        """Skip an item for ``DAMAGED_RETRY_S``."""
        with self._lock:
            self._skip_until[id] = self._clock() + DAMAGED_RETRY_S
            is_new = self._last_reason.get(id) != why
            self._last_reason[id] = why
        if is_new:
            self._warn(why)

    def __contains__(self, id: str) -> bool:
        return self._skip_until.get(id, 0.0) > self._clock()


def _ignore() -> None:
    pass
