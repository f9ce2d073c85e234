"""A batch: what a submitter has submitted, and the lists of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from ferryman.errors import UsageError
from ferryman.intake import nodes
from ferryman.intake.errors import LockLost, NodeInvalid, StateError
from ferryman.intake.items import Item, Report, StatusNode
from ferryman.intake.job import Job, check_priority, new_job_ops
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
from ferryman.intake.store.base import Check, Create, Delete, Op, Set
from ferryman.intake.tree import NodeTree

ACCEPTS_JOBS: Final = frozenset({BatchState.PENDING, BatchState.HELD, BatchState.PROCESSING})
"""States in which jobs may be added to a batch. Afterwards its report is due, or done."""

AWAITS_OPERATOR: Final = frozenset({BatchState.HELD, BatchState.FAILED})
"""States that a batch leaves only when an operator moves it. Such a move also writes to the folder of batches and so
changes its version; consumers need not read these batches again until then."""

REPORTING_STATES: Final = frozenset({BatchState.REPORTING, BatchState.UPDATE_REPORTING})
"""States in which the submitter is notified; the move out of them stores the report."""


class Batch(Item):
    """A submission and its jobs."""

    table: ClassVar[Transitions[Any]] = BATCH

    def __init__(self, tree: NodeTree, id: str) -> None:
        super().__init__(tree, id, batch_path(id))
        self._last_report: Report | None = None

    @property
    def submission(self) -> dict[str, Any]:
        """Return the submission."""
        return self._tree.json(f"{self.path}/submission")

    @property
    def processing_jobs(self) -> list[str]:
        """Return the ids of unfinished jobs, including pending and held ones."""
        return self._job_ids(JobList.PROCESSING)

    @property
    def completed_jobs(self) -> list[str]:
        return self._job_ids(JobList.COMPLETED)

    @property
    def failed_jobs(self) -> list[str]:
        return self._job_ids(JobList.FAILED)

    @property
    def deleted_jobs(self) -> list[str]:
        return self._job_ids(JobList.DELETED)

    @property
    def has_failure(self) -> bool:
        """Return whether any job has failed and was not requeued since."""
        folder = self._tree.find(batch_path(self.id, "states", JobList.FAILED))
        return folder is not None and folder.children > 0

    def _job_ids(self, name: JobList) -> list[str]:
        return self._tree.store.children(batch_path(self.id, "states", name))

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def create_job(
        self,
        configuration: Mapping[str, Any],
        priority: int = nodes.DEFAULT_PRIORITY,
        identifiers: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Job:
        """Create a pending job of this batch; it is not locked.

        Raises:
            StateError: the batch was already reported, or removed.
            NodeInvalid: the batch was removed, or is damaged.
        """
        values = {"configuration": configuration, "identifiers": identifiers or {}, "metadata": metadata or {}}
        return self.create_job_in_state(values, check_priority(priority))

    def create_job_in_state(
        self, values: Mapping[str, Mapping[str, Any]], priority: int, state: JobState = JobState.PENDING, why: str = ""
    ) -> Job:
        """Create a job in any state, for work that another system has already done. Raises as ``create_job``."""
        return self._create_jobs([(values, priority)], state, why)[0]

    def create_jobs(self, jobs: Sequence[tuple[Mapping[str, Mapping[str, Any]], int]]) -> list[Job]:
        """Create several pending jobs in one change. Raises as ``create_job``.

        Args:
            jobs: (JSON nodes by name, priority)
        """
        return self._create_jobs([(values, check_priority(priority)) for values, priority in jobs])

    def _create_jobs(
        self,
        jobs: Sequence[tuple[Mapping[str, Mapping[str, Any]], int]],
        state: JobState = JobState.PENDING,
        why: str = "",
    ) -> list[Job]:
        ids: list[str] = []

        def plan(now: StatusNode) -> list[Op]:
            if now.state not in ACCEPTS_JOBS:
                raise StateError(now.state, "another job")
            first, at = self._tree.next_number(JOBS), self._tree.now()
            ids[:] = [nodes.numbered_name("jid", number) for number in range(first, first + len(jobs))]
            folder = batch_path(self.id, "states", job_list_of(state))
            ops = [
                Check(f"{self.path}/status", now.node.version),
                *self._tree.create_missing([batch_path(self.id, "states"), folder]),
            ]
            for job_id, (values, priority) in zip(ids, jobs, strict=True):
                ops += new_job_ops(job_id, self.id, values, now=at, priority=priority, state=state, message=why)
                ops.append(Create(f"{folder}/{job_id}"))
            return ops

        if self._held_lock is None and not self._ever_held:  # others may add jobs while this process works on the batch
            self._tree.change(lambda: plan(self._read_status()))
        else:
            self._change(plan)
        return [Job(self._tree, job_id) for job_id in ids]

    # --- moves --------------------------------------------------------------------------------------------------------

    def start_processing(self) -> None:
        """Move a pending batch that this object has locked to Processing, and create the folder of its job lists."""
        self._move(lambda now: self._target_state(now, BatchState.PROCESSING), "", starting=True)

    def start_reporting(self) -> bool:
        """Move to Reporting if every job is Completed or Failed at the moment of the change. Returns whether it
        moved."""
        folder = batch_path(self.id, "states", JobList.PROCESSING)

        def plan(now: StatusNode) -> list[Op]:
            node = self._tree.find(folder)
            if node is not None and node.children:
                raise _JobsUnfinished
            after = self._target_state(now, BatchState.REPORTING)
            # A folder can be removed only while it is empty. It is removed, or missing, in the same commit, so no job
            # can be added in between.
            return [*([Delete(folder)] if node else []), Create(folder), *self._move_ops(now, after, "")]

        try:
            self._change(plan)
        except (_JobsUnfinished, StateError, LockLost):
            return False
        return True

    @property
    def jobs_made(self) -> int | None:
        """Return how many jobs were created for the submission; None until all of them are."""
        count: int | None = self._read_status().values.get("jobs_made")
        return count

    def set_jobs_made(self, jobs: int) -> None:
        """Record that all jobs of the submission were created. Raises as ``set_status``."""
        message = f"{jobs} {'job' if jobs == 1 else 'jobs'} made"
        self._move(lambda now: self._target_state(now, BatchState.PROCESSING), message, jobs_made=jobs)

    def _next_status(self, now: StatusNode, after: BatchState, message: str) -> dict[str, Any]:
        jobs_made = {"jobs_made": now.values["jobs_made"]} if "jobs_made" in now.values else {}
        return {**super()._next_status(now, after, message), **jobs_made}

    def _move_ops(
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
        ops = super()._move_ops(now, after, message)
        if starting:
            ops += self._tree.create_missing([batch_path(self.id, "states")])
        if after is not now.state and (after is BatchState.REPORTING or now.state in REPORTING_STATES):
            ops.append(self._store_report_op(self._last_report or self.report(reasons=False)))
        if after is not now.state and now.state in AWAITS_OPERATOR:
            ops.append(Set(BATCHES, self._tree.get(BATCHES).data))
        return ops

    def report(self, *, reasons: bool = True) -> Report:
        """Return the complete report as of now. The next ``success`` or ``fail`` stores the last report that was
        returned.

        ``report().since(batch.kept_report)`` is the part that is new.
        """
        failed = self.failed_jobs
        paths = [job_path(job, "status") for job in failed] if reasons else []
        status_nodes = self._tree.store.read(paths)
        reasons_by_job = (
            {
                job: str(nodes.decode_node(path, node.data).get("message") or "")
                for job, path, node in zip(failed, paths, status_nodes, strict=True)
                if node
            }
            if reasons
            else {}
        )
        report = Report(self.id, tuple(self.completed_jobs), tuple(failed), reasons_by_job)
        if reasons:
            self._last_report = report
        return report

    @property
    def kept_report(self) -> dict[str, Any] | None:
        """Return the last report sent: ``last_modified``, ``failed_jobs``, ``successful_jobs``; None if there was
        none."""
        path = f"{self.path}/status-report"
        node = self._tree.find(path)
        return None if node is None else nodes.decode_node(path, node.data)

    def _store_report_op(self, report: Report) -> Op:
        path = f"{self.path}/status-report"
        data = encode_node(path, report.as_stored(self._tree.now()))
        return Set(path, data) if self._tree.find(path) else Create(path, data)

    # --- loading, removing --------------------------------------------------------------------------------------------

    def load(self) -> Batch:
        """Read the batch, to see whether it is damaged.

        Raises:
            NodeInvalid: a node is missing or malformed.
        """
        self._read_status()
        _ = self.submission
        return self

    def delete(self) -> None:
        """Remove the batch, its jobs and its batchID. If it is killed, it can be called again.

        Raises:
            StateError: the batch is not in a final state.
            NodeInvalid: the batch was removed, or it or one of its jobs is damaged.
        """
        self._refuse_unless_final(self._read_status())
        for name in JobList:
            for job in self._job_ids(name):
                Job(self._tree, job).remove()
        super().delete()

    def _delete_ops(self, now: StatusNode) -> list[Op]:
        paths = [path for path, _ in self._tree.store.walk(self.path)]
        return [
            Check(f"{self.path}/status", now.node.version),
            *self._forget_uuid_ops(),
            *(Delete(path) for path in reversed(paths)),
        ]

    def _forget_uuid_ops(self) -> list[Op]:
        """Return the operations that remove the batchID that leads here. If the submission is damaged, all batchIDs are
        read."""
        try:
            uuid = submission_uuid(self.submission)
            paths = [f"{BATCH_UUIDS}/{node_name(uuid)}"] if uuid else []
        except (NodeInvalid, UsageError):
            paths = [f"{BATCH_UUIDS}/{name}" for name in self._tree.store.children(BATCH_UUIDS)]
        found = zip(paths, self._tree.store.read(paths), strict=True)
        return [Delete(path) for path, node in found if node and node.data == self.id.encode()]


class _JobsUnfinished(Exception):
    """Some jobs of the batch are neither Completed nor Failed."""
