"""Rules for HTTP requests by URL: which part of a URL may be shown, logins in URLs, which failures are transient."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

if TYPE_CHECKING:
    from urllib3.util import Url

TOO_MANY_REQUESTS: Final = 429
"""Status: the host wants no more requests for now, whatever they ask for."""

NOT_HANDLED: Final = (408, 425, TOO_MANY_REQUESTS, 503)
"""Statuses of requests that were not handled (RFC 9110, RFC 6585, RFC 8470), so that any such request may be sent
again."""

UNAVAILABLE: Final = frozenset({TOO_MANY_REQUESTS, 502, 503, 504})
"""Statuses of a server, or a gateway before it, that is unavailable: Too Many Requests, Bad Gateway, Service
Unavailable, Gateway Timeout."""

_URL: Final = re.compile(r"((?:[^/?#]*//)?)(?:[^/?#]*@)?([^?#]*).*", re.DOTALL)


def is_retryable(status: int) -> bool:
    """Return whether a request with this status may succeed later; only for requests that may be repeated."""
    return status in NOT_HANDLED or status >= 500


def strip_secrets(url: str) -> str:
    """Return a URL, or a text given for one, without user, password and query, which may be secret, and fragment.

    If the password may hold characters that end it (see ``check_login``), everything up to the last ``@`` is left out.
    """
    try:
        check_login(url)
    except ValueError:
        scheme, slashes, rest = url.partition("//")
        url = scheme + slashes + rest.rpartition("@")[2]
    return _URL.sub(r"\1\2", url, count=1)


def redact(url: str) -> str:
    """Return a URL for messages: without secrets, and with ``?…`` in place of a query."""
    return strip_secrets(url) + ("?…" if "?" in url.partition("#")[0] else "")


def split(url: str, base: str = "") -> tuple[str, SplitResult]:
    """Return a URL in full, and its parts. URLs from outside are parsed by this function.

    Args:
        base: the URL that it may be relative to.

    Raises:
        ValueError: it is not a URL, or its port is impossible; names it.
    """
    try:
        full = urljoin(base, url) if base else url
        parts = urlsplit(full)
        _ = parts.port
    except ValueError as e:
        raise ValueError(f"{redact(url)} is not a URL ({e})") from None
    return full, parts


def split_login(url: str) -> tuple[Url, str]:
    """Return the parts of a URL without login and fragment, as urllib3 requests it; and ``user:password``, or "".

    Raises:
        ValueError: it is not a URL.
    """
    from urllib3.util import parse_url

    parts = parse_url(url)
    login = parts.auth or ""
    login += ":" if login and ":" not in login else ""
    return parts._replace(auth=None, fragment=None), unquote(login, errors="surrogateescape")


def check_login(url: str) -> None:
    """Check that a URL can be divided into login, host and the rest in one way only.

    Raises:
        ValueError: its password may hold ``@``, ``/``, ``#`` or ``?``, so that a part of it would be taken for the
            host, and shown. The message has nothing of the URL.
    """
    rest = url.partition("//")[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, _, _ = authority.rpartition("@")
    before_at, at, host = rest[len(authority) :].rpartition("@")
    name, colon, port = authority.rpartition("]")[2].rpartition(":")
    ambiguous = "@" in login or bool(at and ":" in login)
    if at and colon and "@" not in authority:  # host:port, or a user and the beginning of a password
        ambiguous = not (port.isdecimal() and int(port) < 1 << 16)
        if name and "." not in name and "=" not in before_at and not before_at.endswith("/"):
            ambiguous |= re.match(r"[\w-]+(?:[.,/]|:\d|\Z)", host) is not None
    if ambiguous:
        raise ValueError(
            "the url's password cannot be told from its host: percent-encode @ / # ? in the password, and @ in the path"
        )


def without_logins(hosts: object) -> str:
    """Return what was given for hosts, as ``repr`` has it, without what is before an ``@``: it may be a password."""
    return re.sub(r"[^,'\"]+", lambda part: part[0].rpartition("@")[2], repr(hosts))


def basic_auth(login: str) -> str:
    """Return the value of the header ``Authorization`` for ``user:password``."""
    return "Basic " + b64encode(login.encode(errors="surrogateescape")).decode()


def retry_after_s(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that the header ``Retry-After`` asks to wait (a number, or a date); None without it."""
    from email.utils import parsedate_to_datetime

    value = headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value[:9])
    try:
        at = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, at - (time.time() if now is None else now))
