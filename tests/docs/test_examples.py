"""The worked examples of the docs keep the promises that the shipped suites test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def python(page: str) -> list[str]:
    """The page's blocks of Python, in their order."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def names(page: str, wanted: str) -> dict[str, Any]:
    """What the blocks that speak of ``wanted`` define."""
    made: dict[str, Any] = {"__name__": f"example_{wanted}"}
    for text in python(page):
        if re.search(rf"\bclass \w*{wanted}\b|\b{wanted}\(", text):
            exec(compile(text, page, "exec"), made)
    return made


TestZip = names("reference/sources.md", "Zip")["TestZip"]
TestCards = names("how-to/write-a-destination.md", "Cards")["TestCards"]


def test_the_plan_of_the_example_is_in_order() -> None:
    """It can run."""
    plan = names("how-to/write-a-destination.md", "Cards")["plan"]

    assert plan.check() == []
    assert plan.nodes[-1].policy.guarantee.value == "exactly-once"


def test_the_plan_of_the_readme_does_what_it_says() -> None:
    """It can run; a letter goes one way, the paragraphs of another text the other."""
    from ferryman import Document

    [text] = python("../README.md")
    made: dict[str, Any] = {"__name__": "readme"}
    exec(compile(text, "README.md", "exec"), made)

    assert all("does not compare sequences" in warning for warning in made["plan"].check())
    letter, other = (made["read"](Document("a", raw=raw)) for raw in (b"Dear Sir", b"One\n\nTwo"))
    assert {letter["kind"], other["kind"]} == {"letter", "other"}
    assert [child.id for child in made["paragraphs"](other)] == ["a#0", "a#1"]


@pytest.mark.parametrize("page", sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")))
def test_every_block_of_python_is_python(page: str) -> None:
    """It can be compiled; signatures, which are no programs, are left out."""
    for text in python(page):
        if not re.match(r"[\w.]+\(.*(\)|->.*)$", text.strip(), re.DOTALL) and not re.fullmatch(r"[\w.]+", text.strip()):
            compile(text, page, "exec")
