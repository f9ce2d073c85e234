"""What a source of lines or rows lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ferryman.document import Document
from ferryman.errors import TransientError
from ferryman.sources import Doubt, Listed
from ferryman.sources.records import Records


def rows(source: Records) -> Iterator[Listed | Document]:
    """Everything a scan lists; a piece that fails brings what comes before its error."""
    source.check()
    for piece in source.partitions():
        try:
            yield from (entry for entry in source.listing(piece) if not isinstance(entry, Doubt))
        except TransientError:
            continue


def documents(source: Records, *, all_readable: bool = True) -> dict[str, Document]:
    """The documents that a scan lists, by id."""
    found = {entry.id: entry for entry in rows(source) if isinstance(entry, Document)}
    assert not all_readable or not failures(source)
    return found


def refusals(source: Records) -> dict[str, str]:
    """What is refused, by id, and why."""
    return {entry.id: entry.refused for entry in rows(source) if isinstance(entry, Listed)}


def failures(source: Records) -> list[str]:
    """Why the listing is incomplete."""
    told = []
    for piece in source.partitions():
        try:
            for _ in source.listing(piece):
                pass
        except TransientError as e:
            told.append(str(e))
    return told


def told(source: Records) -> str:
    """The one reason why the listing is incomplete."""
    found = failures(source)
    assert len(found) == 1, found
    if "\n" in found[0]:
        pytest.fail(f"more than one line: {found[0]!r}")
    return found[0]
