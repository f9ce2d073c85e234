"""The documentation site: built without a warning, every page in its navigation and its search, every link alive."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.servers.registry import require

ROOT = Path(__file__).parents[2]
TOOL = ROOT / ".venv-site" / "bin" / "zensical"
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
PAGES = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def navigation(entry: Any) -> Iterator[str]:
    """The pages below an entry, in their order."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for below in entry.values():
            yield from navigation(below)
    else:
        for below in entry:
            yield from navigation(below)


def test_every_page_is_in_the_navigation_once() -> None:
    """If this fails: add the page to zensical.toml."""
    assert sorted(navigation(CONFIG["nav"])) == sorted(PAGES)


def test_the_intake_queue_has_a_section_of_its_own() -> None:
    """Who comes for the core does not meet the names that it stores."""
    sections = {name: list(navigation(pages)) for entry in CONFIG["nav"] for name, pages in entry.items()}
    assert [*sections] == ["Start", "How-to", "Reference", "Intake queue", "Architecture", "Decisions"]

    for name in ("Start", "How-to", "Reference", "Architecture"):
        for page in sections[name]:
            text = (ROOT / "docs" / page).read_text("utf-8")
            assert "erc_" not in text, page


class Targets(HTMLParser):
    """What a page links to or loads, and the ids that links to it may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("img", "script", "source") and "src" in found:
            self.loaded.append(found["src"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(found["href"])


@pytest.fixture(scope="module")
def site() -> Path:
    """The folder of the site, as it is built now.

    Fails on any warning. Skips where the tool is missing, but not in CI.
    """
    if not TOOL.exists():
        require("`make docs-site` has not been run: .venv-site/ is missing")
    command = [str(TOOL), "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return ROOT / str(CONFIG["site_dir"])


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Targets]:
    """What is on each page that was made of Markdown, by its file."""
    docs = ROOT / str(CONFIG.get("docs_dir", "docs"))
    made = (page for page in site.rglob("*.html") if not (docs / page.relative_to(site)).exists())
    return {page: Targets(page.read_text("utf-8")) for page in made if page.name != "404.html"}


def test_every_page_is_built(built: dict[Path, Targets]) -> None:
    """README.md is the index of its folder."""
    assert len(built) == len(PAGES)


def alive(site: Path, built: dict[Path, Targets], page: Path, path: str, anchor: str) -> bool:
    """Does a link from this page lead to a file of the site, and to a heading that it has?"""
    there = (page.parent / unquote(path)).resolve() if path else page
    there = there / "index.html" if there.is_dir() else there
    return (
        there.is_file() and site in there.parents and (not anchor or there not in built or anchor in built[there].ids)
    )


def test_every_link_of_the_site_leads_somewhere(site: Path, built: dict[Path, Targets]) -> None:
    """Pages, headings and pictures; also links that leave docs/, which the tool does not report."""
    dead = []
    for page, targets in built.items():
        for link in [*targets.links, *targets.loaded]:
            parts = urlsplit(link)
            if not parts.scheme and not alive(site, built, page, parts.path, unquote(parts.fragment)):
                dead.append((page.relative_to(site).as_posix(), link))
    assert dead == []


def test_no_page_loads_anything_from_elsewhere(built: dict[Path, Targets]) -> None:
    """No fonts, scripts or pictures of other servers."""
    assert {source for targets in built.values() for source in targets.loaded if urlsplit(source).scheme} == set()


def test_every_page_is_found_by_the_search(site: Path, built: dict[Path, Targets]) -> None:
    """The index that the browser searches has a section of every page."""
    items = json.loads((site / "search.json").read_text("utf-8"))["items"]
    found = {str(item["location"]).partition("#")[0] for item in items}
    pages = {page.parent.relative_to(site).as_posix() for page in built}

    assert {"." if not location else location.rstrip("/") for location in found} >= pages
