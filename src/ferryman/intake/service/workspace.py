"""The working space: a folder for each job, and one for each batch, on a disk that every consumer of the queue sees.

::

    WORK/jobs/JID/list.jsonl        the files that its submitter named; list-N.jsonl: edited N times
    WORK/jobs/JID/files/…           those that are there, each whole
    WORK/jobs/JID/inventory.jsonl   written when all are
    WORK/jobs/JID/container         a container, before it is unpacked
    WORK/batches/BID/objects/N.jsonl  what a manifest says of one object
    WORK/originals/JID/…            what was delivered, kept
    WORK/at-work/JID                what somebody works at, or died while working at (``at_work``)
    WORK/bundles/QID.zip            what small access requests asked for; of large ones large-QID.zip
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from ferryman import limits
from ferryman.intake import Batch, Job, JobQueue, NodeInvalid
from ferryman.intake.job import FILES
from ferryman.intake.service.errors import Corrupt
from ferryman.intake.service.finisher import Unsynced, finish
from ferryman.intake.service.manifest import ManifestEntry, checked_path
from ferryman.limits import MIB
from ferryman.net import archives
from ferryman.net.archives import ARCHIVE_ERRORS, Budget, BudgetExceeded, Flaw, Member
from ferryman.storage import files

FULL: Final = 0.8
"""Share of the disk that may be used: above, jobs wait in Provisioning. The rest is for what is unpacked, and for the
state of the plan if it lies there too."""


KEPT_LISTS: Final = 64
KEPT_FILES: Final = 16
"""Most lists kept in memory, and most files of such a list."""

PRIVATE: Final = 0o700
"""Mode of the working space: other users of this machine must not read submissions."""


class Space(NamedTuple):
    """Space of a disk, in bytes."""

    total: int
    used: int


def space_of(folder: Path) -> Space:
    """Return the space of a folder's disk."""
    usage = shutil.disk_usage(folder)
    return Space(usage.used + usage.free, usage.used)  # without what is reserved for root


class Workspace:
    """Where files of jobs are between Pending and Completed."""

    def __init__(self, root: Path, space: Callable[[Path], Space] = space_of) -> None:
        self.root = root.absolute()
        self._space = space
        self._jobs = str(self.root / "jobs")
        self._lists: dict[tuple[str, int], list[ManifestEntry]] = {}
        self.reading = threading.Lock()
        """One manifest of a batch is in memory at a time. Threads would not read several any faster."""
        for folder in ("jobs", "batches", "originals", "bundles", "at-work"):
            files.make_folder(self.root / folder, PRIVATE)

    def job(self, job_id: str) -> Path:
        return self.root / "jobs" / job_id

    def files(self, job_id: str) -> Path:
        return self.job(job_id) / FILES

    def originals(self, job_id: str) -> Path:
        return self.root / "originals" / job_id

    @property
    def at_work(self) -> Path:
        return self.root / "at-work"

    @property
    def batches(self) -> Path:
        return self.root / "batches"

    def batch(self, batch_id: str) -> Path:
        return self.batches / batch_id

    def bundle(self, size: str, request_id: str) -> Path:
        """Return the folder of a request's bundle: the two queues number theirs apart."""
        return self.root / "bundles" / f"{'' if size == 'small' else f'{size}-'}{request_id}.zip"

    def space(self) -> Space:
        return self._space(self.root)

    def set_entries(self, job_id: str, entries: Iterable[ManifestEntry], edition: int = 0) -> None:
        """Publish what the submitter named of a job. What was fetched for an older edition goes."""
        if edition:
            self.drop(job_id)
        files.make_folder(self.job(job_id))
        write_entries(self._list(job_id, edition), entries)

    def link_entries(self, job_id: str, path: Path, edition: int = 0) -> None:
        """Link a list that is durable in the working space already. A power cut may lose the link, and it is made
        again."""
        if edition:
            self.drop(job_id)
        link = self._list(job_id, edition)
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        try:
            os.link(path, link)
        except FileExistsError:
            return  # another one made it just now
        except FileNotFoundError:
            raise
        except OSError:  # a file system without links
            write_entries(link, read_entries(path.read_bytes()))

    def entries(self, job_id: str, edition: int = 0) -> list[ManifestEntry] | None:
        """Return the submitter's entries for this edition of the job's configuration; None if they are not stored
        here."""
        known = self._lists.get((job_id, edition))
        if known is not None:
            return known
        try:
            with open(f"{self._jobs}/{job_id}/{list_name(edition)}", "rb") as file:
                found = read_entries(file.read())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        self._keep(job_id, edition, found)
        return found

    def _keep(self, job_id: str, edition: int, entries: list[ManifestEntry]) -> None:
        """A list does not change any more; several states ask for it, one right after the other."""
        if len(entries) > KEPT_FILES:
            return
        self._lists[job_id, edition] = entries
        while len(self._lists) > KEPT_LISTS:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread was faster
                del self._lists[next(iter(self._lists))]

    def _list(self, job_id: str, edition: int) -> Path:
        return self.job(job_id) / list_name(edition)

    def drop(self, job_id: str) -> None:
        """Remove a job's files; what was kept of it stays."""
        for known in [known for known in list(self._lists) if known[0] == job_id]:
            self._lists.pop(known, None)
        shutil.rmtree(self.job(job_id), ignore_errors=True)

    def drop_batch(self, batch_id: str) -> None:
        shutil.rmtree(self.batch(batch_id), ignore_errors=True)

    def sweep(self, queue: JobQueue) -> list[str]:
        """Remove what belongs to jobs and batches that are done with, or deleted. Returns whose it was."""
        swept = []
        for folder in sorted((self.root / "jobs").iterdir()):
            if is_done(queue, folder.name):
                self.drop(folder.name)
                swept.append(folder.name)
        for folder in sorted((self.root / "batches").iterdir()):
            if is_done(queue, folder.name):
                self.drop_batch(folder.name)
                swept.append(folder.name)
        for folder in sorted((self.root / "originals").iterdir()):
            if _is_gone(queue, folder.name):
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder.name)
        return swept


