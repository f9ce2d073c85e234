"""Documents that are to be tried again and that no source lists: they are not looked for all the time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np

from ferryman import limits
from ferryman.engine.step_retries import Hashes
from ferryman.plan import Plan, sources_of

_NONE: Final[Hashes] = np.empty(0, np.uint64)


class Unlisted:
    """What was looked for in vain, by the hashes of ``retries``; forgotten after ``limits.UNLISTED_AGAIN_S``.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self._sources = {n.name: n.source for n in sources_of(plan.nodes)}
        self._clock = clock
        self._hashes = _NONE
        self._until = 0.0

    @property
    def hashes(self) -> Hashes:
        """What is not to be looked for now."""
        if len(self._hashes) and self._clock() >= self._until:
            self.forget()
        return self._hashes

    def add(self, hashes: Hashes) -> None:
        """These were looked for in vain just now."""
        self._hashes = np.union1d(self._hashes, hashes)
        self._until = self._clock() + limits.UNLISTED_AGAIN_S

    def forget(self) -> None:
        """Look for all of it again."""
        self._hashes = _NONE

    def describe(self, documents: Mapping[str, Collection[str]]) -> list[str]:
        """What is pending, and why nobody lists it: a line a source.

        Args:
            documents: source -> ids.
        """
        return [self._line(source, ids) for source, ids in documents.items()]

    def _line(self, source: str, ids: Collection[str]) -> str:
        what = f"{len(ids)} documents are" if len(ids) > 1 else "1 document is"
        example = f"such as {min(ids)}" if len(ids) > 1 else min(ids)
        known = self._sources.get(source)
        why = "" if known is None or not known.comes_again else f"{known.comes_again} "
        again = f"It is looked for again every {limits.UNLISTED_AGAIN_S:g} s."
        return f"source {source}: {what} to be tried again and not listed: {example}. {why}{again}"
