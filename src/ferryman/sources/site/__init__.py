"""Web sites: ``Site`` lists the pages of a host and reads them, at one polite rate."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from ferryman import limits
from ferryman.errors import BadDocument, TransientError, Unavailable, UsageError
from ferryman.net import urls as net
from ferryman.sources.base import Bookmark, Fetched, Listed, Note, Source, Unchanged
from ferryman.sources.site.client import Access, Response, SiteClient
from ferryman.sources.site.crawl import Crawl, Fetch, Rules, document_of
from ferryman.sources.site.page import digest_of, read_page
from ferryman.sources.site.pages import ASKS_PASSWORD, load_pages, own_bookmarks
from ferryman.sources.site.scope import Scope, normalize, origin_of

_LIBRARIES: Final = ("feedparser", "lxml", "protego", "webencodings")


class Site(Source):
    """The pages of a web site: ``Site("https://docs.example.org/")``.

    Pages are found by the sitemaps that robots.txt names, or ``/sitemap.xml``, by ``feeds``, and by links below the
    folder of the address. The id of a document is the page's address, its ``raw`` what the server sent: ``main_text``
    or ``extract_text`` make text of it. Its fields are ``url``, ``content_hash``, ``mime``, ``charset`` and
    ``modified``, the last three where the server states them. PDF and Office files come the same way; pictures, sound,
    films, styles and scripts are left out.

    Each host is read by one task, at one polite ``rate``, by the rules of its robots.txt. Pages are asked for only if
    they have changed (``ETag``, ``Last-Modified``); where a sitemap states ``lastmod``, pages that it calls unchanged
    are not asked for, except a sample in each scan, and each of them every ``refetch``: if the sample shows that it is
    wrong, it is not believed for that long. What cannot be seen of a page (scripts, comments, hidden fields) is not a
    change. An answer that says nothing about a page (401, 403, 429, 5xx, none, a login in its place) is doubt: the page
    stays, and the run names it. 404, 410, a move for good (301, 308) and ``noindex`` delete it; what nothing leads to
    any more is asked for once more, and stays while it is there.

    A scan asks for ``budget`` pages at most; the next one goes on with the others, and until all were looked at nothing
    is deleted. After a kill only the pages of the scan that was killed are asked for again. Needs ``pip install
    'ferryman[web]'``.

    Args:
        url: address to begin with, or several. Their hosts may be private.
        hosts: other hosts, as ``https://cdn.example.org``, whose pages belong to the site. They get no secrets.
        include, exclude: globs for the path and query of pages, such as ``/blog/*``. Pages that are excluded later are
            deleted.
        sitemaps: addresses of sitemaps; None: see above; empty: none.
        feeds: addresses of feeds (RSS, Atom). A feed forgets its entries: what it has named stays until it is gone.
        rate: requests to a host, as "5/s" or "30/m".
        budget: pages asked for in one scan of a host.
        revisit: least time between two rounds over all pages ("1h"), for runs that scan often.
        refetch: how often each page is asked for whatever a sitemap says.
        depth: links that may lead to a page, one after the other.
        max_pages: pages of a host.
        per_pattern: pages of one pattern, such as ``/calendar/0/0``, that links may lead to.
        max_bytes: largest page; a larger one is rejected.
        timeout_s: longest time for one answer (seconds).
        contact: address at which you can be reached, for the ``User-Agent``: a URL or a mail address.
        headers, cookies: sent to the hosts of ``url`` only; ``${NAME}`` is filled in from the environment.
        auth: user and password, or the whole value of ``Authorization``; as ``headers``.
        fetch: function that is given an address and returns the page (text or bytes) as a browser shows it, for sites
            that are made by JavaScript. It runs in the worker, after the server was asked for the page.
        robots: whether robots.txt counts. False only for a site of your own.
        max_deleted: see ``Source``; None: 0.1 if there is a secret, else 0.5.
        prefix: see ``Source``.
    """

    counts_raw = False
    uncounted = frozenset({"modified"})

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        hosts: str | Sequence[str] = (),
        include: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        sitemaps: str | Sequence[str] | None = None,
        feeds: str | Sequence[str] = (),
        rate: str | float = "5/s",
        budget: int = limits.SITE_BUDGET,
        revisit: str | float = 0,
        refetch: str | float = "7d",
        depth: int = limits.SITE_DEPTH,
        max_pages: int = limits.SITE_PAGES,
        per_pattern: int = limits.SITE_PATTERN_PAGES,
        max_bytes: int = limits.SITE_PAGE_BYTES,
        timeout_s: float = limits.FETCH_TIMEOUT_S,
        contact: str = "",
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
        auth: str | tuple[str, str] | None = None,
        fetch: Fetch | None = None,
        robots: bool = True,
        max_deleted: float | None = None,
        prefix: str = "",
    ) -> None:
        has_secret = bool(headers or cookies or auth)
        if max_deleted is None:
            max_deleted = limits.MAX_DELETED_BEHIND_LOGIN if has_secret else limits.MAX_DELETED
        super().__init__(prefix=prefix, detect="fingerprint", max_deleted=max_deleted)
        self.starts = tuple(_address(each, "url") for each in _several(url))
        if not self.starts:
            raise UsageError("Site(): give the address of a site, as in Site('https://docs.example.org/').")
        self._others = tuple(origin_of(_address(each, "hosts")) for each in _several(hosts))
        self._include, self._exclude = _several(include), _several(exclude)
        self._per_pattern = per_pattern
        if min(budget, max_pages, per_pattern, max_bytes) < 1 or depth < 0 or not timeout_s > 0:
            raise UsageError("Site(): budget, max_pages, per_pattern, max_bytes and timeout_s must be above 0.")
        auth, headers = _check_secrets(auth, headers or {})
        origins = frozenset(map(origin_of, self.starts))
        self._access = Access(
            origins=origins,
            others=frozenset(self._others) - origins,
            rate=_rate(rate),
            contact=contact,
            headers=headers,
            cookies=dict(cookies or {}),
            auth=auth,
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            robots=robots,
        )
        self._rules = Rules(
            depth=depth,
            max_pages=max_pages,
            budget=budget,
            refetch_s=_duration("refetch", refetch),
            revisit_s=_duration("revisit", revisit),
            sitemaps=None if sitemaps is None else tuple(_address(each, "sitemaps") for each in _several(sitemaps)),
            feeds=tuple(_address(each, "feeds") for each in _several(feeds)),
            fetch=fetch,
        )
        self._process = 0

    def __repr__(self) -> str:
        return f"Site({', '.join(map(net.redact, self.starts))})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_client"}

    def place(self) -> str | None:
        return net.strip_secrets(self.starts[0])

    def not_installed(self) -> str:
        missing = [name for name in _LIBRARIES if find_spec(name) is None]
        return f"Site needs {', '.join(missing)}: pip install 'ferryman[web]'" if missing else ""

    def check(self) -> None:
        """Raises:
        UsageError: a package is missing.
        Misconfigured: a secret is not in the environment.
        """
        if missing := self.not_installed():
            raise UsageError(f"{missing}.")
        self._access.secret_headers()

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        origins = dict.fromkeys([*map(origin_of, self.starts), *self._others])
        roots = [f"{origin}/" for origin in self._others]
        linked = [
            url
            for origin in origins
            for url in (bookmarks.get(origin) or {}).get("elsewhere", ())
            if isinstance(url, str)
        ]
        return [
            (
                origin,
                [url for url in (*self.starts, *roots, *linked) if origin_of(url) == origin],
                own_bookmarks(origin, bookmarks),
            )
            for origin in origins
        ]

    def partitions_of_ids(self, ids: Collection[str], bookmarks: Mapping[str, Any]) -> list[Any]:
        origins = {origin_of(id) for id in ids}
        pages = (page for origin in origins for page in load_pages(origin, own_bookmarks(origin, bookmarks))[1])
        own = {page.url: ASKS_PASSWORD for page in pages if page.has_password}
        return [("", sorted(ids), {id: own[id] for id in ids if id in own})]

    def listing(
        self, partition: tuple[str, Sequence[str], Mapping[str, Any]]
    ) -> Iterator[Listed | Fetched | Bookmark | Note]:
        origin, urls, marks = partition
        if not origin:  # documents that wait: they are read one by one, without a crawl
            yield from (Listed(url, 0, location=marks.get(url, "")) for url in urls)
            return
        memory, pages = load_pages(origin, marks)
        if not memory.round and not self._access.contact and not _is_local(origin):
            yield Note("contact= is empty: say at which URL or mail address the site's operator can reach you")
        scope = Scope(self.starts, self._others, self._include, self._exclude, self._per_pattern)
        client, rng = SiteClient(self._access), random.Random()
        yield from Crawl(origin, urls, scope, self._rules, client, memory, pages, time.time(), rng).run()

    def read(self, listed: Listed) -> Fetched | Unchanged:
        url = listed.id
        robots = self._own_client.robots(url)
        if not robots.allows(url):
            raise TransientError(f"{url}: robots.txt forbids it now")
        answer = self._own_client.follow(url)
        if answer.status not in (200, 203) or answer.target:
            why = f"{url}: {answer.why}" + (f", redirects to {answer.target}" if answer.target else "")
            if answer.is_away or answer.status in net.UNAVAILABLE:
                raise Unavailable(why, scope=urlsplit(url).netloc)
            raise TransientError(why)
        if answer.is_cut:
            raise BadDocument(
                f"{url} has more than max_bytes={self._access.max_bytes}. Raise the limit, or exclude it."
            )
        found = self._document(url, answer, listed.location)
        return Unchanged() if listed.known and listed.known == found.fingerprint else found

    def _document(self, url: str, answer: Response, location: str) -> Fetched:
        """
        Raises:
            TransientError: a login is in its place.
        """
        digest = digest_of(answer.body)
        if answer.is_html:
            if self._rules.fetch is not None:
                content = self._rules.fetch(url)
                charset = {"content-type": "text/html; charset=utf-8"} if isinstance(content, str) else {}
                body = content.encode() if isinstance(content, str) else content
                answer = answer._replace(body=body, headers={**answer.headers, **charset})
            facts = read_page(answer.body, answer.url, answer.charset)
            if facts.has_password and (answer.url != url or location != ASKS_PASSWORD):
                raise TransientError(f"{url}: a page that asks for a password is in its place")
            digest = facts.digest
        return document_of(url, answer, digest)

    @cached_property
    def _client(self) -> SiteClient:
        self._process = os.getpid()
        return SiteClient(self._access)

    @property
    def _own_client(self) -> SiteClient:
        """Return this process's client. A forked process must not use the connections of its parent."""
        if self._process != os.getpid():
            self.__dict__.pop("_client", None)
        return self._client


def _several(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _address(url: str, option: str) -> str:
    try:
        net.check_login(url)
    except ValueError as e:
        raise UsageError(f"Site({option}=): {e}.") from None
    if "@" in urlsplit(url).netloc:
        raise UsageError(
            f"Site({option}={net.redact(url)!r}): a login in the address would be seen. Give it by auth=, as in "
            "auth=('user', '${PASSWORD}')."
        )
    address = normalize(url)
    if not address:
        raise UsageError(f"Site({option}={net.redact(url)!r}): it is not an http or https URL.")
    return address


def _check_secrets(
    auth: str | tuple[str, str] | None, headers: Mapping[str, str]
) -> tuple[str | tuple[str, str] | None, dict[str, str]]:
    """Return credentials and headers, checked; a message names the argument and has no value in it."""
    from ferryman.net import http

    try:
        return http.check_auth(auth), http.check_headers(headers)
    except ValueError as e:
        raise UsageError(f"Site(): {e}.") from None


def _rate(rate: str | float) -> float:
    try:
        return limits.per_second(rate)
    except ValueError as e:
        raise UsageError(f"Site(rate={e}") from None


def _duration(option: str, value: str | float) -> float:
    try:
        return limits.seconds(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        raise UsageError(f"Site({option}={value!r}): give a duration such as '1h' or '7d', or seconds.") from None


def _is_local(origin: str) -> bool:
    host = urlsplit(origin).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
