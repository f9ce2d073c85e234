"""Crash points: a name for every durable step of the protocol, and the means to kill a process exactly there.

Code calls ``crash.point("commit.ready")`` between two durable writes. In normal runs ``point`` does nothing: it is one
call of an empty function. A test arms one point: in this process with ``arm``, in subprocesses with the environment
variable ``FERRYMAN_CRASH`` (``name``; ``name:3`` for the third time it is reached; ``name@FILE`` to die only once over
all processes). The process kills itself there with SIGKILL, which nothing can catch. The crash test is parametrized
over ``POINTS``: a point that is never reached fails.

This module imports nothing of Ferryman, so that everything may import it.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"

POINTS: Final[dict[str, str]] = {
    # making a state, taking it over
    "create.table": DRIVER,
    "plan.kept": DRIVER,
    "create.state": DRIVER,
    "epoch.logged": DRIVER,
    "epoch.synced": DRIVER,
    "epoch.table": DRIVER,
    "version.fenced": DRIVER,
    "version.logged": DRIVER,
    "version.synced": DRIVER,
    "version.built": DRIVER,
    "recover.settled": DRIVER,
    "version.staged": DRIVER,
    "version.adopted": DRIVER,
    "sweep.table": DRIVER,
    # operator commands
    "command.queued": DRIVER,
    "command.staged": DRIVER,
    "command.done": DRIVER,
    # 1 scan
    "scan.listed": DRIVER,
    "scan.judged": DRIVER,
    # 2 transform
    "transform.outbox": EXECUTOR,
    "transform.documents": EXECUTOR,
    "transform.ledger": EXECUTOR,
    "transform.staged": EXECUTOR,
    "transform.done": DRIVER,
    # 3 commit
    "commit.ready": DRIVER,
    "wave.logged": DRIVER,
    "wave.synced": DRIVER,
    # 4 deliver
    "deliver.claimed": EXECUTOR,
    "deliver.sent": EXECUTOR,
    "deliver.noted": EXECUTOR,
    "deliver.part": EXECUTOR,
    "deliver.result": EXECUTOR,
    "deliver.hung": EXECUTOR,
    "deliver.done": DRIVER,
    # 5 settle
    "settle.closed": DRIVER,
    "settle.repair": EXECUTOR,
    "settle.repaired": DRIVER,
    "ledger.logged": DRIVER,
    "ledger.synced": DRIVER,
    "documents.logged": DRIVER,
    "documents.synced": DRIVER,
    "settle.rewrite": EXECUTOR,
    "settle.rewritten": DRIVER,
    "settle.trimmed": DRIVER,
    "outbox.logged": DRIVER,
    "outbox.synced": DRIVER,
    # between waves
    "outdated.staged": DRIVER,
    "outdated.logged": DRIVER,
    "outdated.synced": DRIVER,
    "compact.staged": DRIVER,
    "compact.logged": DRIVER,
    "compact.synced": DRIVER,
    "compact.removed": DRIVER,
    "checkpoint.made": DRIVER,
    "checkpoint.trimmed": DRIVER,
    # once a run
    "counted.staged": DRIVER,
    "counted.kept": DRIVER,
    "counted.logged": DRIVER,
    "counted.synced": DRIVER,
    "runs.kept": DRIVER,
    # notifications, once a run or a period
    "notify.sent": DRIVER,
    "notify.kept": DRIVER,
}
"""Name of each point -> where it is (driver or executor), in the order of a run. ``x.logged`` and
``.synced`` follow the steps of one commit (``storage.delta.DeltaLog.commit``); x is the commit's purpose."""

KEYED: Final[dict[str, str]] = {
    "create.keyed": DRIVER,
    "update.grouped": EXECUTOR,
    "update.staged": EXECUTOR,
    "update.result": EXECUTOR,
    "update.done": DRIVER,
    "contributions.logged": DRIVER,
    "contributions.synced": DRIVER,
    "state.logged": DRIVER,
    "state.synced": DRIVER,
    "exports.logged": DRIVER,
    "exports.synced": DRIVER,
}
"""Additional points of plans that keep state by key: when their tables are created, in 4, and in 5."""

