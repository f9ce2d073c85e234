"""docs/how-to/ of sites and repositories: their commands are run, against a server and a repository of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.test_connectors import free_port
from tests.support.page import HOW_TO, QuickShell


def test_the_page_about_sites_is_true(place: Path) -> None:
    """Each line that the page shows is a line of what its command prints."""
    pytest.importorskip("trafilatura")
    with QuickShell(place, {"9000": str(free_port())}) as shell:
        shell.follow(HOW_TO / "index-a-site.md")


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_the_page_about_repositories_is_true(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clone is kept below the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    with QuickShell(place) as shell:
        shell.follow(HOW_TO / "index-a-repository.md")
