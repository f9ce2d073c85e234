"""Every link from a page to a page, a picture or a heading leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """Targets of the links that stay in this repository."""
    text = without_code(page.read_text("utf-8"))
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link: lower case, blanks as dashes, without punctuation."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """The file is there, and so is the heading."""
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{page.name}: {target}: no such heading"


def test_every_page_is_reached() -> None:
    """From docs/README.md, in any number of steps, one comes to every page."""
    start = ROOT / "docs" / "README.md"
    reached, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for target in links(page):
            there = (page.parent / target.partition("#")[0]).resolve()
            if there.suffix == ".md" and there.exists() and there not in reached:
                reached.add(there)
                waiting.append(there)

    assert set(PAGES[1:]) <= reached
