"""Stages: the work of each job state except Processing, which runs the plan; and the settings that they are made from.

A stage's ``work`` takes a locked job and returns the result of its move to the next state. All of it can be repeated.
For the consequences of exceptions see ``workers``.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from ferryman import crash
from ferryman.errors import PermanentError
from ferryman.intake import Job, JobQueue, JobState, overview
from ferryman.intake import job as inventory
from ferryman.intake.job import StoredFile
from ferryman.intake.nodes import PRIORITY_IN_NAME_MAX
from ferryman.intake.service import workspace
from ferryman.intake.service.errors import StopRequested, TryLater
from ferryman.intake.service.fetch import (
    LOWEST_RATE,
    PROMPT_S,
    FetchedFile,
    Fetcher,
    SlowHosts,
    check_file,
    fetch_in_parallel,
)
from ferryman.intake.service.finisher import UnsyncedFiles
from ferryman.intake.service.manifest import ManifestEntry
from ferryman.intake.service.payload import OBJECT_LIST, entries_of, inventory_fields, is_container, refuse_bad_names
from ferryman.intake.service.reports import BatchReports, Callback, Mail
from ferryman.intake.service.workspace import FULL_SHARE, Workspace
from ferryman.net.allowed_addresses import NOTHING_PRIVATE, Reach
from ferryman.storage import disk

UNKNOWN_SIZE_PENALTY: Final = 10
"""Added to the priority number of a job whose size is unknown, so that others go first: it may be large."""

UNPACK_FACTOR: Final = 4
"""Estimated space that a container needs, as a multiple of its size: the container and its files, with typically
compressed text."""

RECOUNT_S: Final = 1.0
"""Seconds between recounts of the space promised to jobs, since other processes promise space, too."""

RECOUNT_FACTOR: Final = 10
"""Minimum pause between two recounts, as a multiple of a recount's duration, which is long with ten thousand jobs."""

PARALLEL_FETCHES: Final = 4
"""Files of a job that are fetched at once, since a server usually gives each connection a share."""

QUICK_FILES: Final = 16
QUICK_BYTES: Final = 1 << 20
"""Largest job of local files, in bytes, that is downloaded by the thread that moved it to this state."""

CONTAINER_FILE: Final = "container"
"""File name of a container until it is unpacked."""


class StageResult(NamedTuple):
    """Outcome of a stage: the job moves on, with these changes."""

    message: str = ""
    priority: int | None = None
    """The job's new priority; None: unchanged."""
    values: Mapping[str, Mapping[str, Any]] | None = None
    """JSON nodes to replace with the move, by name."""
    space_needed: int | None = None
    """Bytes of working space that the job needs; None: unchanged."""
    obsolete_file: Path | None = None
    """File to remove after the job has moved."""
    steps: tuple[UnsyncedFiles, ...] = ()
    """Steps to finish before the move, each after its files are durable."""


class JobStage:
    """The work for jobs in one state."""

    state: ClassVar[JobState]
    isolates: ClassVar[bool] = True
    """Whether the work is done in a child process if a process may have died of it."""

    def is_open(self) -> bool:
        """Return whether jobs in this state can be worked on at all now."""
        return True

    def is_quick(self, job: Job) -> bool:
        """Return whether the work for a job that is in this state, or about to enter it, takes only milliseconds: no
        server is contacted, and little is written."""
        return False

    def work(self, job: Job) -> StageResult:
        """Do the work of this state for a job.

        Raises:
            PermanentError, TransientError: the work failed with this reason; an operator decides.
            TryLater: the work cannot be done now.
            StopRequested.
            LockLost, NodeInvalid, StateError: the job was taken away, or is damaged.
        """
        raise NotImplementedError


class Pending(JobStage):
    """Checks what was submitted, and reads the manifest into the working space. A corrupt one fails the job
    permanently."""

    state: ClassVar[JobState] = JobState.PENDING

    def __init__(self, work: Workspace, fetcher: Fetcher, callback: Callback, time_s: float = 0.0) -> None:
        self._work, self._fetcher, self._callback, self._time_s = work, fetcher, callback, time_s

    def is_quick(self, job: Job) -> bool:
        return OBJECT_LIST in job.configuration

    def work(self, job: Job) -> StageResult:
        refuse_bad_names(job)
        self._callback.check(job.configuration)
        files = len(entries_of(job, self._work, self._fetcher.with_deadline(self._time_s)))
        crash.point("job.listed")
        return StageResult(f"{files} {'file' if files == 1 else 'files'}")


