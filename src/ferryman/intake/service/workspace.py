"""The working space: a folder for each job, and one for each batch, on a disk that every consumer of the queue sees.

::

    WORK/jobs/JID/list.jsonl        files named by its submitter; list-N.jsonl after N edits
    WORK/jobs/JID/files/…           fetched files, each complete
    WORK/jobs/JID/inventory.jsonl   their list, written when all are complete
    WORK/jobs/JID/container         a container, before it is unpacked
    WORK/batches/BID/objects/N.jsonl  a manifest's lines about one object
    WORK/originals/JID/…            delivered files that are kept
    WORK/at-work/JID                work in progress, or left by a process that died (see ``isolation``)
    WORK/.at-work-…                 mark of a process, which the files of its work in progress are links to
    WORK/bundles/QID.zip            bundles of small access requests; large-QID.zip for large ones
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from ferryman import limits
from ferryman.intake import Batch, Job, JobQueue, NodeInvalid
from ferryman.intake.job import FILES_FOLDER
from ferryman.intake.service.errors import CorruptSubmission
from ferryman.intake.service.finisher import UnsyncedFiles, finish
from ferryman.intake.service.manifest import ManifestEntry, check_path
from ferryman.limits import MIB
from ferryman.net import archives
from ferryman.net.archives import ARCHIVE_ERRORS, Budget, BudgetExceeded, Flaw, Member
from ferryman.storage import files

FULL_SHARE: Final = 0.8
"""Share of the disk that may be used; above it, jobs wait in Provisioning. The rest is for unpacked files, and for the
plan's state if it is on the same disk."""


CACHED_LISTS: Final = 64
CACHED_FILES: Final = 16
"""Maximum number of lists cached in memory, and of files in such a list."""

PRIVATE_MODE: Final = 0o700
"""Mode of the working space, so that other users of this machine cannot read submissions."""


class DiskSpace(NamedTuple):
    """Total and used bytes of a disk."""

    total: int
    used: int


def disk_space(folder: Path) -> DiskSpace:
    usage = shutil.disk_usage(folder)
    return DiskSpace(usage.used + usage.free, usage.used)  # not counting space reserved for root


