"""Doubts: is a destination failing as a whole, or do some rows make it look so?

A broken connection, a 403 and a hang sound as if they were about the whole destination. But a firewall may have met one
document that it does not like, a server's process may have died of one row, and a front server may take no large
requests. So what a ``write`` says is believed only if the evidence agrees:

1. A chunk fails as if the whole destination did. Its lane ends; no attempt is spent.
2. The driver calls ``check``. If that fails, it is the destination. If it succeeds, the destination is *doubted*: its
   breaker is half open, and the next pass begins at once. A destination that promises an order (``in_order``) is
   believed, and so is ``Outcome.unavailable``, by which a destination says itself that it has no room now.
3. In that pass a chunk that fails so is sent in halves, down to single rows. If nothing is accepted within
   ``limits.DOUBTED_SENDS`` sends, it is the destination.
4. If the chunk that failed first is accepted in halves, and no row failed alone, it was too large. From then on, also
   in later runs, chunks are as small as those that were accepted.
5. A row that failed alone while others were accepted, in this pass or in the one in which its chunk failed first, is
   sent alone, after all others, in the passes that follow. Each time it fails so, it spends an attempt.

Under at-most-once, rows whose connection broke are in doubt, and nothing is sent in halves: chunks of a doubted
destination have one row. A chunk that hangs costs a minute, so chunks become smaller by ``limits.HUNG_SHRINK`` from
pass to pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from ferryman import limits


class LaneDoubt(NamedTuple):
    """Memory of earlier passes that a lane needs: which rows may make a destination look as if it failed as a whole."""

    doubted: bool = False
    """A chunk has failed as if the whole destination did, although ``check`` succeeds: chunks that fail so are sent in
    halves."""
    last: frozenset[int] = frozenset()
    """Sequences of rows that failed alone: each is sent alone, after all others."""
    proven: frozenset[int] = frozenset()
    """Sequences of these rows whose failure was seen while others were accepted."""
    stopped: frozenset[int] = frozenset()
    """Sequences of rows whose chunk failed when the doubt began. Other chunks may fail by chance."""
    suspects: frozenset[int] = frozenset()
    """Sequences of rows whose chunk failed in a pass that accepted others: if one fails alone in the next pass, these
    are the others that show that it is to blame."""
    most_rows: int | None = None
    """Largest chunk, in rows; None: as the policy says."""
    most_bytes: int | None = None
    """Largest chunk, in bytes of content, that the destination has shown to take; None: unknown."""


class _Memory:
    """Memory of one destination: whether it is doubted, rows that failed alone (sequence -> proven), rows whose chunk
    failed when the doubt began, and while others were accepted, and the size of chunks after one that hung."""

    def __init__(self) -> None:
        self.doubted = False
        self.stopped: frozenset[int] = frozenset()
        self.suspects: frozenset[int] = frozenset()
        self.alone: dict[int, bool] = {}
        self.most_rows: int | None = None


class Doubts:
    """Memory of a run: by destination, rows that failed alone and sizes that hung."""

    def __init__(self) -> None:
        self._memories: dict[str, _Memory] = defaultdict(_Memory)

    def doubt(self, destination: str, *, most_bytes: int) -> LaneDoubt:
        """Return what the next pass of a destination has to know.

        Args:
            most_bytes: largest chunk that it has shown to take; 0: unknown.
        """
        memory = self._memories[destination]
        proven = frozenset(sequence for sequence, is_proven in memory.alone.items() if is_proven)
        return LaneDoubt(
            memory.doubted,
            frozenset(memory.alone),
            proven,
            memory.stopped,
            memory.suspects,
            memory.most_rows,
            most_bytes or None,
        )

    def note_alone(self, destination: str, sequences: Iterable[int], *, proven: bool = True) -> None:
        """Record rows that failed alone.

        Args:
            proven: others were accepted in the same pass.
        """
        alone = self._memories[destination].alone
        for sequence in sequences:
            alone[sequence] = alone.get(sequence, False) or proven
        while len(alone) > _REMEMBERED:
            del alone[next(iter(alone))]

    def note_suspects(self, destination: str, sequences: Iterable[int]) -> None:
        """Record the rows whose chunks failed in a pass in which others were accepted."""
        self._memories[destination].suspects = frozenset(sequences)

    def note_stopped(self, destination: str, sequences: Iterable[int]) -> bool:
        """Record that chunks of these rows failed as if the whole destination did; return whether another pass may show
        more."""
        memory = self._memories[destination]
        if memory.doubted:
            return False
        memory.doubted, memory.stopped = True, frozenset(sequences)
        return True

    def note_hung(self, destination: str, sequences: tuple[int, ...]) -> bool:
        """Record that a chunk hung; return whether another pass may find out which of its rows is to blame."""
        memory = self._memories[destination]
        if len(sequences) > 1:
            memory.most_rows = max(1, len(sequences) // limits.HUNG_SHRINK)
            return True
        if sequences and sequences[0] not in memory.alone:
            self.note_alone(destination, sequences, proven=False)
            return True
        return False

    def note_success(self, destination: str) -> None:
        """Record a pass in which nothing failed as if the whole destination did."""
        memory = self._memories[destination]
        memory.doubted, memory.most_rows = False, None
        memory.stopped = memory.suspects = frozenset()


_REMEMBERED: Final = 10_000
"""Rows of a destination that are remembered; one that is forgotten is found again."""