class Estimating(JobStage):
    """Asks servers for the sizes of the job's files. An unknown size makes the job less urgent, but never fails it."""

    state: ClassVar[JobState] = JobState.ESTIMATING

    def __init__(self, work: Workspace, fetcher: Fetcher) -> None:
        self._work, self._fetcher = work, fetcher

    def is_quick(self, job: Job) -> bool:
        return all(e.size is not None or _is_local(e) for e in entries_of(job, self._work, self._fetcher))

    def work(self, job: Job) -> StageResult:
        entries = entries_of(job, self._work, self._fetcher)
        sizes = [entry.size if entry.size is not None else self._fetcher.ask_size(entry.url) for entry in entries]
        needed = sum(size for size in sizes if size is not None) * (UNPACK_FACTOR if is_container(job) else 1)
        crash.point("job.estimated")
        unknown = sum(size is None for size in sizes)
        if not unknown:
            return StageResult(f"{needed} bytes of working space", space_needed=needed)
        lowered = max(job.priority, min(job.priority + UNKNOWN_SIZE_PENALTY, PRIORITY_IN_NAME_MAX))
        return StageResult(f"the size of {unknown} of {len(sizes)} files is not known", lowered, space_needed=needed)


class Provisioning(JobStage):
    """Makes a job wait until there is working space for it. A job that does not fit does not block smaller ones."""

    state: ClassVar[JobState] = JobState.PROVISIONING
    isolates: ClassVar[bool] = False  # it handles only our own numbers, and must remember what it granted

    def __init__(
        self, queue: JobQueue, work: Workspace, print_line: Callable[[str], None], full: float = FULL_SHARE
    ) -> None:
        self._queue, self._work, self._print_line, self._full = queue, work, print_line, full
        self._was_reported = False
        self._granting = threading.Lock()
        self._granted = 0
        """Bytes that were granted, and may not have been written yet."""
        self._count_at = 0.0

    def is_open(self) -> bool:
        """Return whether disk usage is below the threshold."""
        total, used = self._work.space()
        is_open = used <= total * self._full
        if not is_open and not self._was_reported:
            self._work.sweep(self._queue)
            self._print_line(
                f"{self._work.root}: {used} of {total} bytes are used, more than {self._full:.0%}: jobs wait in "
                "Provisioning. Make room, or serve with --work on another disk or with a higher --full."
            )
        self._was_reported = not is_open
        return is_open

    def is_quick(self, job: Job) -> bool:
        return True

    def work(self, job: Job) -> StageResult:
        needed = job.space_needed
        total, used = self._work.space()
        limit = int(total * self._full)
        if needed > limit:
            raise PermanentError(
                f"it needs {needed} bytes of working space, and {self._work.root} has {limit} at most. Serve the queue "
                "with --work on a larger disk."
            )
        with self._granting:
            free_bytes = limit - used - self._granted_bytes()
            if needed > free_bytes:
                raise TryLater(f"it needs {needed} bytes of working space, {max(0, free_bytes)} are free")
            self._granted += needed
        return StageResult(f"{needed} bytes of working space are free")

    def _granted_bytes(self) -> int:
        """Return the bytes that downloading jobs may still write; an upper bound, since parts of them exist already."""
        began = time.monotonic()
        if began >= self._count_at:
            self._granted = overview.space_needed(self._queue.tree, self._queue.list_jobs(JobState.DOWNLOADING))
            now = time.monotonic()
            self._count_at = now + max(RECOUNT_S, RECOUNT_FACTOR * (now - began))
        return self._granted