RESET: Final[dict[str, str]] = {
    "reset.staged": DRIVER,
}
"""Additional points of a run that empties states by key, before its first scan; the rest is an ordinary wave."""

STOPS: Final[dict[str, str]] = {
    "stop.staged": DRIVER,
}
"""Additional points of plans that stop before an entry of a log, in 2; the rest is an ordinary wave."""

VERIFY: Final[dict[str, str]] = {
    "targets.recorded": DRIVER,
    "verified.recorded": DRIVER,
    "adopt.accepted": DRIVER,
}
"""Additional points of a run whose targets have identities, in 4 or at its end, and of ``verify`` and ``adopt``; a
repair is an operator's command."""

MEMORY: Final[dict[str, str]] = {
    "memory.kept": DRIVER,
    "memory.written": DRIVER,
}
"""Additional points of the last wave of a scan whose sources have a memory, between 2 and 3."""

CHANGES: Final[dict[str, str]] = {
    "changes.published": DRIVER,
    "changes.slot": DRIVER,
    "changes.advanced": DRIVER,
    "changes.copied": EXECUTOR,
    "changes.released": DRIVER,
    "changes.dropped": DRIVER,
}
"""Additional points of plans that follow tables of PostgreSQL: in 1, the publication is there; the slot is there, and
no bookmark names it; the slot begins at the position of the last commit; a table was listed whole. After 3: the slot
was advanced to what was committed. The last one is in ``plan remove``: the slot is gone, its publication is not."""

STREAM: Final[dict[str, str]] = {
    "stream.rows": DRIVER,
    "stream.record": DRIVER,
    "stream.noted": DRIVER,
}
"""Additional points of plans that read a stream: before a batch's first wave, and after its last."""

REMEMBERED: Final[dict[str, str]] = {
    "remembered.begun": EXECUTOR,
    "remembered.answered": EXECUTOR,
    "remembered.staged": DRIVER,
    "remembered.logged": DRIVER,
    "remembered.synced": DRIVER,
    "remembered.folded": DRIVER,
    "remembered.forgotten": DRIVER,
}
"""Additional points of plans with steps that remember: a call in 2, and between waves the commit that moves what tasks
have noted into the table of answers. The last one is in ``remembered forget``."""

ONCE: Final[dict[str, str]] = {
    "intake.logged": DRIVER,
    "intake.synced": DRIVER,
    "once.begun": EXECUTOR,
    "once.noted": EXECUTOR,
    "once.walked": EXECUTOR,
    "once.kept": EXECUTOR,
    "once.stopped": EXECUTOR,
    "once.rebuilt": EXECUTOR,
}
"""Additional points of at-most-once plans, between 1 and 2: the commit that takes entries, and a task of it. The last
two are in a later run of a task that was killed: an executor's, or that of the driver that recovers its wave."""

KAFKA: Final[dict[str, str]] = {
    "kafka.marks": DRIVER,
    "kafka.fenced": DRIVER,
    "kafka.opened": EXECUTOR,
    "kafka.sending": EXECUTOR,
    "kafka.sent": EXECUTOR,
    "kafka.committed": EXECUTOR,
}
"""Additional points of deliveries to Kafka, in 4: the topic of marks is there; the transactions of earlier passes have
ended; a lane has its transactional id; half of a chunk is handed to the client; all of it is sent, not committed; it is
committed, and no outcome recorded."""

