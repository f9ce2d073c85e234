"""docs/how-to/index-a-bucket.md: its commands are run against a server that speaks S3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.page import HOW_TO, QuickShell


def test_the_page_is_true(server: Callable[[str], Any], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that the page shows is a line of its output; credentials come from the environment, as it says."""
    s3 = server("s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["secret"])
    with QuickShell(place) as shell:
        said = shell.follow(HOW_TO / "index-a-bucket.md")
    assert not any(s3.options["secret"] in line for line in said)
