"""The step that gets a document's content from the web."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urljoin, urlsplit

from ferryman import limits
from ferryman.breaker import BreakerEvent, Breakers
from ferryman.document import Document
from ferryman.errors import BadDocument, PermanentError, TransientError, Unavailable
from ferryman.net import allowed_addresses
from ferryman.net import urls as net
from ferryman.steps.fields import bad_field, field_name, field_values

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

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
    # Unavailable hosts, which this process does not contact for now.
    _unavailable: Breakers = dataclasses.field(default_factory=Breakers, init=False, repr=False, compare=False)

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
        from ferryman.net import http

        deadline = time.monotonic() + self.timeout_s
        url = self._check_allowed(urls[0], f"{doc.id}: field {self.field!r} holds")

        def redirected(url: str, target: str) -> str:
            return self._check_allowed(target, f"{doc.id}: {net.redact(url)} redirects to", url)

        try:
            with http.follow(lambda url: self._answer(url, deadline), url, redirected, self.redirects) as (url, answer):
                doc.raw = self._content(answer, url, deadline)
                stated = _CHARSET.search(answer.headers.get("content-type", ""))
                if stated is not None and doc.get("charset") is None:
                    doc["charset"] = stated[1].lower()
        except http.TooManyRedirects as e:
            raise PermanentError(
                f"{net.redact(e.url)}: its redirects={self.redirects} are used up. Correct the URL, or allow more."
            ) from None
        return doc

    def _check_allowed(self, text: str, where: str, base: str = "") -> str:
        """Return a URL, which may be relative to ``base``.

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
        return url.url

    @contextmanager
    def _answer(self, url: str, deadline: float) -> Iterator[BaseHTTPResponse]:
        """Yield the server's answer, whose content is not read yet. Network errors inside become ``TransientError``."""
        from ferryman.net import http

        started = time.monotonic()
        if (breaker := self._unavailable.blocking(_host_of(url))) is not None:
            raise Unavailable(breaker.why, scope=_host_of(url))
        headers = {"accept-encoding": "gzip"}
        try:
            with http.exchange(_pool(os.getpid()), "GET", url, headers, self.timeout_s, deadline=deadline) as answer:
                self._unavailable.succeed(_host_of(url))
                yield answer
        except http.NotSent as e:
            why = f"{net.redact(url)}: {e}"
            if e.permanent:
                raise BadDocument(f"{why}. Correct it.") from None
            if e.unknown_host:  # more often a dead link than a host that cannot be reached for now
                raise TransientError(why) from None
            raise self._mark_unavailable(started, url, why) from None
        except http.Unanswered as e:
            raise TransientError(f"{net.redact(url)}: {e}") from None

    def _mark_unavailable(self, started: float, url: str, why: str) -> Unavailable:
        """Note that a host is unavailable, and return the error. It is not contacted for as long as the failed attempt
        took, so that not each of a thousand documents waits for it, and other hosts get at least half of the time."""
        wait_s = max(time.monotonic() - started, limits.BACKOFF_FIRST_S)
        self._unavailable.fail(_host_of(url), BreakerEvent.UNAVAILABLE, why, wait_s)
        return Unavailable(why, scope=_host_of(url))

    def _content(self, answer: BaseHTTPResponse, url: str, deadline: float) -> bytes:
        """Read the content of a successful answer; raise for all others."""
        if not 200 <= answer.status < 300:
            status = f"{net.redact(url)}: answered {answer.status} {answer.reason or ''}".rstrip()
            if answer.status == net.TOO_MANY_REQUESTS:
                raise self._mark_unavailable(time.monotonic(), url, status)
            if net.is_retryable(answer.status):
                raise TransientError(status)
            raise PermanentError(f"{status}. Correct the URL, or drop the document.")
        from ferryman.net import http

        if coding := http.unread_coding(answer):
            raise PermanentError(
                f"{net.redact(url)}: its content is encoded with {coding}, which was not asked for. Have the server "
                "obey Accept-Encoding, or drop the document."
            )
        content = bytearray()
        announced = answer.length_remaining or 0
        while max(announced, len(content)) <= self.max_bytes:
            if time.monotonic() > deadline:
                progress = f"{len(content)} bytes within {self.timeout_s:g} s, and not all."
                raise TransientError(f"{net.redact(url)}: {progress}")
            chunk = answer.read1(_PIECE_BYTES, decode_content=True)
            if not chunk:
                return bytes(content)
            content += chunk
        raise PermanentError(
            f"{net.redact(url)}: has more than max_bytes={self.max_bytes}. Raise the limit, or drop the document."
        )


@lru_cache(maxsize=1)
def _pool(process: int) -> PoolManager:
    """Return this process's connections. A forked process must not use those of its parent."""
    from ferryman.net import http

    return http.pool(allowed_addresses.process_reach())


def _host_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
