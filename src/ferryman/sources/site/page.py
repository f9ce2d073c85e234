"""A page of a site: what a crawl has to know of its markup."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from ferryman.sources.site.scope import normalize

_UNSEEN: Final = frozenset({"script", "style", "template", "noscript", "svg", "math"})
_META_IN_TEXT: Final = frozenset({"description", "keywords", "author", "og:title", "og:description"})
_SKETCH_WORDS: Final = 20_000
_SKETCH_HASHES: Final = 64
_SIMILAR: Final = 0.7
_RELATED: Final = 0.3
"""Share of equal shingles from which two pages are the same, and from which they may be: of versions of a page, which
name one of them, much differs."""

_FEW_WORDS: Final = 20
"""Words of a page that is nearly empty: a frame without what a script would put into it."""

_REFRESH: Final = re.compile(
    r"""\s*+(\d*+)[\d.]*+(?=[;,\s])\s*+[;,]?+\s*+(?:url\s*+=\s*+)?+['"]?+([^'"]++)""", re.IGNORECASE
)
"""Seconds and target of a ``meta refresh``, read as the HTML standard says (the shared declarative refresh steps)."""

_REFRESH_S: Final = 1
"""Longest pause (seconds) after which a page that leads elsewhere by itself has moved; after a longer one it is read
before."""

_VALUED: Final = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
"""Directives of ``X-Robots-Tag`` with a colon; any other word before one is the name of a crawler."""

_STATED_CHARSET: Final = re.compile(rb"<meta\b[^<>]*?charset\s*+=\s*+[\"']?+\s*+([\w.:-]{1,40})", re.IGNORECASE)
_AGENT: Final = "ferryman"

Sketch = tuple[int, ...]
"""The least hashes of the shingles of a text, by which texts are compared."""


@dataclass(slots=True)
class PageFacts:
    """Facts about a page.

    Attributes:
        canonical: the address that it calls its own; "": none.
        links: addresses that it links to, in their one form, each once.
        digest: hash of what can be seen of it: its text, and what its links and pictures lead to; scripts, styles,
            comments and hidden fields do not count.
        has_password: whether it asks for a password.
        is_empty: whether there is hardly any text in it, but scripts.
        refresh: the address that it leads to by itself, at once; "": it does not.
        text: check sum of its text, without anything else.
    """

    digest: str
    title: str = ""
    canonical: str = ""
    links: list[str] = field(default_factory=list)
    noindex: bool = False
    has_password: bool = False
    is_empty: bool = False
    refresh: str = ""
    text: int = 0
    sketch: Sketch = ()


def digest_of(body: bytes) -> str:
    """Return the hash of content that is not a page."""
    return blake2b(body, digest_size=16).hexdigest()


def similarity(one: Sketch, other: Sketch) -> float:
    """Return about which share of the shingles of two texts is in both."""
    if not one or not other:
        return float(one == other)
    union = sorted({*one, *other})[:_SKETCH_HASHES]
    return len({*one} & {*other} & {*union}) / len(union)


def is_same(one: Sketch, other: Sketch) -> bool:
    """Return whether two texts are the same but for details."""
    return similarity(one, other) >= _SIMILAR


def is_related(one: Sketch, other: Sketch) -> bool:
    """Return whether two texts may be versions of one page."""
    return similarity(one, other) >= _RELATED


def read_page(body: bytes, url: str, charset: str = "", robots_headers: Iterable[str] = ()) -> PageFacts:
    """Read the facts about a page of HTML.

    Args:
        charset: encoding that the server states; "": none.
        robots_headers: values of ``X-Robots-Tag``.
    """
    from lxml import etree

    text = decode_page(body, charset)
    collector = _Collector(url)
    parser = etree.HTMLParser(target=collector, huge_tree=True, no_network=True)
    try:
        parser.feed(text)
        parser.close()
    except (etree.LxmlError, ValueError, AssertionError):  # nothing, or nothing but comments
        pass
    return collector.facts(robots_headers)


def decode_page(body: bytes, charset: str) -> str:
    """Decode a page by its byte order mark, the encoding that the server or the page states, or UTF-8; else Windows'
    Latin."""
    import webencodings

    stated = _STATED_CHARSET.search(body[:4096])
    names = [charset, stated[1].decode("ascii", "replace") if stated else ""]
    found = next(filter(None, (webencodings.lookup(name) for name in names if name)), None)
    if found is None:
        try:
            return body.decode("utf-8-sig").replace("\0", "")
        except UnicodeDecodeError:
            found = webencodings.lookup("windows-1252")
    text: str = webencodings.decode(body, found, "replace")[0]
    return text.replace("\0", "")


