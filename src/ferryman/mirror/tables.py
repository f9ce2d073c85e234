"""Events of the ledger as rows of the two tables that JesterJ keeps in Cassandra.

``jj_output_step_status`` has what became of each document at an output step, ``jj_scanner_doc_hash`` which content of
it was seen. A keyspace is for one scanner, plan and version, and for the first table one output step as well: so all of
these are known from a query's keyspace. In Ferryman's words a scanner is a source, an output step a destination.

``created``, ``createdNanos`` and ``antiCollision`` of a row are made of the event alone, and of the events of the same
document before it. So an event that is written twice is one row, and the rows of a document are in the order of its
events, even if the clock was put back in between.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Iterator
from hashlib import md5
from typing import Any, Final, NamedTuple

from ferryman.account.relations import View
from ferryman.net.cassandra import TableDefinition
from ferryman.records.rows import RANGE

ALGORITHM: Final = "BLAKE2b-128"
"""Algorithm of ``docHash``: that of the version of a document."""

BATCHED: Final = "BATCHED"

ORDINAL_WAITING: Final = 3
"""Place of a row that waits in the outbox among the events of its wave."""

SLACK_US: Final = 1_000_000
"""Documents with an event at most this much later than the latest one of all are ordered with their whole history."""

STATUS: Final = TableDefinition(
    "jj_output_step_status",
    {
        "docid": "text",
        "dochash": "text",
        "parentid": "text",
        "origparentid": "text",
        "outputstepname": "text",
        "status": "text",
        "message": "text",
        "anticollision": "int",
        "created": "timestamp",
        "creatednanos": "int",
    },
    ("docid",),
    {"created": "DESC", "creatednanos": "DESC", "outputstepname": "ASC", "anticollision": "ASC"},
    "(docId varchar, docHash varchar, parentId varchar, origParentId varchar, outputStepName varchar, status varchar, "
    "message varchar, antiCollision int, created timestamp, createdNanos int, "
    "PRIMARY KEY (docId, created, createdNanos, outputStepName, antiCollision)) "
    "WITH CLUSTERING ORDER BY (created DESC, createdNanos DESC)",
    "CREATE INDEX IF NOT EXISTS jj_ft_idx_step_status ON {table} (status)",
)

DOC_HASH: Final = TableDefinition(
    "jj_scanner_doc_hash",
    {
        "docid": "text",
        "created": "timestamp",
        "creatednanos": "int",
        "anticollision": "int",
        "hashalg": "text",
        "dochash": "text",
    },
    ("docid",),
    {"created": "DESC", "creatednanos": "DESC", "anticollision": "ASC"},
    "(docId varchar, created timestamp, createdNanos int, antiCollision int, hashAlg varchar, docHash varchar, "
    "PRIMARY KEY ((docId), created, createdNanos, antiCollision)) "
    "WITH CLUSTERING ORDER BY (created DESC, createdNanos DESC)",
)


def keyspace_of(scanner: str, plan: str, version: int, output_step: str = "") -> str:
    """Return the keyspace of a scanner, or of one of its output steps: names of any length, in 35 characters."""
    step = f"_{output_step}" if output_step else ""
    text = f"jj_{scanner}_{plan}_{version}{step}"
    return "jj_" + md5(text.encode(), usedforsecurity=False).hexdigest()


class StatusRow(NamedTuple):
    """A row of ``jj_output_step_status``. ``at``: its time, µs since 1970."""

    scanner: str
    output_step: str
    id: str
    hash: str
    parent: str | None
    origin: str
    status: str
    message: str | None
    anti_collision: int
    at: int

    @property
    def created(self) -> int:
        """Return the milliseconds since 1970."""
        return self.at // 1000

    @property
    def nanos(self) -> int:
        """Return the nanoseconds within the millisecond."""
        return self.at % 1000 * 1000


class HashRow(NamedTuple):
    """A row of ``jj_scanner_doc_hash``. ``at``: its time, µs since 1970.

    Attributes:
        hash: "": the document was deleted at its source.
        order: number below 1000 that orders rows of the same time.
    """

    scanner: str
    id: str
    hash: str
    anti_collision: int
    at: int
    order: int

    @property
    def created(self) -> int:
        """Return the milliseconds since 1970."""
        return self.at // 1000

    @property
    def nanos(self) -> int:
        """Return the nanoseconds within the millisecond."""
        return self.at % 1000 * 1000 + self.order


def waves_to_read(view: View, after: int, most_events: int) -> int:
    """Return the last wave of those after ``after`` that have at most this many events together, or the first of them;
    the last settled one if there are fewer."""
    counts = view.rows(
        f"SELECT wave, count(*) AS events FROM ledger WHERE wave > {after} AND wave <= {view.settled} "
        "GROUP BY wave ORDER BY wave"
    )
    events = 0
    last = after
    for each in counts:
        events += each["events"]
        if last > after and events > most_events:
            return last
        last = each["wave"]
    return view.settled


def latest_time(view: View, wave: int) -> int:
    """Return the time of the latest event up to a wave, µs since 1970; 0: there is none."""
    [found] = view.rows(f"SELECT max(epoch_us(created)) AS us FROM ledger WHERE wave <= {wave}")
    return found["us"] or 0


def status_rows(view: View, after: int, last: int, *, floor: int = 0) -> Iterator[StatusRow]:
    """Yield a row for each event of the waves after ``after`` up to ``last``, in order.

    Args:
        floor: µs since 1970; what is not later is moved behind it, in the order that it has.
    """
    before = latest_time(view, after)
    columns = (
        "source, document, parent, origin, version, destination, route, delivery_hash, status, message, operation, "
        "wave, ordinal, epoch_us(created) AS us"
    )
    view.keep("mirrored", f"SELECT {columns} FROM ledger WHERE wave > {after} AND wave <= {last}")
    view.keep(
        "reordered",
        f"SELECT source, document FROM mirrored GROUP BY ALL HAVING min(us) <= {max(before, floor) + SLACK_US}",
    )
    # The time of the n-th event of a document is n + the highest (time - n) so far: it grows by 1 µs at least.
    query = f"""
        WITH every AS (
            SELECT m.* FROM mirrored m ANTI JOIN reordered r ON r.source = m.source AND r.document = m.document
            UNION ALL
            SELECT l.* FROM (SELECT {columns} FROM ledger WHERE wave <= {last}) l
                SEMI JOIN reordered r ON r.source = l.source AND r.document = l.document
        ), numbered AS (
            SELECT *, row_number() OVER (PARTITION BY source, document
                ORDER BY wave, ordinal, us, destination, route, delivery_hash, status) AS n FROM every
        ), timed AS (
            SELECT *, n + max((CASE WHEN wave > {after} THEN greatest(us, {floor}) ELSE us END) - n) OVER (
                PARTITION BY source, document ORDER BY n ROWS UNBOUNDED PRECEDING) AS shown FROM numbered
        )
        SELECT * FROM timed WHERE wave > {after} ORDER BY wave, ordinal, us, source, document, destination, route
    """
    for row in view.iter_rows(query):
        yield _status_row(row, row["shown"])


def waiting_rows(view: View, after: int, last: int, at: int) -> Iterator[StatusRow]:
    """Yield a BATCHED row for each delivery that waits in the outbox, was committed after wave ``after`` up to
    ``last``, and has no event.

    Args:
        at: time of these rows, µs since 1970.
    """
    found = view.iter_rows(f"""
        SELECT source, document, parent, origin, version, destination, route, delivery_hash, status, message, operation,
            wave, {ORDINAL_WAITING} AS ordinal
        FROM unsent WHERE wave > {after} AND wave <= {last} ORDER BY wave, source, document, destination, route
    """)
    for row in found:
        yield _status_row(row, at)


def hash_rows(view: View, after: int, last: int, created: int) -> Iterator[HashRow]:
    """Yield a row for each document that the waves after ``after`` up to ``last`` have changed.

    Its time is that of the latest event up to its wave: the documents themselves have none.

    Args:
        created: time at which the state was created, µs since 1970: that of documents before any event.
    """
    view.keep(
        "latest",
        f"SELECT wave, max(max(epoch_us(created))) OVER (ORDER BY wave) AS us FROM ledger WHERE wave <= {last} "
        "GROUP BY wave",
    )
    found = view.iter_rows(f"""
        SELECT d.source, d.document, d.version, d.revision, d.operation, d.wave, coalesce(l.us, {created}) AS us
        FROM (SELECT * FROM documents WHERE wave > {after} AND wave <= {last} AND version <> ''
            AND NOT starts_with(version, '{RANGE}')) d
        ASOF LEFT JOIN latest l ON d.wave >= l.wave ORDER BY d.wave, d.source, d.document
    """)
    for row in found:
        identity = f"{row['source']}\0{row['version']}\0{row['revision']}\0{row['operation']}\0{row['wave']}"
        digest = row["version"] if row["operation"] == "upsert" else ""
        number = anti_collision(identity, row["document"])
        yield HashRow(row["source"], row["document"], digest, number, row["us"], row["wave"] % 1000)


def _status_row(row: dict[str, Any], at: int) -> StatusRow:
    identity = "\0".join(
        (row["delivery_hash"] or "", str(row["wave"]), str(row["ordinal"]), row["status"], row["route"] or "")
    )
    message = row["message"]
    if message is None and row["operation"] == "delete" and row["status"] == "INDEXED":
        message = "deleted"
    return StatusRow(
        row["source"],
        row["destination"] or "",
        row["document"],
        row["version"] or "",
        row["parent"],
        row["origin"],
        row["status"],
        message,
        anti_collision(identity, row["document"]),
        at,
    )


def anti_collision(identity: str, document: str) -> int:
    """Return a 32-bit number made of an event, which tells it from another one of the same time."""
    number = zlib.crc32(f"{identity}\0{document}".encode("utf-8", "surrogatepass"))
    return number - (1 << 32) if number >= 1 << 31 else number


def microseconds(iso: str) -> int:
    """Return a time in ISO 8601 as µs since 1970."""
    return int(dt.datetime.fromisoformat(iso).timestamp() * 1_000_000)
