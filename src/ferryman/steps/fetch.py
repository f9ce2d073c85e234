"""The step that gets a document's content from the web."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urljoin

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, PermanentError, TransientError, Unavailable
from ferryman.net import allowed_addresses
from ferryman.net import urls as net
from ferryman.steps.fields import bad_field, field_name, field_values

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager
    from urllib3.exceptions import HTTPError
    from urllib3.util import Url

_CHARSET: Final = re.compile(r";[ \t]*+charset[ \t]*+=[ \t]*+[\"']?([\w.:+-]{1,40})", re.IGNORECASE | re.ASCII)
_PIECE_BYTES: Final = 64 * limits.KIB


@dataclass(frozen=True, slots=True)
class fetch_url:
    """Get what a URL leads to; the bytes become the document's ``raw``.

    ``fetch_url("link")`` asks for the URL in the field ``link`` and keeps the field. A document without the field is
    left unchanged. If the answer states a character encoding, it becomes the field ``charset``, unless there is one:
    ``extract_text`` decodes by it.

    It only reads (``GET``). Only ``http`` and ``https`` are asked for; certificates are checked by the system's
    authorities; a proxy is not used. A user and password in the URL are sent as Basic authentication, and appear in no
    message, nor does the query. A document is fetched when it is processed, so what changes behind the URL alone is not
    noticed.

    A host that cannot be reached holds only its own documents: they stay pending and spend no attempt, however long it
    takes, and each run ends with 4 and names the host. Where a host is gone, have a step before this one drop its
    documents. A name that nobody knows, and a page that fails, are tried with ``patience=`` and then fail.

    Who can write the URLs can make the workers ask any server that they reach, also inside your network: where you do
    not trust them, say ``hosts``. Link-local addresses, and those where clouds keep their metadata services, are always
    refused. In a plan that ``ferryman intake serve`` runs, its ``--hosts`` hold: no address that is not public.

    Args:
        field: holds the URL: one text, or a list with one.
        timeout_s: seconds from the start until all is there, looked at whenever something arrives; as long may pass
            without anything. The system's look-up of a host's name is not counted.
        max_bytes: largest content that is taken, after decompression (bytes).
        redirects: how many are followed at most.
        hosts: names of the hosts that may be asked, redirects too; none: any.

    Raises:
        BadDocument: the field holds no URL, or one that may not be asked for.
        Unavailable: the host cannot be reached, or says 429: its documents wait, those of other hosts go on.
        TransientError: no answer, a broken one, an unknown name, or status 408, 425 or 5xx.
        PermanentError: any other status, more than ``max_bytes``, more than ``redirects``.
        ValueError: when the step is made: a limit that is not above 0 (``redirects``: below 0).
    """

    TIMEOUT_S: ClassVar[float] = limits.STEP_TIMEOUT_S

    field: str
    timeout_s: float = limits.FETCH_TIMEOUT_S
    max_bytes: int = limits.MAX_FILE_BYTES
    redirects: int = limits.FETCH_REDIRECTS
    hosts: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        field_name(self.field, "field")
        if not self.timeout_s > 0 or not self.max_bytes > 0 or self.redirects < 0:
            raise ValueError("give a timeout_s and max_bytes above 0, and redirects of 0 or more.")
        hosts = (self.hosts,) if isinstance(self.hosts, str) else tuple(self.hosts)
        object.__setattr__(self, "hosts", tuple(host.lower() for host in hosts))

    def __call__(self, doc: Document) -> Document:
        urls = field_values(doc, self.field)
        if not urls:
            return doc
        if len(urls) > 1:
            raise bad_field(doc, self.field, f"holds {len(urls)} URLs. Leave one, or make a document of each.")
        deadline = time.monotonic() + self.timeout_s
        url = self._parse_allowed(urls[0], f"{doc.id}: field {self.field!r} holds")
        for _ in range(self.redirects + 1):
            with self._answer(url, deadline) as answer:
                target = answer.get_redirect_location()
                if not target:
                    doc.raw = self._content(answer, url, deadline)
                    if doc.get("charset") is None and (
                        stated := _CHARSET.search(answer.headers.get("content-type", ""))
                    ):
                        doc["charset"] = stated[1].lower()
                    return doc
            url = self._parse_allowed(target, f"{doc.id}: {net.redact(url.url)} redirects to", url.url)
        raise PermanentError(
            f"{net.redact(url.url)}: its redirects={self.redirects} are used up. Correct the URL, or allow more."
        )

    def _parse_allowed(self, text: str, where: str, base: str = "") -> Url:
        """Parse a URL, which may be relative to ``base``.

        Raises:
            BadDocument: it is not a URL, or may not be requested.
        """
        from urllib3.util import parse_url

        try:
            url = parse_url(urljoin(base, text.strip()))
        except ValueError:
            raise BadDocument(f"{where} text that is not a URL. Correct it.") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise BadDocument(f"{where} {net.redact(url.url)}, which is not an http or https URL. Correct it.")
        if self.hosts and url.host not in self.hosts:
            raise BadDocument(
                f"{where} {net.redact(url.url)}, which is on none of the hosts {', '.join(self.hosts)}. Add it there."
            )
        return url

    @contextmanager
    def _answer(self, url: Url, deadline: float) -> Iterator[BaseHTTPResponse]:
        """Yield the server's answer, whose content is not read yet. Network errors inside become ``TransientError``."""
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError, LocationValueError

        started = time.monotonic()
        until, why = _unavailable_until.get(_host_of(url), (started, ""))
        if started < until:
            raise Unavailable(why, scope=_host_of(url))
        timeout = Timeout(total=max(deadline - time.monotonic(), 0.001))
        try:
            with net.send_request(_pool(os.getpid()), "GET", url.url, {"accept-encoding": "gzip"}, timeout) as answer:
                yield answer
        except LocationValueError:
            raise BadDocument(f"{net.redact(url.url)}: this is not a possible host name. Correct it.") from None
        except HTTPError as e:
            default = f"the answer broke off or is not HTTP ({type(e).__name__})"
            why = f"{net.redact(url.url)}: {net.failure_reason(e, self.timeout_s) or default}"
            raise (_mark_unavailable(started, url, why) if _is_host_failure(e) else TransientError(why)) from None

    def _content(self, answer: BaseHTTPResponse, url: Url, deadline: float) -> bytes:
        """Read the content of a successful answer; raise for all others."""
        if not 200 <= answer.status < 300:
            status = f"{net.redact(url.url)}: answered {answer.status} {answer.reason or ''}".rstrip()
            if answer.status == net.TOO_MANY_REQUESTS:
                raise _mark_unavailable(time.monotonic(), url, status)
            if net.is_retryable(answer.status):
                raise TransientError(status)
            raise PermanentError(f"{status}. Correct the URL, or drop the document.")
        content = bytearray()
        announced = answer.length_remaining or 0
        while max(announced, len(content)) <= self.max_bytes:
            if time.monotonic() > deadline:
                progress = f"{len(content)} bytes within {self.timeout_s:g} s, and not all."
                raise TransientError(f"{net.redact(url.url)}: {progress}")
            chunk = answer.read1(_PIECE_BYTES, decode_content=True)
            if not chunk:
                return bytes(content)
            content += chunk
        raise PermanentError(
            f"{net.redact(url.url)}: has more than max_bytes={self.max_bytes}. Raise the limit, or drop the document."
        )


