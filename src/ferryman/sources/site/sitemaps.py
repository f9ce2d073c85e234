"""Lists of a site's pages that the site itself gives: sitemaps and feeds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from xml.parsers import expat

from ferryman import limits
from ferryman.errors import as_exception, message_of
from ferryman.net.compressed import DAMAGE_ERRORS, UnpackedStream
from ferryman.sources.site.client import SiteClient
from ferryman.sources.site.scope import normalize

_SITEMAP_BYTES: Final = 64 * limits.MIB
"""Largest sitemap, unpacked; the protocol allows 50 MB."""

_SITEMAPS: Final = 1000
"""Sitemaps of a host that are read: 50 million pages at most."""

_DEPTH: Final = 3
_FEED_BYTES: Final = 10 * limits.MIB
_CHUNK: Final = 64 * limits.KIB


class BrokenSitemap(Exception):
    """A sitemap or a feed cannot be read to its end; the message says why."""


class SitemapEntry(NamedTuple):
    """Address in a sitemap: of a page, or of another sitemap."""

    url: str
    lastmod: str
    is_sitemap: bool


class SitePages(NamedTuple):
    """Pages that the sitemaps of a host name.

    Attributes:
        lastmods: address of a page -> its ``lastmod``, or "".
        broken: sitemaps that could not be read to their end, with the reason.
        found: whether there is any sitemap.
    """

    lastmods: dict[str, str]
    broken: list[str]
    found: bool


def read_sitemaps(client: SiteClient, urls: list[str], most: int, *, is_guess: bool) -> SitePages:
    """Read sitemaps, and those that they name.

    Args:
        most: number of pages after which no more are read.
        is_guess: nobody has named them: one that is not there is no fault.
    """
    pages = SitePages({}, [], found=False)
    waiting = [(url, 0) for url in reversed(urls)]
    seen: set[str] = set()
    while waiting and len(pages.lastmods) < most:
        url, depth = waiting.pop()
        if url in seen:
            continue
        seen.add(url)
        if len(seen) > _SITEMAPS or depth > _DEPTH:
            pages.broken.append(f"{url}: there are more than {_SITEMAPS} sitemaps, or they nest deeper than {_DEPTH}")
            break
        if not client.may_ask(url):
            pages.broken.append(f"{url}: it is on another host. Add that to hosts=")
            continue
        answer = client.follow(url, max_bytes=_SITEMAP_BYTES)
        missing = answer.status in (404, 410) or (answer.status == 200 and is_guess and answer.is_html and not depth)
        if is_guess and not depth and missing and b"<urlset" not in answer.body and b"<sitemapindex" not in answer.body:
            continue
        if answer.status != 200:
            pages.broken.append(f"{url}: {answer.why}")
            continue
        pages = pages._replace(found=True)
        try:
            for entry in sitemap_entries(answer.body, url):
                if entry.is_sitemap:
                    waiting.append((entry.url, depth + 1))
                else:
                    pages.lastmods[entry.url] = entry.lastmod
        except BrokenSitemap as e:
            pages.broken.append(f"{url}: {e}")
    return pages


def sitemap_entries(body: bytes, url: str) -> Iterator[SitemapEntry]:
    """Yield the entries of a sitemap, in XML or as lines of text, as they are parsed.

    Raises:
        BrokenSitemap: it is broken, after the entries before that place; or it is not a sitemap.
    """
    stream = _unpack(body)
    head = next(stream, b"").lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head.startswith(b"<"):
        text = b"".join([head, *stream]).decode("utf-8", "replace")
        pages = list(filter(None, map(normalize, text.splitlines())))
        if text.strip() and not pages:
            raise BrokenSitemap("it is not a sitemap")
        yield from (SitemapEntry(page, "", False) for page in pages)
        return
    parser = _SitemapParser(url)
    for chunk, is_last in _with_last(head, stream):
        try:
            parser.feed(chunk, is_last)
        except expat.ExpatError as e:
            yield from parser.take()
            if not parser.is_sitemap:
                break
            raise BrokenSitemap(f"it is broken in line {e.lineno}: {expat.ErrorString(e.code)}") from None
        yield from parser.take()
    if not parser.is_sitemap:
        raise BrokenSitemap("it is not a sitemap")


def _with_last(head: bytes, stream: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    yield head, False
    for chunk in stream:
        yield chunk, False
    yield b"", True


def _unpack(body: bytes) -> Iterator[bytes]:
    """Yield chunks of a sitemap, which is unpacked if its bytes are those of gzip, whatever its name says."""
    if not body.startswith(b"\x1f\x8b"):
        yield from (body[at : at + _CHUNK] for at in range(0, len(body), _CHUNK))
        return
    size = 0

    def add(count: int) -> None:
        nonlocal size
        size += count
        if size > _SITEMAP_BYTES:
            raise BrokenSitemap(f"it has more than {_SITEMAP_BYTES} bytes when unpacked")

    try:
        with UnpackedStream(io.BufferedReader(io.BytesIO(body)), add) as unpacked:
            while chunk := unpacked.read(_CHUNK):
                yield chunk
    except EOFError:
        raise BrokenSitemap("it is cut off") from None
    except DAMAGE_ERRORS as e:
        raise BrokenSitemap(f"it cannot be unpacked: {message_of(as_exception(e))}") from None


class _SitemapParser:
    """Parser that keeps nothing but the entry that it is in. Entities are not declared in sitemaps, and are refused."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._found: list[SitemapEntry] = []
        self._fields: dict[str, list[str]] = {}
        self._field = ""
        self._path: list[str] = []
        self.is_sitemap = False
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._parser.EntityDeclHandler = self._refuse_entity

    def feed(self, chunk: bytes, is_last: bool) -> None:
        self._parser.Parse(chunk, is_last)

    def take(self) -> list[SitemapEntry]:
        """Return the entries that are complete, once."""
        found, self._found = self._found, []
        return found

    def _start(self, name: str, _: Any) -> None:
        name = name.rpartition(" ")[2]
        if not self._path and name in ("urlset", "sitemapindex"):
            self.is_sitemap = True
        if name in ("url", "sitemap") and len(self._path) == 1:
            self._fields = {}
        self._field = name if len(self._path) == 2 and name in ("loc", "lastmod") else ""
        self._path.append(name)

    def _end(self, name: str) -> None:
        name = name.rpartition(" ")[2]
        self._path.pop()
        self._field = ""
        if name in ("url", "sitemap") and len(self._path) == 1:
            page = normalize("".join(self._fields.get("loc", ())), self._url)
            if page:
                lastmod = "".join(self._fields.get("lastmod", ())).strip()[:40]
                self._found.append(SitemapEntry(page, lastmod, name == "sitemap"))

    def _data(self, text: str) -> None:
        if self._field:
            self._fields.setdefault(self._field, []).append(text)

    def _refuse_entity(self, *_: Any) -> None:
        raise BrokenSitemap("it declares entities, which no sitemap does")


