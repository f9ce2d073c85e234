"""The tables of a state as relations of one DuckDB connection, and the questions that are asked of them.

What concerns all deliveries is counted by hashes (``counts``); what is asked of some is looked for by them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

import duckdb
import pyarrow as pa

from ferryman.account.counts import Tables, count
from ferryman.errors import UsageError
from ferryman.plan import destinations_of_sources, errors_node, keyed_nodes, logs_read
from ferryman.plan.structure import reached as led_to
from ferryman.records.families import in_family
from ferryman.records.rows import (
    DOCUMENTS,
    LEDGER,
    LEDGER_COLUMNS,
    OUTBOX,
    OUTBOX_CONTENT,
    OUTBOX_PARTITION,
    PENDING,
    RANGE,
    SHOWN,
    Status,
    alike_sql,
    reason_sql,
    shown,
    stored,
)
from ferryman.state.logs import RANGES, LogPositions
from ferryman.state.state import SETTLED, WAVE, State, missed_entries
from ferryman.storage import parquet
from ferryman.storage.query import quote_list, register
from ferryman.storage.tables import Table

COUNTS: Final = tuple(SHOWN)

LEFT_OVER_STATUSES: Final = ("DEAD", "ERROR_DOC", "INDEXING")
"""Of deliveries that have ended, and not well."""

SOURCE_COUNTS: Final = ("documents", "deleted", "again")

_AT: Final = "wave * 4 + ordinal"
"""Orders the events of a delivery."""

_ROWS: Final = 2048
"""Rows of an answer that are in memory at a time."""

_SLACK: Final = 4
"""How many candidates are looked at for each row that is wanted: some are of older revisions."""


class View:
    """One consistent set of files: ``documents``, ``ledger``, ``waiting`` (the outbox without payload) and ``unsent``
    (what of it has no event yet). Between a wave's commit and its settling, the files that the commit
    names count too."""

    def __init__(self, db: duckdb.DuckDBPyConnection, state: State, folder: Path) -> None:
        self._db = db
        self._folder = folder
        self._state = state
        self._logs = {n.name: LogPositions(state, n.name) for n in logs_read(state.plan.nodes)}
        state.load_consistently([WAVE, SETTLED, RANGES, *(log.entries_read_id for log in self._logs.values())])
        self.wave = wave = state.outbox.transactions[WAVE]
        staged: dict[str, list[str]] = {"documents": [], "ledger": []}
        if wave > state.outbox.transactions[SETTLED]:
            info = state.outbox.log.find("wave", wave)
            for table in (state.documents, state.ledger):
                if table.transactions[SETTLED] < wave:
                    staged[table.name] = [p[0] for p in info[table.name]]
        self._documents = self._register(state.documents, DOCUMENTS, staged["documents"])
        self._ledger = self._register(state.ledger, LEDGER, staged["ledger"])
        self._register_outbox(state.outbox)

    def rows(self, query: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """A query's rows as dicts; times as ISO-8601 text."""
        return list(self.each_row(query, parameters))

    def each_row(self, query: str, parameters: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The same, few in memory at a time; until the last one nothing else may be asked."""
        found = self._db.execute(query, parameters or None)
        names = [d[0] for d in found.description or []]
        while rows := found.fetchmany(_ROWS):
            for row in rows:
                named = zip(names, row, strict=True)
                yield {n: v.isoformat() if n == "created" and v is not None else v for n, v in named}

    def ledger(self) -> pa.Table:
        """Every event, as it is stored."""
        return parquet.scan(self._ledger, LEDGER).to_table()

    def documents(self) -> pa.Table:
        """What is known of documents, as it is stored: of each the row of the highest wave counts."""
        return parquet.scan(self._documents, DOCUMENTS).to_table()

    def keep(self, name: str, query: str) -> None:
        """A query's rows under a name, for the questions that follow."""
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def status(self, reached: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
        """See ``account.status``.

        Args:
            reached: source -> destinations; None: by the plan.
        """
        plan = self._state.plan
        reached = destinations_of_sources(plan.nodes) if reached is None else reached
        exported = {node.name for node in keyed_nodes(plan.nodes)}  # in ``documents`` by place, and counted as entries
        of_documents = {name: names for name, names in reached.items() if name not in exported}
        found = count(self._tables(), of_documents, logs=list(self._logs))
        lost = any(
            found.entries[name, destination] != due
            for name, log in self._logs.items()
            for destination, due in self._due_of(name, log.entries_read, reached.get(name, ())).items()
        )
        destinations = {name: dict.fromkeys(COUNTS, 0) for names in reached.values() for name in names}
        if (errors := errors_node(plan.nodes)) is not None:
            destinations[errors.name] = dict.fromkeys(COUNTS, 0)
        for (destination, status, operation), number in found.ends.items():
            counts = destinations.setdefault(destination, dict.fromkeys(COUNTS, 0))
            counts[shown(status, operation)] += number
        for destination, number in found.older.items():
            destinations.setdefault(destination, dict.fromkeys(COUNTS, 0))["pending"] += number
        sources = {name: dict.fromkeys(SOURCE_COUNTS, 0) for name in reached}
        for name, (here, gone) in found.documents.items():
            sources[name] = {"documents": here, "deleted": gone, "again": 0}
        for name, number in self._asked_again():
            sources[name]["again"] = number
        return {
            "plan": plan.name,
            "version": plan.version,
            "waves": self.wave,
            "sources": sources,
            "destinations": destinations,
            "balanced": not (found.two_ends or found.missing or lost),
        }

    def waves(self, limit: int) -> list[dict[str, Any]]:
        """See ``account.waves``."""
        return self.rows(f"""
            SELECT wave, max(created) AS created, count(*) AS events,
                count(*) FILTER (status = 'INDEXED') AS delivered,
                count(*) FILTER (status IN ('ERROR', 'DEAD', 'ERROR_DOC', 'INDEXING')) AS failed
            FROM ledger GROUP BY wave ORDER BY wave DESC LIMIT {int(limit)}
        """)

    def left_over(self) -> dict[str, int]:
        """See ``account.left_over``."""
        found = count(self._tables(), {}, LEFT_OVER_STATUSES)
        pending = self._one("SELECT count(*) FROM waiting WHERE due IS NOT NULL") + found.pending_in_steps
        counts = {"failed": 0, "rejected": 0, "in_doubt": 0, "pending": pending}
        if self._state.outbox.transaction(RANGES):
            counts["pending"] += self._pending_ranges()
        for (_, status, _), number in found.ends.items():
            if (word := shown(status, "upsert")) in ("failed", "rejected", "in_doubt"):
                counts[word] += number
        return counts

    def _pending_ranges(self) -> int:
        """Deliveries of ranges that are to be run; see ``schemas.RANGE``."""
        return self._one(f"""
            SELECT count(*) FROM (
                SELECT arg_max(status, wave * 4 + ordinal) AS status FROM ledger
                WHERE starts_with(version, '{RANGE}') GROUP BY delivery_hash
            ) WHERE status IN {quote_list(PENDING)}
        """)

    def unread(self, sources: Collection[str]) -> dict[str, tuple[int, str]]:
        """See ``account.unread``; of these sources."""
        of = f"source IN {quote_list(sources)}"
        asked = "due = 0 OR forced"  # by an operator: what a step owes has a time
        found = self._db.execute(f"""
            SELECT source, count(*), min(document) FROM (
                SELECT source, document, arg_max(coalesce({asked}, false), wave) AS asked FROM documents
                WHERE {of} AND document IN (SELECT document FROM documents WHERE {of} AND ({asked}))
                GROUP BY source, document
            ) WHERE asked GROUP BY source ORDER BY source
        """).fetchall()
        return {source: (number, example) for source, number, example in found}

    def docs(self, of: Filter, *, limit: int | None = None, share: tuple[int, int] = (0, 1)) -> list[dict[str, Any]]:
        """Deliveries by their latest event; see ``account.deliveries``.

        Args:
            share: (i, n): of n shares into which whole families fall, the i-th.
        """
        where, wanted = of.conditions()
        if share != (0, 1):
            where.append(f"hash(origin) % {share[1]} = {share[0]}")
        if limit is not None:  # the newest candidates are looked at first, and more only if need be
            found = self.rows(_newest(where, limit, _SLACK * max(limit, 250)), wanted)
            if len(found) == limit:
                return found
        self._db.execute("SET threads = 1")  # all columns of every row: the memory does not do for two
        return self.rows(_newest(where, limit, None), wanted)

    def each_doc(self, of: Filter, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The same deliveries, few in memory at a time; until the last one nothing else may be asked."""
        self._keep_current(of, _ALL)
        order = "ORDER BY wave DESC, ordinal DESC, document"
        return self.each_row(
            f"SELECT {', '.join(_ALL)} FROM current {order} {'' if limit is None else f'LIMIT {int(limit)}'}"
        )

    def number_of_docs(self, of: Filter) -> int:
        """How many these are."""
        self._keep_current(of, ["wave"])
        return self._one("SELECT count(*) FROM current")

    def docs_at_most(self, of: Filter) -> int:
        """So many deliveries, or fewer, does ``docs`` find: their events are counted."""
        where, wanted = of.conditions()
        among = f"WHERE {' AND '.join(where)}"
        return self._one(
            f"SELECT (SELECT count(*) FROM ledger {among}) + (SELECT count(*) FROM unsent {among})", wanted
        )

    def reasons(self, of: Filter, limit: int | None = None) -> list[dict[str, Any]]:
        """The same deliveries by status and reason; see ``account.reasons``."""
        of = of._replace(statuses=of.statuses or _NOT_ARRIVED)
        self._keep_current(of, ["wave", "status", "operation", "document", f"{reason_sql()} AS reason"])
        return self.rows(f"""
            SELECT status, operation, count(*) AS deliveries, arg_min(reason, document) AS reason,
                min(document) AS example
            FROM current GROUP BY status, operation, {alike_sql("reason")}
            ORDER BY deliveries DESC, reason, status {"" if limit is None else f"LIMIT {int(limit)}"}
        """)

    def by_node(self) -> list[dict[str, Any]]:
        """Deliveries that have not arrived, by status and by the step or router that their reason names."""
        names = "'^(?:dropped by |waits for |not its branch: )?(?:step|router) ([^ :,]+)'"
        node = f"regexp_extract({reason_sql()}, {names}, 1)"
        self._keep_current(Filter(_NOT_ARRIVED), ["wave", "status", "operation", f"{node} AS node"])
        return self.rows(
            "SELECT node, status, operation, count(*) AS deliveries FROM current WHERE node <> '' GROUP BY ALL"
        )

    # -- inside ------------------------------------------------------------------------------------

    def _due_of(self, log: str, read: int, destinations: Sequence[str]) -> dict[str, int]:
        """Destination -> of how many entries of a log it must have a delivery: of those that were read since the plan
        leads them there. One to which it will only lead them in the next run is left out."""
        plan = self._state.recorded_structure()
        mine, led = missed_entries(self._state.root, plan).get(log, {}), led_to(plan, log)
        return {name: read - mine[name].missed if name in mine else read for name in destinations if name in led}

    def _keep_current(self, of: Filter, columns: Sequence[str]) -> None:
        """These columns, and ``ordinal``, of the deliveries that are asked for, as the table ``current``. In steps, of
        which each has the memory for itself: of a million deliveries it does not do for all at once."""
        where, wanted = of.conditions()
        among, named = " AND ".join(where), ", ".join(columns)
        self._db.execute("SET threads = 1")
        self.keep("last", f"SELECT hash(delivery_hash) AS h, max({_AT}) AS at FROM ledger GROUP BY h")
        self.keep("now", "SELECT hash(source, document) AS h, max(revision) AS newest FROM documents GROUP BY h")
        self._db.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE current AS
                SELECT {named}, ordinal FROM ledger
                JOIN last l ON hash(delivery_hash) = l.h AND {_AT} = l.at
                LEFT JOIN now n ON hash(source, origin) = n.h
                WHERE {_CURRENT} AND {among}
            UNION ALL
                SELECT {named}, 3 AS ordinal FROM unsent
                LEFT JOIN now n ON hash(source, origin) = n.h
                WHERE {_CURRENT} AND {among}
            """,
            wanted or None,
        )

    def _tables(self) -> Tables:
        names = {d for (d,) in self._db.execute("SELECT DISTINCT destination FROM ledger").fetchall()}
        state = self._state
        names |= {file.partition["destination"] for file in state.outbox.files.values()}
        rows = max(sum(file.rows for file in table.files.values()) for table in (state.ledger, state.documents))
        return Tables(self._db, self._documents, names - {""}, rows, self._folder, waits=bool(state.outbox.files))

    def _asked_again(self) -> list[tuple[str, int]]:
        """(source, documents that a step wants to be read again later)."""
        if not self._db.execute("SELECT 1 FROM documents WHERE again IS NOT NULL LIMIT 1").fetchall():
            return []
        return self._db.execute("""
            SELECT source, count(*) FROM (
                SELECT source, document, arg_max({again: again}, wave).again AS again FROM documents
                WHERE document IN (SELECT document FROM documents WHERE again IS NOT NULL) GROUP BY source, document
            ) WHERE again IS NOT NULL GROUP BY source
        """).fetchall()

    def _register(self, table: Table, schema: pa.Schema, staged: list[str]) -> list[Path]:
        paths = [*table.paths(), *table.paths(staged)]
        register(self._db, table.name, paths, schema)
        return paths

    def _register_outbox(self, outbox: Table) -> None:
        if not outbox.files:  # as a rule, and views take longer to make than an empty table
            for name in ("waiting", "unsent"):
                self._db.register(name, _NONE_WAIT.empty_table())
            return
        schema = _WAITING
        by_place: dict[tuple[str, str], list[Path]] = {}
        for file in outbox.files.values():
            place = (file.partition["wave"], file.partition["destination"])
            by_place.setdefault(place, []).append(outbox.path(file.path))
        self._db.register("outbox_0", schema.empty_table())
        pieces = ["SELECT *, 0::BIGINT AS wave, '' AS destination FROM outbox_0"]
        for i, ((wave, destination), files) in enumerate(by_place.items(), 1):
            self._db.register(f"outbox_{i}", parquet.scan(files, schema))
            pieces.append(f"SELECT *, {int(wave)}, '{destination}' FROM outbox_{i}")
        self._db.execute(f"""
            CREATE TEMP VIEW waiting AS
                SELECT *, 'BATCHED' AS status, {self._behind()} AS message, NULL::TIMESTAMPTZ AS created
                FROM ({" UNION ALL ".join(pieces)});
            CREATE TEMP VIEW unsent AS
                SELECT * FROM waiting WHERE delivery_hash NOT IN (
                    SELECT delivery_hash FROM ledger WHERE delivery_hash IN (SELECT delivery_hash FROM waiting)
                )
        """)

    def _behind(self) -> str:
        """Why a row waits that waits for an earlier export of its key, as SQL; NULL: it does not."""
        if not keyed_nodes(self._state.plan.nodes):
            return "NULL::VARCHAR"
        of_key = "OVER (PARTITION BY destination, source, key_hash ORDER BY revision)"
        return f"""CASE WHEN key_hash IS NOT NULL AND revision > first_value(revision) {of_key} THEN
            'waits for an earlier export of its key, ' || first_value(document) {of_key}
            || CASE WHEN first_value(due) {of_key} IS NULL THEN ', which {_ENDED}' ELSE '' END END"""

    def _one(self, query: str, parameters: dict[str, Any] | None = None) -> int:
        [(value,)] = self._db.execute(query, parameters or None).fetchall()
        return int(value)


_WAITING: Final = pa.schema([f for f in OUTBOX if f.name not in (*OUTBOX_PARTITION, *OUTBOX_CONTENT)])

_NONE_WAIT: Final = pa.schema(
    [
        *_WAITING,
        ("wave", pa.int64()),
        ("destination", pa.string()),
        ("status", pa.string()),
        ("message", pa.string()),
        ("created", pa.timestamp("us", tz="UTC")),
    ]
)

_CURRENT: Final = "coalesce(revision >= newest, true)"
"""Of an entry of a log that went through, nothing is remembered but its deliveries."""

_ALL: Final = tuple(LEDGER_COLUMNS)

_ENDED: Final = "failed, was rejected, or is in doubt"

_NOT_ARRIVED: Final = frozenset(Status) - {Status.INDEXED}


def _newest(where: list[str], limit: int | None, window: int | None) -> str:
    """Deliveries of current documents by their latest events, newest first, as SQL.

    Args:
        window: so many of the newest events are looked at; None: all.
    """
    named, among = ", ".join(_ALL), " AND ".join(where)
    order = "ORDER BY wave DESC, ordinal DESC, document"
    ordered = order.replace("wave", "c.wave").replace("ordinal", "c.ordinal").replace("document", "c.document")
    return f"""
        WITH candidates AS (
            SELECT {named}, ordinal FROM ledger WHERE {among}
            UNION ALL SELECT {named}, 3 AS ordinal FROM unsent WHERE {among}
            {order} {"" if window is None else f"LIMIT {window}"}
        ), last AS (
            SELECT delivery_hash, max({_AT}) AS at FROM ledger
            WHERE delivery_hash IN (SELECT delivery_hash FROM candidates) GROUP BY delivery_hash
        ), now AS (
            SELECT source, document, max(revision) AS revision FROM documents
            WHERE document IN (SELECT origin FROM candidates) GROUP BY source, document
        )
        SELECT {", ".join("c." + name for name in _ALL)} FROM candidates c
        LEFT JOIN last l ON c.delivery_hash = l.delivery_hash
        LEFT JOIN now n ON c.source = n.source AND c.origin = n.document
        WHERE (l.at IS NULL OR l.at = c.wave * 4 + c.ordinal) AND coalesce(c.revision >= n.revision, true)
        {ordered} {"" if limit is None else f"LIMIT {int(limit)}"}
        """


# Which deliveries are asked for.


class FilterOptions(TypedDict, total=False):
    """What users narrow deliveries down by; nothing: all of them."""

    status: str | None
    """As shown (``failed``, ``pending`` …) or as stored (``DEAD``, ``BATCHED`` …), in any case."""
    destination: str | None
    source: str | None
    family: str | None
    """Only of this origin and what was made of it; or of the rows of this file."""


class Filter(NamedTuple):
    """The same by what is stored. Without arguments every delivery passes."""

    statuses: frozenset[str] = frozenset()
    """Any of these; empty: whatever it is."""
    destination: str | None = None
    source: str | None = None
    document: str | None = None
    """The delivery's document, or the origin of its family."""
    family: str | None = None
    operation: str | None = None

    @staticmethod
    def of(asked: FilterOptions) -> Filter:
        """
        Raises:
            UsageError: there is no such status.
        """
        rest: dict[str, Any] = dict(asked)
        statuses, operation = named_statuses(rest.pop("status", None))
        return Filter(statuses, operation=operation, **rest)

    def conditions(self) -> tuple[list[str], dict[str, str]]:
        """On events, as SQL, and the parameters that these name."""
        named = {"destination": self.destination, "source": self.source}
        wanted = {column: value for column, value in named.items() if value}
        where = ["destination <> ''", *(f"{column} = ${column}" for column in wanted)]
        if self.statuses:
            where.append(f"status IN {quote_list(sorted(self.statuses))}")
        if self.document is not None:
            where.append("(document = $document OR origin = $document)")
            wanted["document"] = self.document
        if self.family is not None:
            where.append(in_family(self.family))
        if self.operation is not None:
            where.append(f"operation = '{self.operation}'")
        return where, wanted


def named_statuses(status: str | None) -> tuple[frozenset[Status], str | None]:
    """The stored statuses that are meant, none for any, and the operation where it matters.

    Raises:
        UsageError: there is no such status.
    """
    if status is None:
        return frozenset(), None
    try:
        return stored(status)
    except ValueError as e:
        raise UsageError(f"status {status}: {e}.") from None
