"""Access requests: zips of delivered originals, built in the background."""

from __future__ import annotations

import datetime as dt
import os
import socket
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ferryman import crash, limits
from ferryman.errors import FerrymanError, UsageError, message_of
from ferryman.intake import Assembly, Job, JobQueue, LockLost, NodeInvalid, QueueLost, StateError
from ferryman.intake import job as inventory
from ferryman.intake.job import FILES_FOLDER, StoredFile
from ferryman.intake.nodes import decode_node, format_time, job_path
from ferryman.intake.service.errors import StopRequested
from ferryman.intake.service.workspace import Workspace
from ferryman.limits import MIB
from ferryman.storage import disk, files

SMALL_BYTES: Final = 256 * MIB
"""Size in bytes above which a bundle goes to the large queue, so that small bundles wait only for small ones."""

BYTES_PER_S: Final = 50 * MIB
"""Bytes per second that a disk reads and writes at the same time in the worst case; used to estimate when a bundle is
ready."""

KEPT_S: Final = 7 * 24 * 3600.0
"""Seconds that a bundle is kept; afterwards it is removed, and can be requested again."""

READ_AT_ONCE: Final = 1000
"""Jobs whose identifiers are read in one call."""

ABANDONED_POLL_S: Final = 2.0
"""Seconds between two searches for requests whose consumer died."""