def list_name(edition: int) -> str:
    """Return the name of the file that lists a job's entries."""
    return f"list-{edition}.jsonl" if edition else "list.jsonl"


def write_entries(path: Path, entries: Iterable[ManifestEntry]) -> None:
    files.make_folder(path.parent)
    files.replace(path, _lines(entries))


def _lines(entries: Iterable[ManifestEntry]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def write_lists(lists: Mapping[Path, Iterable[ManifestEntry]]) -> None:
    """Lists in one folder, durable together. One that is there stays: a job may have been made of it.

    Raises:
        OSError: the disk is full, or failed.
    """
    folders = {path.parent for path in lists}
    for folder in folders:
        files.make_folder(folder)
    for path, entries in lists.items():
        data = _lines(entries)
        if path.exists() and path.read_bytes() == data:
            continue
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(data)
        fresh.replace(path)
    finish([Unsynced(tuple(lists), tuple(folders), lambda: None)])


def read_entries(data: bytes) -> list[ManifestEntry]:
    return [msgspec.json.decode(line, type=ManifestEntry) for line in data.splitlines() if line]


def is_done(queue: JobQueue, id: str) -> bool:
    """Return whether the job or batch is Completed, Deleted or removed."""
    try:
        item: Batch | Job = queue.load_batch(id) if id.startswith("bid") else queue.load_job(id)
        return item.deletable
    except NodeInvalid as e:
        return e.what == "is not there"


def _is_gone(queue: JobQueue, job_id: str) -> bool:
    try:
        return queue.load_job(job_id).status == "Deleted"
    except NodeInvalid as e:
        return e.what == "is not there"


# Containers: zip, and tar, the latter also compressed, unpacked to files. Bombs and paths that climb are refused.

SUFFIXES: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_OVER: Final = (
    "has too many members",
    "unpacks to more than {} bytes",
    "unpacks to more than {:g} times its size, as a decompression bomb does",
)

_PIECE: Final = MIB


def unpack(
    path: Path,
    folder: Path,
    stopping: Callable[[], None] = lambda: None,
    *,
    name: str = "",
    members: int = limits.UNPACK_FILES,
    unpacked_bytes: int = limits.UNPACK_FILES_BYTES,
    ratio: float = limits.UNPACK_RATIO,
    take: Callable[[int], None] = lambda size: None,
) -> None:
    """Unpack a container into a folder, which is made again. Killed in the middle, it is done again from the start.

    The files are not durable yet: ``disk.fsync_tree`` makes all of them so at once.

    Args:
        stopping: asked between pieces; what it raises ends it.
        take: told of what is about to be written; what it raises ends it.
        name: of the container, in messages; default: its file's.
        members, unpacked_bytes, ratio: see ``limits``; the ratio is that of the step ``unpack``.

    Raises:
        Corrupt: it is not zip or tar, is broken or encrypted, a member's path climbs out of it, is a link or a device,
            two members have one path, or it unpacks to more than it may. Nothing of it counts then.
        OSError: the disk is full, or failed.
    """
    shown = f"container {name or path.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    budget = Budget(path.stat().st_size, members, unpacked_bytes, ratio, limits.UNPACK_FREE_BYTES, _OVER)
    seen: set[str] = set()
    try:
        if not archives.is_archive(path.open("rb", buffering=0)):
            raise Corrupt("it is neither zip nor tar.")
        for member in archives.members(path.open("rb", buffering=0), budget):
            stopping()
            place = _place(member)
            if place in seen:
                raise Corrupt(f"it has {place[:200]!r} twice.")
            seen.add(place)
            with member.open() as content:
                _write(folder / place, content, stopping, take)
    except Corrupt as e:
        raise Corrupt(f"{shown}: {e} Pack it again.") from None
    except BudgetExceeded as e:
        raise Corrupt(f"{shown}: it {e}. Pack it again.") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Corrupt(f"{shown}: a name in it is both a file and a folder. Pack it again.") from None
    except ARCHIVE_ERRORS as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise  # our own disk
        raise Corrupt(f"{shown}: is broken: {str(e)[:200]}. Pack it again.") from None
    if not seen:
        raise Corrupt(f"{shown}: there are no files in it.")


def _place(member: Member) -> str:
    place = checked_path(member.path)
    if member.flaw:
        what = "encrypted" if member.flaw is Flaw.ENCRYPTED else f"not a plain file, but {member.flaw}"
        raise Corrupt(f"its member {member.path[:200]!r} is {what}.")
    return place


def _write(path: Path, content: IO[bytes], stopping: Callable[[], None], take: Callable[[int], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as out:
        while piece := content.read(_PIECE):
            take(len(piece))
            out.write(piece)
            stopping()
