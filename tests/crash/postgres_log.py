"""A table of a real PostgreSQL in the place of the scenario's log, for cases whose folder has a file with its URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ferryman.destinations import Delivery, Outcome, Sql
from tests.crash.names import REFUSED, SECOND

URL = "database-url"
"""The file's name."""


class LogTable(Sql):
    """A row a delivery, but for what the scenario has refused or put off."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        said = {d.hash: why for d in chunk if (why := _refusal(d)) is not None}
        taken = [d for d in chunk if d.hash not in said]
        written = dict(zip((d.hash for d in taken), super().write(taken), strict=True))
        return [said.get(d.hash) or written[d.hash] for d in chunk]


def of(root: Path) -> LogTable | None:
    """The table of this case, if it has one."""
    url = root / URL
    return LogTable(url.read_text(), mode="append") if url.exists() else None


def delivered(root: Path) -> list[dict[str, Any]] | None:
    """Its rows in the order in which they came, as the log has them; None for a case without."""
    url = root / URL
    if not url.exists():
        return None
    import psycopg

    with psycopg.connect(url.read_text()) as connection:
        if connection.execute("SELECT to_regclass('documents')").fetchone() == (None,):
            return []
        rows = connection.execute("SELECT operation, id, text, delivery_hash, sequence FROM documents ORDER BY ctid")
        names = ("op", "id", "text", "hash", "seq")
        return [dict(zip(names, row, strict=True)) | {"text": row[2] or ""} for row in rows]


def _refusal(delivery: Delivery) -> Outcome | None:
    if delivery.id == REFUSED and delivery.operation == "upsert":
        return Outcome.permanent("refused on principle")
    if delivery.id == SECOND and delivery.attempt < 2:
        return Outcome.transient("not the first time")
    return None
