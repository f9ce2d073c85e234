"""Addresses of pages: one form for each, and which of them belong to a site."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode, urljoin, urlsplit, urlunsplit

_PORTS: Final = {"http": 80, "https": 443}
_UNRESERVED: Final = re.compile(rb"[A-Za-z0-9._~-]")
_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")
_PATH_SESSION: Final = re.compile(r";(?:jsessionid|phpsessid|sid|sessionid)=[^/;?]*", re.IGNORECASE)
_SESSION_FIELDS: Final = re.compile(
    r"(?:jsessionid|phpsessid|aspsessionid\w*|sid|sessionid|session_id|cfid|cftoken|utm_\w+|fbclid|gclid|mc_[ce]id)",
    re.IGNORECASE,
)
"""Fields of a query that name a visitor or where he comes from, and not a page."""

_NUMBERS: Final = re.compile(r"\d+")
_REPEATS: Final = 3
"""Times that a name may stand in a path: more come of relative links on a server that ignores the end of an address."""

URL_CHARACTERS: Final = 2000
"""Longest address that is followed: browsers and caches take no more, and a page that links to ever longer ones has no
end."""


def normalize(url: str, base: str = "") -> str:
    """Return the one form of a page's address; "" if it is not an http or https URL, or too long.

    Scheme and host are in small letters, without login, usual port and fragment; dot segments are resolved, escapes are
    in one form, the fields of a query are sorted, and those that name a session are left out.
    """
    if not url.strip():
        return ""
    try:
        parts = urlsplit(urljoin(base, url.strip()) if base else url.strip())
        host, port = (parts.hostname or "").rstrip("."), parts.port
        host = host.encode("idna").decode() if not host.isascii() else host
    except (ValueError, UnicodeError):
        return ""
    if parts.scheme not in _PORTS or not host:
        return ""
    place = f"[{host}]" if ":" in host else host
    if port not in (None, _PORTS[parts.scheme]):
        place += f":{port}"
    path = _one_form(_PATH_SESSION.sub("", urlsplit(urljoin("http://h/", parts.path or "/")).path))
    fields = sorted(
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True, errors="surrogateescape")
        if not _SESSION_FIELDS.fullmatch(name)
    )
    query = urlencode(fields, errors="surrogateescape") if "=" in parts.query else _one_form(parts.query)
    full = urlunsplit((parts.scheme, place, path or "/", query, ""))
    return full if len(full) <= URL_CHARACTERS and full.isprintable() else ""


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL in its one form."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def with_scheme_of(origin: str, url: str) -> str:
    """Return an address of http with https, if the origin is the same host's with https: sites that have moved there
    still name their old addresses."""
    host = origin.removeprefix("https://")
    return f"https{url[4:]}" if url.startswith(f"http://{host}/") and host != origin else url


def pages_above(url: str) -> Iterator[str]:
    """Yield the addresses above a page: those of its folders, with and without a slash at the end."""
    origin = origin_of(url)
    path = urlsplit(url).path.rstrip("/")
    while path:
        path = path.rpartition("/")[0]
        yield f"{origin}{path}/"
        if path:
            yield origin + path


def pattern_of(url: str) -> str:
    """Return the pattern of an address: its path with a 0 for each number, and the names of its query's fields."""
    parts = urlsplit(url)
    names = "&".join(dict.fromkeys(name for name, _ in parse_qsl(parts.query, keep_blank_values=True)))
    return _NUMBERS.sub("0", parts.path) + (f"?{names}" if parts.query else "")


def _one_form(path: str) -> str:
    """Return a path with escapes in capital letters, and only where they are needed."""

    def one(match: re.Match[str]) -> str:
        byte = unquote_to_bytes(match[0])
        return byte.decode() if _UNRESERVED.fullmatch(byte) else match[0].upper()

    return _ESCAPE.sub(one, quote(path, safe="/%:@!$&'()*+,;=~", errors="surrogateescape"))


def _repeats_a_name(url: str) -> bool:
    names = [name for name in urlsplit(url).path.split("/") if name and not name.isdecimal()]
    return len(names) > _REPEATS and Counter(names).most_common(1)[0][1] > _REPEATS


class Scope:
    """The addresses that belong to a site.

    Args:
        starts: addresses from which the site is read; a page belongs to it if it is below the folder of one of them,
            or on one of the other origins.
        origins: other origins, all of whose pages belong to it.
        include, exclude: globs for path and query; ``*`` stands for slashes, too.
        per_pattern: pages of one pattern (see ``pattern_of``) that links may lead to.

    Attributes:
        full_patterns: patterns that have more pages.
        repeating: an address that was left out since it repeats a name; "": none was.
        digest: hash of the rules.
    """

    def __init__(
        self,
        starts: Sequence[str],
        origins: Sequence[str],
        include: Sequence[str],
        exclude: Sequence[str],
        per_pattern: int,
    ) -> None:
        self._prefixes = tuple(start.partition("?")[0].rpartition("/")[0] + "/" for start in starts)
        self._starts = frozenset(starts)
        self._origins = frozenset(origins)
        self._include, self._exclude = include, exclude
        self._per_pattern = per_pattern
        self._patterns: Counter[str] = Counter()
        self.full_patterns: set[str] = set()
        self.repeating = ""
        rules = (starts, sorted(origins), include, exclude, per_pattern)
        self.digest = blake2b(repr(rules).encode(), digest_size=8).hexdigest()

    def has(self, url: str) -> bool:
        """Return whether an address, in its one form, belongs to the site."""
        if url in self._starts:
            return True
        if not (url.startswith(self._prefixes) or origin_of(url) in self._origins):
            return False
        path = url[len(origin_of(url)) :]
        if self._include and not any(fnmatchcase(path, glob) for glob in self._include):
            return False
        return not any(fnmatchcase(path, glob) for glob in self._exclude)

    def count(self, url: str) -> bool:
        """Count a page that a link leads to; return False if there are enough of its pattern, or it has none."""
        if _repeats_a_name(url):
            self.repeating = self.repeating or url
            return False
        pattern = pattern_of(url)
        if self._patterns[pattern] >= self._per_pattern:
            self.full_patterns.add(pattern)
            return False
        self._patterns[pattern] += 1
        return True
