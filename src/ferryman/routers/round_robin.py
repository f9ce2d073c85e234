"""One branch, each in its turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from ferryman.document import Document
from ferryman.routers.base import Router


class RoundRobin(Router):
    """Spreads documents evenly over the branches: within a task they differ by one at most.

    Tasks start at different branches, so that many small ones spread as evenly as one large.

    Args:
        on_unequal: "error" has ``plan check`` refuse branches that lead to different destinations; "warn" warns.
    """

    deterministic: ClassVar[bool] = False

    def __init__(self, on_unequal: Literal["warn", "error"] = "warn") -> None:
        if on_unequal not in ("warn", "error"):
            raise ValueError(f"on_unequal={on_unequal!r}: choose warn or error.")
        self.on_unequal = on_unequal
        self._branches: tuple[str, ...] = ()
        self._next = 0

    def open(self, branches: Sequence[str], task: int) -> None:
        self._branches = tuple(branches)
        self._next = task

    def choose(self, document: Document) -> str:
        branch = self._branches[self._next % len(self._branches)]
        self._next += 1
        return branch