@lru_cache(maxsize=1)
def _pool(process: int) -> PoolManager:
    """Return this process's connections. A forked process must not use those of its parent."""
    return allowed_addresses.process_reach().pool()


_unavailable_until: Final[dict[str, tuple[float, str]]] = {}
"""Unavailable hosts that this process does not contact for now -> until when (monotonic), and why."""


def _mark_unavailable(started: float, url: Url, why: str) -> Unavailable:
    """Note that a host is unavailable, and return the error. It is not contacted for as long as the failed attempt
    took, so that not each of a thousand documents waits for it, and other hosts get at least half of the time."""
    now = time.monotonic()
    _unavailable_until[_host_of(url)] = now + max(now - started, limits.BACKOFF_FIRST_S), why
    return Unavailable(why, scope=_host_of(url))


def _host_of(url: Url) -> str:
    """Return host and port of a URL."""
    return url.netloc or ""


def _is_host_failure(error: HTTPError) -> bool:
    """Return whether the host could not be reached for now. An unknown host name is not such an error: it is more often
    a dead link."""
    from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

    if isinstance(error, NameResolutionError):
        return isinstance(error.__cause__, socket.gaierror) and error.__cause__.errno == socket.EAI_AGAIN
    return isinstance(error, (ConnectTimeoutError, NewConnectionError))
