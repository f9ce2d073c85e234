"""Folders of files for tests, and what a source lists in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from ferryman.errors import TransientError
from ferryman.sources import Doubt, Files, Listed


def tree(root: Path, *names: str) -> None:
    """Files by their names, each with its name as content; folders by names that end in a slash."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)


def scan(source: Files) -> dict[str, Listed]:
    """Everything a scan lists, by id."""
    entries = [x for piece in source.partitions() for x in source.listing(piece) if isinstance(x, Listed)]
    found = {entry.id: entry for entry in entries}
    assert len(found) == len(entries), "an id is listed twice"
    return found


def refused(source: Files) -> dict[str, str]:
    """What is refused, by id, and why."""
    return {id: entry.refused for id, entry in scan(source).items() if entry.refused}


def until_it_fails(entries: Iterable[Listed | Doubt]) -> tuple[list[str], str]:
    """The ids that come before the error, and its text."""
    found: list[Listed | Doubt] = []
    with pytest.raises(TransientError) as caught:
        found.extend(entries)
    return [entry.id for entry in found if isinstance(entry, Listed)], str(caught.value)