class Downloading(JobStage):
    """Fetches the files, several at once, checks their digests, and unpacks a container.

    1. Fetch every missing file; continue a partial file left by a kill.
    2. Once they are durable, move them to their places and publish the list of files.
    3. Once the list is durable, move the job on and record the location of the list.
    """

    state: ClassVar[JobState] = JobState.DOWNLOADING

    def __init__(
        self,
        work: Workspace,
        fetcher: Fetcher,
        stop: threading.Event,
        time_s: float = 0.0,
        full: float = FULL_SHARE,
    ) -> None:
        self._work, self._fetcher, self._stop = work, fetcher, stop
        self._time_s, self._full = time_s, full

    def is_quick(self, job: Job) -> bool:
        entries = entries_of(job, self._work, self._fetcher)
        is_small = len(entries) <= QUICK_FILES and all(map(_is_local, entries))
        return is_small and job.space_needed <= QUICK_BYTES and not is_container(job)

    def work(self, job: Job) -> StageResult:
        fetcher = self._fetcher.with_deadline(self._time_s)
        entries = entries_of(job, self._work, fetcher)
        try:
            files, fetched, note = self._fetch(job, entries, fetcher)  # 1
        except OutOfSpace:
            self._work.drop(job.id)
            raise
        size = sum(each.size for each in files)
        message = f"{len(files)} {'file' if len(files) == 1 else 'files'}, {size} bytes{note}"
        folder = self._work.job(job.id)
        values = inventory.inventory_values(folder / inventory.INVENTORY_NAME, files)
        return StageResult(
            message,
            values={"inventory": {**values, **inventory_fields(job, values["url"])}},
            obsolete_file=folder / CONTAINER_FILE if is_container(job) else None,
            steps=self._steps(job, folder, files, fetched),
        )

    def _fetch(
        self, job: Job, entries: list[ManifestEntry], fetcher: Fetcher
    ) -> tuple[list[StoredFile], list[FetchedFile], str]:
        """Return the job's files, those of them that still have to be published, and what to add to the message."""
        budget = SpaceBudget(self._work, self._full, job.space_needed)

        def reserve(size: int) -> None:
            _refuse_lost(job)  # before each write: whoever has the job now writes to the same files
            budget.reserve(size)

        fetcher = fetcher.with_reservation(reserve)
        if is_container(job):
            files, left_out = self._fetch_and_unpack(job, entries, fetcher, reserve)
            return files, [], f"; {left_out} files of the macOS Finder are left out" if left_out else ""
        fetched = self._fetch_files(job, entries, fetcher)
        pairs = zip(entries, fetched, strict=True)
        files = [StoredFile(e.path, one.content.size, one.content.sha256, e.url, e.fields) for e, one in pairs]
        return files, fetched, ""

    def _steps(
        self, job: Job, folder: Path, files: list[StoredFile], fetched: list[FetchedFile]
    ) -> tuple[UnsyncedFiles, ...]:

        def publish() -> None:  # 2
            _refuse_lost(job)
            try:
                for one in fetched:
                    one.publish()
            except FileNotFoundError:  # unlocked by an operator, and another thread had the same files: check
                raise TryLater("another one has its files", 0.0) from None
            inventory.write_inventory(folder, files, synced=False)

        parts = tuple(one.part for one in fetched if one.part is not None)
        folders = _folders_below([one.target for one in fetched], folder)
        return (
            UnsyncedFiles(parts, (), publish),
            UnsyncedFiles(
                (folder / inventory.INVENTORY_NAME,),
                (*folders, folder, folder.parent),
                partial(crash.point, "job.inventory"),
            ),
        )

    def _fetch_files(self, job: Job, entries: list[ManifestEntry], fetcher: Fetcher) -> list[FetchedFile]:
        folder = self._work.files(job.id)

        def fetch(entry: ManifestEntry) -> FetchedFile:
            _refuse_lost(job)
            return fetcher.fetch_unsynced(entry.url, folder / entry.path, entry.digest, entry.size)

        return fetch_in_parallel(fetch, entries, PARALLEL_FETCHES)

    def _fetch_and_unpack(
        self, job: Job, entries: list[ManifestEntry], fetcher: Fetcher, reserve: Callable[[int], None]
    ) -> tuple[list[StoredFile], int]:
        """Return the files of the container, and how many were left out."""
        (entry,) = entries
        container = self._work.job(job.id) / CONTAINER_FILE
        fetcher.fetch_file(entry.url, container, entry.digest, entry.size)
        folder = self._work.files(job.id)
        left_out = workspace.unpack(container, folder, self._raise_if_stopping, name=entry.path, reserve=reserve)
        disk.fsync_tree(folder)
        files = []
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            checked_file = check_file(entry.url, path, "", None)
            files.append(StoredFile(path.relative_to(folder).as_posix(), *checked_file, entry.url, entry.fields))
        return files, left_out

    def _raise_if_stopping(self) -> None:
        if self._stop.is_set():
            raise StopRequested


