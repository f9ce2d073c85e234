"""What workers note of the keys that they updated; the journal keeps it until the wave is settled."""

from __future__ import annotations

import msgspec

from ferryman.storage.parquet import Part


class UpdateResult(msgspec.Struct, frozen=True):
    """What became of the due documents of a range of keys.

    Attributes:
        node: the keyed node.
        range: its number in the pass.
        lane: of its exports.
        ledger, state, exports, contributions: the files that say it; None: there is nothing to say.
        leaving: first sequence of an outbox file -> how many of its rows are done.
        sent: rows that something became of.
        failed: of these, that failed for good.
        withdrawn: rows of which a former key was told that they are gone; they are still to come to their new one.
    """

    node: str
    range: int
    lane: str
    ledger: Part | None
    state: Part | None
    exports: Part | None
    contributions: Part | None
    leaving: dict[int, int]
    sent: int
    deleted: int
    failed: int
    withdrawn: int
