"""What is reported: what is newly failed, rejected or in doubt, with some examples, and which nodes are stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import msgspec

from ferryman import limits
from ferryman.records.reasons import reason_of
from ferryman.records.schemas import DOCUMENTS, LEDGER
from ferryman.state.state import State
from ferryman.storage import parquet
from ferryman.storage.query import connect

NEWS: Final = {"DEAD": "failed", "ERROR_DOC": "rejected", "INDEXING": "in_doubt"}
"""Status in the ledger -> what it is called."""


class Example(msgspec.Struct, frozen=True):
    """A delivery that somebody should look at."""

    document: str
    source: str
    destination: str
    status: str
    reason: str


class Stopped(msgspec.Struct, frozen=True):
    """A node that nothing goes through for now.

    Attributes:
        kind: source, step, router, tee or destination.
        permanent: it does not come back by itself.
    """

    node: str
    kind: str
    why: str
    permanent: bool


class Digest(msgspec.Struct, frozen=True):
    """What happened after wave ``since``, up to wave ``wave``.

    Attributes:
        state: path of the state's folder.
        new: failed, rejected, in_doubt -> how many deliveries of current documents became that.
        examples: the newest of them.
        stopped: nodes that are stopped or unavailable; those of them that were not told before come first.
    """

    plan: str
    version: int
    state: str
    since: int
    wave: int
    new: dict[str, int]
    examples: list[Example]
    stopped: list[Stopped]

    def headline(self) -> str:
        """``plays v1: 3 failed, 1 rejected; index is unavailable``."""
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in self.new.items() if count]
        parts = [", ".join(counts)] if counts else []
        if self.stopped:
            names = ", ".join(s.node for s in self.stopped)
            parts.append(f"stopped or unavailable: {names}")
        return f"{self.plan} v{self.version}: {'; '.join(parts)}"

    def text(self) -> str:
        """All of it for people to read."""
        lines = [self.headline(), "", f"State: {self.state}"]
        if self.stopped:
            lines += ["", "Stopped or unavailable:"]
            for s in self.stopped:
                back = "it needs you" if s.permanent else "it is asked again"
                lines.append(f"  {s.kind} {s.node}: {s.why} ({back})")
        if self.examples:
            shown, total = len(self.examples), sum(self.new.values())
            lines += ["", "Deliveries:" if shown == total else f"The newest {shown} of {total} deliveries:"]
            lines += [
                f"  {e.document} for {e.destination}, {e.status.replace('_', ' ')}: {e.reason}" for e in self.examples
            ]
        return "\n".join(lines) + "\n"


def news_since(state: State, since: int) -> tuple[dict[str, int], list[Example]]:
    """What became failed, rejected or in doubt after a wave and still is: counts, and the newest examples.

    Only events after that wave are looked at, in shares that fit into memory whatever happened.
    """
    counts = dict.fromkeys(NEWS.values(), 0)
    examples: list[tuple[int, Example]] = []
    with connect(state.spill) as db:
        db.register("events", parquet.scan(state.ledger.paths(), LEDGER))
        bad = f"wave > {since} AND destination <> '' AND status IN {tuple(NEWS)}"
        [(found,)] = db.execute(f"SELECT count(*) FROM events WHERE {bad}").fetchall()
        if not found:
            return counts, []
        db.register("documents", parquet.scan(state.documents.paths(), DOCUMENTS))
        shares = -(-found // limits.QUERY_ROWS)
        for share in range(shares):
            _pick(db, f"{bad} AND hash(delivery_hash) % {shares} = {share}", since)
            for status, count in db.execute("SELECT status, count(*) FROM news GROUP BY ALL").fetchall():
                counts[NEWS[status]] += count
            examples += [(wave, _example(*row)) for wave, *row in db.execute(_NEWEST).fetchall()]
    examples.sort(key=lambda each: (-each[0], each[1].document, each[1].destination))
    return counts, [example for _, example in examples[: limits.NOTIFY_EXAMPLES]]


_NEWEST: Final = f"""
    SELECT wave, document, source, destination, status, message FROM news
    ORDER BY wave DESC, document, destination LIMIT {limits.NOTIFY_EXAMPLES}
"""


def _pick(db: duckdb.DuckDBPyConnection, among: str, since: int) -> None:
    """The table ``news``: of these events those that are the last of their delivery, and of a current document."""
    db.execute(f"""
        CREATE OR REPLACE TEMP TABLE bad AS
            SELECT source, document, origin, revision, destination, delivery_hash, status, message, wave, ordinal
            FROM events WHERE {among};
        CREATE OR REPLACE TEMP TABLE last AS
            SELECT delivery_hash, max(wave * 4 + ordinal) AS at FROM events
            WHERE wave > {since} AND delivery_hash IN (SELECT delivery_hash FROM bad) GROUP BY delivery_hash;
        CREATE OR REPLACE TEMP TABLE current AS
            SELECT source, document, max(revision) AS revision FROM documents
            WHERE document IN (SELECT origin FROM bad) GROUP BY source, document;
        CREATE OR REPLACE TEMP TABLE news AS
            SELECT b.* FROM bad b JOIN last l ON b.delivery_hash = l.delivery_hash AND b.wave * 4 + b.ordinal = l.at
            JOIN current c ON b.source = c.source AND b.origin = c.document AND b.revision = c.revision
    """)


def _example(document: str, source: str, destination: str, status: str, message: str | None) -> Example:
    reason = reason_of(message or "no reason was given").removeprefix(f"{document}: ")
    return Example(document, source, destination, NEWS[status], reason[: limits.NOTIFY_REASON_CHARACTERS])


def digest(state: State, since: int, stopped: Sequence[Stopped], news: tuple[dict[str, int], list[Example]]) -> Digest:
    """The digest of a settled state."""
    plan = state.plan
    return Digest(plan.name, plan.version, str(state.root), since, state.settled, *news, list(stopped))


def encoded(told: Digest) -> bytes:
    """As JSON; equal digests are equal bytes."""
    found: dict[str, Any] = msgspec.to_builtins(told)
    return msgspec.json.encode(found)
