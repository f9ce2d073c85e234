"""A batch: what a submitter handed in, and the lists of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ferryman.errors import UsageError
from ferryman.intake import nodes
from ferryman.intake.errors import LockLost, NodeInvalid, StateError
from ferryman.intake.items import Item, Report, StatusNode
from ferryman.intake.job import Job, checked_priority, creation
from ferryman.intake.nodes import (
    BATCH_UUIDS,
    BATCHES,
    JOBS,
    batch_path,
    encode_node,
    job_path,
    node_name,
    submission_uuid,
)
from ferryman.intake.states import BATCH, BatchState, JobList, JobState, Transitions, job_list_of
from ferryman.intake.store import Check, Create, Delete, Op, Set
from ferryman.intake.tree import NodeTree

OPEN: Final = frozenset({BatchState.PENDING, BatchState.HELD, BatchState.PROCESSING})
"""A batch in one of these may get jobs. Later its report is due, or made."""

BY_OPERATOR: Final = frozenset({BatchState.HELD, BatchState.FAILED})
"""A batch in one of these stays there until an operator moves it. That move also writes the folder of batches anew: its
version tells consumers, so that they need not look at each such batch again and again."""

REPORTED: Final = frozenset({BatchState.REPORTING, BatchState.UPDATE_REPORTING})
"""Leaving one of these, what the submitter was told is kept."""


class Batch(Item):
    """A submission and its jobs."""

    table: ClassVar[Transitions[Any]] = BATCH

    def __init__(self, tree: NodeTree, id: str) -> None:
        super().__init__(tree, id)
        self._told: Report | None = None

    @property
    def path(self) -> str:
        return batch_path(self.id)

    @property
    def submission(self) -> dict[str, Any]:
        """Return the submission."""
        return self._tree.json(f"{self.path}/submission")

    @property
    def processing_jobs(self) -> list[str]:
        """Ids of jobs that are not done with: pending and held ones too."""
        return self._jobs(JobList.PROCESSING)

    @property
    def completed_jobs(self) -> list[str]:
        return self._jobs(JobList.COMPLETED)

    @property
    def failed_jobs(self) -> list[str]:
        return self._jobs(JobList.FAILED)

    @property
    def deleted_jobs(self) -> list[str]:
        return self._jobs(JobList.DELETED)

    @property
    def has_failure(self) -> bool:
        """Has any of its jobs failed and not been requeued?"""
        found = self._tree.find(batch_path(self.id, "states", JobList.FAILED))
        return found is not None and found.children > 0

    def _jobs(self, name: JobList) -> list[str]:
        return self._tree.store.children(batch_path(self.id, "states", name))

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def create_job(
        self,
        configuration: Mapping[str, Any],
        priority: int = nodes.DEFAULT_PRIORITY,
        identifiers: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Job:
        """Make a job of this batch: Pending, not locked.

        Raises:
            StateError: the batch is reported already, or was removed.
            NodeInvalid: the batch was removed, or is damaged.
        """
        values = {"configuration": configuration, "identifiers": identifiers or {}, "metadata": metadata or {}}
        return self.place_job(values, checked_priority(priority))

    def place_job(
        self, values: Mapping[str, Mapping[str, Any]], priority: int, state: JobState = JobState.PENDING, why: str = ""
    ) -> Job:
        """Make a job in any state: what was done elsewhere before it came here. Raises as ``create_job``."""
        made = ""

        def plan(now: StatusNode) -> list[Op]:
            nonlocal made
            if now.state not in OPEN:
                raise StateError(now.state, "another job")
            made = nodes.numbered_name("jid", self._tree.next_number(JOBS))
            folder = batch_path(self.id, "states", job_list_of(state))
            return [
                Check(f"{self.path}/status", now.node.version),
                *creation(made, self.id, values, now=self._tree.now(), priority=priority, state=state, message=why),
                *self._tree.missing([batch_path(self.id, "states"), folder]),
                Create(f"{folder}/{made}"),
            ]

        if self._hold is None and not self._held_before:  # others may add jobs while somebody works at the batch
            self._tree.change(lambda: plan(self._status()))
        else:
            self._change(plan)
        return Job(self._tree, made)

    # --- moves --------------------------------------------------------------------------------------------------------

    def acquired(self) -> None:
        """Take up a pending batch, whose lock this object holds: its list of states is made, which tells that it is."""
        self._move(lambda now: self._named(now, BatchState.PROCESSING), "", starting=True)

    def to_report(self) -> bool:
        """Move to Reporting if every job is Completed or Failed, at this very instant. Did it?"""
        folder = batch_path(self.id, "states", JobList.PROCESSING)

        def plan(now: StatusNode) -> list[Op]:
            found = self._tree.find(folder)
            if found is None or found.children:
                raise _NotYet
            after = self._named(now, BatchState.REPORTING)
            # A folder can be removed only while it is empty: in one commit with the move, no job can come between.
            return [Delete(folder), Create(folder), *self._moved(now, after, "")]

        try:
            self._change(plan)
        except (_NotYet, StateError, LockLost):
            return False
        return True

    @property
    def jobs_made(self) -> int | None:
        """How many jobs its submission has come to; None: not all of them are made yet."""
        made: int | None = self._status().values.get("jobs_made")
        return made

    def set_jobs_made(self, jobs: int) -> None:
        """Note that all of them are made. Raises as ``set_status``."""
        message = f"{jobs} {'job' if jobs == 1 else 'jobs'} made"
        self._move(lambda now: self._named(now, BatchState.PROCESSING), message, jobs_made=jobs)

    def _next(self, now: StatusNode, after: BatchState, message: str) -> dict[str, Any]:
        kept = {"jobs_made": now.values["jobs_made"]} if "jobs_made" in now.values else {}
        return {**super()._next(now, after, message), **kept}

    def _moved(
        self,
        now: StatusNode,
        after: BatchState,
        message: str,
        *,
        starting: bool = False,
        jobs_made: int | None = None,
    ) -> list[Op]:
        if jobs_made is not None:
            now = now._replace(values={**now.values, "jobs_made": jobs_made})
        ops = super()._moved(now, after, message)
        if starting:
            ops += self._tree.missing([batch_path(self.id, "states")])
        if after is not now.state and (after is BatchState.REPORTING or now.state in REPORTED):
            ops.append(self._keep(self._told or self.report(reasons=False)))
        if after is not now.state and now.state in BY_OPERATOR:
            ops.append(Set(BATCHES, self._tree.get(BATCHES).data))
        return ops

    def report(self, *, reasons: bool = True) -> Report:
        """Return the complete report for the submitter as of now. ``success`` and ``fail`` keep the one that was made
        last.

        ``report().since(batch.kept_report)`` is what is new.
        """
        failed = self.failed_jobs
        paths = [job_path(job, "status") for job in failed] if reasons else []
        found = self._tree.store.read(paths)
        why = (
            {
                job: str(nodes.decode_node(path, node.data).get("message") or "")
                for job, path, node in zip(failed, paths, found, strict=True)
                if node
            }
            if reasons
            else {}
        )
        told = Report(self.id, tuple(self.completed_jobs), tuple(failed), why)
        if reasons:
            self._told = told
        return told

    @property
    def kept_report(self) -> dict[str, Any] | None:
        """Return the last report sent: ``last_modified``, ``failed_jobs``, ``successful_jobs``; None if there was
        none."""
        path = f"{self.path}/status-report"
        found = self._tree.find(path)
        return None if found is None else nodes.decode_node(path, found.data)

    def _keep(self, told: Report) -> Op:
        path = f"{self.path}/status-report"
        data = encode_node(path, told.kept(self._tree.now()))
        return Set(path, data) if self._tree.find(path) else Create(path, data)

    # --- loading, removing --------------------------------------------------------------------------------------------

    def load(self) -> Batch:
        """Read it.

        Raises:
            NodeInvalid: a node is missing or malformed.
        """
        self._status()
        _ = self.submission
        return self

    def delete(self) -> None:
        """Remove it with its jobs and its place among the uuids. Killed in the middle, it can be done again.

        Raises:
            StateError: it is in no final state.
            NodeInvalid: it was removed, or is damaged, or one of its jobs is.
        """
        self._refuse_unless_final(self._status())
        for name in JobList:
            for job in self._jobs(name):
                Job(self._tree, job).remove()
        super().delete()

    def _gone(self, now: StatusNode) -> list[Op]:
        inside = [path for path, _ in self._tree.store.walk(self.path)]
        return [
            Check(f"{self.path}/status", now.node.version),
            *self._forget_uuid(),
            *(Delete(path) for path in reversed(inside)),
        ]

    def _forget_uuid(self) -> list[Op]:
        uuid = submission_uuid(self.submission)
        if not uuid:
            return []
        try:
            path = f"{BATCH_UUIDS}/{node_name(uuid)}"
        except UsageError as e:
            raise NodeInvalid(f"{self.path}/submission", str(e)) from None
        found = self._tree.find(path)
        return [Delete(path)] if found and found.data == self.id.encode() else []


class _NotYet(Exception):
    """There are jobs at work."""
