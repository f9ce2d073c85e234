"""Fetching of URLs: their size, their content, or durable files. A transfer that broke off is continued where it
ended."""

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
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ferryman import crash, limits
from ferryman.breaker import BreakerEvent, Breakers
from ferryman.errors import DeliveryError, PermanentError, TransientError
from ferryman.intake.service.errors import CorruptSubmission, SlowHost, StopRequested
from ferryman.intake.service.manifest import check_url
from ferryman.limits import GIB, KIB, MIB
from ferryman.net import http, urls
from ferryman.net.allowed_addresses import NOTHING_PRIVATE, Reach
from ferryman.net.urls import redact, split
from ferryman.storage import files
from ferryman.storage.files import is_disk_full

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager


# --- slow hosts: jobs that need one wait in a few separate threads, so that other jobs are not delayed ---
# Whether a host is slow is found out by the first job that connects to it, within a bounded time. This process then
# remembers the host for a while, and hands over other jobs that need it without sending a request.

PROMPT_S: Final = 5.0
"""Seconds of silence, or until the headers are complete, after which a host counts as slow; from then on its rate is
checked."""

PROMPT_RATE: Final = 32.0 * KIB
"""Bytes per second below which content counts as slow: a job of a megabyte would take half a minute."""

SLOW_FOR_S: Final = 600.0
"""Seconds for which a host counts as slow; after that it is tried like any other."""

SLOW_HOST_THREADS: Final = 2
"""Threads for slow hosts per state, in addition to the others."""


