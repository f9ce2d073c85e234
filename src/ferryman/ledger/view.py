"""The tables of a state as relations of one DuckDB connection, and the questions that are asked of them.

Most deliveries have one event, INDEXED, and most documents one revision. Both are counted as they lie there; only what
has a *history* (a hash with another event, a document with a second revision) is grouped and joined. So an answer
costs little more than reading a few columns.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from ferryman.ledger.family import CONTENT
from ferryman.ledger.schemas import DOCUMENTS, LEDGER, LEDGER_COLUMNS, OUTBOX, OUTBOX_PARTITION
from ferryman.ledger.state import SETTLED, WAVE, State
from ferryman.ledger.statuses import SHOWN, shown
from ferryman.plan import destinations_of_sources
from ferryman.storage import parquet
from ferryman.storage.query import quoted_list, register
from ferryman.storage.tables import Table

COUNTS: Final = tuple(SHOWN)

_AT: Final = "wave * 4 + ordinal"
"""Orders the events of a delivery."""

_SLACK: Final = 4
"""How many candidates are looked at for each row that is wanted: some are of older revisions."""

_WITH_HISTORY: Final = """
    CREATE TEMP TABLE multi AS
        SELECT source, document, max(revision) AS revision, arg_max(operation, wave) AS operation,
            arg_max(given, wave) AS given
        FROM documents WHERE document IN (SELECT document FROM documents WHERE revision > 1) GROUP BY ALL
        HAVING max(revision) > 1;
    CREATE TEMP TABLE odd AS
        SELECT delivery_hash, arg_max({source: source, origin: origin, revision: revision, operation: operation,
            destination: destination, status: status}, wave * 4 + ordinal) AS last,
            count(*) FILTER (status IN ('INDEXED', 'DROPPED', 'DEAD', 'ERROR_DOC')) AS ended,
            count(*) FILTER (status IN ('RESTART', 'FORCE')) AS begun_again
        FROM ledger WHERE destination <> ''
            AND delivery_hash IN (SELECT delivery_hash FROM ledger WHERE status <> 'INDEXED') GROUP BY delivery_hash;
"""


_ENDS: Final = """
    CREATE TEMP VIEW plain AS
        SELECT delivery_hash, source, origin, revision, operation, destination FROM ledger
        WHERE status = 'INDEXED' AND destination <> '' {not_odd};
    CREATE TEMP VIEW ends AS
        SELECT source, origin, revision, operation, destination, 'INDEXED' AS status FROM plain
        UNION ALL SELECT unnest(last) FROM odd
        UNION ALL SELECT source, origin, revision, operation, destination, 'BATCHED' FROM unsent;
    CREATE TEMP VIEW current_ends AS {current}
"""
_NOT_ODD: Final = "AND delivery_hash NOT IN (SELECT delivery_hash FROM odd)"
_OF_CURRENT: Final = """
    SELECT e.* FROM ends e ANTI JOIN multi m ON e.source = m.source AND e.origin = m.document
    UNION ALL
    SELECT e.* FROM ends e JOIN multi m ON e.source = m.source AND e.origin = m.document AND e.revision = m.revision
