"""docs/how-to/index-a-drive.md: its commands are run against a WebDAV server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.page import HOW_TO, QuickShell


def test_the_page_is_true(server: Callable[[str], Any], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that the page shows is a line of its output; the login comes from the environment, and is not shown."""
    webdav = server("webdav")
    for name, value in webdav.login.items():
        monkeypatch.setenv(name, value)
    for path in ("minutes/june.txt", "minutes/2024/may #1.txt", "minutes/2024/.draft"):
        (webdav.files / path).parent.mkdir(parents=True, exist_ok=True)
        (webdav.files / path).write_text(f"minutes of {path}")
    with QuickShell(place, {"cloud.example.org": webdav.url.partition("://")[2]}) as shell:
        said = shell.follow(HOW_TO / "index-a-drive.md")
    assert not any(webdav.login["WEBDAV_PASSWORD"] in line for line in said)
