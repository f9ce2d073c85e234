"""A network with few or many children, and steps that make and fail them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import limits
from ferryman.document import Document
from ferryman.plan import Handle
from tests.support.plan_world import PlanWorld
from tests.support.tiers import sampled


@pytest.fixture(params=sampled(["held", "streamed"], 2))
def net(request: pytest.FixtureRequest, place: Path, monkeypatch: pytest.MonkeyPatch) -> PlanWorld:
    """What holds for few children holds for many, which go on while others are made."""
    if request.param == "streamed":
        monkeypatch.setattr(limits, "HELD_CHILDREN", 1)
    return PlanWorld.empty(place)


def words(doc: Document) -> Iterator[Document]:
    """A child for each word, keyed by it; not the document itself."""
    for word in doc.text().split():
        yield doc.child(word, raw=word.encode(), first=word[0])


def letters(doc: Document) -> list[Document]:
    """The document, and a child for each letter."""
    return [doc, *(doc.child(raw=letter.encode()) for letter in doc.text())]


def end(handle: Handle, net: PlanWorld, name: str = "out", **policy: Any) -> None:
    handle.destination(name, net.out(name), **{"backoff": 0, **policy})
