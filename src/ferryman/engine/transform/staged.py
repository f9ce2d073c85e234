"""What a transform task stages and returns."""

from __future__ import annotations

from typing import Final, NamedTuple

from ferryman.document import Again
from ferryman.engine.transform.health import NodeReport
from ferryman.engine.transform.log_entries import Blocked
from ferryman.engine.transform.outbox_stage import OutboxMark
from ferryman.records.family import Published
from ferryman.storage.files import StatePath, fsync_folder
from ferryman.storage.parquet import Part


class Mark(NamedTuple):
    """What was staged when it was set; see ``Stager.mark``."""

    outbox: OutboxMark
    events: int
    given: tuple[int, list[Published]]
    counts: dict[str, int]
    wish: Again | None


class Staged(NamedTuple):
    """What a task returns: its files, and what is counted."""

    outbox: list[tuple[str, Part]]
    """(destination, file) in the order of their rows."""
    documents: list[Part]
    ledger: list[Part]
    counts: dict[str, int]
    nodes: list[NodeReport]
    unseen: bool
    """Known documents of the source could not be looked at."""
    new: int = 0
    """Rows of documents of which there was none before, at least."""
    blocked: Blocked | None = None
    """Of a log: the first entry that cannot be processed now; what lies behind it does not count."""
    entries: int = 0
    """Of a log, that were read."""
    reached: dict[str, int] | None = None
    """Of a log: where it stands behind these entries, by partition."""
    held: frozenset[int] = frozenset()
    """Of what a keyed node exports: keys of which an export did not go through, that were not held before."""
    in_doubt: bool = False
    """It had begun before, may not begin again, and nobody knows how far it came; nothing is staged."""


def sync_names(root: StatePath, staged: Staged) -> None:
    """Make the names of a task's files durable; their content is.

    Args:
        root: the state's folder.
    """
    for table, files in (("outbox", staged.outbox), ("documents", staged.documents), ("ledger", staged.ledger)):
        if files:
            fsync_folder(root / table)


NOTHING: Final = Staged([], [], [], dict.fromkeys(("dropped", "error_doc", "dead"), 0), [], False)
