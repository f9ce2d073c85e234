"""Who gets what: locks the next thing to do, most urgent first, and reads it again under the lock.

Nothing new is acquired while its queue is paused. A pending job of a collection that is on hold becomes Held instead.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from ferryman.errors import UsageError, plain_text
from ferryman.intake.access import Assembly
from ferryman.intake.batch import BY_OPERATOR, Batch
from ferryman.intake.errors import LockLost, NodeInvalid, StateError
from ferryman.intake.job import Job
from ferryman.intake.locks import KINDS, Locks
from ferryman.intake.nodes import (
    ACCESS,
    BATCHES,
    COLLECTION_LOCKS,
    JOBS,
    PAUSED,
    batch_path,
    job_of,
    state_path,
)
from ferryman.intake.passed_over import PassedOver
from ferryman.intake.states import AccessState, BatchState, JobState
from ferryman.intake.store import Check, StoredNode
from ferryman.intake.tree import NodeTree

LOOKED_AT: Final = 64
"""Status nodes that are read at once."""

AGAIN_S: Final = 0.1
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
        if self._paused and self._tree.find(PAUSED):
            return  # no need to lock one in order to see that
        folder = state_path(state)
        for name in self._tree.store.free(folder, JOBS):
            job = Job(self._tree, job_of(name))
            if job.id in self.passed_over:
                continue
            try:
                look = (PAUSED, COLLECTION_LOCKS) if state is JobState.PENDING else (PAUSED,)
                wanted = sorted(self._read_alone[state])
                paths = [f"{job.path}/{each}" for each in wanted]
                found = job.acquire(state, Check(f"{folder}/{name}"), look=(*look, *paths))
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
                    left[batch.id] = version, self._monotonic() + AGAIN_S * len(left)
                continue
            if state is BatchState.PROCESSING and what == "reporting" and not self._is_done(batch):
                continue
            if self._locked(batch, state):
                yield batch

    def _looked_at(self, what: str, skip: Collection[str]) -> Iterator[tuple[Batch, BatchState, int]]:
        """Batches that may matter now, with their states, and the version of their folder before those were read."""
        paused, folder = self._tree.store.read([PAUSED, BATCHES])
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
        now = folder.children, folder.numbered
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