class _Collector:
    """Target of a parser, which gathers facts without a tree: memory does not grow with the depth of the markup."""

    def __init__(self, url: str) -> None:
        self._base = self._url = url
        self._unseen = 0
        self._in_title = False
        self._title: list[str] = []
        self._words: list[str] = []
        self._hash = blake2b(digest_size=16)
        self._scripts = 0
        self._links: dict[str, None] = {}
        self._directives: list[str] = []
        self._text: list[str] = []
        self._text_sum = 0
        self._refresh = ""
        self.canonical = ""
        self.has_password = False

    def start(self, tag: str, attributes: Any) -> None:
        value = {name.lower(): text or "" for name, text in attributes.items()}
        self._flush()
        if tag in _UNSEEN:
            self._unseen += 1
            self._scripts += tag == "script"
        handler = _HANDLERS.get(tag)
        if handler is not None:
            handler(self, value)

    def end(self, tag: str) -> None:
        self._flush()
        if tag in _UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        if tag == "title":
            self._in_title = False

    def data(self, text: str) -> None:
        if self._in_title:
            self._title.append(text)
        if not self._unseen:
            self._text.append(text)

    def close(self) -> None:
        self._flush()

    def facts(self, robots_headers: Iterable[str]) -> PageFacts:
        """Return what was gathered."""
        self._flush()
        directives = set(self._directives).union(*map(_header_directives, robots_headers))
        nofollow = bool(directives & {"nofollow", "none"})
        return PageFacts(
            digest=self._hash.hexdigest(),
            title=" ".join("".join(self._title).split()),
            canonical=self.canonical,
            links=[] if nofollow else list(self._links),
            noindex=bool(directives & {"noindex", "none"}),
            has_password=self.has_password,
            is_empty=len(self._words) < _FEW_WORDS and self._scripts > 0,
            refresh=self._refresh,
            text=self._text_sum,
            sketch=_sketch(self._words),
        )

    def _flush(self) -> None:
        words = "".join(self._text).split()
        self._text.clear()
        if words:
            text = " ".join(words).encode("utf-8", "replace")
            self._hash.update(text + b"\0")
            self._text_sum = zlib.crc32(text, self._text_sum)
            if len(self._words) < _SKETCH_WORDS and not self._in_title:
                self._words += words

    def _count(self, text: str) -> None:
        self._hash.update(text.encode("utf-8", "replace") + b"\0")

    def _start_a(self, value: dict[str, str]) -> None:
        link = normalize(value.get("href", ""), self._base) if value.get("href") else ""
        if link:
            self._count(link)
            if "nofollow" not in value.get("rel", "").lower().split():
                self._links[sys.intern(link)] = None

    def _start_frame(self, value: dict[str, str]) -> None:
        if link := normalize(value.get("src", ""), self._base):
            self._links[sys.intern(link)] = None

    def _start_img(self, value: dict[str, str]) -> None:
        self._count(f"{normalize(value.get('src', ''), self._base).partition('?')[0]} {value.get('alt', '')}")

    def _start_base(self, value: dict[str, str]) -> None:
        self._base = normalize(value.get("href", ""), self._url) or self._url

    def _start_title(self, value: dict[str, str]) -> None:
        self._in_title = not self._title

    def _start_link(self, value: dict[str, str]) -> None:
        if "canonical" in value.get("rel", "").lower().split() and not self.canonical:
            self.canonical = normalize(value.get("href", ""), self._base)

    def _start_input(self, value: dict[str, str]) -> None:
        self.has_password |= value.get("type", "").lower() == "password"

    def _start_meta(self, value: dict[str, str]) -> None:
        name = (value.get("name") or value.get("property") or "").lower()
        content = value.get("content", "")
        if value.get("http-equiv", "").strip().lower() == "refresh" and not self._unseen:
            self._start_refresh(content)
        if name in ("robots", _AGENT):
            self._directives += re.findall(r"\w+", content.lower())
        elif name in _META_IN_TEXT:
            self._count(content)

    def _start_refresh(self, content: str) -> None:
        given = _REFRESH.match(content)
        target = normalize(given[2].strip(), self._base) if given else ""
        if not given or not target:
            return
        self._count(target)
        self._links[sys.intern(target)] = None
        if int(given[1][:9] or 0) <= _REFRESH_S and target != self._url:
            self._refresh = self._refresh or target


_HANDLERS: Final = {
    "a": _Collector._start_a,
    "area": _Collector._start_a,
    "frame": _Collector._start_frame,
    "iframe": _Collector._start_frame,
    "img": _Collector._start_img,
    "base": _Collector._start_base,
    "title": _Collector._start_title,
    "link": _Collector._start_link,
    "input": _Collector._start_input,
    "meta": _Collector._start_meta,
}


def _header_directives(value: str) -> set[str]:
    """Return the directives in one ``X-Robots-Tag`` that are for everybody or for us: those behind a name are for the
    crawler of that name."""
    found: set[str] = set()
    name = ""
    for part in value.lower().split(","):
        before, colon, rest = part.partition(":")
        if colon and before.strip() not in _VALUED:
            name, part = before.strip(), rest
        if name in ("", _AGENT):
            found.add(part.strip())
    return found


def _sketch(words: list[str]) -> Sketch:
    shingles = {zlib.crc32(" ".join(words[at : at + 3]).encode("utf-8", "replace")) for at in range(len(words) or 0)}
    return tuple(sorted(shingles)[:_SKETCH_HASHES])
