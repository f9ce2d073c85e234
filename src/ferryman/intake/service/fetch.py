"""Getting what a URL leads to: its size, or its bytes as a durable file. Broken off, it goes on where it was."""

from __future__ import annotations

import copy
import errno
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ferryman import crash, limits
from ferryman.errors import PermanentError, TransientError
from ferryman.intake.service.errors import Corrupt, Stopping
from ferryman.intake.service.hosts import SlowHost, SlowHosts
from ferryman.intake.service.manifest import checked_url
from ferryman.limits import GIB, KIB, MIB
from ferryman.net import urls
from ferryman.net.reach import NOTHING_PRIVATE, Reach
from ferryman.net.urls import redact
from ferryman.storage import files
from ferryman.storage.files import is_disk_full

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager


# How often other people's servers are asked, and with which pauses.

PAUSE_FIRST_S: Final = 0.5
PAUSE_FACTOR: Final = 4.0
"""Between tries: 0.5, 2, 8 s, each a bit more or less."""

T = TypeVar("T")


def trying(ask: Callable[[], T], tries: int, pause_s: float, stop: threading.Event) -> T:
    """Return the result of ``ask``; after a ``TransientError`` it is called again.

    Raises:
        TransientError: tried as often as it may be.
        Stopping: ``stop`` was set.
    """
    for tried in range(1, tries + 1):
        if stop.is_set():
            raise Stopping
        try:
            return ask()
        except TransientError as e:
            if tried == tries:
                raise TransientError(f"{e.why} (tried {tried} times)") from None
        if stop.wait(random.uniform(0.7, 1.3) * pause_s * PAUSE_FACTOR ** (tried - 1)):
            raise Stopping
    raise AssertionError("unreachable")


TRIES: Final = 4
"""How often a file is asked for: a server that is restarted is back after the pauses between."""

PIECE_BYTES: Final = MIB
FILE_BYTES: Final = 64 * GIB
"""Largest file that is fetched: more is a mistake, or fills every disk."""

LOWEST_RATE: Final = 1024.0
"""Bytes a second: what is slower is a server that stalls, or that keeps us waiting on purpose."""

SLOW_AFTER_S: Final = 30.0
"""From then on the rate counts: a server may need some time to begin."""

_NOT_THERE: Final = frozenset({errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ENOTDIR})
"""Errors of a local file that waiting does not change."""

_NO_RANGE: Final = 416
_PARTIAL: Final = 206
_STAMP: Final = ".stamp"


class Fetched(NamedTuple):
    """A file that is there, whole and durable."""

    size: int
    sha256: str


class Arrived(NamedTuple):
    """A file that has come, whole and checked."""

    found: Fetched
    target: Path
    part: Path | None
    """Where it is: to be synced, then published. None: it was at its place before, durably."""

    def publish(self) -> None:
        """Put it at its place, which only what is durable may be at."""
        if self.part is not None:
            os.replace(self.part, self.target)
            _forget(self.part)
            crash.point("job.fetched")


