"""The queue: who asks for work, in which order, and who may stop it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, Self

from ferryman.errors import UsageError, plain_text
from ferryman.intake import access, overview
from ferryman.intake.access import Assembly
from ferryman.intake.acquire import Acquirer
from ferryman.intake.audit import AuditFinding, audit
from ferryman.intake.batch import Batch
from ferryman.intake.dump import dumped, restored
from ferryman.intake.errors import BatchExists, NodeInvalid
from ferryman.intake.job import Job
from ferryman.intake.locks import Locks
from ferryman.intake.nodes import (
    ACCESS,
    BATCH_UUIDS,
    BATCHES,
    SIZES,
    access_path,
    batch_path,
    decoded,
    encoded,
    job_of,
    mapped,
    numbered,
    skeleton,
    state_path,
    submission_uuid,
    text_of,
    undated,
)
from ferryman.intake.states import AccessState, BatchState, JobState
from ferryman.intake.store import SESSION_TIMEOUT_S, Conflict, Create, Op, Store, Watch, opened
from ferryman.intake.tree import NodeTree

log = logging.getLogger("ferryman.intake")


class Cleanup(NamedTuple):
    """What a cleanup did."""

    removed: list[str]
    """Ids of batches."""
    passed_over: list[tuple[str, str]]
    """Ids of batches that stay, and why: a node is damaged, or a job of it is being worked at."""


class Queue:
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
        store = opened(url, session_timeout_s=session_timeout_s, clock=clock)
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
        return f"<Queue {self.url}>"

    def _make_skeleton(self) -> None:
        while missing := self._tree.missing(skeleton()):
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
        uuid_path = f"{BATCH_UUIDS}/{mapped(uuid)}" if uuid else ""

        def plan() -> list[Op]:
            nonlocal made
            if uuid and (known := self._known(uuid_path, uuid, submission)):
                made = known
                return []
            made = numbered("bid", self._tree.next_number(BATCHES))
            path = batch_path(made)
            status = {"status": BatchState.PENDING.value, "last_modified": self._tree.now(), "message": ""}
            return [
                *([Create(uuid_path, made.encode())] if uuid else []),
                Create(path, numbered=True),
                Create(f"{path}/submission", encoded(f"{path}/submission", dict(submission))),
                Create(f"{path}/status", encoded(f"{path}/status", status)),
            ]

        self._tree.change(plan)
        return Batch(self._tree, made)

    def _known(self, uuid_path: str, uuid: str, submission: Mapping[str, Any]) -> str:
        """The batch that this submission made before; "" if its uuid is free."""
        found = self._tree.find(uuid_path)
        if found is None:
            return ""
        batch_id = text_of(uuid_path, found.data)
        path = batch_path(batch_id, "submission")
        kept = self._tree.find(path)
        if kept is None or undated(decoded(path, kept.data)) != undated(submission):
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
            path = f"{BATCH_UUIDS}/{mapped(uuid)}"
        except UsageError:
            return None
        found = self._tree.find(path)
        if found is None:
            return None
        batch = Batch(self._tree, text_of(path, found.data))
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
        """As ``acquire_job`` again and again, each locked when it is asked for: of many that are kept it costs less."""
        return self._acquirer.jobs(_named(JobState, state))

    def pass_over(self, id: str, why: str) -> None:
        """Do not give this batch or job to this process for a minute: it is damaged. Each reason is logged once."""
        self._acquirer.passed_over.add(id, why)

    def is_passed_over(self, id: str) -> bool:
        """Is this process leaving it alone, because it is damaged?"""
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
        return list(dict.fromkeys(job_of(name) for name in sorted(entries)))

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
            made = numbered("qid", self._tree.next_number(folder))
            return access.creation(access_path(size, made), token, self._tree.now())

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
    if size not in SIZES:
        raise UsageError(f"access queue {size}: choose {' or '.join(SIZES)}.")
    return size


def _one_name(name: str) -> str:
    """An id as a node's name: one with a slash in it would be another node's path."""
    if not name or "/" in name or name in (".", ".."):
        raise NodeInvalid(f"/{name}", "is not an id")
    return name
