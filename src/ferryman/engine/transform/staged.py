"""What a transform task returns."""

from __future__ import annotations

from typing import NamedTuple

from ferryman.engine.transform.health import NodeReport
from ferryman.storage.parquet import Part


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