class Storing(JobStage):
    """Handles delivered documents: originals are kept or dropped. An operator can lock an object to keep its jobs in
    this state."""

    state: ClassVar[JobState] = JobState.STORING

    def __init__(self, queue: JobQueue, work: Workspace, keep: bool = True) -> None:
        self._queue, self._work, self._keep = queue, work, keep

    def is_quick(self, job: Job) -> bool:
        files = job.inventory.get("files")
        return isinstance(files, int) and files <= QUICK_FILES

    def work(self, job: Job) -> StageResult:
        name = _object_name(job)
        if name and self._queue.locks.check("storage", name):
            raise TryLater(f"{name} is locked in the store")
        working_folder, originals = self._work.job(job.id), self._work.originals(job.id)
        if not self._keep:
            return StageResult("its originals are not kept")
        kept = originals / inventory.INVENTORY_NAME
        if (working_folder / inventory.INVENTORY_NAME).exists():
            (working_folder / CONTAINER_FILE).unlink(missing_ok=True)  # left by a kill
            _replace_folder(originals, working_folder)
        try:
            files = list(inventory.read_inventory(kept))
        except FileNotFoundError:
            files = []
        if not files:
            return StageResult("its originals are not on a disk here")

        values = inventory.inventory_values(kept, files)
        return StageResult(
            f"{len(files)} originals are kept",
            values={"store": {**values, **inventory_fields(job, values["url"])}},
            steps=(UnsyncedFiles((), (originals.parent, working_folder.parent), partial(crash.point, "job.kept")),),
        )


class Recording(JobStage):
    """Records the deliveries in the job."""

    state: ClassVar[JobState] = JobState.RECORDING
    isolates: ClassVar[bool] = False  # it handles only our own nodes

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def is_quick(self, job: Job) -> bool:
        return True

    def work(self, job: Job) -> StageResult:
        name, url = _object_name(job), job.store.get("url")
        values = {**job.inventory, **({"url": url, "manifest_url": url} if url else {})}
        if name:
            if not self._queue.locks.lock("inventory", name):
                raise TryLater(f"{name} is being recorded by another process")
            try:
                job.set_inventory(values)
            finally:
                self._queue.locks.unlock("inventory", name)
        crash.point("job.recorded")
        return StageResult() if name else StageResult(values={"inventory": values})


class Notify(JobStage):
    """Notifies the submitter, if the job has a URL for that."""

    state: ClassVar[JobState] = JobState.NOTIFY

    def __init__(self, work: Workspace, callback: Callback) -> None:
        self._work, self._callback = work, callback

    def is_quick(self, job: Job) -> bool:
        return not job.configuration.get("response_url")

    def work(self, job: Job) -> StageResult:
        configuration = job.configuration
        content: dict[str, Any] = {
            "id": f"{job.id}/{job.retry_count}",
            "job": job.id,
            "batch": job.batch_id,
            "jobID": configuration.get("jobID"),
            "status": "Completed",
            "files": job.inventory.get("files"),
            "bytes": job.inventory.get("bytes"),
            **job.identifiers,
        }
        is_sent = self._callback.send(configuration, content)
        crash.point("job.told")
        self._work.drop(job.id)
        return StageResult("its submitter was notified" if is_sent else "")


def _refuse_lost(job: Job) -> None:
    """
    Raises:
        TryLater: the lock of the job is lost, so that another process may be working on it.
    """
    if not job.locked:
        raise TryLater("its lock is lost")


def _is_local(entry: ManifestEntry) -> bool:
    return entry.url.startswith("file:")


def _object_name(job: Job) -> str:
    """Return the object's name for locks; "" if the submitter gave none."""
    return str(job.identifiers.get("primary_id") or "")


def _replace_folder(folder: Path, new: Path) -> None:
    """Put a new folder in the place of another one, if there is one: a single step then, since nobody else has it.

    Raises:
        TryLater: another process, which has the lock now, was faster; nothing was changed.
    """
    aside = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")  # a kill leaves it to ``Workspace.sweep``
    with suppress(FileNotFoundError):
        folder.rename(aside)
    try:
        new.rename(folder)
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            aside.rename(folder)
        raise TryLater("another one has stored its originals", 0.0) from None
    shutil.rmtree(aside, ignore_errors=True)