class Fetcher:
    """Fetches over http, https and from files; safe to use from many threads.

    Args:
        stop: set it, and whatever is going on ends soon with ``Stopping``; what was fetched of a file stays.
        reach: what URLs may lead to.
        tries, pause_s: how often a URL is asked, and the first pause in between (s).
        timeout_s: so long may a server be silent.
        lowest_rate: bytes a second that content must come at, looked at after ``SLOW_AFTER_S``; 0: any.
        slow: what leads to a slow host is not waited for, but ``SlowHost``; None: it is.
        clock: in seconds.
    """

    def __init__(
        self,
        stop: threading.Event | None = None,
        *,
        reach: Reach = NOTHING_PRIVATE,
        tries: int = TRIES,
        pause_s: float = PAUSE_FIRST_S,
        timeout_s: float = limits.FETCH_TIMEOUT_S,
        lowest_rate: float = LOWEST_RATE,
        slow: SlowHosts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lowest_rate, self._slow, self._clock = lowest_rate, slow, clock
        if slow is not None:
            timeout_s = min(timeout_s, slow.prompt_s)
        self._until: float | None = None
        self._take: Callable[[int], None] = lambda size: None
        self._stop, self._reach = stop or threading.Event(), reach
        self._tries, self._pause_s, self._timeout_s = tries, pause_s, timeout_s

    def within(self, seconds: float) -> Fetcher:
        """Return a fetcher that raises ``PermanentError`` for requests after so many seconds from now; 0: no limit."""
        _ = self._pool  # both use it
        found = copy.copy(self)
        found._until = self._clock() + seconds if seconds else None
        return found

    def counting(self, take: Callable[[int], None]) -> Fetcher:
        """Return a fetcher that calls ``take`` with the number of bytes before writing them to a file; it may raise."""
        _ = self._pool
        found = copy.copy(self)
        found._take = take
        return found

    def size(self, url: str) -> int | None:
        """Bytes at a URL by its server's word; None if it does not say, or cannot be asked. Asks once."""
        try:
            if urls.split(url)[1].scheme == "file":
                with self._reach.file(url) as source:
                    return os.fstat(source.fileno()).st_size
            with self._answer("HEAD", url, {}) as answer:
                length = answer.headers.get("content-length", "")
                return int(length) if answer.status == 200 and length.isdigit() else None
        except (TransientError, PermanentError, OSError, SlowHost):
            return None

    def content(self, url: str, limit: int, digest: str = "") -> bytes:
        """Return the content at a URL, up to ``limit`` bytes.

        Raises:
            Corrupt: it is larger, or not what the digest says.
            PermanentError: it is not there.
            TransientError: tried as often as it may be.
            Stopping.
        """

        def get() -> bytes:
            with self._content(url, 0, {}) as (_, pieces):
                content = bytearray()
                for piece in pieces:
                    content += piece
                    if len(content) > limit:
                        raise Corrupt(f"{redact(url)}: more than {limit} bytes. Split it into several.")
                return bytes(content)

        content = self._trying(url, get)
        if digest:
            kind = digest.partition(":")[0]
            _same(url, digest, f"{kind}:{hashlib.new(kind, content).hexdigest()}")
        return content

    def file(self, url: str, target: Path, digest: str = "", size: int | None = None) -> Fetched:
        """Have what is at a URL as a file, and check it. A part that is there from before is continued.

        Raises:
            Corrupt: its digest or size is not what was given.
            PermanentError: it is not there.
            TransientError: tried as often as it may be; the part that came stays.
            OSError: the disk is full, or failed.
            Stopping.
        """
        arrived = self.arrived(url, target, digest, size)
        if arrived.part is not None:
            files.fsync_file(arrived.part)
            arrived.publish()
            files.fsync_folder(target.parent)
        return arrived.found

    def arrived(self, url: str, target: Path, digest: str = "", size: int | None = None) -> Arrived:
        """Fetch like ``file``, but neither sync the result nor move it to its place yet."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            try:
                return Arrived(checked(url, target, digest, size), target, None)
            except Corrupt:
                target.unlink()  # damaged since, or the submitter has another one by now
        part = target.with_name(f".{hashlib.sha256(target.name.encode()).hexdigest()[:24]}.part")
        return Arrived(self._part(url, part, digest, size), target, part)

    def _part(self, url: str, part: Path, digest: str, size: int | None) -> Fetched:
        """Fetch it into a part, and check it. An old part that was continued may be at fault: once more without."""
        resumed = part.exists()
        try:
            self._trying(url, lambda: self._go_on(url, part, size, checked=bool(digest)))
            return checked(url, part, digest, size)
        except Corrupt:
            _forget(part)
            if not resumed:
                raise
        return self._part(url, part, digest, size)

    def _go_on(self, url: str, part: Path, size: int | None, *, checked: bool) -> None:
        """Append to a part what it lacks. Without a digest only what its server calls the same is continued."""
        stamp = part.with_name(part.name + _STAMP)
        have = part.stat().st_size if part.exists() else 0
        same = stamp.read_text("ascii", "replace") if have and stamp.exists() else ""
        if have and not (same or checked):
            have = 0
        headers = {"range": f"bytes={have}-", **({"if-range": same} if same else {})} if have else {}
        with self._content(url, have, headers) as (said, pieces):
            mode = "ab" if said.begins else "wb"
            if said.stamp and not said.begins:
                stamp.write_text(said.stamp, "ascii")
            with part.open(mode) as out:
                written = said.begins
                for piece in pieces:
                    written += len(piece)
                    if written > (FILE_BYTES if size is None else size):
                        limit = f"than {FILE_BYTES}" if size is None else f"than the {size} that its submitter says"
                        raise Corrupt(f"{redact(url)}: has more bytes {limit}. Correct the manifest or the file.")
                    self._take(len(piece))
                    out.write(piece)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _trying(self, url: str, get: Callable[[], T]) -> T:
        def ask() -> T:
            self._refuse_late(url)
            try:
                return get()
            except OSError as e:
                if urls.split(url)[1].scheme != "file" or is_disk_full(e):
                    raise  # our own disk
                kind = PermanentError if e.errno in _NOT_THERE else TransientError
                raise kind(f"{redact(url)}: {os.strerror(e.errno or 0)}") from None

        return trying(ask, self._tries, self._pause_s, self._stop)

    @contextmanager
    def _content(self, url: str, have: int, headers: dict[str, str]) -> Iterator[tuple[_Said, Iterator[bytes]]]:
        """Yield the server's headers, and the content from the offset that they announce."""
        if urls.split(url)[1].scheme == "file":
            with self._reach.file(url) as source:
                yield _Said(0, ""), self._pieces(url, source.read)
            return
        with self._answer("GET", url, headers) as answer:
            if answer.status == _NO_RANGE and have and answer.headers.get("content-range", "").endswith(f"/{have}"):
                yield _Said(have, ""), iter(())
                return
            if answer.status == _NO_RANGE and have:
                raise TransientError(f"{redact(url)}: changed while it was fetched")
            _refuse_unless_fine(url, answer)
            begins = 0
            if answer.status == _PARTIAL:
                span = answer.headers.get("content-range", "").removeprefix("bytes ")
                if not span.startswith(f"{have}-"):
                    raise TransientError(f"{redact(url)}: answered with bytes {span[:40]} where {have}- were asked for")
                begins = have
            stamp = answer.headers.get("etag", "")
            stamp = answer.headers.get("last-modified", "") if stamp.startswith("W/") or not stamp else stamp
            yield _Said(begins, stamp if stamp.isascii() else ""), self._pieces(url, lambda n: answer.read1(n) or b"")

    def _refuse_late(self, url: str) -> None:
        if self._until is not None and self._clock() > self._until:
            raise PermanentError(f"{redact(url)}: not all is there within the time that a job may take (--job-time).")

    def _pieces(self, url: str, read: Callable[[int], bytes]) -> Iterator[bytes]:
        began, came = self._clock(), 0
        while piece := read(PIECE_BYTES):
            yield piece
            if self._stop.is_set():
                raise Stopping
            came += len(piece)
            took = self._clock() - began
            self._refuse_late(url)
            if self._slow is not None and took > self._slow.prompt_s and came < took * self._slow.rate:
                raise self._slow.add(url)
            if took > SLOW_AFTER_S and came < took * self._lowest_rate:
                raise TransientError(
                    f"{redact(url)}: sends less than {self._lowest_rate:g} bytes a second ({came} in {took:.0f} s)"
                )

    @contextmanager
    def _answer(self, method: str, url: str, headers: dict[str, str]) -> Iterator[BaseHTTPResponse]:
        """The server's answer, redirects followed. Errors of the network in here are ``TransientError``."""
        from urllib3 import exceptions as of

        for _ in range(limits.FETCH_REDIRECTS + 1):
            if self._slow is not None:
                self._slow.refuse(url)
            sent = {"accept-encoding": "identity", **headers}
            try:
                with urls.send_request(self._pool, method, url, sent, self._timeout_s) as answer:
                    target = answer.get_redirect_location()
                    if not target:
                        yield answer
                        return
            except of.LocationValueError:
                raise PermanentError(f"{redact(url)}: this is not a possible host name. Correct it.") from None
            except of.HTTPError as e:
                if self._slow is not None and isinstance(e, of.TimeoutError):
                    raise self._slow.add(url) from None
                raise TransientError(f"{redact(url)}: {type(e).__name__}, no whole answer") from None
            url = _redirected(url, target)
        raise PermanentError(f"{redact(url)}: is reached by more than {limits.FETCH_REDIRECTS} redirects. Correct it.")

    @cached_property
    def _pool(self) -> PoolManager:
        return self._reach.pool(16)


class _Said(NamedTuple):
    begins: int
    """Where what comes begins."""
    stamp: str
    """Validator of the content at this URL; "" if there is none."""


def checked(url: str, path: Path, digest: str, size: int | None) -> Fetched:
    """A file's size and digest, if they are those that were given.

    Raises:
        Corrupt: they are not.
    """
    kind, _, _ = (digest or "sha256:").partition(":")
    ours, theirs = hashlib.sha256(), hashlib.new(kind)
    with path.open("rb") as content:
        while piece := content.read(256 * KIB):
            ours.update(piece)
            if kind != "sha256":
                theirs.update(piece)
    found = path.stat().st_size
    if size is not None and found != size:
        raise Corrupt(f"{redact(url)}: has {found} bytes, its submitter says {size}. Correct the manifest or the file.")
    if digest:
        _same(url, digest, f"{kind}:{(ours if kind == 'sha256' else theirs).hexdigest()}")
    return Fetched(found, ours.hexdigest())


def _same(url: str, wanted: str, found: str) -> None:
    if wanted != found:
        raise Corrupt(
            f"{redact(url)}: its digest is {found}, its submitter says {wanted}. Correct the manifest or the file."
        )


def _refuse_unless_fine(url: str, answer: BaseHTTPResponse) -> None:
    if answer.status in (200, _PARTIAL):
        return
    said = f"{redact(url)}: answered {answer.status} {answer.reason or ''}".rstrip()
    if urls.is_retryable(answer.status):
        raise TransientError(said)
    raise PermanentError(f"{said}. Correct the URL.")


def _redirected(url: str, target: str) -> str:
    """Where a server leads that was asked for a URL.

    Raises:
        PermanentError: nowhere that may be asked for.
    """
    try:
        found = checked_url(target, url)
    except Corrupt as e:
        raise PermanentError(f"{redact(url)}: its server redirects: {e}") from None
    if urls.split(found)[1].scheme == "file":
        raise PermanentError(f"{redact(url)}: redirects to a file of this machine, which a server may not do.")
    return found


def _forget(part: Path) -> None:
    for path in (part, part.with_name(part.name + _STAMP)):
        path.unlink(missing_ok=True)


def side_by_side(fetch: Callable[[T], Arrived], entries: list[T], at_once: int) -> list[Arrived]:
    """Fetch some of them at once. The first that fails ends it, when those that have begun are done."""
    from concurrent.futures import ThreadPoolExecutor

    if len(entries) == 1:
        return [fetch(entries[0])]
    with ThreadPoolExecutor(min(at_once, len(entries)), "intake fetch") as pool:
        coming = [pool.submit(fetch, entry) for entry in entries]
        try:
            return [each.result() for each in coming]
        except BaseException:
            for each in coming:
                each.cancel()
            raise