class Workspace:
    """Files of jobs between Pending and Completed."""

    def __init__(self, root: Path, space: Callable[[Path], DiskSpace] = disk_space) -> None:
        self.root = root.absolute()
        self._space = space
        self._jobs = str(self.root / "jobs")
        self._cached_lists: dict[tuple[str, int], list[ManifestEntry]] = {}
        self.manifest_lock = threading.Lock()
        """Held while a manifest is read, so that only one is in memory at a time; several threads would not be
        faster."""
        for folder in ("jobs", "batches", "originals", "bundles", "at-work"):
            files.make_folder(self.root / folder, PRIVATE_MODE)

    def job(self, job_id: str) -> Path:
        return Path(f"{self._jobs}/{job_id}")

    def files(self, job_id: str) -> Path:
        return Path(f"{self._jobs}/{job_id}/{FILES_FOLDER}")

    def originals(self, job_id: str) -> Path:
        return self.root / "originals" / job_id

    @property
    def at_work(self) -> Path:
        return self.root / "at-work"

    @property
    def batches(self) -> Path:
        return self.root / "batches"

    @cached_property
    def real_batches(self) -> Path:
        """Return the folder of batches without symbolic links."""
        return self.batches.resolve()

    def batch(self, batch_id: str) -> Path:
        return self.batches / batch_id

    def bundle(self, size: str, request_id: str) -> Path:
        """Return the path of a request's bundle; the two access queues number their requests separately."""
        return self.root / "bundles" / f"{'' if size == 'small' else f'{size}-'}{request_id}.zip"

    def space(self) -> DiskSpace:
        return self._space(self.root)

    def set_entries(self, job_id: str, entries: Iterable[ManifestEntry], edition: int = 0) -> None:
        """Publish the entries that a job's submitter named. Files of an older edition are removed."""
        if edition:
            self.drop(job_id)
        files.make_folder(self.job(job_id))
        write_entries(self._list_path(job_id, edition), entries)

    def link_entries(
        self, job_id: str, path: Path, entries: list[ManifestEntry], edition: int = 0
    ) -> list[ManifestEntry]:
        """Link to a list that is already durable in the working space, and return its entries. If a power cut loses the
        link, it is created again."""
        if edition:
            self.drop(job_id)
        link = self._list_path(job_id, edition)
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        try:
            os.link(path, link)
        except FileExistsError:  # another process has just created it
            return self.entries(job_id, edition) or entries
        except FileNotFoundError:
            raise
        except OSError:  # a file system without links
            write_entries(link, entries)
        self._cache(job_id, edition, entries)
        return entries

    def entries(self, job_id: str, edition: int = 0) -> list[ManifestEntry] | None:
        """Return the submitter's entries for this edition of the job's configuration; None if they are not stored."""
        cached = self._cached_lists.get((job_id, edition))
        if cached is not None:
            return cached
        try:
            with open(f"{self._jobs}/{job_id}/{list_name(edition)}", "rb") as file:
                entries = read_entries(file.read())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        self._cache(job_id, edition, entries)
        return entries

    def _cache(self, job_id: str, edition: int, entries: list[ManifestEntry]) -> None:
        """Cache a list, which is final now, since several states read it shortly after each other."""
        if len(entries) > CACHED_FILES:
            return
        self._cached_lists[job_id, edition] = entries
        while len(self._cached_lists) > CACHED_LISTS:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread was faster
                del self._cached_lists[next(iter(self._cached_lists))]

    def _list_path(self, job_id: str, edition: int) -> Path:
        return self.job(job_id) / list_name(edition)

    def drop(self, job_id: str) -> None:
        """Remove a job's files, except its originals."""
        for key in [known for known in list(self._cached_lists) if known[0] == job_id]:
            self._cached_lists.pop(key, None)
        shutil.rmtree(self.job(job_id), ignore_errors=True)

    def drop_batch(self, batch_id: str) -> None:
        shutil.rmtree(self.batch(batch_id), ignore_errors=True)

    def sweep(self, queue: JobQueue) -> list[str]:
        """Remove files of finished and deleted jobs and batches. Returns their ids."""
        removed = []
        for folder in sorted((self.root / "jobs").iterdir()):
            if is_done(queue, folder.name):
                self.drop(folder.name)
                removed.append(folder.name)
        for folder in sorted((self.root / "batches").iterdir()):
            if is_done(queue, folder.name):
                self.drop_batch(folder.name)
                removed.append(folder.name)
        for folder in sorted((self.root / "originals").iterdir()):
            if _is_deleted(queue, folder.name):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder.name)
        return removed


def list_name(edition: int) -> str:
    """Return the file name of a job's list of entries."""
    return f"list-{edition}.jsonl" if edition else "list.jsonl"


def write_entries(path: Path, entries: Iterable[ManifestEntry]) -> None:
    files.make_folder(path.parent)
    files.replace(path, _encode_entries(entries))


