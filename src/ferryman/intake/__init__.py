"""The intake queue: batches that submitters submit, their jobs, access requests, locks.

``JobQueue.open(url)`` is the entry point; all other objects are obtained from a ``JobQueue``.
"""

from ferryman.intake.audit import AuditFinding
from ferryman.intake.batch import Batch
from ferryman.intake.errors import BatchExists, ItemLocked, LockLost, NodeInvalid, QueueLost, QueueRefused, StateError
from ferryman.intake.items import Assembly, Report
from ferryman.intake.job import Job
from ferryman.intake.queue import Cleanup, JobQueue
from ferryman.intake.states import AccessState, BatchState, JobState
from ferryman.intake.tree import Locks

__all__ = [
    "AccessState",
    "Assembly",
    "AuditFinding",
    "Batch",
    "BatchExists",
    "BatchState",
    "Cleanup",
    "ItemLocked",
    "Job",
    "JobQueue",
    "JobState",
    "LockLost",
    "Locks",
    "NodeInvalid",
    "QueueLost",
    "QueueRefused",
    "Report",
    "StateError",
]