FILES: Final[dict[str, str]] = {
    "files.reserved": EXECUTOR,
    "files.uploaded": EXECUTOR,
    "files.placed": EXECUTOR,
    "files.recorded": EXECUTOR,
    "files.merged": DRIVER,
}
"""Additional points of deliveries to folders, in 4: names are reserved; a file is complete under another name, or the
files of a chunk are; they have their names, which the index does not have; the index has all, and no outcome is
recorded. The last one is after a run: files of an index are merged, and the older ones are still there."""

MIRROR: Final[dict[str, str]] = {
    "mirror.planned": DRIVER,
    "mirror.made": DRIVER,
    "mirror.sent": DRIVER,
    "mirror.kept": DRIVER,
}
"""Additional points of plans with a mirror, in a thread beside all others, and of ``ferryman ledger export``: which
deliveries are sent as BATCHED is recorded; a keyspace has its tables; rows are sent; the position is after them."""

IMPORT: Final[dict[str, str]] = {
    "import.staged": DRIVER,
}
"""Additional points of ``ferryman import-jesterj``, before the commit of the first wave."""

WRITTEN: Final[dict[str, str]] = {
    name.replace(".logged", ".written"): who
    for name, who in {**POINTS, **KEYED, **RESET, **ONCE, **VERIFY, **REMEMBERED}.items()
    if name.endswith(".logged")
}
"""One more point of each commit: its entry is synced under a temporary name and has not taken effect."""

INTAKE: Final[dict[str, str]] = {
    "batch.planned": "the objects of a batch are stored in the working space, no job exists yet",
    "batch.job": "some more jobs exist",
    "batch.made": "every job exists, the batch does not say so yet",
    "job.listed": "the list of its files is in the working space",
    "job.estimated": "its size is known, the job has not moved",
    "job.fetched": "one file is complete",
    "job.inventory": "all files are complete and listed, the job does not say where, and has not moved",
    "jobs.moved": "some jobs have moved together, and nobody has continued with them",
    "job.waved": "its documents are settled, the outcome of the job is not decided",
    "job.judged": "the outcome of the job is decided, the job has not moved",
    "job.kept": "its originals are stored, the job does not say where, and has not moved",
    "job.recorded": "what was delivered is known, and recorded if its object has a primary id; the job has not moved",
    "job.told": "its submitter was notified, the job has not moved",
    "batch.told": "its submitter has the report, the batch has not moved",
    "access.bundled": "a bundle is complete, the request does not say so",
}
"""Durable steps of the intake service, in the order of a batch's life -> the state after a kill there."""

AT_WORK: Final[dict[str, str]] = {
    "work.begun": "it is recorded that a job or batch is at work, nothing is done yet: it is isolated next",
    "work.died": "a child process died over it, which is not counted",
    "work.counted": "the death is counted, the job has not failed if it was the last: it is isolated again",
    "work.ended": "it is not at work any more, and has not moved: it is done again",
}
"""Durable steps around the work of a stage, and of creating a batch's jobs -> the state after a kill there."""

MINTED: Final[dict[str, str]] = {
    "minted.noted": "what a document's identifiers are is noted in the working space, its delivery is not",
    "minted.moved": "some jobs have their identifiers and have moved to Storing; all of it was one change",
}
"""Durable steps of ``JobIdentifiers`` -> the state after a kill there."""

EDITED: Final[dict[str, str]] = {
    "requeue.checked": "the operator's correction is checked, and the job is as it was",
    "requeue.moved": "the job has its correction and has moved; both were one change, and nobody was told",
}
"""Steps of ``ferryman intake requeue`` with a correction -> the state after a kill there."""