class SlowHosts:
    """Hosts that this process has found to be slow."""

    def __init__(
        self, prompt_s: float = PROMPT_S, rate: float = PROMPT_RATE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.prompt_s, self.rate = prompt_s, rate
        self._slow = Breakers(clock)

    def raise_if_slow(self, url: str) -> None:
        """Raise ``SlowHost`` if the URL's host is slow."""
        if self._slow.blocking(host := _host_of(url)) is not None:
            raise SlowHost(host)

    def mark_slow(self, url: str) -> SlowHost:
        """Record that the URL's host is slow. Returns the error to raise."""
        host = _host_of(url)
        self._slow.fail(host, BreakerEvent.UNAVAILABLE, "slow", SLOW_FOR_S)
        return SlowHost(host)


def _host_of(url: str) -> str:
    return split(url)[1].netloc.rpartition("@")[2]


# --- retries of requests to submitters' servers ---

PAUSE_FIRST_S: Final = 0.5
PAUSE_FACTOR: Final = 4.0
"""Factor between pauses: 0.5, 2 and 8 s, each randomly varied a little."""

T = TypeVar("T")


def retry(call: Callable[[], T], tries: int, pause_s: float, stop: threading.Event) -> T:
    """Return the result of ``call``; call it again after a ``TransientError``.

    Raises:
        TransientError: the last attempt failed.
        StopRequested: ``stop`` was set.
    """
    for attempt in range(1, tries + 1):
        if stop.is_set():
            raise StopRequested
        try:
            return call()
        except TransientError as e:
            if attempt == tries:
                raise TransientError(f"{e.why} (tried {attempt} times)") from None
        if stop.wait(random.uniform(0.7, 1.3) * pause_s * PAUSE_FACTOR ** (attempt - 1)):
            raise StopRequested
    raise AssertionError("unreachable")


TRIES: Final = 4
"""Attempts to fetch a file; with the pauses between them, a server has time to restart."""

CHUNK_BYTES: Final = MIB
FILE_BYTES: Final = 64 * GIB
"""Largest file that is fetched, in bytes: anything larger is a mistake, or would fill any disk."""

LOWEST_RATE: Final = 1024.0
"""Lowest acceptable transfer rate in bytes per second. A slower server is stalled, or keeps its clients waiting on
purpose."""

SLOW_AFTER_S: Final = 30.0
"""Seconds after which the rate is checked, since a server may need some time to begin."""

_PERMANENT_ERRNOS: Final = frozenset({errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ENOTDIR})
"""Errors of a local file that waiting does not fix."""

_NO_RANGE: Final = 416
_PARTIAL: Final = 206
_VALIDATOR: Final = ".stamp"


class FetchedContent(NamedTuple):
    """Size and digest of a file that is complete and checked."""

    size: int
    sha256: str


class FetchedFile(NamedTuple):
    """A fetched file that is complete and checked, but may not be durable yet."""

    content: FetchedContent
    target: Path
    part: Path | None
    """Where it is until it is synced and published; None: it was already at its final place, durably."""

    def publish(self) -> None:
        """Move the file to its place. Call it only when the file is durable."""
        if self.part is not None:
            os.replace(self.part, self.target)
            _validator_of(self.part).unlink(missing_ok=True)
            crash.point("job.fetched")


class Tries(NamedTuple):
    """How often a request is tried, and the first pause between two tries (seconds)."""

    attempts: int = TRIES
    pause_s: float = PAUSE_FIRST_S


class Fetcher:
    """Fetches URLs over http and https, and files. May be used from many threads.

    Args:
        stop: when it is set, calls in progress soon raise ``StopRequested``; partly fetched files are kept.
        reach: addresses and files that URLs may lead to.
        tries: how often a file is asked for.
        timeout_s: longest time without any data from a server (seconds).
        lowest_rate: minimum transfer rate in bytes per second, checked after ``SLOW_AFTER_S``; 0: no minimum.
        slow: known slow hosts, for which ``SlowHost`` is raised; None: wait for slow hosts.
        clock: in seconds.
    """

    def __init__(
        self,
        stop: threading.Event | None = None,
        *,
        reach: Reach = NOTHING_PRIVATE,
        tries: Tries = Tries(),  # noqa: B008 - immutable
        timeout_s: float = limits.FETCH_TIMEOUT_S,
        lowest_rate: float = LOWEST_RATE,
        slow: SlowHosts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lowest_rate, self._slow, self._clock = lowest_rate, slow, clock
        if slow is not None:
            timeout_s = min(timeout_s, slow.prompt_s)
        self._deadline: float | None = None
        self._reserve: Callable[[int], None] = lambda size: None
        self._stop, self._reach = stop or threading.Event(), reach
        self._tries, self._timeout_s = tries, timeout_s

    def with_deadline(self, seconds: float) -> Fetcher:
        """Return a fetcher whose requests raise ``PermanentError`` after so many seconds from now; 0: no limit."""
        _ = self._pool  # both fetchers use it
        fetcher = copy.copy(self)
        fetcher._deadline = self._clock() + seconds if seconds else None
        return fetcher

    def with_reservation(self, reserve: Callable[[int], None]) -> Fetcher:
        """Return a fetcher that calls ``reserve`` with the number of bytes before writing them; ``reserve`` may
        raise."""
        _ = self._pool
        fetcher = copy.copy(self)
        fetcher._reserve = reserve
        return fetcher

    def ask_size(self, url: str) -> int | None:
        """Return the size in bytes that the server reports for a URL; None if it does not say. Makes only one
        attempt."""
        try:
            if urls.split(url)[1].scheme == "file":
                with self._reach.file(url) as source:
                    return os.fstat(source.fileno()).st_size
            with self._request("HEAD", url, {}) as answer:
                length = answer.headers.get("content-length", "")
                return int(length) if answer.status == 200 and length.isdigit() else None
        except (TransientError, PermanentError, OSError, SlowHost):
            return None

    def fetch_content(self, url: str, limit: int, digest: str = "") -> bytes:
        """Return the content at a URL, up to ``limit`` bytes.

        Raises:
            CorruptSubmission: it is larger, or does not match the digest.
            PermanentError: it does not exist.
            TransientError: the last attempt failed.
            StopRequested.
        """

        def get() -> bytes:
            with self._open_content(url, 0, {}) as (_, chunks):
                content = bytearray()
                for chunk in chunks:
                    content += chunk
                    if len(content) > limit:
                        raise CorruptSubmission(f"{redact(url)}: more than {limit} bytes. Split it into several.")
                return bytes(content)

        content = self._retry(url, get)
        if digest:
            kind = digest.partition(":")[0]
            _compare_digests(url, digest, f"{kind}:{hashlib.new(kind, content).hexdigest()}")
        return content

    def fetch_file(self, url: str, target: Path, digest: str = "", size: int | None = None) -> FetchedContent:
        """Fetch a URL to a file, and check it. A partial file from an earlier attempt is continued.

        Raises:
            CorruptSubmission: its digest or size does not match.
            PermanentError: it does not exist.
            TransientError: the last attempt failed; the part that was received is kept.
            OSError: the disk is full, or failed.
            StopRequested.
        """
        fetched = self.fetch_unsynced(url, target, digest, size)
        if fetched.part is not None:
            files.fsync_file(fetched.part)
            fetched.publish()
            files.fsync_folder(target.parent)
        return fetched.content

    def fetch_unsynced(self, url: str, target: Path, digest: str = "", size: int | None = None) -> FetchedFile:
        """Fetch like ``fetch_file``, but neither sync the result nor move it to its place yet."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            try:
                return FetchedFile(check_file(url, target, digest, size), target, None)
            except CorruptSubmission:
                target.unlink()  # it was damaged since, or the submitter has replaced it
        part = target.with_name(f".{hashlib.sha256(target.name.encode()).hexdigest()[:24]}.part")
        return FetchedFile(self._fetch_part(url, part, digest, size), target, part)

    def _fetch_part(self, url: str, part: Path, digest: str, size: int | None) -> FetchedContent:
        """Fetch a URL to a part file, and check it. If the check fails for a part that was continued, fetch again from
        the beginning."""
        resumed = part.exists()
        try:
            self._retry(url, lambda: self._append_missing(url, part, size, has_digest=bool(digest)))
            return check_file(url, part, digest, size)
        except CorruptSubmission:
            _remove_part(part)
            if not resumed:
                raise
        return self._fetch_part(url, part, digest, size)

    def _append_missing(self, url: str, part: Path, size: int | None, *, has_digest: bool) -> None:
        """Append the missing bytes to a part file. Without a digest, a part is continued only if the content has the
        same validator."""
        validator_file = _validator_of(part)
        offset = part.stat().st_size if part.exists() else 0
        validator = validator_file.read_text("ascii", "replace") if offset and validator_file.exists() else ""
        if offset and not (validator or has_digest):
            offset = 0
        headers = {"range": f"bytes={offset}-", **({"if-range": validator} if validator else {})} if offset else {}
        with self._open_content(url, offset, headers) as (start, chunks):
            mode = "ab" if start.offset else "wb"
            if start.validator and not start.offset:
                validator_file.write_text(start.validator, "ascii")
            with part.open(mode) as out:
                written = start.offset
                for chunk in chunks:
                    written += len(chunk)
                    if written > (FILE_BYTES if size is None else size):
                        limit = f"than {FILE_BYTES}" if size is None else f"than the {size} that its submitter says"
                        raise CorruptSubmission(
                            f"{redact(url)}: has more bytes {limit}. Correct the manifest or the file."
                        )
                    self._reserve(len(chunk))
                    out.write(chunk)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _retry(self, url: str, get: Callable[[], T]) -> T:
        def ask() -> T:
            self._refuse_late(url)
            try:
                return get()
            except OSError as e:
                if urls.split(url)[1].scheme != "file" or is_disk_full(e):
                    raise  # a fault of our own disk
                kind = PermanentError if e.errno in _PERMANENT_ERRNOS else TransientError
                raise kind(f"{redact(url)}: {os.strerror(e.errno or 0)}") from None

        return retry(ask, *self._tries, self._stop)

    @contextmanager
    def _open_content(
        self, url: str, offset: int, headers: dict[str, str]
    ) -> Iterator[tuple[_ContentStart, Iterator[bytes]]]:
        """Yield the server's headers, and the content from the offset that they state."""
        if urls.split(url)[1].scheme == "file":
            with self._reach.file(url) as source:
                yield _ContentStart(0, ""), self._read_chunks(url, source.read)
            return
        with self._request("GET", url, headers) as answer:
            if answer.status == _NO_RANGE and offset and answer.headers.get("content-range", "").endswith(f"/{offset}"):
                yield _ContentStart(offset, ""), iter(())
                return
            if answer.status == _NO_RANGE and offset:
                raise TransientError(f"{redact(url)}: changed while it was fetched")
            _refuse_bad_status(url, answer)
            content_offset = 0
            if answer.status == _PARTIAL:
                span = answer.headers.get("content-range", "").removeprefix("bytes ")
                if not span.startswith(f"{offset}-"):
                    raise TransientError(
                        f"{redact(url)}: answered with bytes {span[:40]} where {offset}- were asked for"
                    )
                content_offset = offset
            validator = answer.headers.get("etag", "")
            validator = (
                answer.headers.get("last-modified", "") if validator.startswith("W/") or not validator else validator
            )
            yield (
                _ContentStart(content_offset, validator if validator.isascii() else ""),
                self._read_chunks(url, lambda n: answer.read1(n) or b""),
            )

    def _refuse_late(self, url: str) -> None:
        if self._deadline is not None and self._clock() > self._deadline:
            raise PermanentError(
                f"{redact(url)}: it was not fetched completely within the time limit of a job (--job-time)."
            )

    def _read_chunks(self, url: str, read: Callable[[int], bytes]) -> Iterator[bytes]:
        started, received = self._clock(), 0
        while chunk := read(CHUNK_BYTES):
            yield chunk
            if self._stop.is_set():
                raise StopRequested
            received += len(chunk)
            elapsed = self._clock() - started
            self._refuse_late(url)
            if self._slow is not None and elapsed > self._slow.prompt_s and received < elapsed * self._slow.rate:
                raise self._slow.mark_slow(url)
            if elapsed > SLOW_AFTER_S and received < elapsed * self._lowest_rate:
                raise TransientError(
                    f"{redact(url)}: sends less than {self._lowest_rate:g} bytes a second "
                    f"({received} in {elapsed:.0f} s)"
                )

    @contextmanager
    def _request(self, method: str, url: str, headers: dict[str, str]) -> Iterator[BaseHTTPResponse]:
        """Send a request and follow redirects. Network errors within the block are raised as ``TransientError``."""
        all_headers = {"accept-encoding": "identity", **headers}
        send = partial(self._exchange, method, all_headers)
        try:
            with http.follow(send, url, _redirect_target, limits.FETCH_REDIRECTS) as (_, answer):
                yield answer
        except http.TooManyRedirects as e:
            url = redact(e.url)
            raise PermanentError(
                f"{url}: redirects more than {limits.FETCH_REDIRECTS} times. Correct the URL."
            ) from None

    @contextmanager
    def _exchange(self, method: str, headers: dict[str, str], url: str) -> Iterator[BaseHTTPResponse]:
        if self._slow is not None:
            self._slow.raise_if_slow(url)
        try:
            with http.exchange(self._pool, method, url, headers, self._timeout_s) as answer:
                yield answer
        except (http.NotSent, http.Unanswered) as e:
            raise describe_failure(url, e, self._slow, "no whole answer") from None

    @cached_property
    def _pool(self) -> PoolManager:
        return http.pool(self._reach, 16)


def describe_failure(
    url: str, error: http.NotSent | http.Unanswered, slow: SlowHosts | None, what: str
) -> DeliveryError | SlowHost:
    """Return the error to raise for a request without an answer; ``what`` is missing."""
    if isinstance(error, http.NotSent) and error.permanent:
        return PermanentError(f"{redact(url)}: {error}. Correct it.")
    if slow is not None and (isinstance(error, http.NotSent) or error.timed_out):
        return slow.mark_slow(url)
    return TransientError(f"{redact(url)}: {type(error.__cause__).__name__}, {what}")


class _ContentStart(NamedTuple):
    offset: int
    """Offset of the content that follows."""
    validator: str
    """Validator (such as an etag) of the content at this URL; "" if there is none."""


def check_file(url: str, path: Path, digest: str, size: int | None) -> FetchedContent:
    """Return a file's size and digest if they match the given ones.

    Raises:
        CorruptSubmission: they do not match.
    """
    kind, _, _ = (digest or "sha256:").partition(":")
    sha256, given_kind = hashlib.sha256(), hashlib.new(kind)
    with path.open("rb") as content:
        while chunk := content.read(256 * KIB):
            sha256.update(chunk)
            if kind != "sha256":
                given_kind.update(chunk)
    size_found = path.stat().st_size
    if size is not None and size_found != size:
        raise CorruptSubmission(
            f"{redact(url)}: has {size_found} bytes, its submitter says {size}. Correct the manifest or the file."
        )
    if digest:
        _compare_digests(url, digest, f"{kind}:{(sha256 if kind == 'sha256' else given_kind).hexdigest()}")
    return FetchedContent(size_found, sha256.hexdigest())


def _compare_digests(url: str, expected: str, actual: str) -> None:
    if expected != actual:
        raise CorruptSubmission(
            f"{redact(url)}: its digest is {actual}, its submitter says {expected}. Correct the manifest or the file."
        )


def _refuse_bad_status(url: str, answer: BaseHTTPResponse) -> None:
    if answer.status in (200, _PARTIAL):
        return
    message = f"{redact(url)}: answered {answer.status} {answer.reason or ''}".rstrip()
    if urls.is_retryable(answer.status):
        raise TransientError(message)
    raise PermanentError(f"{message}. Correct the URL.")


def _redirect_target(url: str, target: str) -> str:
    """Return the URL that a server redirects to.

    Raises:
        PermanentError: the URL is invalid or must not be requested.
    """
    try:
        full_url = check_url(target, url)
    except CorruptSubmission as e:
        raise PermanentError(f"{redact(url)}: its server redirects: {e}") from None
    if urls.split(full_url)[1].scheme == "file":
        raise PermanentError(f"{redact(url)}: redirects to a file of this machine, which a server may not do.")
    return full_url


def _remove_part(part: Path) -> None:
    for path in (part, _validator_of(part)):
        path.unlink(missing_ok=True)


def _validator_of(part: Path) -> Path:
    return part.with_name(part.name + _VALIDATOR)


def fetch_in_parallel(fetch: Callable[[T], FetchedFile], entries: list[T], at_once: int) -> list[FetchedFile]:
    """Fetch several files in parallel. After the first failure no further fetches begin, and those in progress are
    finished."""
    from concurrent.futures import ThreadPoolExecutor

    if len(entries) == 1:
        return [fetch(entries[0])]
    with ThreadPoolExecutor(min(at_once, len(entries)), "intake fetch") as pool:
        futures = [pool.submit(fetch, entry) for entry in entries]
        try:
            return [each.result() for each in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
