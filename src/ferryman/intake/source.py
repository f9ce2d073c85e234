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
from ferryman.net import relative_paths
from ferryman.sources.base import Detect, Listed, Source

UNQUOTED: Final = "!$&'()+,;=:@~ "
"""Characters that stay as they are in a part of an id. A slash parts the parts, # parts a child's key."""


class JobPartition(NamedTuple):
    """One job's part of a listing."""

    job: str
    list: str
    """Path of the list of its files."""
    name: str
    """Prefix of its documents' ids."""
    fields: str
    """Fields of each of its documents, as JSON."""
    batch: str


class Jobs(Source):
    """Every file of every job in state Processing, as a document: its bytes are ``raw``.

    ``plan.source("jobs", Jobs())`` for ``ferryman intake serve``, which says which queue; ``Jobs(queue)`` or
    ``Jobs("sqlite:///queue.db")`` to run a plan over a queue without it (then nobody moves the jobs on).

    **Ids** are ``LOCAL_ID/PATH``, below the collection if the job has one (``COLLECTION/LOCAL_ID/PATH``), so that a
    file that is submitted again replaces what it was; a job without a local id has its own id in that place. What is
    no plain character in a part is percent-encoded, slashes in a local id too: ``books/ark:%2Faaa%2F111/page 1.txt``.

    **Fields**: ``local_id``, ``primary_id``, ``collection``, ``path``, the job's metadata (``erc_who`` …), and what the
    manifest says of the file. Neither job nor batch are in them: the same object in another batch is not a change.

    **Nothing vanishes**: a job that is done is not listed any more, and its documents stay where they were delivered,
    also those of files that the object does not have any more when it is submitted again.
    Of two jobs of one object the one that is acquired first is listed, the other when that is done.

    **A bad object**: a file that is missing in the working space, damaged or too large, and a list of files that
    cannot be read, end as ERROR_DOC of their documents; others of the same wave go on.

    Args:
        queue: a queue or its URL; None: the one that is served.
        max_bytes: largest file that is read (bytes). A document lives whole in a worker's memory.
        prefix, detect: see ``Source``. By default what was read once is known by its digest, and not read again.
    """

    lists_all = False
    in_batches = True
    comes_again = (
        "Only jobs in Processing are listed: requeue the job if it failed (ferryman intake requeue), or submit its "
        "files again (ferryman intake submit)."
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
        # Workers get pieces and read files; the queue is the driver's.
        return {**self.__dict__, "_queue": None, "_served_jobs": None}

    def __repr__(self) -> str:
        return "Jobs()" if self._queue is None else f"Jobs({self._queue.url!r})"

    def serve(self, queue: JobQueue, jobs: Mapping[str, Job]) -> None:
        """List these jobs of this queue from now on, and no others.

        Args:
            jobs: by id; whoever holds a job has the object that knows what is in it.

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
                    "Jobs(): no queue is named. `ferryman intake serve` supplies one; for `ferryman run` name it: "
                    "Jobs('sqlite:///queue.db')."
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
            except Exception:  # not downloaded here, or damaged: who serves the queue says so, and fails it
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
        except Exception as e:  # whatever it is: a listing that raises ends that of all other jobs
            why = f"{partition.list}: the list of its files cannot be read: {plain_text(e)}. Download the job again."
            yield Listed(f"{partition.name}/", 0, refused=why)
            return
        folder = Path(partition.list).parent / FILES_FOLDER
        for each in stored:
            id = f"{partition.name}/{quote_part(each.path, '/')}"
            fields = {**job_fields, "path": each.path, **each.fields}
            file = str(folder / each.path)
            location = {"file": file, "sha256": each.sha256, "fields": fields, "batch": partition.batch}
            try:
                listed = Listed(id, each.size, fingerprint_of(each, fields), json.dumps(location, ensure_ascii=True))
            except Exception as e:  # whatever a submitter's fields may hold
                where = json.dumps({"batch": partition.batch})
                why = f"{file}: what is said of it cannot be read: {plain_text(e)}"
                listed = Listed(id, each.size, location=where, refused=why)
            yield listed

    def batch_of(self, location: str) -> str:
        """Return the batch of a list of files that cannot be read: none."""
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
    """Return a job's part of the listing.

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
    """Return the submitter's own name for an object: the first, if it has several."""
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
