"""Source ``Jobs``: documents of the intake queue's jobs."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b, sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from ferryman import limits
from ferryman.document import Document, encode_fields
from ferryman.errors import BadDocument, TransientError, UsageError, plain_text
from ferryman.intake import Job, JobQueue, QueueLost
from ferryman.intake import job as inventory
from ferryman.intake.job import FILES_FOLDER, StoredFile
from ferryman.intake.overview import count_jobs
from ferryman.net import relative_paths
from ferryman.sources.base import Detect, Listed, Source

UNQUOTED: Final = "!$&'()+,;=:@~ "
"""Characters that are not encoded in a part of an id. A slash separates parts, and ``#`` a child's key."""


class JobPartition(NamedTuple):
    """The part of a listing that belongs to one job."""

    job: str
    list: str
    """Path of the job's list of files."""
    name: str
    """Prefix of its documents' ids."""
    fields: str
    """Fields that all of its documents share, as JSON."""
    batch: str


class Jobs(Source):
    """Every file of every job in state Processing, as a document: its bytes are ``raw``.

    Use ``plan.source("jobs", Jobs())`` in a plan for ``ferryman intake serve``, which sets the queue; ``Jobs(queue)``
    or ``Jobs("sqlite:///queue.db")`` runs a plan over a queue without it, so that nothing moves the jobs to their next
    state.

    **Ids** are ``LOCAL_ID/PATH``, below the collection if the job has one (``COLLECTION/LOCAL_ID/PATH``), so that a
    file that is submitted again replaces its earlier version; for a job without a local id, the job's id is used
    instead. Special characters in a part are percent-encoded, including slashes in a local id:
    ``books/ark:%2Faaa%2F111/page 1.txt``.

    **Fields**: ``local_id``, ``primary_id``, ``collection``, ``path``, the job's metadata (``erc_who`` …), and what the
    manifest says of the file. Job and batch are not among them, so that the same object in another batch counts as
    unchanged.

    **Nothing is deleted**: a finished job is no longer listed, but its documents stay at their destinations, even those
    of files that the object no longer has when it is submitted again. Of two jobs for the same object, the one that is
    acquired first is listed, and the other one after it is finished.

    **Bad objects**: if a file is missing in the working space, damaged or too large, or a list of files cannot be read,
    the documents end as ERROR_DOC; other documents of the same wave are not affected.

    Args:
        queue: a queue or its URL; None: the queue that ``ferryman intake serve`` serves.
        max_bytes: largest file that is read (bytes), since a worker holds a whole document in memory.
        prefix, detect: see ``Source``. By default, files that were read before are recognized by their digest and not
            read again.
    """

    lists_all = False
    in_batches = True
    comes_again = (
        "Only jobs in Processing are listed: requeue the job if it failed (`ferryman intake requeue JID`), or "
        "submit its files again (`ferryman intake submit PAYLOAD`)."
    )
    encodes_ids = True

    def __init__(
        self,
        queue: JobQueue | str | None = None,
        *,
        max_bytes: int = limits.MAX_FILE_BYTES,
        prefix: str = "",
        detect: Detect = "fingerprint",
    ) -> None:
        super().__init__(prefix=prefix, detect=detect)
        if not isinstance(max_bytes, int) or max_bytes < 1:
            raise UsageError(f"Jobs(max_bytes={max_bytes!r}): give a whole number of bytes, at least 1.")
        self.url = None if queue is None else _absolute_url(queue.url if isinstance(queue, JobQueue) else queue)
        self.max_bytes = max_bytes
        self._queue = queue if isinstance(queue, JobQueue) else None
        self._served_jobs: dict[str, Job] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers get partitions and read files; only the driver has the queue.
        return {**self.__dict__, "_queue": None, "_served_jobs": None}

    def __repr__(self) -> str:
        return "Jobs()" if self._queue is None else f"Jobs({self._queue.url!r})"

    def serve(self, queue: JobQueue, jobs: Mapping[str, Job]) -> None:
        """List only these jobs of this queue from now on.

        Args:
            jobs: id -> the object that holds the job's lock, which has its content.

        Raises:
            UsageError: the plan names another queue.
        """
        if self.url is not None and self.url != _absolute_url(queue.url):
            raise UsageError(
                f"the plan takes jobs from {self.url}, but {queue.url} is served. Write Jobs() in the plan, or serve "
                "the queue that it names."
            )
        self._queue, self._served_jobs = queue, dict(jobs)

    def not_installed(self) -> str:
        if self.url is not None and self.url.startswith("zookeeper://") and find_spec("kazoo") is None:
            return "a queue on ZooKeeper needs kazoo, not installed here: pip install 'ferryman[intake]'"
        return ""

    def job_counts(self) -> dict[str, int]:
        if self._queue is not None:
            return count_jobs(self._queue.tree)
        if self.url is None:
            return {}
        with JobQueue.open(self.url) as queue:  # apart from the one that a run uses
            return count_jobs(queue.tree)

    def check(self) -> None:
        """
        Raises:
            UsageError: no queue was named.
            QueueRefused, QueueLost: it cannot be opened.
        """
        self._open_queue()

    def _open_queue(self) -> JobQueue:
        if self._queue is None:
            if self.url is None:
                raise UsageError(
                    "Jobs(): no queue is named. `ferryman intake serve PLAN` supplies one; for `ferryman run PLAN` "
                    "name it: Jobs('sqlite:///queue.db')."
                )
            self._queue = JobQueue.open(self.url)
        return self._queue

    def partitions(self) -> list[JobPartition]:
        """Return a partition for each job in Processing, most urgent first."""
        queue = self._open_queue()
        partitions, names_taken = [], set()
        for job_id in queue.list_jobs("Processing"):
            if self._served_jobs is not None and job_id not in self._served_jobs:
                continue
            job = queue.load_job(job_id) if self._served_jobs is None else self._served_jobs[job_id]
            try:
                partition = partition_of(job)
            except QueueLost:
                raise
            except Exception:  # not downloaded here, or damaged: the consumer of the queue reports it, and fails it
                continue
            if partition.name not in names_taken:
                names_taken.add(partition.name)
                partitions.append(partition)
        return partitions

    def listing(self, partition: JobPartition) -> Iterator[Listed | Document]:
        """Yield the files of a job. If its list cannot be read, yield one refused document with the object's name."""
        try:
            job_fields: dict[str, Any] = json.loads(partition.fields)
            stored = list(inventory.read_inventory(Path(partition.list)))
        except Exception as e:  # catch everything: an exception would end the listing of all other jobs
            why = f"{partition.list}: the list of its files cannot be read: {plain_text(e)}. Download the job again."
            yield Listed(f"{partition.name}/", 0, refused=why)
            return
        folder = f"{os.path.dirname(partition.list)}/{FILES_FOLDER}"
        for each in stored:
            id = f"{partition.name}/{quote_part(each.path, '/')}"
            fields = {**job_fields, "path": each.path, **each.fields}
            file = f"{folder}/{each.path}"
            location = {"file": file, "sha256": each.sha256, "fields": fields, "batch": partition.batch}
            try:
                listed = Listed(id, each.size, fingerprint_of(each, fields), json.dumps(location, ensure_ascii=True))
            except Exception as e:  # a submitter's fields may contain anything
                where = json.dumps({"batch": partition.batch})
                why = f"{file}: its metadata cannot be read: {plain_text(e)}"
                listed = Listed(id, each.size, location=where, refused=why)
            yield listed

    def batch_of(self, location: str) -> str:
        """Return "", the batch of a list of files that cannot be read."""
        return str(json.loads(location)["batch"]) if location else ""

    def read(self, listed: Listed) -> Document:
        """Read the file's bytes, if they are still those that were downloaded.

        Raises:
            BadDocument: it is missing, damaged or too large.
            TransientError: the disk failed.
        """
        location = json.loads(listed.location)
        path = location["file"]
        if listed.size > self.max_bytes:
            raise BadDocument(
                f"{path}: {listed.size} bytes, more than the limit of {self.max_bytes}. Allow it with "
                f"Jobs(max_bytes={listed.size})."
            )
        try:
            with open(path, "rb") as file:
                raw = file.read(listed.size + 1)
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EISDIR):
                raise BadDocument(f"{path}: {os.strerror(e.errno)}. Download the job again.") from None
            raise TransientError(f"{path}: cannot be read now: {e.strerror}.") from e
        if sha256(raw).hexdigest() != location["sha256"]:
            raise BadDocument(f"{path}: is not what was downloaded: its digest differs. Download the job again.")
        return Document.of(listed.id, location["fields"], raw)