FeedEntries = list[tuple[str, str]]
"""Links and guids of a feed's entries."""


def read_feed(client: SiteClient, url: str) -> FeedEntries:
    """Return links and guids of the entries of a feed that have a link.

    Raises:
        BrokenSitemap: it cannot be had, or is not a feed.
    """
    import feedparser

    answer = client.follow(url, max_bytes=_FEED_BYTES)
    if answer.status != 200:
        raise BrokenSitemap(answer.why)
    # A stream, since text that looks like a URL or a path would be opened.
    parsed = feedparser.parse(io.BytesIO(answer.body), sanitize_html=False, resolve_relative_uris=False)
    if not parsed.entries and (parsed.bozo or not parsed.version):
        raise BrokenSitemap("it is not a feed")
    entries = ((normalize(entry.get("link", ""), url), str(entry.get("id", ""))) for entry in parsed.entries)
    return [(link, guid) for link, guid in entries if link]


def has_gap(known: FeedEntries, entries: FeedEntries, *, by_guid: bool) -> bool:
    """Return whether entries may have been missed between two looks at a feed: none that was there is there now.

    Args:
        by_guid: whether guids name the entries; else their links do.
    """
    at = int(by_guid)
    return bool(known and entries) and not {each[at] for each in known} & {each[at] for each in entries}


def guids_are_stable(known: FeedEntries, entries: FeedEntries) -> bool | None:
    """Return whether every entry that has kept its link has kept its guid, too; None: none has kept its link."""
    guids = dict(known)
    kept = [(link, guid) for link, guid in entries if link in guids]
    return all(guid and guids[link] == guid for link, guid in kept) if kept else None