_CHUNK_BYTES: Final = MIB
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Earliest time that a zip can store; used for all members, so that equal bundles have equal bytes."""


def request_bundle(queue: JobQueue, objects: Sequence[str], now: float, *, small_bytes: int = SMALL_BYTES) -> Assembly:
    """Request the originals of some jobs, or of some objects given by local id or primary id.

    The request's token contains what was requested, its size in bytes, and when the bundle is expected to be ready.

    Raises:
        UsageError: no such job or object was delivered, or its originals were not kept.
    """
    jobs = list({job.id: job for job in (_find_job(queue, name) for name in objects)}.values())
    size = sum(int(job.store.get("bytes") or 0) for job in jobs)
    queue_size = "small" if size <= small_bytes else "large"
    bytes_ahead = sum(_bytes_of(queue, queue_size, id) for id in queue.list_assemblies(queue_size, "Pending"))
    expected = now + 1 + (bytes_ahead + size) / BYTES_PER_S
    token = {
        "token": os.urandom(16).hex(),
        "objects": list(objects),
        "jobs": [job.id for job in jobs],
        "cloud-content-byte": size,
        "anticipated-availability-time": format_time(expected),
        "status": "Pending",
    }
    return queue.create_assembly(queue_size, token)


def _find_job(queue: JobQueue, name: str) -> Job:
    """Return the job with this id, or the latest completed job of the object with this name."""
    job_id = name if name in set(queue.list_jobs("Completed")) else _find_latest_job(queue, name)
    if not job_id:
        raise UsageError(f"{name}: no job of this id, and no object of this local id, is completed.")
    job = queue.load_job(job_id)
    if not job.store.get("url"):
        raise UsageError(f"{name}: the originals of {job.id} were not kept. Serve the queue without --drop-originals.")
    return job


def _find_latest_job(queue: JobQueue, name: str) -> str:
    """Return the id of the latest completed job of an object with this local or primary id; "" if there is none."""
    jobs = sorted(queue.list_jobs("Completed"), reverse=True)
    for at in range(0, len(jobs), READ_AT_ONCE):
        chunk = jobs[at : at + READ_AT_ONCE]
        paths = [job_path(job, "identifiers") for job in chunk]
        for job, path, node in zip(chunk, paths, queue.tree.store.read(paths), strict=True):
            try:
                identifiers = decode_node(path, node.data) if node else {}
            except NodeInvalid:
                continue  # for the audit to report
            local = identifiers.get("local_id")
            if name in (identifiers.get("primary_id"), *(local if isinstance(local, list) else [local])):
                return job
    return ""


def _bytes_of(queue: JobQueue, size: str, request_id: str) -> int:
    try:
        return int(queue.load_assembly(size, request_id).token.get("cloud-content-byte") or 0)
    except (NodeInvalid, ValueError, TypeError):
        return 0


class BundleConsumer:
    """Consumer of one access queue.

    1. Acquire a request, which is then in Processing.
    2. Write the zip under a temporary name of its own, then rename it.
    3. Add its location and expiry time to the token; the request is then Completed.

    If the consumer is killed in between, the request is in Processing and not locked: it is acquired again, and done
    from the beginning.
    """

    def __init__(
        self,
        queue: JobQueue,
        work: Workspace,
        size: str,
        check_stop: Callable[[], None],
        print_line: Callable[[str], None],
    ) -> None:
        self._queue, self._work, self._size, self._raise_if_stopping, self._print_line = (
            queue,
            work,
            size,
            check_stop,
            print_line,
        )
        self._next_poll = 0.0

    def acquire(self) -> Assembly | None:
        """Acquire a request; None if there is none."""
        if self._is_paused():
            return None
        return self._queue.acquire_pending_assembly(self._size) or self._acquire_abandoned()

    def build(self, request: Assembly) -> None:
        """Build the bundle of a locked request, and unlock it.

        Raises:
            QueueLost.
            StopRequested.
        """
        try:
            if request.status == "Pending":
                request.set_status("Processing")  # 1
            self._build(request)
        except (LockLost, StateError, QueueLost, StopRequested):
            raise
        except (OSError, ValueError, FerrymanError) as e:
            why = message_of(e)
            self._print_line(f"{request.id}: {why}")
            with suppress(NodeInvalid):  # the token may be what is damaged
                request.set_token({**request.token, "status": "Failed"})
            request.fail(why)
        finally:
            request.unlock()

    def expire(self, now: float) -> None:
        """Remove bundles older than ``KEPT_S`` seconds, and what kills have left of others."""
        folder = self._work.root / "bundles"
        for path in folder.glob("*.zip"):
            if now - path.stat().st_mtime >= KEPT_S:
                path.unlink(missing_ok=True)
        files.remove_temporary(folder, now - limits.TEMPORARY_S)

    def has_work(self) -> bool:
        """Return whether any request is waiting or in progress."""
        if self._is_paused():
            return False
        return any(self._queue.list_assemblies(self._size, state) for state in ("Pending", "Processing"))

    def _is_paused(self) -> bool:
        return self._queue.locks.check(f"access-{self._size}")

    def _acquire_abandoned(self) -> Assembly | None:
        """Acquire a request whose consumer died; None if there is none. Checks only every ``ABANDONED_POLL_S`` seconds,
        since it has to read all requests."""
        now = time.monotonic()
        if now < self._next_poll:
            return None
        self._next_poll = now + ABANDONED_POLL_S
        for request_id in self._queue.list_assemblies(self._size, "Processing"):
            request = Assembly(self._queue.tree, self._size, request_id)  # one that is damaged fails when it is built
            with suppress(NodeInvalid):  # it was removed
                if request.lock():
                    if request.status == "Processing":
                        return request
                    request.unlock()
        return None

    def _build(self, request: Assembly) -> None:
        token = {**request.token, "delivery-node": socket.gethostname(), "status": "Processing"}
        request.set_token(token)
        path = self._work.bundle(self._size, request.id)
        temporary = disk.temporary_name(path)  # of this attempt alone: one that lost its lock may go on writing
        with disk.discard_if_left(temporary):  # 2
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as bundle:
                for name, source, stored in self._contents(token):
                    _add(bundle, name, source, stored, self._raise_if_stopping)
            files.fsync_file(temporary)
            os.replace(temporary, path)
        files.fsync_folder(path.parent)
        crash.point("access.bundled")
        until = dt.datetime.now(dt.UTC).timestamp() + KEPT_S
        ready = {"url": inventory.file_url(path), "bytes": path.stat().st_size, "expires": format_time(until)}
        request.set_token({**token, **ready, "status": "Completed"})  # 3
        request.success(f"{path.stat().st_size} bytes")
        self._print_line(f"{request.id}: {path}")

    def _contents(self, token: dict[str, Any]) -> Iterator[tuple[str, Path, StoredFile]]:
        """Yield, for each original, its name in the zip, its path, and its entry in the list of files."""
        for job_id in dict.fromkeys(token.get("jobs") or []):  # also if another tool made the request
            job = self._queue.load_job(str(job_id))
            place = inventory.inventory_path(job.path, job.store)
            for stored in inventory.read_inventory(place):
                yield f"{job.id}/{stored.path}", place.parent / FILES_FOLDER / stored.path, stored


def _add(bundle: zipfile.ZipFile, name: str, source: Path, stored: StoredFile, check_stop: Callable[[], None]) -> None:
    """Add one original to the zip if it is still the file that was delivered."""
    from hashlib import sha256

    digest = sha256()
    with (
        source.open("rb") as content,
        bundle.open(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), "w", force_zip64=True) as out,
    ):
        while chunk := content.read(_CHUNK_BYTES):
            check_stop()
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != stored.sha256:
        raise ValueError(f"{source}: is not what was delivered: its digest differs")
