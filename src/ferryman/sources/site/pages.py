"""Memory of a host's pages between two scans: what to ask for them with, and what they link to."""

from __future__ import annotations

import enum
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from ferryman import limits
from ferryman.errors import StateDamaged
from ferryman.sources.base import Bookmark
from ferryman.sources.site.sitemaps import FeedEntries

_CHUNK_BYTES: Final = limits.BOOKMARK_BYTES // 2
"""Bytes of a bookmark with pages: base64 adds a third."""

_CHUNK_PAGES: Final = 2000
_FORMAT: Final = 1

ASKS_PASSWORD: Final = "password"
"""Location of a page that asked for a password when it was read last: then one that does is not a login in its
place."""


class PageState(enum.IntEnum):
    """Kinds of addresses, by what was found there."""

    UNREAD = 0
    """Never read."""
    DOCUMENT = 1
    """A document."""
    GONE = 2
    """The host says that there is no such page."""
    MOVED = 3
    """The host says that it has another address from now on."""
    ALIAS = 4
    """Another name of a page with the same content, to which its canonical link leads."""
    NO_DOCUMENT = 5
    """It asks not to be indexed, or is not of a kind that is: a picture, a page of another host."""


class SitePage(msgspec.Struct, array_like=True):
    """An address of a host, and what was found there.

    Attributes:
        links: pages that it links to, by their numbers in the memory.
        checked, round: when the host was last asked for it (seconds since 1970), and in which round; 0: never.
        lastmod: what the sitemap said when it was last read.
        target: where it has moved, or the page that it is an alias of.
        listed: whether a sitemap or a feed has named it.
        depth: number of links that lead to it.
        doubt: why its last answer says nothing about it; "": it does.
        refused: why its content cannot be a document.
        etag, modified: validators of its content.
        is_settled: whether its last answer was in doubt, and counts if the next one is the same: a status that forbids
            what was never read, or a kind of content that is left out.
        refreshes: whether it has moved by a page that leads elsewhere by itself, and not by its status.
    """

    url: str
    state: PageState = PageState.UNREAD
    digest: str = ""
    size: int = 0
    etag: str = ""
    modified: str = ""
    checked: int = 0
    round: int = 0
    lastmod: str = ""
    links: list[int] = []
    target: str = ""
    listed: bool = False
    depth: int = 0
    doubt: str = ""
    refused: str = ""
    has_password: bool = False
    is_settled: bool = False
    refreshes: bool = False

    @property
    def was_read(self) -> bool:
        """Return whether it is, or was until now, a document."""
        return bool(self.digest)


class FeedMemory(msgspec.Struct):
    """Entries of a feed at the last look, and whether their guids have proved stable."""

    entries: FeedEntries = []
    stable: bool = False


class HostMemory(msgspec.Struct, omit_defaults=True):
    """Memory that a scan of a host leaves for the next one.

    Attributes:
        round: number of the last round, in each of which every page is asked for once; 0: there was none.
        began: when it began (seconds since 1970).
        is_open: whether it has not come to its end.
        distrusted: until when ``lastmod`` is not believed.
        missing_page: sketch of what the host answers for an address that it cannot have; None: it says that there is no
            such page.
        robots_is_missing: whether robots.txt is such an answer, too.
        scope: hash of the rules by which pages belong to the site, at the last round.
        rereads: whether they have changed, so that each page is read in this round.
        missing_target: where it redirects such an address; "": nowhere.
        elsewhere: pages of other hosts that are linked to from here.
    """

    round: int = 0
    began: int = 0
    is_open: bool = False
    distrusted: int = 0
    missing_page: list[int] | None = None
    missing_target: str = ""
    robots_is_missing: bool = False
    scope: str = ""
    rereads: bool = False
    feeds: dict[str, FeedMemory] = {}
    elsewhere: list[str] = []
    chunks: int = 0
    format: int = _FORMAT


def bookmarks(origin: str, memory: HostMemory, pages: Iterable[SitePage], old_chunks: int) -> Iterator[Bookmark]:
    """Yield the bookmarks that hold the memory of a host.

    Args:
        old_chunks: number of bookmarks with pages that there were before.
    """
    chunk: list[SitePage] = []
    number = 0
    every = list(pages)
    at = 0
    while at < len(every):
        count = _CHUNK_PAGES
        while True:
            chunk = every[at : at + count]
            packed = b64encode(zlib.compress(msgspec.json.encode(chunk))).decode()
            if len(packed) <= _CHUNK_BYTES or count == 1:
                break
            count //= 2
        yield Bookmark(f"{origin} {number}", packed)
        number += 1
        at += len(chunk)
    for left in range(number, old_chunks):
        yield Bookmark(f"{origin} {left}", None)
    memory.chunks = number
    yield Bookmark(origin, msgspec.to_builtins(memory))


def signature(memory: HostMemory, pages: Iterable[SitePage]) -> bytes:
    """Return a hash of the memory of a host without its times: while only these change, it need not be written."""
    timeless = msgspec.structs.replace(memory, round=0, began=0, chunks=0, rereads=False)
    digest = blake2b(msgspec.json.encode(timeless), digest_size=16)
    for page in pages:
        digest.update(msgspec.json.encode(msgspec.structs.replace(page, checked=0, round=0)))
    return digest.digest()


def load_pages(origin: str, marks: Mapping[str, Any]) -> tuple[HostMemory, list[SitePage]]:
    """Return the memory of a host from its bookmarks.

    Raises:
        StateDamaged: they are not what was written.
    """
    if origin not in marks:
        return HostMemory(), []
    try:
        memory = msgspec.convert(marks[origin], HostMemory)
        pages: list[SitePage] = []
        for number in range(memory.chunks):
            packed = zlib.decompress(b64decode(marks[f"{origin} {number}"]))
            pages += msgspec.json.decode(packed, type=list[SitePage])
    except (msgspec.MsgspecError, KeyError, ValueError, zlib.error) as e:
        raise StateDamaged(origin, f"the memory of its pages is not what was written ({e})") from e
    return memory, pages


def own_bookmarks(origin: str, marks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bookmarks of one host."""
    return {name: value for name, value in marks.items() if name.partition(" ")[0] == origin}
