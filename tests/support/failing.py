"""A step that fails some times."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable

from ferryman.document import Document

CALLS: defaultdict[str, Counter[str]] = defaultdict(Counter)
"""Step -> document -> calls."""


def failing(times: int, *ids: str, error: Callable[[str], Exception] = RuntimeError) -> Callable[[Document], Document]:
    """A step that fails the first ``times`` calls for each of these documents (all, if none is named).

    It counts in this process, over all runs: what a step itself keeps, the next run has not.
    """
    key = uuid.uuid4().hex

    def step(doc: Document) -> Document:
        from tests.support.failing import CALLS  # a global would be pickled with the step

        calls = CALLS[key]
        if not ids or doc.id in ids:
            calls[doc.id] += 1
            if calls[doc.id] <= times:
                raise error("not yet")
        return doc

    return step
