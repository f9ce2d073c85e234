"""Rules for whoever asks a server by its URL: what is shown of it, as whom it is asked, which failures pass."""

from __future__ import annotations

import re
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager, Timeout
    from urllib3.util import Url

TOO_MANY: Final = 429
"""Too Many Requests: whatever is asked for, the host wants to be left alone."""

NOT_TAKEN: Final = (408, 425, TOO_MANY, 503)
"""Statuses that say themselves that the request was not handled (RFC 9110, RFC 6585, RFC 8470): whatever it was, it may
be sent again."""

AWAY: Final = frozenset({TOO_MANY, 502, 503, 504})
"""Too Many Requests, Bad Gateway, Service Unavailable, Gateway Timeout: the server, or what stands before it."""

_URL: Final = re.compile(r"((?:[^/?#]*//)?)(?:[^/?#]*@)?([^?#]*).*", re.DOTALL)


def passes(status: int) -> bool:
    """May what was answered so be asked for later? For what only reads, or may come twice."""
    return status in NOT_TAKEN or status >= 500


def plain(url: str) -> str:
    """A URL, or what was given for one, without user, password and query, which may be secrets, and fragment."""
    return _URL.sub(r"\1\2", url, count=1)


def shown(url: str) -> str:
    """Return a URL for messages, in which a query leaves a trace."""
    return plain(url) + ("?…" if "?" in url.partition("#")[0] else "")


def split(url: str, base: str = "") -> tuple[str, SplitResult]:
    """Take a URL apart; return it in full, and its parts. Whoever gets a URL from outside reads it by this.

    Args:
        base: that it may be relative to.

    Raises:
        ValueError: it is not a URL, or has no possible port; names it.
    """
    try:
        full = urljoin(base, url) if base else url
        parts = urlsplit(full)
        _ = parts.port
    except ValueError as e:
        raise ValueError(f"{shown(url)} is not a URL ({e})") from None
    return full, parts


def parted(url: str) -> tuple[Url, str]:
    """Parts of a URL without user, password and fragment, as urllib3 will ask for it; and ``user:password``, or "".

    Raises:
        ValueError: it is not a URL.
    """
    from urllib3.util import parse_url

    parts = parse_url(url)
    login = parts.auth or ""
    login += ":" if login and ":" not in login else ""
    return parts._replace(auth=None, fragment=None), unquote(login, errors="surrogateescape")


def basic(login: str) -> str:
    """The header ``Authorization`` for ``user:password``."""
    return "Basic " + b64encode(login.encode(errors="surrogateescape")).decode()


def pool(connections: int = 1) -> PoolManager:
    """Connections that are kept, so many a server. Certificates are checked by the system's authorities; no proxy."""
    from urllib3 import PoolManager

    return PoolManager(num_pools=32, maxsize=connections, ssl_context=ssl.create_default_context())


def answer(
    servers: PoolManager,
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeout_s: float | Timeout,
    body: bytes | None = None,
) -> closing[BaseHTTPResponse]:
    """The answer to one request, its content not read yet. Asked once; a redirect is an answer.

    Raises:
        LocationValueError: no host can have this name.
        HTTPError: there is no answer, or, while it is read, it breaks off.
    """
    parts, login = parted(url)
    known = {"user-agent": "ferryman", **headers, **({"authorization": basic(login)} if login else {})}
    once: dict[str, Any] = {"retries": False, "redirect": False, "preload_content": False}
    return closing(servers.request(method, parts.url, body=body, headers=known, timeout=timeout_s, **once))


def retry_after_s(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that an answer asks to wait (a number, or a date); None if it does not say."""
    from email.utils import parsedate_to_datetime

    said = headers.get("retry-after", "").strip()
    if said.isdecimal():
        return float(said[:9])
    try:
        at = parsedate_to_datetime(said).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, at - (time.time() if now is None else now))


def reason(error: BaseException, timeout_s: float) -> str:
    """Why there is no answer, without the URL that urllib3's own words repeat; "" if it broke off or is not HTTP."""
    from urllib3 import exceptions as of

    match error:
        case of.NameResolutionError():
            return "no host of this name is found"
        case of.NewConnectionError():
            return getattr(error.__cause__, "strerror", None) or "no connection"
        case of.ConnectTimeoutError() | of.ReadTimeoutError() | TimeoutError():
            return f"no answer within {timeout_s:g} s"
        case of.SSLError() | ssl.SSLError():
            return f"no safe connection: {error}"
    return ""