def partition_of(job: Job) -> JobPartition:
    """Return the listing partition of a job.

    Raises:
        NodeInvalid: the job does not say where its files are.
    """
    path = inventory.inventory_path(job.path, job.inventory)
    identifiers, collection = job.identifiers, collection_of(job)
    local_id = local_id_of(identifiers)
    name = "/".join(
        quote_part(part) for part in ([collection] if collection and local_id else []) + [local_id or job.id]
    )
    fields = {
        "local_id": local_id,
        "primary_id": identifiers.get("primary_id"),
        "collection": collection,
        **job.metadata,
    }
    return JobPartition(job.id, str(path), name, json.dumps({k: v for k, v in fields.items() if v}), job.batch_id)


def collection_of(job: Job) -> str:
    """Return the collection that a job's object belongs to; "" if none was named."""
    return str(job.configuration.get("profile_name") or "")


def local_id_of(identifiers: dict[str, Any]) -> str:
    """Return the submitter's own name for an object, the first if there are several; "" if there is none."""
    local_id = identifiers.get("local_id")
    if isinstance(local_id, list):
        local_id = local_id[0] if local_id else ""
    return str(local_id or "")


def fingerprint_of(stored: StoredFile, fields: dict[str, Any]) -> str:
    """Return the fingerprint of a document: a hash of its bytes' digest and its fields."""
    return f"{stored.sha256}:{blake2b(encode_fields(fields), digest_size=16).hexdigest()}"


def quote_part(part: str, unquoted: str = "") -> str:
    """Quote a part of a document's id."""
    return quote(part, safe=UNQUOTED + unquoted, errors="surrogateescape")


def _absolute_url(url: str) -> str:
    """Return the URL of a queue, with an absolute path if it is a file."""
    start, is_file, path = url.partition("sqlite:///")
    return f"{is_file}{relative_paths.absolute(path)}" if is_file and not start else url
