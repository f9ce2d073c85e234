"""What is shown of a URL, and who is asked by it."""

from __future__ import annotations

import base64

import pytest

from ferryman.net import urls


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@host:8443/a?token=secret", "https://host:8443/a?…"),
        ("https://me:secret@host?token=secret", "https://host?…"),
        ("https://me:sec@ret@host/a#secret", "https://host/a"),
        ("https://me:sec\\ret@host/a", "https://host/a"),
        ("https://me:sec/ret@host/a", "https://host/a"),
        ("https://me:sec#ret@host:8443/a", "https://host:8443/a"),
        ("https://me:s?c?ret@host/a", "https://host/a?…"),
        ("https://me:12/34@host/a", "https://host/a"),
        ("https://me:sec@ret/x@host/a", "https://host/a"),
        ("//me:secret@host/a", "//host/a"),
        ("me:secret@host/a", "host/a"),
        ("https://host/@name/x?a=b@c#d?e", "https://host/@name/x?…"),
        ("https://${USER}:${SECRET}@${HOST}/x", "https://${HOST}/x"),
        ("${HOOK_URL}", "${HOOK_URL}"),
        ("", ""),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    """No user, password, query or fragment; of a query that there was one, unless it names a target."""
    assert urls.redact(url) == shown
    assert urls.strip_secrets(url) == shown.removesuffix("?…")


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("http://host/x", b""),
        ("http://me:p%40ss@host/x", b"me:p@ss"),
        ("http://me@host/x", b"me:"),
        ("http://:token@host/x", b":token"),
        ("http://j%E4ne:p@host/x", b"j\xe4ne:p"),
    ],
)
def test_user_and_password_of_a_url(url: str, login: bytes) -> None:
    """They are no part of what is asked for, and sent byte for byte."""
    parts, found = urls.split_login(url + "#part")
    assert parts.url == "http://host/x"
    assert urls.basic_auth(found).removeprefix("Basic ") == base64.b64encode(login).decode()


def test_what_passes() -> None:
    """Who says that a request was not handled, and servers in trouble; nothing that is the request's fault."""
    assert [status for status in range(200, 500) if urls.is_retryable(status)] == [408, 425, 429]
    assert all(map(urls.is_retryable, range(500, 600)))
    assert all(map(urls.is_retryable, urls.UNAVAILABLE))
