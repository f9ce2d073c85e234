"""docs/how-to/index-a-bucket.md: its commands are run against a server that speaks S3."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_how_to import commands_of, is_shown
from tests.docs.test_how_to import HOW_TO, Shell, parts

PAGE = HOW_TO / "index-a-bucket.md"


def test_the_page_is_true(server: Callable[[str], Any], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that the page shows is a line of its output; credentials come from the environment, as it says."""
    s3 = server("s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["secret"])
    shell = Shell(place)
    python = place / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    try:
        for file, text in parts(PAGE):
            if file:
                (place / file).write_text(text)
                continue
            for line, shown in commands_of(text):
                came = shell.run(line)
                assert not any(s3.options["secret"] in said for said in came)
                for wanted in shown:
                    assert is_shown(wanted, came), f"{line}: no line {wanted!r} in:\n" + "\n".join(came)
    finally:
        shell.close()
