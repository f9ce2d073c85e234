"""docs/decisions: a decision that a later one replaces or changes names it at its top, and is named there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
BACK = {"Replaced by": "Replaces", "Changed by": "Changes"}
RELATION = re.compile(r"- (Replaced by|Changed by|Replaces|Changes) \[(\d{4})\]\(([^)]+)\)(: [^\n]+)?\.")


def top(page: Path) -> list[str]:
    """The list between a page's title and its text; empty if there is none."""
    lines = page.read_text("utf-8").splitlines()[2:]
    return lines[: lines.index("")] if lines[0].startswith("- ") else []


def relations(page: Path) -> set[tuple[str, str]]:
    """What the page says of others at its top: relation, file."""
    found = [RELATION.fullmatch(line) for line in top(page)]
    return {(match[1], match[3]) for match in found if match}


RELATIONS = {page.name: relations(page) for page in PAGES}


def test_the_numbers_have_no_gaps() -> None:
    """One file for each number."""
    assert [page.name[:4] for page in PAGES] == [f"{n:04}" for n in range(1, len(PAGES) + 1)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name[:4])
def test_the_top_is_understood(page: Path) -> None:
    """Nothing else stands there, and each link has the number of its file."""
    for line in top(page):
        match = RELATION.fullmatch(line)
        assert match, line
        assert match[3].startswith(match[2])
        assert (FOLDER / match[3]).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name[:4])
def test_what_is_replaced_or_changed_is_named_by_both(page: Path) -> None:
    """The earlier page names the later one, and the later one the earlier one."""
    for relation, other in RELATIONS[page.name]:
        if relation in BACK:
            assert page.name < other
            assert (BACK[relation], page.name) in RELATIONS[other]
        else:
            [there] = [earlier for earlier, later in BACK.items() if later == relation]
            assert other < page.name
            assert (there, page.name) in RELATIONS[other]


def test_some_are_changed() -> None:
    """The pages are read as they are written."""
    assert ("Changed by", "0047-commits-without-delta-rs.md") in RELATIONS["0001-commit-then-deliver-through-delta.md"]


def test_the_index_lists_each_page_with_its_title() -> None:
    """In the order of their numbers."""
    rows = re.findall(
        r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE
    )
    titles = [page.read_text("utf-8").splitlines()[0] for page in PAGES]

    assert [(number, name) for number, name, _ in rows] == [(page.name[:4], page.name) for page in PAGES]
    assert [f"# {number}: {title}" for number, _, title in rows] == titles
