"""docs/how-to/ of sites and repositories: their commands are run, against a server and a repository of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_connectors import free_port
from tests.servers.registry import require_command, require_package
from tests.support.page import HOW_TO, QuickShell
from tests.support.site_server import SiteServer


def test_the_page_about_sites_is_true(place: Path) -> None:
    """Each line that the page shows is a line of what its command prints."""
    require_package("trafilatura")
    with QuickShell(place, {"9000": str(free_port())}) as shell:
        shell.follow(HOW_TO / "index-a-site.md")


def test_the_demo_indexes_a_site(place: Path) -> None:
    """As the command: it says where the plan is, what was delivered, and how to search."""
    require_package("trafilatura")
    with SiteServer() as site, QuickShell(place) as shell:
        site.page("/docs/", "How the ferry crosses the river on a rope of hemp", "/docs/chain")
        site.page("/docs/chain", "Another one crosses the river on a chain of iron")
        said = shell.run(f"ferryman demo --site {site.url}/docs/")
        assert any("site.py: it indexes the pages of" in line for line in said), said
        assert any("2 delivered" in line for line in said), said
        assert any("hemp" in line for line in shell.run("ferryman search ferryman-demo/site.db hemp"))


def test_the_page_about_repositories_is_true(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clone is kept below the test's folder."""
    require_command("git")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    with QuickShell(place) as shell:
        shell.follow(HOW_TO / "index-a-repository.md")