"""


class View:
    """One consistent set of files: ``documents``, ``ledger``, ``waiting`` (the outbox without payload) and ``unsent``
    (what of it has no event yet). Between a wave's commit and its settling, the files that the commit
    names count too."""

    def __init__(self, db: duckdb.DuckDBPyConnection, state: State) -> None:
        self._db = db
        self._state = state
        state.load_consistently([WAVE, SETTLED])
        self.wave = wave = state.outbox.transactions[WAVE]
        staged: dict[str, list[str]] = {"documents": [], "ledger": []}
        if wave > state.outbox.transactions[SETTLED]:
            info = state.outbox.log.find("wave", wave)
            for table in (state.documents, state.ledger):
                if table.transactions[SETTLED] < wave:
                    staged[table.name] = [p[0] for p in info[table.name]]
        self._register(state.documents, DOCUMENTS, staged["documents"])
        self._register(state.ledger, LEDGER, staged["ledger"])
        self._register_outbox(state.outbox)

    def rows(self, query: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """A query's rows as dicts; times as ISO-8601 text."""
        found = self._db.execute(query, parameters or None)
        names = [d[0] for d in found.description or []]
        return [
            {n: v.isoformat() if n == "created" and v is not None else v for n, v in zip(names, row, strict=True)}
            for row in found.fetchall()
        ]

    def status(self) -> dict[str, Any]:
        """See ``account.status``."""
        plan = self._state.plan
        reached = destinations_of_sources(plan.nodes)
        self._count_apart()
        destinations = {name: dict.fromkeys(COUNTS, 0) for names in reached.values() for name in names}
        for destination, status, operation, count in self._db.execute(
            "SELECT destination, status, operation, count(*) FROM current_ends GROUP BY ALL"
        ).fetchall():
            counts = destinations.setdefault(destination, dict.fromkeys(COUNTS, 0))
            counts[shown(status, operation)] += count
        for destination, count in self._older_owed():
            destinations[destination]["pending"] += count
        sources = {name: {"documents": 0, "deleted": 0} for name in reached} | self._documents()
        return {
            "plan": plan.name,
            "version": plan.version,
            "waves": self.wave,
            "sources": sources,
            "destinations": destinations,
            "balanced": not self._two_ends()
            and not any(self._unaccounted(source, name) for source, names in reached.items() for name in names),
        }

    def left_over(self) -> dict[str, int]:
        """See ``account.left_over``."""
        self._db.execute("""
            CREATE TEMP TABLE bad AS SELECT delivery_hash, origin FROM ledger
                WHERE status IN ('DEAD', 'ERROR_DOC', 'INDEXING') AND destination <> '';
            CREATE TEMP TABLE suspects AS
                SELECT source, document, max(revision) AS revision, arg_max({owed: owed}, wave).owed AS owed,
                    arg_max(operation, wave) AS operation
                FROM documents WHERE document IN (SELECT document FROM documents WHERE due IS NOT NULL)
                    OR document IN (SELECT origin FROM bad) GROUP BY source, document
        """)
        owed = "SELECT count(*) FROM waiting WHERE due IS NOT NULL"
        owed_by_steps = "SELECT coalesce(sum(owed), 0) FROM suspects WHERE operation = 'upsert'"
        counts = {"failed": 0, "rejected": 0, "in_doubt": 0, "pending": self._one(owed) + self._one(owed_by_steps)}
        ended = self._db.execute(f"""
            SELECT last.status, count(*) FROM (
                SELECT arg_max({{source: source, origin: origin, revision: revision, status: status}}, {_AT}) AS last
                FROM ledger WHERE delivery_hash IN (SELECT delivery_hash FROM bad) GROUP BY delivery_hash
            ) JOIN suspects s ON last.source = s.source AND last.origin = s.document AND last.revision = s.revision
            GROUP BY ALL
        """).fetchall()
        for status, count in ended:
            if (word := shown(status, "upsert")) in ("failed", "rejected", "in_doubt"):
                counts[word] += count
        return counts

    def docs(
        self,
        statuses: Collection[str] = (),
        destination: str | None = None,
        source: str | None = None,
        document: str | None = None,
        limit: int | None = None,
        share: tuple[int, int] = (0, 1),
        operation: str | None = None,
    ) -> list[dict[str, Any]]:
        """Deliveries by their latest event; see ``account.deliveries``.

        Args:
            statuses: any of these; empty: whatever it is.
            document: the delivery's document, or the origin of its family.
            share: (i, n): of n shares into which whole families fall, the i-th.
        """
        where, wanted = _asked(statuses, destination, source, document)
        if operation is not None:
            where.append(f"operation = '{operation}'")
        if share != (0, 1):
            where.append(f"hash(origin) % {share[1]} = {share[0]}")
        if limit is not None:  # the newest candidates are looked at first, and more only if need be
            found = self._newest(where, wanted, limit, _SLACK * max(limit, 250))
            if len(found) == limit:
                return found
        self._db.execute("SET threads = 1")  # all columns of every row: the memory does not do for two
        return self._newest(where, wanted, limit, None)

    def docs_at_most(
        self, statuses: Collection[str], destination: str | None, source: str | None, document: str | None
    ) -> int:
        """So many deliveries, or fewer, does ``docs`` find: their events are counted."""
        where, wanted = _asked(statuses, destination, source, document)
        among = f"WHERE {' AND '.join(where)}"
        ((found,),) = self._db.execute(
            f"SELECT (SELECT count(*) FROM ledger {among}) + (SELECT count(*) FROM unsent {among})", wanted or None
        ).fetchall()
        return int(found)

    # -- inside ------------------------------------------------------------------------------------

    def _newest(
        self, where: list[str], wanted: dict[str, str], limit: int | None, window: int | None
    ) -> list[dict[str, Any]]:
        columns = ", ".join(LEDGER_COLUMNS)
        order = "ORDER BY wave DESC, ordinal DESC, document"
        return self.rows(
            f"""
            WITH candidates AS (
                SELECT {columns}, ordinal FROM (
                    SELECT {columns}, ordinal FROM ledger UNION ALL SELECT {columns}, 3 FROM unsent
                ) WHERE {" AND ".join(where)} {order} {"" if window is None else f"LIMIT {window}"}
            ), last AS (
                SELECT delivery_hash, max({_AT}) AS at FROM ledger
                WHERE delivery_hash IN (SELECT delivery_hash FROM candidates) GROUP BY delivery_hash
            ), now AS (
                SELECT source, document, max(revision) AS revision FROM documents
                WHERE document IN (SELECT origin FROM candidates) GROUP BY source, document
            )
            SELECT {", ".join("c." + name for name in LEDGER_COLUMNS)} FROM candidates c
            LEFT JOIN last l ON c.delivery_hash = l.delivery_hash
            JOIN now n ON c.source = n.source AND c.origin = n.document AND c.revision = n.revision
            WHERE l.at IS NULL OR l.at = c.wave * 4 + c.ordinal
            {order.replace("wave", "c.wave").replace("ordinal", "c.ordinal").replace("document", "c.document")}
            {"" if limit is None else f"LIMIT {int(limit)}"}
            """,
            wanted,
        )

    def _count_apart(self) -> None:
        """Set what has a history apart; where there is none, the columns that would tell are not even read."""
        self._db.execute(_WITH_HISTORY)
        not_odd = _NOT_ODD if self._one("SELECT count(*) FROM odd") else ""
        current = _OF_CURRENT if self._one("SELECT count(*) FROM multi") else "SELECT * FROM ends"
        self._db.execute(_ENDS.format(not_odd=not_odd, current=current))

    def _older_owed(self) -> list[tuple[str, int]]:
        """(destination, rows still to be sent although their document has a newer revision)."""
        return self._db.execute("""
            SELECT w.destination, count(*) FROM waiting w
            JOIN multi m ON w.source = m.source AND w.origin = m.document AND w.revision < m.revision
            WHERE w.due IS NOT NULL AND w.delivery_hash NOT IN (
                SELECT delivery_hash FROM ledger
                WHERE status = 'INDEXED' AND delivery_hash IN (SELECT delivery_hash FROM waiting)
            ) GROUP BY w.destination
        """).fetchall()

    def _documents(self) -> dict[str, dict[str, int]]:
        found = self._db.execute("""
            SELECT source, count(DISTINCT document) AS documents, 0 AS deleted FROM documents d
            ANTI JOIN multi m ON d.source = m.source AND d.document = m.document GROUP BY source
            UNION ALL
            SELECT source, count(*) FILTER (operation = 'upsert'), count(*) FILTER (operation = 'delete')
            FROM multi GROUP BY source
        """).fetchall()
        counts: dict[str, dict[str, int]] = {}
        for source, documents, deleted in found:
            count = counts.setdefault(source, {"documents": 0, "deleted": 0})
            count["documents"] += documents
            count["deleted"] += deleted
        return counts

    def _unaccounted(self, source: str, destination: str) -> int:
        """Current documents of a source of which no delivery to its destination is known.

        A deleted one has deliveries only where its family was given; names need no escape in ``given``'s JSON.
        """
        return self._one(
            """
            SELECT count(*) FROM (
                SELECT document, 1 AS revision FROM documents WHERE source = $source
                UNION SELECT document, revision FROM multi
                    WHERE source = $source AND (operation = 'upsert' OR contains(given, $given)
                        OR contains(given, $content))
            ) d ANTI JOIN (SELECT origin, revision FROM ends WHERE source = $source AND destination = $destination) e
                ON d.document = e.origin AND d.revision = e.revision
            WHERE d.revision > 1 OR d.document NOT IN (SELECT document FROM multi WHERE source = $source)
            """,
            {
                "source": source,
                "destination": destination,
                "given": f',"{destination}"]',
                "content": f',"{destination}","{CONTENT}',
            },
        )

    def _two_ends(self) -> int:
        """Deliveries that ended more often than they were begun (a person's word begins one again)."""
        return self._one("SELECT count(*) - count(DISTINCT delivery_hash) FROM plain") + self._one(
            "SELECT count(*) FROM odd WHERE ended > 1 + begun_again"
        )

    def _register(self, table: Table, schema: pa.Schema, staged: list[str]) -> None:
        register(self._db, table.name, [*table.paths(), *(table.folder / p for p in staged)], schema)

    def _register_outbox(self, outbox: Table) -> None:
        schema = pa.schema([f for f in OUTBOX if f.name not in (*OUTBOX_PARTITION, "fields", "raw")])
        by_place: dict[tuple[str, str], list[Path]] = {}
        for file in outbox.files.values():
            place = (file.partition["wave"], file.partition["destination"])
            by_place.setdefault(place, []).append(outbox.folder / file.path)
        self._db.register("outbox_0", schema.empty_table())
        pieces = ["SELECT *, 0::BIGINT AS wave, '' AS destination FROM outbox_0"]
        for i, ((wave, destination), files) in enumerate(by_place.items(), 1):
            self._db.register(f"outbox_{i}", parquet.scan(files, schema))
            pieces.append(f"SELECT *, {int(wave)}, '{destination}' FROM outbox_{i}")
        self._db.execute(f"""
            CREATE TEMP VIEW waiting AS
                SELECT *, 'BATCHED' AS status, NULL::VARCHAR AS message, NULL::TIMESTAMPTZ AS created
                FROM ({" UNION ALL ".join(pieces)});
            CREATE TEMP VIEW unsent AS
                SELECT * FROM waiting WHERE delivery_hash NOT IN (
                    SELECT delivery_hash FROM ledger WHERE delivery_hash IN (SELECT delivery_hash FROM waiting)
                )
        """)

    def _one(self, query: str, parameters: dict[str, Any] | None = None) -> int:
        [(value,)] = self._db.execute(query, parameters or None).fetchall()
        return int(value)


def _asked(
    statuses: Collection[str], destination: str | None, source: str | None, document: str | None
) -> tuple[list[str], dict[str, str]]:
    """Conditions on events, and their parameters; see ``View.docs``."""
    wanted = {k: v for k, v in (("destination", destination), ("source", source)) if v}
    where = ["destination <> ''", *(f"{column} = ${column}" for column in wanted)]
    if statuses:
        where.append(f"status IN {quoted_list(sorted(statuses))}")
    if document is not None:
        where.append("(document = $document OR origin = $document)")
        wanted["document"] = document
    return where, wanted
