"""The step that lets documents go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ferryman.document import Document
from ferryman.errors import Dropped


@dataclass(frozen=True, slots=True)
class drop_if:
    """Let documents go that a condition is true of, and say why. They end as DROPPED, with the reason.

    >>> step = drop_if(lambda doc: doc.get("draft"), "a draft")
    >>> step(Document("a", title="Henry V")).fields
    {'title': 'Henry V'}

    Args:
        condition: a function of the document; true: it is dropped. What it raises is the document's error.
        why: the reason, a line for people.

    Raises:
        ValueError: when the step is made: the condition cannot be called, or no reason is given.
    """

    condition: Callable[[Document], Any]
    why: str

    def __post_init__(self) -> None:
        if not callable(self.condition):
            raise ValueError(f"condition={self.condition!r}: give a function of the document.")
        if not isinstance(self.why, str) or not self.why.strip():
            raise ValueError(f"why={self.why!r}: say in words why documents are dropped.")

    def __call__(self, doc: Document) -> Document:
        if self.condition(doc):
            raise Dropped(self.why)
        return doc
