"""docs/how-to/archive-originals.md: its commands are run against an FTP server and one that speaks S3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.page import HOW_TO, QuickShell


def test_the_page_is_true(server: Callable[[str], Any], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that the page shows is a line of its output; the file server has what the page says."""
    monkeypatch.setenv("QUICK_FERRYMAN_FORKS", "no")  # the driver asks obstore, whose threads no fork has
    s3, ftp = server("s3"), server("ftp")
    settings = {"ENDPOINT_URL": s3.url, "ACCESS_KEY_ID": s3.options["key"], "SECRET_ACCESS_KEY": s3.options["secret"]}
    for name, value in {**settings, "REGION": "us-east-1", "ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for name, value in ftp.login.items():
        monkeypatch.setenv(name, value)
    s3.client().create_bucket(Bucket="archive")
    with QuickShell(place, {"ftp://files.example.org": ftp.url}) as shell:
        said = shell.follow(HOW_TO / "archive-originals.md")
    assert not any(ftp.login["FTP_PASSWORD"] in line for line in said)
    assert (ftp.files / "archive" / "2024" / "heart.txt").read_text() == "On the motion of the heart\n"
    assert not (ftp.files / "archive" / "2024" / "species #1.txt").exists()
    keys = [each["Key"] for each in s3.client().list_objects_v2(Bucket="archive")["Contents"]]
    assert len([key for key in keys if key.startswith("originals/sha256/")]) == 1
    assert len([key for key in keys if key.startswith("log/")]) == 1