def _encode_entries(entries: Iterable[ManifestEntry]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def write_lists(lists: Mapping[Path, Iterable[ManifestEntry]]) -> None:
    """Write lists into one folder and make them durable together. An existing list with the same content is kept, since
    a job may have been created from it.

    Raises:
        OSError: the disk is full, or failed.
    """
    folders = {path.parent for path in lists}
    for folder in folders:
        files.make_folder(folder)
    for path, entries in lists.items():
        data = _encode_entries(entries)
        if path.exists() and path.read_bytes() == data:
            continue
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(data)
        fresh.replace(path)
    finish([UnsyncedFiles(tuple(lists), tuple(folders), lambda: None)])


def read_entries(data: bytes) -> list[ManifestEntry]:
    return [msgspec.json.decode(line, type=ManifestEntry) for line in data.splitlines() if line]


def is_done(queue: JobQueue, id: str) -> bool:
    """Return whether the job or batch is Completed, Deleted or removed."""
    try:
        item: Batch | Job = queue.load_batch(id) if id.startswith("bid") else queue.load_job(id)
        return item.deletable
    except NodeInvalid as e:
        return e.what == "is not there"


def _is_deleted(queue: JobQueue, job_id: str) -> bool:
    try:
        return queue.load_job(job_id).status == "Deleted"
    except NodeInvalid as e:
        return e.what == "is not there"


# Containers: zip and tar, also compressed tar, unpacked to files. Bombs and paths that lead outside are refused.

SUFFIXES: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_LIMIT_MESSAGES: Final = (
    "has too many members",
    "unpacks to more than {} bytes",
    "unpacks to more than {:g} times its size, as a decompression bomb does",
)

_CHUNK_BYTES: Final = MIB


def unpack(
    path: Path,
    folder: Path,
    check_stop: Callable[[], None] = lambda: None,
    *,
    name: str = "",
    members: int = limits.UNPACK_FILES,
    unpacked_bytes: int = limits.UNPACK_FILES_BYTES,
    ratio: float = limits.UNPACK_RATIO,
    reserve: Callable[[int], None] = lambda size: None,
) -> int:
    """Unpack a container into a folder, which is emptied first. After a kill it starts again.

    The files are not durable yet; ``disk.fsync_tree`` makes all of them durable at once. Returns how many files of the
    macOS Finder were left out.

    Args:
        check_stop: called regularly; may raise to end the unpacking.
        reserve: called with the number of bytes about to be written; may raise to end the unpacking.
        name: name of the container for messages; default: that of its file.
        members, unpacked_bytes, ratio: see ``limits``; the ratio is that of the step ``unpack``.

    Raises:
        CorruptSubmission: it is not a zip or tar, is broken or encrypted, has a member that leads out of the folder or
            is a link or a device, has two members with the same path, or unpacks to more than allowed. None of its
            files counts then.
        OSError: the disk is full, or failed.
    """
    label = f"container {name or path.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    budget = Budget(path.stat().st_size, members, unpacked_bytes, ratio, limits.UNPACK_FREE_BYTES, _LIMIT_MESSAGES)
    paths: set[str] = set()
    left_out = 0
    try:
        if not archives.is_archive(path.open("rb", buffering=0)):
            raise CorruptSubmission("it is neither zip nor tar.")
        for member in archives.members(path.open("rb", buffering=0), budget):
            check_stop()
            if _is_of_finder(member.path):
                left_out += 1
                continue
            path_in_folder = _member_path(member)
            if path_in_folder in paths:
                raise CorruptSubmission(f"it has {path_in_folder[:200]!r} twice.")
            paths.add(path_in_folder)
            with member.open() as content:
                _write(folder / path_in_folder, content, check_stop, reserve)
    except CorruptSubmission as e:
        raise CorruptSubmission(f"{label}: {e} Pack it again.") from None
    except BudgetExceeded as e:
        raise CorruptSubmission(f"{label}: it {e}. Pack it again.") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise CorruptSubmission(f"{label}: a name in it is both a file and a folder. Pack it again.") from None
    except ARCHIVE_ERRORS as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise  # a fault of our own disk
        raise CorruptSubmission(f"{label}: is broken: {str(e)[:200]}. Pack it again.") from None
    if not paths:
        raise CorruptSubmission(f"{label}: there are no files in it.")
    return left_out


def _is_of_finder(path: str) -> bool:
    """Return whether the macOS Finder added this member: attributes below ``__MACOSX``, or a folder's view."""
    parts = path.split("/")
    return parts[0] == "__MACOSX" or parts[-1] == ".DS_Store"


def _member_path(member: Member) -> str:
    path = check_path(member.path)
    if member.flaw:
        kind = "encrypted" if member.flaw is Flaw.ENCRYPTED else f"not a plain file, but {member.flaw}"
        raise CorruptSubmission(f"its member {member.path[:200]!r} is {kind}.")
    return path


def _write(path: Path, content: IO[bytes], check_stop: Callable[[], None], reserve: Callable[[int], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as out:
        while chunk := content.read(_CHUNK_BYTES):
            reserve(len(chunk))
            out.write(chunk)
            check_stop()
