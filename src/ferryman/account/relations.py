"""The tables of a state as relations of one DuckDB connection, and the queries on them.

Counts of all deliveries are made by hash (``counts``); queries for some deliveries filter first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict, cast

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.account.counts import Counts, Tables, count
from ferryman.account.snapshot import EndedRow, Snapshot, SnapshotWriter, WaveCounts, new_salt
from ferryman.document import storable_texts
from ferryman.plan import destinations_of_sources, errors_node, keyed_nodes, logs_of_versions, logs_read
from ferryman.plan.structure import reachable_destinations as nodes_reached
from ferryman.records.families import SEPARATOR, STALE, held_delete, in_family, in_family_sql, older_publications
from ferryman.records.rows import (
    DISPLAY_STATUSES,
    DOCUMENTS,
    HELD,
    LEDGER,
    LEDGER_COLUMNS,
    NOT_READ,
    OUTBOX,
    OUTBOX_CONTENT,
    OUTBOX_PARTITION,
    PENDING,
    RANGE,
    STOPPED,
    TERMINAL,
    Status,
    common_form_sql,
    display_status,
    named_statuses,
    reason_sql,
)
from ferryman.state.activity import describe_trouble, find_activity
from ferryman.state.logs import RANGES, LogPositions, number_of_text
from ferryman.state.state import SETTLED, SNAPSHOT, WAVE, State, missed_entries
from ferryman.storage import parquet
from ferryman.storage.query import gather, quote, quote_list, register, register_spooled, select_rows
from ferryman.storage.tables import Table

COUNTS: Final = tuple(DISPLAY_STATUSES)

UNSUCCESSFUL: Final = ("DEAD", "ERROR_DOC", "INDEXING")
"""Stored statuses of deliveries that ended without success, or whose outcome is unknown."""

_ENDS: Final = tuple(str(each) for each in Status if each in TERMINAL or each is Status.INDEXING)
"""Stored statuses of events by which deliveries end; one that is in doubt may end again."""

_WAVE_COUNTS: Final = {
    "delivered": Status.INDEXED,
    "failed": Status.DEAD,
    "rejected": Status.ERROR_DOC,
    "in_doubt": Status.INDEXING,
    "pending": Status.ERROR,
}
"""Count of ``WaveCounts`` -> stored status of the events that it counts."""

SOURCE_COUNTS: Final = ("documents", "deleted", "again")

_EVENT_ORDER: Final = "wave * 4 + ordinal"
"""SQL that orders the events of a delivery."""

_ROWS: Final = 2048
"""Rows of a result that are in memory at a time."""

_SLACK: Final = 4
"""Candidates read for each row that is wanted: some belong to older revisions."""


class View:
    """A consistent snapshot of a state as relations: ``documents``, ``ledger``, ``waiting`` (the outbox without
    payload) and ``unsent`` (rows of ``waiting`` without an event). Between a wave's commit and its settling, it
    includes the files that the commit names.

    Args:
        snapshot: if it is valid, ``ledger`` has newer events only, and ``count``, ``waves`` and ``ended`` begin with
            it; no other query may run.
        wanted: makes what the queries need, if the state is large; None: everything.

    Attributes:
        snapshot: the one that is used; None: ``ledger`` has all events.
        newer: number of events in ``ledger``, if a snapshot is used.
        is_whole: whether everything is there, not only what was wanted.
    """

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        state: State,
        folder: Path,
        snapshot: Snapshot | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        self._db = db
        self._folder = folder
        self._state = state
        self._logs = {n.name: LogPositions(state, n.name) for n in logs_read(state.plan.nodes)}
        of_versions = logs_of_versions(state.plan.nodes)
        self._entry_logs = {name: log for name, log in self._logs.items() if name not in of_versions}
        """Logs whose entries are counted, not their documents."""
        state.load_consistently(
            [WAVE, SETTLED, SNAPSHOT, RANGES, *(log.entries_read_id for log in self._logs.values())]
        )
        self.wave = wave = state.outbox.transactions[WAVE]
        self.settled = state.settled
        staged: dict[str, list[str]] = {"documents": [], "ledger": []}
        if wave > state.outbox.transactions[SETTLED]:
            info = state.outbox.log.find("wave", wave)
            for table in (state.documents, state.ledger):
                if table.transactions[SETTLED] < wave:
                    staged[table.name] = [p[0] for p in info[table.name]]
        self._documents, self._ledger = (
            [*table.paths(), *table.paths(staged[table.name])] for table in (state.documents, state.ledger)
        )
        self._register_waiting(state.outbox)
        self.snapshot = None
        self.newer, self.is_whole = 0, True
        if snapshot is not None and snapshot.is_valid(state.ledger, self.settled, list(self._entry_logs)):
            self.snapshot = snapshot
            register(db, "documents", self._documents, DOCUMENTS)
            self._ledger = self._register_newer(snapshot, staged["ledger"])
        else:
            is_large = sum(file.rows for file in state.ledger.files.values()) >= limits.SELECTED_FROM
            selection = wanted() if wanted is not None and is_large else None
            self.is_whole = selection is None or not self._select(selection)
            if self.is_whole:
                register(db, "documents", self._documents, DOCUMENTS)
                register(db, "ledger", self._ledger, LEDGER)
        self._register_unsent(state.outbox)

    @property
    def created(self) -> str:
        """When the state was created, ISO 8601."""
        return str(self._state.identity()["created"])

    def rows(self, query: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return a query's rows as dicts; times as ISO 8601 text."""
        return list(self.iter_rows(query, parameters))

    def iter_rows(self, query: str, parameters: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield a query's rows as dicts, few in memory at a time. No other query may run until the last row."""
        found = self._db.execute(query, storable_texts(parameters))
        names = [d[0] for d in found.description or []]
        while rows := found.fetchmany(_ROWS):
            for row in rows:
                named = zip(names, row, strict=True)
                yield {n: v.isoformat() if n == "created" and v is not None else v for n, v in named}

    def ledger(self) -> pa.Table:
        """Read every event, as stored."""
        return parquet.scan(self._ledger, LEDGER).to_table()

    def documents(self) -> pa.Table:
        """Read the rows of all documents, as stored; of each document the row of the highest wave counts."""
        return parquet.scan(self._documents, DOCUMENTS).to_table()

    def keep(self, name: str, query: str) -> None:
        """Store a query's rows as a temporary table, for later queries."""
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def load(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Store batches as a temporary table, for later queries; rows beyond the memory limit go to the disk. Columns
        that batches lack are null."""
        self._db.register("empty", schema.empty_table())
        self.keep(name, "SELECT * FROM empty")
        self._add(name, batches)

    def register(self, name: str, rows: Path | pa.Table) -> None:
        """Make rows that ``query.spool`` has stored a view of this name."""
        register_spooled(self._db, name, rows)

    def _add(self, name: str, batches: Iterable[pa.RecordBatch], most: int = 1 << 62) -> bool:
        """Add batches to a temporary table; stop, and return False, if they have more rows than this."""
        for table in gather(batches):
            if (most := most - table.num_rows) < 0:
                return False
            self._db.register("rows", table)
            self._db.execute(f"INSERT INTO {name} BY NAME SELECT * FROM rows")
        return True

    def count(self, reached: Mapping[str, Sequence[str]], writer: SnapshotWriter | None = None) -> Counts:
        """Count everything.

        Args:
            reached: source -> destinations.
            writer: of the next snapshot; None: none is due.

        Raises:
            SnapshotUnusable: count without the snapshot.
        """
        nodes = self._state.plan.nodes
        exported = {node.name for node in keyed_nodes(nodes)}  # in ``documents`` by place, and counted as entries
        of_versions = logs_of_versions(nodes)  # in ``documents``, and counted as documents
        documents = {
            name: self._never_missed(name, names) if name in of_versions else names
            for name, names in reached.items()
            if name not in exported
        }
        return count(self._tables()._replace(writer=writer), documents, logs=list(self._entry_logs))

    def next_snapshot(self, state: State) -> SnapshotWriter | None:
        """Return the writer of the next snapshot; None: none is due.

        Args:
            state: this state as its driver has it.
        """
        if self.snapshot is not None and not self.snapshot.is_outgrown(self.newer):
            return None
        return SnapshotWriter(state, new_salt() if self.snapshot is None else self.snapshot.salt)

    def finish(self, writer: SnapshotWriter, found: Counts, waves: list[WaveCounts], ended: list[EndedRow]) -> Snapshot:
        """Finish the next snapshot after ``count``, with the results of ``waves`` and ``ended``."""
        before = 0 if self.snapshot is None else self.snapshot.ended_twice
        return writer.finish(found.destinations, list(self._entry_logs), before, waves, ended)

    def status(
        self, reached: Mapping[str, Sequence[str]] | None = None, counts: Counts | None = None
    ) -> dict[str, Any]:
        """Compute the status without logs; see ``account.status``.

        Args:
            reached: source -> destinations; None: those of the plan.
            counts: the result of ``count``; None: count now.

        Raises:
            SnapshotUnusable: count without the snapshot.
        """
        plan = self._state.plan
        reached = destinations_of_sources(plan.nodes) if reached is None else reached
        found = self.count(reached) if counts is None else counts
        lost = any(
            found.entries[name, destination] != expected
            for name, log in self._entry_logs.items()
            for destination, expected in self._expected_entries(name, log.entries_read, reached.get(name, ())).items()
        )
        destinations = {name: dict.fromkeys(COUNTS, 0) for names in reached.values() for name in names}
        if (errors := errors_node(plan.nodes)) is not None:
            destinations[errors.name] = dict.fromkeys(COUNTS, 0)
        for (destination, status, operation), number in found.ends.items():
            of_destination = destinations.setdefault(destination, dict.fromkeys(COUNTS, 0))
            of_destination[display_status(status, operation)] += number
        for destination, number in found.older.items():
            destinations.setdefault(destination, dict.fromkeys(COUNTS, 0))["pending"] += number
        sources = {name: dict.fromkeys(SOURCE_COUNTS, 0) for name in reached}
        for name, (live, deleted) in found.documents.items():
            sources[name] = {"documents": live, "deleted": deleted, "again": 0}
        for name, number in self._scheduled_again() if found.again else ():
            sources[name]["again"] = number
        return {
            "plan": plan.name,
            "version": plan.version,
            "waves": self.wave,
            "sources": sources,
            "destinations": destinations,
            "balanced": not (found.ended_twice or found.missing or lost),
        }

    def waves(self, limit: int) -> list[WaveCounts]:
        """Return the last waves; see ``account.waves``. With a snapshot, at most ``counts.WAVES``."""
        counts = ", ".join(f"count(*) FILTER (status = '{each}') AS {name}" for name, each in _WAVE_COUNTS.items())
        rows = self.rows(f"""
            SELECT wave, max(first) OVER (ORDER BY wave) AS created, events, {", ".join(_WAVE_COUNTS)} FROM (
                SELECT wave, min(created) AS first, count(*) AS events, {counts} FROM ledger GROUP BY wave
            ) ORDER BY wave DESC LIMIT {int(limit)}
        """)
        found = cast(list[WaveCounts], rows)
        return found if self.snapshot is None else self.snapshot.merge_waves(found, limit)

    def ended(self) -> list[EndedRow]:
        """Count the events by which deliveries ended."""
        if self.snapshot is None:
            counts = parquet.count_by(self._ledger, ["destination", "status", "operation", "attempt"])
            ends = [EndedRow(to, end, what, n, k) for (to, end, what, n), k in counts.items() if to and end in _ENDS]
            return sorted(ends, key=msgspec.structs.astuple)
        found = self._db.execute(f"""
            SELECT destination, status, operation, attempt, count(*) FROM ledger
            WHERE destination <> '' AND status IN {quote_list(_ENDS)} GROUP BY ALL
        """)
        return self.snapshot.merge_ended([EndedRow(*row) for row in found.fetchall()])

    def first_event_of_pending(self, wave: int | None, *, failed: bool) -> float | None:
        """Return the time of the first event since a wave, see ``account.queries.first_event_of_pending``.

        Args:
            failed: also of each delivery that is pending after an event.
        """
        which = [] if wave is None else [f"wave >= {int(wave)}"]
        if failed:
            self._make_current(Filter(frozenset(PENDING)), ["delivery_hash"])
            which.append("delivery_hash IN (SELECT delivery_hash FROM current)")
        [(first,)] = self._db.execute(
            f"SELECT epoch(min(created)) FROM ledger WHERE {' OR '.join(which) or 'false'}"
        ).fetchall()
        return None if first is None else float(first)

    def wave_times(self, limit: int) -> dict[int, tuple[Any, Any]]:
        """Return the times of the first and the last event of each of the last waves; see ``account.wave_times``."""
        found = self._db.execute(f"""
            SELECT wave, min(created), max(created) FROM ledger WHERE wave > {self.wave - int(limit)} GROUP BY wave
        """).fetchall()
        return {wave: (first, last) for wave, first, last in found}

    def outcomes(self, message: str, limit: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Return what became of the deliveries that a command concerned; see ``account.outcomes``."""
        since = self._scalar("SELECT coalesce(min(wave), -1) FROM ledger WHERE message = $m", {"m": message})
        if since < 0:
            return {}, []
        self._db.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE outcomes AS
                WITH asked AS (
                    SELECT DISTINCT source, document, destination, route FROM ledger
                    WHERE message = $message AND wave >= {since}
                )
                SELECT l.document, l.destination, arg_max({{status: l.status, operation: l.operation,
                    message: l.message, attempt: l.attempt, wave: l.wave, created: l.created}},
                    l.wave * 4 + l.ordinal) AS last
                FROM ledger l JOIN asked a USING (source, document, destination, route) WHERE l.wave >= {since}
                GROUP BY l.source, l.document, l.destination, l.route
            """,
            {"message": message},
        )
        counts: dict[str, int] = {}
        for row in self.rows("SELECT last.status, last.operation, count(*) AS n FROM outcomes GROUP BY ALL"):
            word = display_status(row["status"], row["operation"])
            counts[word] = counts.get(word, 0) + row["n"]
        good = f"last.status IN {quote_list([Status.INDEXED, Status.DROPPED])}"
        rows = self.rows(
            f"SELECT document, destination, last.* FROM outcomes ORDER BY {good}, document, destination "
            f"LIMIT {int(limit)}"
        )
        return counts, rows

    def outstanding(self) -> dict[str, int]:
        """Count outstanding deliveries; see ``account.outstanding``."""
        found = count(self._tables(), {}, (*UNSUCCESSFUL, Status.FORCE.value))
        pending = self._scalar("SELECT count(*) FROM waiting WHERE due IS NOT NULL") + found.pending_in_steps
        counts = {"failed": 0, "rejected": 0, "in_doubt": 0, "pending": pending}
        if self._state.outbox.transaction(RANGES):
            counts["pending"] += self._pending_ranges()
        for (_, status, _), number in found.ends.items():
            if (word := display_status(status, "upsert")) in ("failed", "rejected", "in_doubt"):
                counts[word] += number
            elif status == Status.FORCE.value:  # no listing has had its document since
                counts["pending"] += number
        return counts

    def _pending_ranges(self) -> int:
        """Count deliveries of ranges that are still to be run; see ``records.rows.RANGE``."""
        return self._scalar(f"""
            SELECT count(*) FROM (
                SELECT arg_max(status, wave * 4 + ordinal) AS status FROM ledger
                WHERE starts_with(version, '{RANGE}') GROUP BY delivery_hash
            ) WHERE status IN {quote_list(PENDING)}
        """)

    def stopped(self, wanted: Filter) -> list[dict[str, Any]]:
        """Return the entries of logs that the plan stops before, with the ledger's columns and ``partition``; their
        status is ``stopped``. See ``state.logs.StoppedEntry``."""
        found = []
        for source, log in self._logs.items():
            for partition, entry in log.stopped().items() if wanted.source in (None, source) else ():
                rows = self.rows(f"""
                    SELECT {", ".join(_ALL)} FROM ledger WHERE wave = {entry.wave} AND destination = ''
                        AND source = {quote(source)} AND status = '{Status.ERROR}'
                """)
                found += [
                    {**row, "status": STOPPED, "partition": partition}
                    for row in rows
                    if number_of_text(row["document"]) == entry.entry and wanted.includes_stopped(row["document"])
                ]
        return sorted(found, key=lambda row: (-row["wave"], row["source"], row["document"]))

    def held(self, wanted: Filter) -> Iterator[dict[str, Any]]:
        """Yield deletes that wait because a step failed for a part of the newer version, with the ledger's columns;
        their status is ``held``. No other query may run until the last row."""
        if not wanted.may_be_held():
            return
        parameters = {name: value for name in ("source", "origin") if (value := getattr(wanted, name)) is not None}
        where = [f"{'document' if name == 'origin' else name} = ${name}" for name in parameters]
        condition = " AND ".join(["given <> ''", f"(failed IS NOT NULL OR contains(given, '{_STALE_END}'))", *where])
        found = self.iter_rows(
            f"""
            SELECT source, document AS origin, last.* FROM (
                SELECT source, document, arg_max({{given: given, failed: failed, operation: operation, version: version,
                    revision: revision, wave: wave}}, wave) AS last
                FROM documents WHERE document IN (SELECT document FROM documents WHERE {condition}) GROUP BY ALL
            ) WHERE last.operation = 'upsert' ORDER BY last.wave DESC, source, document
            """,
            parameters,
        )
        for row in found:
            for published, failure in older_publications(row["given"], row["failed"]):
                held = held_delete(row, published, failure)
                if wanted.includes_held(held):
                    yield held

    def unread(self, sources: Collection[str]) -> dict[str, tuple[int, str]]:
        """Return unread entries of these sources, see ``account.unread``."""
        of_sources = f"source IN {quote_list(sources)}"
        requested = "due = 0 OR forced"  # by an operator: what is due because of a step has a time
        found = self._db.execute(f"""
            SELECT source, count(*), min(document) FROM (
                SELECT source, document, arg_max(coalesce({requested}, false), wave) AS requested FROM documents
                WHERE {of_sources} AND document IN (
                    SELECT document FROM documents WHERE {of_sources} AND ({requested})
                )
                GROUP BY source, document
            ) WHERE requested GROUP BY source ORDER BY source
        """).fetchall()
        return {source: (number, example) for source, number, example in found}

    def deliveries(
        self, wanted: Filter, *, limit: int | None = None, share: tuple[int, int] = (0, 1)
    ) -> list[dict[str, Any]]:
        """Return deliveries by their latest event; see ``account.deliveries``.

        Args:
            share: (i, n): only the i-th of n shares; a family is in one share.
        """
        where, parameters = wanted.conditions()
        if share != (0, 1):
            where.append(f"hash(origin) % {share[1]} = {share[0]}")
        if limit is not None:  # try the newest candidates first
            found = self.rows(_newest(where, limit, _SLACK * max(limit, 250)), parameters)
            if len(found) == limit:
                return found
        self._db.execute("SET threads = 1")  # all columns of every row: memory is not enough for two threads
        return self.rows(_newest(where, limit, None), parameters)

    def iter_deliveries(self, wanted: Filter, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows of ``deliveries``, few in memory at a time. No other query may run until the last row."""
        self._make_current(wanted, _ALL)
        order = "ORDER BY wave DESC, ordinal DESC, document"
        return self.iter_rows(
            f"SELECT {', '.join(_ALL)} FROM current {order} {'' if limit is None else f'LIMIT {int(limit)}'}"
        )

    def count_deliveries(self, wanted: Filter) -> int:
        """Count the rows of ``deliveries``."""
        self._make_current(wanted, ["wave"])
        return self._scalar("SELECT count(*) FROM current")

    def count_events(self, wanted: Filter) -> int:
        """Count the events of the rows of ``deliveries``: an upper bound of their number, and quick."""
        where, parameters = wanted.conditions()
        condition = f"WHERE {' AND '.join(where)}"
        return self._scalar(
            f"SELECT (SELECT count(*) FROM ledger {condition}) + (SELECT count(*) FROM unsent {condition})", parameters
        )

    def reasons(self, wanted: Filter, limit: int | None = None) -> list[dict[str, Any]]:
        """Count deliveries by status and reason; see ``account.reasons``."""
        wanted = wanted._replace(statuses=wanted.statuses or NOT_ARRIVED)
        self._make_current(wanted, ["wave", "status", "operation", "document", f"{reason_sql()} AS reason"])
        return self.rows(f"""
            SELECT status, operation, count(*) AS deliveries, arg_min(reason, document) AS reason,
                min(document) AS example
            FROM current GROUP BY status, operation, {common_form_sql("reason")}
            ORDER BY deliveries DESC, reason, status {"" if limit is None else f"LIMIT {int(limit)}"}
        """)

    def not_read(self, wanted: Filter, limit: int | None = None) -> list[dict[str, Any]]:
        """Count deliveries by what of their documents was not read; see ``account.not_read``."""
        wanted = wanted._replace(statuses=frozenset({Status.INDEXED}), operation="upsert")
        self._make_current(wanted, ["wave", "document", "message"])
        return self.rows(f"""
            SELECT count(*) AS deliveries, unread, min(document) AS example FROM (
                SELECT document, unnest(string_split(substr(message, {len(NOT_READ) + 1}), ', ')) AS unread
                FROM current WHERE starts_with(message, '{NOT_READ}')
            ) GROUP BY unread ORDER BY deliveries DESC, unread {"" if limit is None else f"LIMIT {int(limit)}"}
        """)

    def has_not_read(self) -> bool:
        """Return whether there is a delivery that ``not_read`` counts; quick if none ever had such a message."""
        affected = f"FROM ledger WHERE starts_with(message, '{NOT_READ}')"
        if not self._db.execute(f"SELECT 1 {affected} LIMIT 1").fetchall():
            return False
        found = self._db.execute(f"""
            WITH last AS (
                SELECT arg_max({{message: message, status: status, source: source, origin: origin, revision: revision}},
                    {_EVENT_ORDER}) AS event
                FROM ledger WHERE delivery_hash IN (SELECT delivery_hash {affected}) GROUP BY delivery_hash
            ), now AS (
                SELECT source, document, max(revision) AS newest FROM documents
                WHERE document IN (SELECT origin {affected}) GROUP BY source, document
            )
            SELECT 1 FROM last LEFT JOIN now n ON event.source = n.source AND event.origin = n.document
            WHERE starts_with(event.message, '{NOT_READ}') AND event.status = '{Status.INDEXED}'
                AND coalesce(event.revision >= newest, true) LIMIT 1
        """).fetchall()
        return bool(found)

    def pending_reasons(self, limit: int) -> list[dict[str, Any]]:
        """Count pending deliveries by the node that they wait for and by reason; see ``account.pending_reasons``."""
        node = f"regexp_extract({reason_sql()}, '^(?:waits for )?(?:step|router|source) ([^ :,]+)', 1)"
        columns = ["wave", "status", "destination", "document", "due", "created", f"{reason_sql()} AS reason"]
        self._make_current(Filter(frozenset(PENDING)), [*columns, f"coalesce(nullif({node}, ''), destination) AS node"])
        return self.rows(f"""
            SELECT node, count(*) AS deliveries, arg_min(reason, document) AS reason, min(document) AS example,
                min(created) AS since, min(due) AS due
            FROM current GROUP BY node, {common_form_sql("reason")}
            ORDER BY deliveries DESC, node, reason LIMIT {int(limit)}
        """)

    def by_node(self) -> list[dict[str, Any]]:
        """Count deliveries that have not arrived, by status and by the step or router that their reason names."""
        names = "'^(?:dropped by |waits for |not its branch: )?(?:step|router) ([^ :,]+)'"
        node = f"regexp_extract({reason_sql()}, {names}, 1)"
        self._make_current(Filter(NOT_ARRIVED), ["wave", "status", "operation", f"{node} AS node"])
        return self.rows(
            "SELECT node, status, operation, count(*) AS deliveries FROM current WHERE node <> '' GROUP BY ALL"
        )

    def _never_missed(self, log: str, destinations: Sequence[str]) -> list[str]:
        """Return the destinations that have been reached by a log of versions since it was first read."""
        plan = self._state.recorded_structure()
        skipped, reached = missed_entries(self._state.root, plan).get(log, {}), nodes_reached(plan, log)
        return [name for name in destinations if name in reached and name not in skipped]

    def _expected_entries(self, log: str, read: int, destinations: Sequence[str]) -> dict[str, int]:
        """Return destination -> number of entries of a log that must have a delivery there: those read since the plan
        has had a path to it. A destination that only the next run can reach is left out."""
        plan = self._state.recorded_structure()
        skipped, reached = missed_entries(self._state.root, plan).get(log, {}), nodes_reached(plan, log)
        return {
            name: read - skipped[name].missed if name in skipped else read for name in destinations if name in reached
        }

    def _make_current(self, wanted: Filter, columns: Sequence[str]) -> None:
        """Make the table ``current``: these columns, and ``ordinal``, of the wanted deliveries.

        In several statements, so that each has all the memory: one query over a million deliveries needs too much.
        """
        where, parameters = wanted.conditions()
        condition, selected = " AND ".join(where), ", ".join(columns)
        self._db.execute("SET threads = 1")
        self.keep("last", f"SELECT hash(delivery_hash) AS h, max({_EVENT_ORDER}) AS at FROM ledger GROUP BY h")
        self.keep("now", "SELECT hash(source, document) AS h, max(revision) AS newest FROM documents GROUP BY h")
        self._db.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE current AS
                SELECT {selected}, ordinal FROM ledger
                JOIN last l ON hash(delivery_hash) = l.h AND {_EVENT_ORDER} = l.at
                LEFT JOIN now n ON hash(source, origin) = n.h
                WHERE {_CURRENT} AND {condition}
            UNION ALL
                SELECT {selected}, 3 AS ordinal FROM unsent
                LEFT JOIN now n ON hash(source, origin) = n.h
                WHERE {_CURRENT} AND {condition}
            """,
            parameters or None,
        )

    def _tables(self) -> Tables:
        names = {d for (d,) in self._db.execute("SELECT DISTINCT destination FROM ledger").fetchall()}
        state = self._state
        names |= {file.partition["destination"] for file in state.outbox.files.values()}
        rows = [sum(file.rows for file in table.files.values()) for table in (state.ledger, state.documents)]
        if (snapshot := self.snapshot) is not None:
            names |= set(snapshot.destinations)
            rows[0] = snapshot.rows + self.newer
        return Tables(
            self._db,
            self._documents,
            names - {""},
            max(rows),
            self._folder,
            bool(state.outbox.files),
            state.root,
            snapshot,
        )

    def _scheduled_again(self) -> list[tuple[str, int]]:
        """Return (source, number of documents that a step wants to be read again later)."""
        return self._db.execute("""
            SELECT source, count(*) FROM (
                SELECT source, document, arg_max({again: again}, wave).again AS again FROM documents
                WHERE document IN (SELECT document FROM documents WHERE again IS NOT NULL) GROUP BY source, document
            ) WHERE again IS NOT NULL GROUP BY source
        """).fetchall()

    def _select(self, wanted: Selection) -> bool:
        """Make ``ledger`` and ``documents`` of what a selection needs; return False if everything is to be read.

        1. the events that pass its condition
        2. for each later event of their deliveries a row with its place in their order
        3. rows of their documents
        """
        if wanted.events is None:
            self._db.register("documents", parquet.scan(self._documents, DOCUMENTS))
            self._db.register("ledger", parquet.scan(self._ledger, LEDGER))
            return True
        waiting = sum(file.rows for file in self._state.outbox.files.values()) if wanted.waits else 0
        self.load("ledger", LEDGER, ())
        events = select_rows(self._ledger, LEDGER, wanted.columns, wanted.events, wanted.keys)  # 1
        if waiting > limits.SELECTED_EVENTS or not self._add("ledger", events, limits.SELECTED_EVENTS):
            self._db.execute("DROP TABLE ledger")
            return False
        later, documents, columns = None, wanted.documents, DOCUMENTS.names
        if wanted.follows:
            later, documents = self._conditions_of_followers(waiting > 0)
            columns = ["source", "document", "revision"]
        if later is not None:
            order = ("delivery_hash", "wave", "ordinal")
            self._add("ledger", select_rows(self._ledger, LEDGER, order, later, order))  # 2
        rows = select_rows(self._documents, DOCUMENTS, columns, documents, columns[:4]) if documents is not None else ()
        self.load("documents", DOCUMENTS, rows)  # 3
        return True

    def _conditions_of_followers(self, waits: bool) -> tuple[pc.Expression | None, pc.Expression | None]:
        """Return the conditions of later events of the deliveries in ``ledger``, if one ``waits`` also of all events of
        those in the outbox; and of newer revisions of their documents. None: there are none."""
        later = documents = None
        for table in ("ledger", "waiting") if waits else ("ledger",):
            [(order, revision)] = self._db.execute(
                f"SELECT min({_EVENT_ORDER if table == 'ledger' else '0'}), min(revision) FROM {table}"
            ).fetchall()
            if revision is None:
                continue
            hashes, origins = (
                self._db.sql(f"SELECT DISTINCT {column} FROM {table}").to_arrow_table()[column].combine_chunks()
                for column in ("delivery_hash", "origin")
            )
            wave, ordinal = divmod(order, 4)
            is_later = (pc.field("wave") > wave) | ((pc.field("wave") == wave) & (pc.field("ordinal") > ordinal))
            has_hash = is_later & pc.field("delivery_hash").isin(hashes)
            is_newer = (pc.field("revision") > revision) & pc.field("document").isin(origins)
            later = has_hash if later is None else later | has_hash
            documents = is_newer if documents is None else documents | is_newer
        return later, documents

    def _register_newer(self, snapshot: Snapshot, staged: list[str]) -> list[Path]:
        """Make ``ledger`` of the events that a snapshot does not have; only files with such events are read.

        Raises:
            SnapshotUnusable: count without the snapshot.
        """
        ledger = self._state.ledger
        paths = [*ledger.paths(snapshot.newer_files(ledger)), *ledger.paths(staged)]
        register(self._db, "newer_files", paths, LEDGER)
        self._db.execute(f"CREATE TEMP VIEW ledger AS SELECT * FROM newer_files WHERE wave > {snapshot.wave}")
        snapshot.check_events(ledger, self._scalar(f"SELECT count(*) FROM newer_files WHERE wave <= {snapshot.wave}"))
        self.newer = self._scalar("SELECT count(*) FROM ledger")
        return paths

    def _register_waiting(self, outbox: Table) -> None:
        if not outbox.files:  # the usual case: an empty table is quicker to make than the views
            for name in ("waiting", "unsent"):
                self._db.register(name, _EMPTY_WAITING.empty_table())
            return
        schema = _WAITING
        by_partition: dict[tuple[str, str], list[Path]] = {}
        for file in outbox.files.values():
            partition = (file.partition["wave"], file.partition["destination"])
            by_partition.setdefault(partition, []).append(outbox.path(file.path))
        self._db.register("outbox_0", schema.empty_table())
        queries = ["SELECT *, 0::BIGINT AS wave, '' AS destination FROM outbox_0"]
        for i, ((wave, destination), files) in enumerate(by_partition.items(), 1):
            self._db.register(f"outbox_{i}", parquet.scan(files, schema))
            queries.append(f"SELECT *, {int(wave)}, '{destination}' FROM outbox_{i}")
        reason = f"coalesce({self._blocked_reason()}, {self._trouble_reason()})"
        self._db.execute(f"""
            CREATE TEMP VIEW waiting AS
                SELECT *, 'BATCHED' AS status, {reason} AS message, NULL::TIMESTAMPTZ AS created
                FROM ({" UNION ALL ".join(queries)});
        """)

    def _register_unsent(self, outbox: Table) -> None:
        if outbox.files:
            self._db.execute("""
                CREATE TEMP VIEW unsent AS
                    SELECT * FROM waiting WHERE delivery_hash NOT IN (
                        SELECT delivery_hash FROM ledger WHERE delivery_hash IN (SELECT delivery_hash FROM waiting)
                    )
            """)

    def _blocked_reason(self) -> str:
        """Return SQL for the reason of a row that waits for an earlier export of its key, else NULL."""
        if not keyed_nodes(self._state.plan.nodes):
            return "NULL::VARCHAR"
        of_key = "OVER (PARTITION BY destination, source, key_hash ORDER BY revision)"
        return f"""CASE WHEN key_hash IS NOT NULL AND revision > first_value(revision) {of_key} THEN
            'waits for an earlier export of its key, ' || first_value(document) {of_key}
            || CASE WHEN first_value(due) {of_key} IS NULL THEN ', which {_ENDED}' ELSE '' END END"""

    def _trouble_reason(self) -> str:
        """Return SQL for the reason of a row whose destination is not called for now, else NULL."""
        holder, activity = find_activity(self._state.root / "lock")
        is_active = holder is not None and holder.is_active
        cases = [
            f"WHEN {quote(each.node)} THEN {quote(describe_trouble(each, is_active=is_active))}"
            for each in activity.troubles
            if each.is_destination
        ]
        return f"CASE destination {' '.join(cases)} END" if cases else "NULL::VARCHAR"

    def _scalar(self, query: str, parameters: dict[str, Any] | None = None) -> int:
        [(value,)] = self._db.execute(query, storable_texts(parameters)).fetchall()
        return int(value)


_WAITING: Final = pa.schema([f for f in OUTBOX if f.name not in (*OUTBOX_PARTITION, *OUTBOX_CONTENT)])

_EMPTY_WAITING: Final = pa.schema(
    [
        *_WAITING,
        ("wave", pa.int64()),
        *((name, pa.string()) for name in ("destination", "status", "message")),
        ("created", pa.timestamp("us", tz="UTC")),
    ]
)

_CURRENT: Final = "coalesce(revision >= newest, true)"
"""SQL that is true for deliveries of current revisions. Entries of logs, which ``documents`` lacks, are current."""

_ALL: Final = tuple(LEDGER_COLUMNS)

_STALE_END: Final = f'","{STALE}"]'
"""End of a publication in ``documents.given`` whose delete is held."""


_ENDED: Final = "failed, was rejected, or is in doubt"

NOT_ARRIVED: Final = frozenset(Status) - {Status.INDEXED}
"""Stored statuses of deliveries that are neither delivered nor deleted."""


def _newest(where: list[str], limit: int | None, window: int | None) -> str:
    """Return SQL for deliveries of current documents by their latest events, newest first.

    Args:
        window: number of the newest events to read; None: all.
    """
    selected, condition = ", ".join(_ALL), " AND ".join(where)
    order = "ORDER BY wave DESC, ordinal DESC, document"
    ordered = order.replace("wave", "c.wave").replace("ordinal", "c.ordinal").replace("document", "c.document")
    return f"""
        WITH candidates AS (
            SELECT {selected}, ordinal FROM ledger WHERE {condition}
            UNION ALL SELECT {selected}, 3 AS ordinal FROM unsent WHERE {condition}
            {order} {"" if window is None else f"LIMIT {window}"}
        ), last AS (
            SELECT delivery_hash, max({_EVENT_ORDER}) AS at FROM ledger
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


# --- filters ---


class Selection(NamedTuple):
    """Part of a state that is enough for a query: of a large state only this is read.

    Attributes:
        events: condition of events; None: all.
        keys: its columns.
        follows: whether it also takes what may have happened to their deliveries and documents since.
        waits: whether it takes the rows of the outbox that have no event yet.
        documents: condition of rows of ``documents``, by their names, unless ``follows``; None: none are needed.
        columns: of the events; others are null.
    """

    events: pc.Expression | None
    keys: Sequence[str]
    follows: bool = False
    waits: bool = True
    documents: pc.Expression | None = None
    columns: Sequence[str] = LEDGER.names


Wanted = Callable[[], Selection | None]
"""Makes a selection where one is needed, since conditions load pandas; None: everything is to be read."""


class FilterOptions(TypedDict, total=False):
    """Filters as users give them; without any, every delivery passes."""

    status: str | None
    """A status as shown (``failed``, ``pending`` …) or as stored (``DEAD``, ``BATCHED`` …), in any case."""
    destination: str | None
    source: str | None
    family: str | None
    """An origin, with all that was made of it; or a file, with its rows."""
    reason: str | None
    """A reason, and all that differ from it only in numbers and quoted text, as ``account.reasons`` counts them."""


class Filter(NamedTuple):
    """Filters by stored columns; without arguments every delivery passes."""

    statuses: frozenset[str] = frozenset()
    """Stored statuses that pass; empty: any."""
    destination: str | None = None
    source: str | None = None
    document: str | None = None
    """The delivery's document, or the origin of its family."""
    family: str | None = None
    operation: str | None = None
    origin: str | None = None
    reason: str | None = None

    def includes_stopped(self, document: str) -> bool:
        """Return whether an entry that a plan stops before passes, apart from its source."""
        other = self.destination is not None or (self.statuses and STOPPED not in self.statuses)
        other = other or self.reason is not None
        names = {name for name in (self.document, self.family) if name is not None}
        return not other and names <= {document}

    def may_be_held(self) -> bool:
        """Return whether deletes that a failed step holds may pass."""
        if self.reason is not None:
            return False
        return self.operation in (None, "delete") and (not self.statuses or HELD in self.statuses)

    def includes_held(self, row: Mapping[str, Any]) -> bool:
        """Return whether a delete that a failed step holds passes."""
        origin = str(row["origin"])
        return (
            self.destination in (None, row["destination"])
            and self.document in (None, row["document"], origin)
            and (self.family in (None, origin) or origin.startswith(f"{self.family}{SEPARATOR}"))
        )

    def selection(self, columns: Sequence[str] = LEDGER.names) -> Selection | None:
        """Return the part of a state that has all deliveries which pass; None: there is no such part."""
        listed = self.statuses - {STOPPED, HELD}
        if listed != self.statuses or not listed or Status.INDEXED in listed:
            if self.family is None or self.document is not None:
                return None
            return Selection(in_family(self.family), ("origin",), documents=in_family(self.family, "document"))
        field = pc.field
        condition = field("status").isin(sorted(map(str, listed))) & (field("destination") != "")
        keys = ["status", "destination"]
        for column in ("destination", "source", "origin", "operation"):
            if (value := getattr(self, column)) is not None:
                condition &= field(column) == value
                keys.append(column)
        if self.document is not None:
            condition &= (field("document") == self.document) | (field("origin") == self.document)
            keys += ["document", "origin"]
        if self.family is not None:
            condition &= in_family(self.family)
            keys.append("origin")
        return Selection(condition, keys, follows=True, waits=Status.BATCHED in listed, columns=columns)

    @staticmethod
    def from_options(options: FilterOptions) -> Filter:
        """Translate the filters of a user.

        Raises:
            UsageError: there is no such status.
        """
        rest: dict[str, Any] = dict(options)
        statuses, operation = named_statuses(rest.pop("status", None))
        return Filter(statuses, operation=operation, **(storable_texts(rest) or {}))

    def conditions(self) -> tuple[list[str], dict[str, str]]:
        """Return conditions on events as SQL, and their parameters."""
        by_column = {"destination": self.destination, "source": self.source}
        parameters = {column: value for column, value in by_column.items() if value}
        where = ["destination <> ''", *(f"{column} = ${column}" for column in parameters)]
        if self.statuses:
            where.append(f"status IN {quote_list(sorted(self.statuses))}")
        if self.document is not None:
            where.append("(document = $document OR origin = $document)")
            parameters["document"] = self.document
        if self.family is not None:
            where.append(in_family_sql(self.family))
        if self.origin is not None:
            where.append("origin = $origin")
            parameters["origin"] = self.origin
        if self.operation is not None:
            where.append(f"operation = '{self.operation}'")
        if self.reason is not None:
            where.append(f"{common_form_sql(reason_sql())} = {common_form_sql('$reason::VARCHAR')}")
            parameters["reason"] = self.reason
        return where, parameters


EVERYTHING: Final = Filter()
