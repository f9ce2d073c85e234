"""A step that fails some times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ferryman.document import Document


def failing(times: int, *ids: str, error: Callable[[str], Exception] = RuntimeError) -> Callable[[Document], Document]:
    """A step that fails the first ``times`` calls for each of these documents (all, if none is named)."""
    calls: Counter[str] = Counter()

    def step(doc: Document) -> Document:
        if not ids or doc.id in ids:
            calls[doc.id] += 1
            if calls[doc.id] <= times:
                raise error("not yet")
        return doc

    return step
