"""The queue: who asks for work, in which order, and who may stop it."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple, Self

from ferryman.errors import UsageError, plain_text
from ferryman.intake import items, overview
from ferryman.intake.audit import AuditFinding, audit, dumped, restored
from ferryman.intake.batch import BY_OPERATOR, Batch
from ferryman.intake.errors import BatchExists, LockLost, NodeInvalid, StateError
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
from ferryman.intake.states import AccessState, BatchState, JobState
from ferryman.intake.store import SESSION_TIMEOUT_S, Check, Conflict, Create, Op, Store, StoredNode, Watch, open_store
from ferryman.intake.tree import KINDS, Locks, NodeTree

log = logging.getLogger("ferryman.intake")


class Cleanup(NamedTuple):
    """Result of a cleanup."""

    removed: list[str]
    """Ids of batches."""
    passed_over: list[tuple[str, str]]
    """Ids of batches that stay, and why: a node is damaged, or a job of it is being worked at."""


class JobQueue:
    """Batches, jobs, access requests and locks, in the store that its URL names. Safe to use from many threads."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._tree = NodeTree(store, clock)
        self.locks = Locks(self._tree)
        self._acquirer = Acquirer(self._tree, self.locks, log.warning)
        self._make_skeleton()

    @classmethod
    def open(
        cls, url: str, *, session_timeout_s: float = SESSION_TIMEOUT_S, clock: Callable[[], float] = time.time
    ) -> Self:
        """Open a queue; a new one is made if there is none.

        Args:
            url: ``sqlite:///queue.db``, ``zookeeper://h1:2181,h2:2181/chroot`` (``zookeeper://user:password@…`` for
                digest auth), or ``memory:``.
            session_timeout_s: a consumer that is dead, stopped or cut off for so long loses its locks.
            clock: the time in seconds since 1970, for what is written in status nodes.

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
        """Where it is, without passwords."""
        return self._tree.store.url

    @property
    def tree(self) -> NodeTree:
        """The nodes below: for audits, dumps and tests."""
        return self._tree

    def close(self) -> None:
        """Let go of it, and of every lock that lives with this handle."""
        self._tree.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<JobQueue {self.url}>"

    def _make_skeleton(self) -> None:
        while missing := self._tree.missing(layout_folders()):
            try:
                self._tree.store.commit(missing)
            except Conflict:
                continue  # another opened it at the same moment

    # --- batches ------------------------------------------------------------------------------------------------------

    def create_batch(self, submission: Mapping[str, Any]) -> Batch:
        """Hand in a batch: Pending, not locked. The same submission with the same ``batchID`` is the same batch.

        Raises:
            BatchExists: another submission has this ``batchID``.
            UsageError: the submission cannot be written as JSON, or is too large.
        """
        made = ""
        uuid = submission_uuid(submission)
        uuid_path = f"{BATCH_UUIDS}/{node_name(uuid)}" if uuid else ""

        def plan() -> list[Op]:
            nonlocal made
            if uuid and (known := self._known(uuid_path, uuid, submission)):
                made = known
                return []
            made = numbered_name("bid", self._tree.next_number(BATCHES))
            path = batch_path(made)
            status = {"status": BatchState.PENDING.value, "last_modified": self._tree.now(), "message": ""}
            return [
                *([Create(uuid_path, made.encode())] if uuid else []),
                Create(path, numbered=True),
                Create(f"{path}/submission", encode_node(f"{path}/submission", dict(submission))),
                Create(f"{path}/status", encode_node(f"{path}/status", status)),
            ]

        self._tree.change(plan)
        return Batch(self._tree, made)

    def _known(self, uuid_path: str, uuid: str, submission: Mapping[str, Any]) -> str:
        """The batch that this submission made before; "" if its uuid is free."""
        found = self._tree.find(uuid_path)
        if found is None:
            return ""
        batch_id = decode_text(uuid_path, found.data)
        path = batch_path(batch_id, "submission")
        kept = self._tree.find(path)
        if kept is None or without_date(decode_node(path, kept.data)) != without_date(submission):
            raise BatchExists(uuid, batch_id)
        return batch_id

    def acquire_pending_batch(self) -> Batch | None:
        """The oldest pending batch that nobody holds: locked, and in Processing. None if there is none."""
        return self._acquirer.pending_batch()

    def acquire_batch_for_reporting(self, ready: Callable[[Batch], bool] | None = None) -> Batch | None:
        """The oldest batch whose report is due: locked, in Reporting (UpdateReporting stays so). None if there is none.

        A batch in Processing is due when all its jobs are Completed or Failed. ``ready`` is asked about it then, under
        the lock: was every job of its manifest made? If not, it stays in Processing.
        """
        return self._acquirer.batch_for_reporting(ready)

    def acquire_batch_in_processing(self, skip: Collection[str] = ()) -> Batch | None:
        """The oldest batch in Processing that nobody holds, locked; not those in ``skip``.

        For who makes jobs of batches: one that died in the middle of that has left its batch like this.
        """
        return self._acquirer.batch_in_processing(skip)

    def find_batch_by_uuid(self, uuid: str) -> Batch | None:
        """The batch that was submitted with this ``batchID``; None if there is none.

        Raises:
            NodeInvalid: it is damaged.
        """
        try:
            path = f"{BATCH_UUIDS}/{node_name(uuid)}"
        except UsageError:
            return None
        found = self._tree.find(path)
        if found is None:
            return None
        batch = Batch(self._tree, decode_text(path, found.data))
        return batch.load() if submission_uuid(batch.submission) == uuid else None

    def load_batch(self, id: str) -> Batch:
        """A batch, not locked.

        Raises:
            NodeInvalid: it is not there, or damaged.
        """
        return Batch(self._tree, _one_name(id)).load()

    def list_batches(self, state: str | None = None) -> list[str]:
        """Ids of batches, oldest first; in one state, or all. One whose status is damaged is in no state.

        Raises:
            UsageError: there is no such state.
        """
        ids = self._tree.store.children(BATCHES)
        if state is None:
            return ids
        wanted = _named(BatchState, state)
        found = []
        for batch_id, is_in, why in overview.batch_states(self._tree, ids):
            if why:
                self.pass_over(batch_id, why)
            elif is_in == wanted:
                found.append(batch_id)
        return found

    def delete_completed_batches(self) -> list[str]:
        """Remove all completed and deleted batches; one that is damaged is passed over. Returns the ids removed."""
        return self.cleanup().removed

    def cleanup(self) -> Cleanup:
        """Remove all completed and deleted batches, with their jobs. What stays is named, with the reason."""
        done = Cleanup([], [])
        for batch_id in self._tree.store.children(BATCHES):
            batch = Batch(self._tree, batch_id)
            try:
                if not batch.deletable:
                    continue
                if at_work := self._at_work(batch):
                    done.passed_over.append((batch_id, f"{at_work} is being worked at"))
                    continue
                batch.delete()
            except (NodeInvalid, UsageError) as e:
                log.warning("%s", plain_text(e))
                done.passed_over.append((batch_id, plain_text(e)))
            else:
                done.removed.append(batch_id)
        return done

    def _at_work(self, batch: Batch) -> str:
        """A job of a batch that somebody holds; "" if there is none."""
        jobs = batch.processing_jobs
        locks = self._tree.store.read([Job(self._tree, job).path + "/lock" for job in jobs])
        return next((job for job, held in zip(jobs, locks, strict=True) if held), "")

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def acquire_job(self, state: str) -> Job | None:
        """The most urgent job in this state that nobody holds, then the oldest: locked. None if there is none.

        Raises:
            UsageError: there is no such state.
        """
        return self._acquirer.job(_named(JobState, state))

    def acquire_jobs(self, state: str) -> Iterator[Job]:
        """Acquire jobs one after the other, each locked when it is asked for: cheaper than many calls of
        ``acquire_job``."""
        return self._acquirer.jobs(_named(JobState, state))

    def pass_over(self, id: str, why: str) -> None:
        """Do not give this batch or job to this process for a minute: it is damaged. Each reason is logged once."""
        self._acquirer.passed_over.add(id, why)

    def is_passed_over(self, id: str) -> bool:
        """Return whether this process leaves the item alone, because it is damaged."""
        return id in self._acquirer.passed_over

    def load_job(self, id: str) -> Job:
        """A job, not locked.

        Raises:
            NodeInvalid: it is not there, or damaged.
        """
        return Job(self._tree, _one_name(id)).load()

    def list_jobs(self, state: str | None = None) -> list[str]:
        """Ids of jobs in the order in which they would be acquired; in one state, or all.

        Raises:
            UsageError: there is no such state.
        """
        states = [_named(JobState, state)] if state is not None else list(JobState)
        entries = [name for one in states for name in self._tree.store.children(state_path(one))]
        return list(dict.fromkeys(job_of_entry(name) for name in sorted(entries)))

    def watch_jobs(self, state: str) -> Watch:
        """Look at the jobs in a state from now on: ``watch.wait(10)`` returns as soon as one comes or goes.

        Make the watch first, then try to acquire, then wait: so nothing that comes in between is missed.

        Raises:
            UsageError: there is no such state.
        """
        return self._tree.store.watch(state_path(_named(JobState, state)))

    def watch_batches(self) -> Watch:
        """Look at batches that are handed in, or removed, from now on; as ``watch_jobs``."""
        return self._tree.store.watch(BATCHES)

    # --- access requests ----------------------------------------------------------------------------------------------

    def create_assembly(self, size: str, token: Mapping[str, Any]) -> Assembly:
        """Ask for a bundle: Pending, not locked. ``size`` is the queue, "small" or "large".

        Raises:
            UsageError: there is no such queue, or the token cannot be written as JSON.
        """
        folder = f"{ACCESS}/{_size(size)}"
        made = ""

        def plan() -> list[Op]:
            nonlocal made
            made = numbered_name("qid", self._tree.next_number(folder))
            return items.creation(access_path(size, made), token, self._tree.now())

        self._tree.change(plan)
        return Assembly(self._tree, size, made)

    def acquire_pending_assembly(self, size: str) -> Assembly | None:
        """The oldest pending request of a queue that nobody holds: locked, still Pending. None if there is none.

        Raises:
            UsageError: there is no such queue.
        """
        return self._acquirer.pending_assembly(_size(size))

    def load_assembly(self, size: str, id: str) -> Assembly:
        """A request, not locked.

        Raises:
            NodeInvalid: it is not there, or damaged.
        """
        return Assembly(self._tree, _size(size), _one_name(id)).load()

    def list_assemblies(self, size: str, state: str | None = None) -> list[str]:
        """Ids of requests of a queue, oldest first; in one state, or all.

        Raises:
            UsageError: there is no such queue, or no such state.
        """
        ids = self._tree.store.children(f"{ACCESS}/{_size(size)}")
        if state is None:
            return ids
        wanted = _named(AccessState, state)
        return [one for one in ids if self._is_in(Assembly(self._tree, size, one), wanted)]

    # --- the whole ----------------------------------------------------------------------------------------------------

    def audit(self, repair: bool = False) -> list[AuditFinding]:
        """Hold every node against the layout; ``repair`` fixes what can be fixed without a doubt."""
        return audit(self._tree, repair=repair)

    def dump(self) -> dict[str, Any]:
        """All nodes but those that live with a session, as JSON values. Pause the queue for one of a single moment."""
        return dumped(self._tree)

    def restore(self, data: Mapping[str, Any]) -> None:
        """Make the nodes of a dump in a queue that is empty. Ids that were given before are not given again.

        Raises:
            UsageError: this is not a dump, or the queue is not empty; nothing was changed.
        """
        restored(self._tree, data)

    def _is_in(self, item: Assembly, state: str) -> bool:
        try:
            return item.status == state
        except NodeInvalid as e:
            log.warning("%s", plain_text(e))
            return False


def _named(states: Any, text: str) -> Any:
    """A state by its name, in any case.

    Raises:
        UsageError: there is none; names all.
    """
    for state in states:
        if state.value.lower() == str(text).strip().lower():
            return state
    raise UsageError(f"state {text}: there is no such state; choose one of {', '.join(s.value for s in states)}.")


def _size(size: str) -> str:
    if size not in ACCESS_SIZES:
        raise UsageError(f"access queue {size}: choose {' or '.join(ACCESS_SIZES)}.")
    return size


def _one_name(name: str) -> str:
    """An id as a node's name: one with a slash in it would be another node's path."""
    if not name or "/" in name or name in (".", ".."):
        raise NodeInvalid(f"/{name}", "is not an id")
    return name


# Who gets what: locks the next thing to do, most urgent first, and reads it again under the lock.
#
# Nothing new is acquired while its queue is paused. A pending job of a collection that is on hold becomes Held
# instead.

LOOKED_AT: Final = 64
"""Status nodes that are read at once."""

LOOK_S: Final = 0.1
"""Times the number of batches that wait for an operator: so often each is looked at though nothing tells that one was
moved, for programs of others do not write the folder of batches."""


class Acquirer:
    """Acquires for one queue. ``warn`` is told of nodes that are damaged, once: they are passed over."""

    def __init__(
        self,
        tree: NodeTree,
        locks: Locks,
        warn: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree, self._locks, self._monotonic = tree, locks, monotonic
        self.passed_over = PassedOver(warn)
        self._paused = False
        self._read_alone: dict[JobState, set[str]] = defaultdict(set)
        """JSON nodes that were asked for while jobs of a state were held: they come with the lock from then on."""
        self._batch_names: dict[str, tuple[tuple[int, int], list[str]]] = {}
        self._later: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
        """Batches that only an operator moves: the version of the folder of batches when they were looked at, and when
        they are looked at again though it is still that."""
        self._done_with: dict[str, set[str]] = {"pending": set(), "making": set(), "reporting": set()}

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def job(self, state: JobState) -> Job | None:
        """The most urgent job in this state that nobody holds, locked."""
        return next(self.jobs(state), None)

    def jobs(self, state: JobState) -> Iterator[Job]:
        """One after the other; what is held already is passed by once for all of them, and not for each."""
        if self._paused and self._tree.find(PAUSE_PATH):
            return  # no need to lock one in order to see that
        folder = state_path(state)
        for name in self._tree.store.unlocked_entries(folder, JOBS):
            job = Job(self._tree, job_of_entry(name))
            if job.id in self.passed_over:
                continue
            try:
                look = (PAUSE_PATH, COLLECTION_LOCKS) if state is JobState.PENDING else (PAUSE_PATH,)
                wanted = sorted(self._read_alone[state])
                paths = [f"{job.path}/{each}" for each in wanted]
                found = job.acquire(state, Check(f"{folder}/{name}"), read_after=(*look, *paths))
                if found is None:
                    continue
                job.keep(dict(zip(wanted, found[len(look) :], strict=True)), self._read_alone[state])
                paused, *holds = found[: len(look)]
                self._paused = paused is not None
                if self._paused:
                    job.unlock()
                    return
                job.was_entry(name)
                if holds and holds[0] is not None and holds[0].children and self._is_on_hold(job):
                    job.set_status(JobState.HELD, "its collection is on hold")
                    job.unlock()
                    continue
            except (LockLost, StateError):  # an operator was faster
                job.unlock()
                continue
            except NodeInvalid as e:
                job.unlock()
                self.passed_over.add(job.id, plain_text(e))
                continue
            yield job

    def _is_on_hold(self, job: Job) -> bool:
        name = collection_of(self._tree, job)
        with suppress(UsageError):  # no lock can have such a name; its own consumer says what is wrong with it
            return bool(name) and self._locks.check("collection", name)
        return False

    # --- batches ------------------------------------------------------------------------------------------------------

    def pending_batch(self) -> Batch | None:
        """The oldest pending batch that nobody holds, locked and moved to Processing."""
        for batch in self._batches("pending", {BatchState.PENDING}, {BatchState.HELD}):
            try:
                batch.acquired()
            except (LockLost, StateError):  # an operator was faster
                batch.unlock()
            else:
                return batch
        return None

    def batch_for_reporting(self, ready: Callable[[Batch], bool] | None) -> Batch | None:
        """The oldest batch whose report is due and that nobody holds, locked, in Reporting or UpdateReporting."""
        due = {BatchState.PROCESSING, BatchState.REPORTING, BatchState.UPDATE_REPORTING}
        for batch in self._batches("reporting", due, {BatchState.PENDING, BatchState.HELD, BatchState.FAILED}):
            if batch.status != BatchState.PROCESSING.value:
                return batch
            try:
                if (ready is None or ready(batch)) and batch.to_report():
                    return batch
            except NodeInvalid as e:
                self.passed_over.add(batch.id, plain_text(e))
            batch.unlock()
        return None

    def batch_in_processing(self, skip: Collection[str]) -> Batch | None:
        """The oldest batch in Processing that nobody holds, locked."""
        for batch in self._batches("making", {BatchState.PROCESSING}, {BatchState.PENDING, BatchState.HELD}, skip):
            return batch
        return None

    def _batches(
        self, what: str, wanted: set[BatchState], later: set[BatchState], skip: Collection[str] = ()
    ) -> Iterator[Batch]:
        """Batches in these states, each locked. One that is in neither these nor ``later`` is never looked at again."""
        done, left = self._done_with[what], self._later[what]
        for batch, state, version in self._looked_at(what, skip):
            left.pop(batch.id, None)
            if state not in wanted:
                if state not in later:
                    done.add(batch.id)
                elif state in BY_OPERATOR:
                    left[batch.id] = version, self._monotonic() + LOOK_S * len(left)
                continue
            if state is BatchState.PROCESSING and what == "reporting" and not self._is_done(batch):
                continue
            if self._locked(batch, state):
                yield batch

    def _looked_at(self, what: str, skip: Collection[str]) -> Iterator[tuple[Batch, BatchState, int]]:
        """Batches that may matter now, with their states, and the version of their folder before those were read."""
        paused, folder = self._tree.store.read([PAUSE_PATH, BATCHES])
        if paused is not None or folder is None:
            return
        names = (n for n in self._due(what, folder) if n not in skip and n not in self.passed_over)
        while some := list(islice(names, LOOKED_AT)):
            found = self._tree.store.read([batch_path(name, "status") for name in some])
            for name, node in zip(some, found, strict=True):
                batch = Batch(self._tree, name)
                try:
                    state = batch.status_of(node).state
                except NodeInvalid as e:
                    self.passed_over.add(batch.id, plain_text(e))
                    continue
                yield batch, state, folder.version

    def _due(self, what: str, folder: StoredNode) -> Iterator[str]:
        """The batches that may matter now. Of thousands that are done with, or wait for an operator, a look costs as
        much as of none."""
        now, left = self._monotonic(), self._later[what]
        for name in self._listed(what, folder):
            version, at = left.get(name, (-1, 0.0))
            if version != folder.version or at <= now:
                yield name

    def _listed(self, what: str, folder: StoredNode) -> list[str]:
        """The batches that may still matter. While none comes or goes they are not listed again."""
        now = folder.children, folder.next_number
        seen, names = self._batch_names.get(what, ((0, 0), []))
        if seen != now:
            names = self._tree.store.children(BATCHES)
            left = self._later[what]
            for gone in set(left).difference(names):
                left.pop(gone, None)
        names = [name for name in names if name not in self._done_with[what]]
        self._batch_names[what] = now, names
        return names

    def _is_done(self, batch: Batch) -> bool:
        folder = self._tree.find(batch_path(batch.id, "states", "batch-processing"))
        return folder is not None and not folder.children

    def _locked(self, batch: Batch, state: BatchState) -> bool:
        try:
            return batch.acquire(state) is not None
        except NodeInvalid as e:
            self.passed_over.add(batch.id, plain_text(e))
            return False

    # --- access requests ----------------------------------------------------------------------------------------------

    def pending_assembly(self, size: str) -> Assembly | None:
        """The oldest pending request of a size that nobody holds, locked."""
        done = self._done_with.setdefault(size, set())
        kind = KINDS[f"access-{size}"]
        if self._paused_now(f"{kind.folder}/{kind.node}"):
            return None
        for name in self._tree.store.children(f"{ACCESS}/{size}"):
            if name in done or f"{size}/{name}" in self.passed_over:
                continue
            request = Assembly(self._tree, size, name)
            try:
                if request.status != AccessState.PENDING.value:
                    done.add(name)
                elif request.acquire(AccessState.PENDING) is not None:
                    return request
            except NodeInvalid as e:
                self.passed_over.add(f"{size}/{name}", plain_text(e))
        return None

    def _paused_now(self, path: str) -> bool:
        return self._tree.find(path) is not None


def collection_of(tree: NodeTree, job: Job) -> str:
    """The collection that a job belongs to: the profile it, or its batch, was submitted with; "" if none was named."""
    name = job.configuration.get("profile_name")
    if not name:
        name = Batch(tree, job.batch_id).submission.get("profile_name")
    return "" if name is None else str(name)


# Damaged items that were named once, and are passed over until somebody may have repaired them.

DAMAGED_AGAIN_S: Final = 60.0
"""After this time it is tried again: an operator may have repaired it. What is still wrong is not said again."""


class PassedOver:
    """Items that this process leaves alone. Safe to use from many threads.

    Args:
        warn: is told of each item once, and again if something else is wrong with it.
        clock: in seconds.
    """

    def __init__(self, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._warn, self._clock = warn, clock
        self._changing = threading.Lock()
        self._until: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def add(self, id: str, why: str) -> None:
        """Leave it alone for a while."""
        with self._changing:
            self._until[id] = self._clock() + DAMAGED_AGAIN_S
            is_new = self._said.get(id) != why
            self._said[id] = why
        if is_new:
            self._warn(why)

    def __contains__(self, id: str) -> bool:
        return self._until.get(id, 0.0) > self._clock()
