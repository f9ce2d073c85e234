"""What workers note of the rows that they sent; the journal keeps it until the wave is settled."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import msgspec

from ferryman.records.statuses import Status
from ferryman.storage.parquet import Part

UNTOUCHED: Final = "UNTOUCHED"
"""In place of a status: the destination was down before this row was tried; it stays pending as it is."""


class Rows(NamedTuple):
    """Rows of an outbox file: ``first`` ≤ row < ``end``."""

    key: int
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.key}.{self.first:09d}-{self.end:09d}"


class RowResult(msgspec.Struct, frozen=True, array_like=True):
    """What became of one row that was not simply delivered."""

    row: int
    status: str
    message: str
    attempt: int
    due: int | None
    """When an ERROR is tried again, µs since 1970; None: not pending any more."""
    since: int | None = None
    """Its first transient error, µs since 1970."""
    transient: int | None = None
    """How many attempts ended so."""


class Result(msgspec.Struct, frozen=True):
    """What became of a range of rows.

    Attributes:
        sent: how many rows were attempted; the others of the range were not eligible in this pass, or not reached.
        leave: how many of them are done and leave the outbox; the others are to be tried again, or held for review.
        part: their ledger events, as a data file of the ledger.
        rows: only without such a file: those that were not simply delivered.
        deleted: of those that leave, how many are deletes.
        stale: how many the destination left alone, for it has something newer.
        failed: how many are failed or rejected.
        eligible: rows attempted, where that is not the whole range; only without such a file.
    """

    key: int
    first: int
    end: int
    sent: int
    leave: int
    part: tuple[str, int, int] | None
    rows: list[RowResult] = []
    deleted: int = 0
    stale: int = 0
    failed: int = 0
    eligible: list[int] | None = None

    @classmethod
    def of(
        cls,
        rows: Rows,
        eligible: int,
        noted: list[RowResult],
        part: tuple[str, int, int] | None,
        *,
        deleted: int = 0,
        meant: list[int] | None = None,
    ) -> Result:
        """Counted from what is noted of those of the eligible rows that were not simply delivered.

        Args:
            eligible: how many rows of the range were to be sent.
            meant: which these are, where that is not the whole range.
        """
        statuses = Counter(n.status for n in noted)
        return cls(
            *rows,
            sent=eligible - statuses[UNTOUCHED],
            leave=eligible - len(noted) + statuses[Status.INDEXED],
            part=part,
            rows=noted if part is None else [],
            deleted=deleted,
            stale=statuses[Status.INDEXED],
            failed=statuses[Status.DEAD] + statuses[Status.ERROR_DOC],
            eligible=meant if part is None else None,
        )

    @property
    def range(self) -> Rows:
        return Rows(self.key, self.first, self.end)

    @property
    def ledger_part(self) -> Part | None:
        return None if self.part is None else Part(*self.part)