def _folders_below(paths: Iterable[Path], below: Path) -> list[Path]:
    """Return the folders of these paths that are below ``below``, sorted."""
    found: set[Path] = set()
    for path in paths:
        folder = path.parent
        while folder != below and folder not in found:
            found.add(folder)
            folder = folder.parent
    return sorted(found)


# How much working space a single job may use, since its size is known only after it was fetched.


class OutOfSpace(PermanentError):
    """Raised if a job turns out larger than expected and the disk is too full for it."""


class SpaceBudget:
    """Working space that a job in Downloading may use.

    The sizes reported by servers may be missing or wrong, and a container may unpack to any size. A job may always
    write as much as Provisioning has granted, and more only while the disk is below the threshold of Provisioning. So
    no job can take the space of all others.

    Args:
        full: share of used disk space above which no job is provisioned.
        granted: bytes granted by Provisioning.
    """

    def __init__(self, work: Workspace, full: float, granted: int) -> None:
        self._work, self._full, self._granted = work, full, granted
        self._written = 0
        self._counting = threading.Lock()

    def reserve(self, size: int) -> None:
        """Count bytes that are about to be written.

        Raises:
            OutOfSpace.
        """
        with self._counting:
            self._written += size
            if self._written <= self._granted:
                return
        total, used = self._work.space()
        if used > total * self._full:
            raise OutOfSpace(
                f"it has more than the {self._granted} bytes that were known of, and {self._work.root} is more than "
                f"{self._full:.0%} full. Make room and requeue it, or serve the queue with --work on a larger disk."
            )


# --- settings of `serve`, and the stages made from them, in this process or in a child process ---

THREADS: Final = 4
"""Threads per state. In most states a job waits for a disk or a server rather than for the processor."""


JOB_TIME_S: Final = 6 * 3600.0
"""Seconds in which all files of a job must be fetched: enough for 20 GB at a megabyte per second."""


@dataclass(frozen=True)
class Serving:
    """Settings of ``serve``.

    Attributes:
        work: the working space; every process that serves this queue, and every Spark worker, sees it at this path.
        threads: number of threads per state.
        keep_originals: keep delivered files in the working space, for access requests.
        full: share of used disk space above which no job is provisioned.
        once: end when nothing is left to do.
        reach: addresses and files that URLs from submitters and in documents may lead to.
        report_secret: secret for signing reports, as for webhooks; None: they are not signed.
        smtp: URL of a mail server, by which submitters that are e-mail addresses receive reports; None: they receive
            none.
        lowest_rate: minimum transfer rate of a submitter's server, in bytes per second.
        job_time_s: maximum time for fetching all files of a job, or a manifest, in seconds; 0: no limit.
        prompt_s: seconds after which a host that keeps a job waiting counts as slow.
    """

    work: Path
    threads: int = THREADS
    keep_originals: bool = True
    full: float = FULL_SHARE
    once: bool = False
    reach: Reach = NOTHING_PRIVATE
    report_secret: str | None = None
    lowest_rate: float = LOWEST_RATE
    job_time_s: float = JOB_TIME_S
    prompt_s: float = PROMPT_S
    smtp: str | None = None

    def fetcher(self, stop: threading.Event, slow: SlowHosts | None = None) -> Fetcher:
        """Return a fetcher of submitters' files; with ``slow``, it does not wait for slow hosts."""
        return Fetcher(stop, reach=self.reach, lowest_rate=self.lowest_rate, slow=slow)

    def callback(self, stop: threading.Event, slow: SlowHosts | None = None) -> Callback:
        """Return a callback to submitters; with ``slow``, it does not wait for slow receivers."""
        return Callback(stop, reach=self.reach, secret=self.report_secret, slow=slow)

    def reports(self, stop: threading.Event) -> BatchReports:
        return BatchReports(self.callback(stop), Mail(self.smtp, stop) if self.smtp else None)

    def stages(
        self,
        queue: JobQueue,
        work: Workspace,
        fetcher: Fetcher,
        callback: Callback,
        stop: threading.Event,
        print_line: Callable[[str], None],
    ) -> list[JobStage]:
        """Return the stages of all states except Processing, in order."""
        return [
            Pending(work, fetcher, callback, self.job_time_s),
            Estimating(work, fetcher),
            Provisioning(queue, work, print_line, self.full),
            Downloading(work, fetcher, stop, time_s=self.job_time_s, full=self.full),
            Storing(queue, work, self.keep_originals),
            Recording(queue),
            Notify(work, callback),
        ]
