"""What the docs show of the code is what the code says now.

If one of these fails: ``.venv/bin/python -m scripts.docs``, and look at what has changed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.docs import blocks, moves, signatures

from ferryman.records.rows import MOVES, Status

PAGES = [page for page in blocks.pages() if blocks.blocks_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_is_up_to_date(page: Path) -> None:
    """Every block that is made from the code is what it would be if it was made now."""
    text = page.read_text("utf-8")

    assert blocks.regenerate(text) == text


@pytest.mark.parametrize("name", blocks.PICTURES)
def test_the_picture_is_up_to_date(name: str) -> None:
    """Every picture is what it would be if it was drawn now."""
    assert (blocks.DOCS / name).read_text("utf-8") == blocks.PICTURES[name]()


def test_every_block_has_its_place() -> None:
    """Nothing is made that no page shows."""
    assert {name for page in PAGES for name in blocks.blocks_of(page)} == set(blocks.BLOCKS)


def test_the_picture_of_the_statuses_has_every_move_of_a_run() -> None:
    """An arrow for each move that is not a person's, and a box for each status between them."""
    wanted = {
        (before, after)
        for before, afters in MOVES.items()
        for after in afters
        if before is not None and not {before, after} & set(moves.BY_OPERATOR)
    }

    assert set(moves.drawn()) == wanted
    assert set(moves.PLACES) == set(Status) - set(moves.BY_OPERATOR)
    drawn = re.findall(r"marker-end", moves.picture())
    assert len(drawn) == len(wanted) + 1  # one more leads in


def test_every_public_name_has_a_text() -> None:
    """Nobody has to guess what a public name is."""
    import ferryman
    import ferryman.destinations
    import ferryman.routers
    import ferryman.sources
    import ferryman.steps

    for module in (ferryman, ferryman.destinations, ferryman.routers, ferryman.sources, ferryman.steps):
        silent = [name for name in module.__all__ if not getattr(module, name).__doc__]
        assert not silent, f"{module.__name__}: {silent}"


def test_signatures_are_shown_as_they_are_written() -> None:
    """Defaults, keyword-only arguments and answers."""

    def example(first: int, /, second: str = "x", *rest: int, third: Status = Status.DEAD, **more: object) -> list[str]:
        """What it does: ``this``."""
        return []

    assert signatures.entry("example", example) == (
        "### example\n\n```python\nexample(\n    first: int,\n    /,\n    second: str = 'x',\n    *rest: int,\n"
        "    third: Status = Status.DEAD,\n    **more: object,\n) -> list[str]\n```\n\nWhat it does: `this`."
    )