QUEUES: Final[dict[str, str]] = {
    "queue.built": "a queue lies complete under a temporary name",
    "queue.named": "it has its name, which may not be durable",
    "queue.made": "the queue is there, and empty",
    "append.staged": "the messages are in a file that no entry names",
    "append.written": "so they are, and the entry is under a temporary name",
    "append.logged": "the append has taken effect; the name of its entry may not be durable",
    "append.synced": "the append is done, its indices were not returned",
    "tailer.noted": "a tailer stands behind what it has not yet returned",
    "keys.kept": "keys of appends are in a file of their own, and still in the log",
    "keys.merged": "keys, or rows that were trimmed, are in two files, the older ones of which are not needed",
    "merge.staged": "merged messages are in a file that no entry names",
    "merge.written": "so they are, and the entry is under a temporary name",
    "merge.logged": "the merged file is in place of the small ones",
    "merge.synced": "the same; the small ones are still there",
    "merge.removed": "the small ones are gone",
    "checkpoint.made": "a log with entries that are not needed",
    "checkpoint.trimmed": "a short log",
    "trim.staged": "what stays of a file that is trimmed is in a file that no entry names",
    "trim.written": "the same, and the entry is under a temporary name",
    "trim.logged": "the oldest messages are gone",
    "trim.synced": "the same; their files are still there",
    "trimmed.kept": "which rows a writer may append again is in a file of its own, and they are still messages",
    "queue.renamed": "a deleted queue has no name any more",
    "queue.removed": "its files are gone",
}
"""Durable steps of a queue -> the state after a kill there. (The points above are reached by plans.)"""

TARGETS: Final[dict[str, str]] = {
    "target.made": "the store has its table or collection, with nothing in it",
    "target.written": "a chunk is in the store, nobody was told",
    "target.indexed": "an index was made, the table is not compacted",
    "target.compacted": "the table is compacted; what was written stays as it was",
}
"""Durable steps in the stores of ``LanceDB``, ``Milvus``, ``Qdrant`` and ``Cassandra`` -> the state after a kill
there."""

ENVIRONMENT: Final = "FERRYMAN_CRASH"

_armed: dict[str, tuple[int, str | None, int]] = {}
"""Point -> (times left to reach it, file created at the kill, signal)."""


def arm(spec: str, once_file: str | None = None, by: int = signal.SIGKILL) -> None:
    """Arm ``name`` or ``name:n`` (die when it is reached for the n-th time). With ``once_file`` the kill happens once
    over all processes: the file is created at the kill, and once it exists the point does nothing. With ``by`` SIGSTOP
    the process does not die, but stops there until it is continued."""
    name, _, count = spec.partition(":")
    plans = (
        POINTS,
        KEYED,
        RESET,
        STOPS,
        MEMORY,
        CHANGES,
        STREAM,
        ONCE,
        VERIFY,
        REMEMBERED,
        TARGETS,
        KAFKA,
        FILES,
        MIRROR,
        IMPORT,
        WRITTEN,
    )
    known = [name for group in (*plans, INTAKE, AT_WORK, MINTED, EDITED, QUEUES) for name in group]
    if name not in known:
        raise KeyError(f"no crash point {name!r}; there are {', '.join(known)}")
    _armed[name] = (int(count or 1), once_file, by)


def disarm() -> None:
    """Disarm all points in this process."""
    _armed.clear()


def point(name: str) -> None:
    """Mark a place between two durable steps; kill this process if the point is armed."""
    if _armed:
        _reach(name)


def _reach(name: str) -> None:
    if name not in _armed:
        return
    left, once_file, by = _armed[name]
    if left > 1:
        _armed[name] = (left - 1, once_file, by)
        return
    if once_file is not None:
        try:
            os.close(os.open(once_file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    stop_here(by)


def stop_here(by: int) -> None:
    """Send this process a signal that kills or stops it, and do nothing more.

    The signal is sent to the calling thread: one for the whole process may be handled by another thread, and this one
    runs on until that is scheduled.
    """
    signal.pthread_kill(threading.get_ident(), by)


def arm_by_environment() -> None:
    """Arm the point that the environment variable names, if it is set."""
    if os.environ.get(ENVIRONMENT):  # only in processes that are about to die
        spec, _, file = os.environ[ENVIRONMENT].partition("@")
        arm(spec, file or None)


arm_by_environment()
