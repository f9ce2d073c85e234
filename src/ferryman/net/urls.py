"""Rules for HTTP requests by URL: which part of a URL may be shown, logins in URLs, which failures are transient."""

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
    """Return a URL, or a text given for one, without user, password and query, which may be secret, and fragment."""
    return _URL.sub(r"\1\2", url, count=1)


def redact(url: str) -> str:
    """Return a URL for messages: without secrets, and with ``?…`` in the place of a query."""
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


def basic_auth(login: str) -> str:
    """Return the value of the header ``Authorization`` for ``user:password``."""
    return "Basic " + b64encode(login.encode(errors="surrogateescape")).decode()


def pool(connections: int = 1) -> PoolManager:
    """Return a pool that keeps ``connections`` for each server. Certificates are checked against the system's
    authorities; no proxy is used."""
    from urllib3 import PoolManager

    return PoolManager(num_pools=32, maxsize=connections, ssl_context=ssl.create_default_context())


def send_request(
    servers: PoolManager,
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeout_s: float | Timeout,
    body: bytes | None = None,
) -> closing[BaseHTTPResponse]:
    """Send one request, without retries and redirects; return its answer, whose content is not read yet.

    Raises:
        LocationValueError: no host can have this name.
        HTTPError: there is no answer, or, while it is read, it breaks off.
    """
    parts, login = split_login(url)
    all_headers = {"user-agent": "ferryman", **headers, **({"authorization": basic_auth(login)} if login else {})}
    single: dict[str, Any] = {"retries": False, "redirect": False, "preload_content": False}
    return closing(servers.request(method, parts.url, body=body, headers=all_headers, timeout=timeout_s, **single))


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


def failure_reason(error: BaseException, timeout_s: float) -> str:
    """Return why there is no answer, without the URL that urllib3's message repeats; "" if the answer broke off or is
    not HTTP."""
    from urllib3 import exceptions

    match error:
        case exceptions.NameResolutionError():
            return "no host of this name is found"
        case exceptions.NewConnectionError():
            return getattr(error.__cause__, "strerror", None) or "no connection"
        case exceptions.ConnectTimeoutError() | exceptions.ReadTimeoutError() | TimeoutError():
            return f"no answer within {timeout_s:g} s"
        case exceptions.SSLError() | ssl.SSLError():
            return f"no safe connection: {error}"
    return ""
