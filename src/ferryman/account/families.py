"""Queries about families of deliveries, the states of keyed nodes, and single documents.

A family is an origin with all that steps made of it. Rows of a file (``Csv``, ``Lines``, ``JsonLines``) are origins of
their own, named after their file: ``products.csv#row=2``. They count as the family of the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import duckdb
import pyarrow.compute as pc

from ferryman import limits
from ferryman.account.queries import query_tables, query_view
from ferryman.account.relations import Filter, Selection, View
from ferryman.document import storable_id
from ferryman.errors import UsageError
from ferryman.plan import Plan, keyed_nodes
from ferryman.records.families import SEPARATOR, in_family, in_family_sql
from ferryman.records.keys import KEY_STATE
from ferryman.records.rows import DOCUMENTS, EVENT_ORDER, LEDGER, LEDGER_COLUMNS, TERMINAL, Status, reason_of
from ferryman.state.outbox import pending_rows
from ferryman.state.state import State
from ferryman.storage.files import StatePath
from ferryman.storage.query import quote, quote_list, register, select_rows

_T = TypeVar("_T")

_FAMILY: Final = f"split_part({{id}}, '{SEPARATOR}', 1)"


class FamilyStatus(NamedTuple):
    """Counts of a family's deliveries, of current documents only."""

    source: str
    family: str
    deliveries: int
    ended: int
    pending: int
    in_doubt: int
    failed: int
    rejected: int

    @property
    def complete(self) -> bool:
        """Whether every delivery has ended, in whatever way."""
        return self.ended == self.deliveries

    def describe(self) -> str:
        """Format the counts: ``incomplete: 3 of 5 deliveries have ended; 2 pending; 1 failed``."""
        noun = "1 delivery" if self.deliveries == 1 else f"{self.deliveries} deliveries"
        has = "has" if self.deliveries == 1 else "have"
        text = f"{self.outcome}: {self.ended} of {noun} {has} ended"
        waiting = [f"{n} {word}" for n, word in ((self.pending, "pending"), (self.in_doubt, "in doubt")) if n]
        parts = (waiting, [self.unsuccessful] if self.unsuccessful and not self.complete else [])
        return text + "".join(f"; {', '.join(part)}" for part in parts if part)

    @property
    def unsuccessful(self) -> str:
        """Counts of what ended without success: ``1 failed, 2 rejected``; "": all succeeded."""
        counts = ((self.failed, "failed"), (self.rejected, "rejected"))
        return ", ".join(f"{number} {word}" for number, word in counts if number)

    @property
    def outcome(self) -> str:
        """Outcome in words: ``incomplete``, ``ended, 1 rejected``, or ``complete``."""
        if not self.complete:
            return "incomplete"
        return f"ended, {self.unsuccessful}" if self.unsuccessful else "complete"


def family_statuses(root: StatePath, family: str, plan: Plan | None = None) -> list[FamilyStatus]:
    """Return the status of this family, one for each source that has it.

    Raises:
        UsageError: there is no state yet.
        StateDamaged: a file is damaged; it is named.
    """
    family = storable_id(family)
    return query_view(root, plan, lambda view: _of_family(view, family), Filter(family=family).selection)


def history(
    root: StatePath, document: str, plan: Plan | None = None, *, limit: int | None = None, page: int = 1
) -> list[dict[str, Any]]:
    """Return the events of a document and of what was made from it, oldest first, with the ledger's columns.

    If the document is a file whose rows are documents: the events of its rows.

    Args:
        limit: number of events of a page; None: return all events.
        page: 1: the newest events; 2: those before them; and so on.
    """
    document = storable_id(document)
    wanted = partial(_history_selection, document, families=False)
    return query_view(root, plan, lambda view: _history_rows(view, document, limit, page), wanted)


def _history_selection(document: str, *, families: bool = True) -> Selection:
    """Return the part of a state that ``_history_rows`` needs.

    Args:
        families: with the rows of its family in ``documents``.
    """
    named = (pc.field("document") == document) | in_family(document)
    return Selection(named, ("document", "origin"), documents=in_family(document, "document") if families else None)


def _history_rows(view: View, document: str, limit: int | None, page: int = 1) -> list[dict[str, Any]]:
    """Return the result of ``history``."""
    columns, rows_too = ", ".join(LEDGER_COLUMNS), in_family_sql(document)
    of_page = "" if limit is None else f"LIMIT {int(limit)} OFFSET {(int(page) - 1) * int(limit)}"
    query = f"""
        SELECT {columns} FROM (
            SELECT {columns}, ordinal FROM ledger WHERE document = $document OR {rows_too}
            UNION ALL SELECT {columns}, 3 AS ordinal FROM unsent WHERE document = $document OR {rows_too}
        ) ORDER BY wave DESC, ordinal DESC, created DESC, document DESC, destination DESC, route DESC {of_page}
    """
    return view.rows(query, {"document": document})[::-1]


def nearest_documents(root: StatePath, document: str, plan: Plan | None = None, *, limit: int = 3) -> list[str]:
    """Return the known ids that are most like this one: ids that contain it, or that it contains, first."""
    query = f"""
        SELECT id FROM (
            SELECT document AS id FROM ledger UNION SELECT document FROM unsent UNION SELECT document FROM documents
        ) WHERE id <> '' AND id IS NOT NULL AND (
            jaro_winkler_similarity(lower(id), lower($document)) >= {_SIMILAR} OR contains(lower(id), lower($document))
            OR contains(lower($document), lower(id))
        ) ORDER BY contains(lower(id), lower($document)) DESC,
            jaro_winkler_similarity(lower(id), lower($document)) DESC, id LIMIT {int(limit)}
    """
    rows = query_view(root, plan, lambda view: view.rows(query, {"document": document}))
    return [row["id"] for row in rows]


_SIMILAR: Final = 0.8
"""Least similarity (1: equal) of an id that is suggested for one that is not known."""


def joined_documents(root: StatePath, join: str, entry: str, plan: Plan | None = None) -> list[str]:
    """Return the documents that a join has made of this entry of one of its inputs."""
    query = """
        SELECT DISTINCT origin FROM (
            SELECT origin FROM ledger WHERE source = $join UNION ALL SELECT origin FROM unsent WHERE source = $join
        ) WHERE list_contains(string_split(origin, '&'), $entry) ORDER BY origin
    """
    rows = query_view(root, plan, lambda view: view.rows(query, {"join": join, "entry": entry}))
    return [row["origin"] for row in rows]


def history_with_statuses(
    root: StatePath, document: str, plan: Plan | None = None, *, limit: int
) -> tuple[list[dict[str, Any]], list[FamilyStatus]]:
    """Return the newest events of a document, see ``account.history``, and the status of its family.

    Raises: the errors of ``family_statuses``.
    """

    def query(view: View) -> tuple[list[dict[str, Any]], list[FamilyStatus]]:
        return _history_rows(view, document, limit), _of_family(view, document)

    document = storable_id(document)
    events, statuses = query_view(root, plan, query, partial(_history_selection, document))
    if events and events[-1]["document"] == document != events[-1]["origin"]:
        statuses = family_statuses(root, events[-1]["origin"], plan)
    return events, statuses


def _of_family(view: View, family: str) -> list[FamilyStatus]:
    statuses = _statuses(view, in_family_sql(family), in_family_sql(family, "document"))
    return [each._replace(family=family) for each in statuses]  # the family may be a single row of a file


class OlderDelivery(NamedTuple):
    """Delivery of an older version that stays at its destination, since a step failed for a part of the newer one."""

    document: str
    destination: str


def older_deliveries(root: StatePath, origin: str, plan: Plan | None = None) -> list[OlderDelivery]:
    """Return what older versions of a document have left at destinations: its deletes are held, or a child may still
    be made again below a node that has failed.

    Raises: the errors of ``family_statuses``.
    """

    def query(view: View) -> list[OlderDelivery]:
        held = view.held(Filter(origin=origin))
        return [OlderDelivery(row["document"], row["destination"]) for row in held]

    return query_view(root, plan, query)


def incomplete_families(
    root: StatePath, plan: Plan | None = None, source: str | None = None, family: str | None = None
) -> list[FamilyStatus]:
    """Return the families with deliveries that are pending, in doubt, failed or rejected; only of this source, only
    this family.

    Raises: the errors of ``family_statuses``.
    """

    def query(view: View) -> list[FamilyStatus]:
        if family is not None:
            statuses = _statuses(view, in_family_sql(family), in_family_sql(family, "document"))
            return [each for each in statuses if each.outcome != "complete" and source in (None, each.source)]
        of_source = "" if source is None else f" AND source = {quote(source)}"
        view.keep("open_families", f"SELECT DISTINCT hash(source, {_family('id')}) AS h FROM ({_open(of_source)})")
        condition = "hash(source, {family}) IN (SELECT h FROM open_families)"
        origins, documents = (condition.format(family=_family(column)) for column in ("origin", "document"))
        return sorted(each for each in _statuses(view, origins, documents) if each.outcome != "complete")

    return query_view(root, plan, query)


def _family(column: str) -> str:
    return _FAMILY.format(id=column)


def _open(condition: str) -> str:
    """Return SQL for (source, id) of all origins that may have deliveries which have not ended, or without success."""
    return f"""
        SELECT source, origin AS id FROM waiting WHERE due IS NOT NULL{condition}
        UNION ALL SELECT source, origin FROM ledger WHERE status IN ('INDEXING', 'DEAD', 'ERROR_DOC'){condition}
        UNION ALL SELECT source, document FROM documents WHERE (due IS NOT NULL OR forced){condition}
    """


def _statuses(view: View, origins: str, documents: str) -> Iterator[FamilyStatus]:
    """Yield the families of these origins, queried in shares that fit into memory.

    Args:
        origins, documents: SQL conditions on ``origin`` and ``document`` that select them.
    """
    [events] = view.rows(f"SELECT count(*) AS n FROM ledger WHERE {origins}")
    shares = 1 + events["n"] // limits.QUERY_ROWS
    for share in range(shares):
        in_share = f" AND hash({{column}}) % {shares} = {share}"
        query = _counts(
            origins + in_share.format(column=_family("origin")),
            documents + in_share.format(column=_family("document")),
        )
        for row in view.rows(query):
            yield FamilyStatus(**row)


def _counts(origins: str, documents: str) -> str:
    ended = quote_list(sorted(TERMINAL))
    return f"""
        WITH last AS (
            SELECT arg_max({{source: source, origin: origin, revision: revision, status: status}},
                {EVENT_ORDER}) AS e
            FROM ledger WHERE destination <> '' AND {origins} GROUP BY delivery_hash
        ), now AS (
            SELECT source, document, max(revision) AS revision FROM documents WHERE {documents} GROUP BY ALL
        ), ends AS (
            SELECT n.source, n.document AS origin, e.status FROM last JOIN now n
                ON e.source = n.source AND e.origin = n.document AND e.revision = n.revision
            UNION ALL
            SELECT n.source, n.document, 'BATCHED' FROM unsent u JOIN now n
                ON u.source = n.source AND u.origin = n.document AND u.revision = n.revision
            UNION ALL
            SELECT n.source, n.document, 'BATCHED' FROM waiting w JOIN now n
                ON w.source = n.source AND w.origin = n.document AND w.revision < n.revision
            WHERE w.due IS NOT NULL AND w.delivery_hash NOT IN (
                SELECT delivery_hash FROM ledger WHERE status = 'INDEXED' AND {origins})
        )
        SELECT source, {_family("origin")} AS family, count(*) AS deliveries,
            count(*) FILTER (status IN {ended}) AS ended,
            count(*) FILTER (status NOT IN {ended} AND status <> 'INDEXING') AS pending,
            count(*) FILTER (status = 'INDEXING') AS in_doubt, count(*) FILTER (status = 'DEAD') AS failed,
            count(*) FILTER (status = 'ERROR_DOC') AS rejected
        FROM ends GROUP BY ALL ORDER BY source, family
    """


# --- states of keyed nodes ---


def key_counts(root: StatePath, plan: Plan) -> dict[str, int]:
    """Return keyed node -> how many keys have a state.

    Raises:
        StateDamaged, StateForeign: with the path.
    """
    names = [node.name for node in keyed_nodes(plan.nodes)]
    return {name: _query_last(root, plan, name, _count) for name in names}


def key_states(root: StatePath, plan: Plan, name: str, limit: int | None) -> list[dict[str, Any]]:
    """Return the first states of a node by key: ``key``, ``value`` (JSON text), ``sequence``, ``wave``.

    Raises:
        UsageError: the plan has no such node.
        StateDamaged, StateForeign: with the path.
    """
    names = [node.name for node in keyed_nodes(plan.nodes)]
    if name not in names:
        raise UsageError(f"{name} is not a keyed node of this plan. It has: {', '.join(names) or 'none'}.")

    def first(db: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        limit_clause = "" if limit is None else f"LIMIT {int(limit)}"
        found = db.execute(f"SELECT key, value, sequence, wave FROM last ORDER BY key {limit_clause}")
        columns = [column[0] for column in found.description or []]
        return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]

    return _query_last(root, plan, name, first)


def _count(db: duckdb.DuckDBPyConnection) -> int:
    [(number,)] = db.execute("SELECT count(*) FROM last").fetchall()
    return int(number)


def _query_last(root: StatePath, plan: Plan, name: str, query: Callable[[duckdb.DuckDBPyConnection], _T]) -> _T:
    """Run a query with the view ``last``: the last row of each key that has a state."""

    def query_state(state: State, db: duckdb.DuckDBPyConnection) -> _T:
        table = state.keyed[name].state
        if table.exists:
            table.load()
        register(db, "states", table.paths(), KEY_STATE)
        db.execute("""
            CREATE TEMP VIEW last AS SELECT * FROM (
                SELECT * FROM states QUALIFY row_number() OVER (PARTITION BY bucket, key ORDER BY wave DESC) = 1
            ) WHERE value IS NOT NULL
        """)
        return query(db)

    return query_tables(root, plan, query_state)


# --- results of single documents, for callers that wait for their last delivery ---

FAILED: Final = frozenset({Status.DEAD, Status.ERROR_DOC, Status.INDEXING})
"""Statuses that need an operator. INDEXING: the outcome is unknown."""


class FailedDelivery(NamedTuple):
    """A delivery that failed, was rejected or is in doubt."""

    document: str
    destination: str
    status: str
    why: str


class DocumentResult(NamedTuple):
    """Result of a source document's current revision, with all that was made from it."""

    fingerprint: str
    """Fingerprint of the content that was processed last; "" if that could not be read."""
    settled: bool
    """Whether every delivery has ended."""
    failures: tuple[FailedDelivery, ...]

    def is_about(self, fingerprint: str) -> bool:
        """Return whether this content was processed. Content that could not be read has no fingerprint, and failed."""
        return self.fingerprint == fingerprint or (not self.fingerprint and bool(self.failures))


def document_results(root: StatePath, plan: Plan, source: str, documents: Collection[str]) -> dict[str, DocumentResult]:
    """Return the results of source documents (ids with prefix), without those that were never processed.

    Raises:
        StateDamaged: a file is damaged; it is named.
    """
    return query_view(root, plan, lambda view: _results(view, source, documents))


def _results(view: View, source: str, documents: Collection[str]) -> dict[str, DocumentResult]:
    parameters: dict[str, Any] = {"source": source, "wanted": list(documents)}
    wanted = "(SELECT unnest($wanted::VARCHAR[]))"
    known = view.rows(
        f"""
        SELECT document,
            arg_max({{fingerprint: fingerprint, revision: revision, owed: due IS NOT NULL OR forced}}, wave) AS last
        FROM documents WHERE source = $source AND document IN {wanted} GROUP BY document
        """,
        parameters,
    )
    current = {row["document"]: row["last"] for row in known}
    unsettled = {document for document, last in current.items() if last["owed"]}
    failures: dict[str, dict[FailedDelivery, None]] = defaultdict(dict)
    events = view.rows(
        f"""
        SELECT origin, revision, arg_max({{document: document, destination: destination, status: status,
            message: message}}, {EVENT_ORDER}) AS last
        FROM ledger WHERE source = $source AND destination <> '' AND origin IN {wanted}
        GROUP BY delivery_hash, origin, revision ORDER BY origin
        """,
        parameters,
    )
    for row in events:
        origin, last = row["origin"], row["last"]
        if origin not in current or row["revision"] != current[origin]["revision"]:
            continue
        status = Status(last["status"])
        if status in FAILED:
            found = FailedDelivery(
                last["document"], last["destination"], status.value, reason_of(last["message"] or "")
            )
            failures[origin][found] = None
        elif status not in TERMINAL:
            unsettled.add(origin)
    unsent = view.rows(f"SELECT origin, revision FROM unsent WHERE source = $source AND origin IN {wanted}", parameters)
    unsettled |= {
        row["origin"]
        for row in unsent
        if row["origin"] in current and row["revision"] == current[row["origin"]]["revision"]
    }
    return {
        document: DocumentResult(last["fingerprint"] or "", document not in unsettled, tuple(failures[document]))
        for document, last in current.items()
    }


_KEPT_FAILURES: Final = 100_000
"""Documents with failures that ``NewResults`` keeps in memory at most."""


class NewResults:
    """Results of the documents that the waves of a state's driver process, read from the files that these waves add and
    from no others: ``document_results`` reads all of the ledger."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._wave = -1
        """Last wave whose files were all read."""
        self._seen: dict[str, set[str]] = {}
        """Name of a table -> its files as of the last call."""
        self._failed: set[tuple[str, str]] = set()
        """Source and id of documents of which a delivery has ever failed, was rejected, or was in doubt."""

    def read(self) -> dict[str, dict[str, DocumentResult]]:
        """Return source -> document -> result for documents that were processed since the last call and of which
        everything has ended well. Some may be left out: ask ``document_results`` about these. The first call returns
        none.

        Raises:
            StateDamaged: a file is damaged; it is named.
        """
        state, first = self._state, self._wave < 0
        is_new, self._wave = pc.field("wave") > self._wave, state.settled
        has_failed = is_new & pc.field("status").isin(list(map(str, FAILED)))
        added = self._added("ledger")
        for rows in select_rows(added, LEDGER, ("source", "origin"), has_failed, ("status", "wave")):
            if len(self._failed) <= _KEPT_FAILURES:
                self._failed.update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        results: dict[str, dict[str, DocumentResult]] = defaultdict(dict)
        added, columns = self._added("documents"), ("source", "document", "fingerprint", "due", "forced")
        if first or any(map(pending_rows, state.outbox.files.values())) or len(self._failed) > _KEPT_FAILURES:
            return results
        unsure: set[tuple[str, str]] = set()
        for rows in select_rows(added, DOCUMENTS, columns, is_new, (*columns, "wave")):
            for source, document, fingerprint, due, forced in zip(*(c.to_pylist() for c in rows.columns), strict=True):
                key = source, document
                if due is not None or forced or key in self._failed or document in results[source]:
                    unsure.add(key)  # it is pending, or was processed twice
                results[source][document] = DocumentResult(fingerprint or "", True, ())
        for source, document in unsure:
            del results[source][document]
        return results

    def may_have_failed(self, source: str, documents: Iterable[str]) -> list[str]:
        """Return those of these documents of which a delivery may have failed before the last call of ``read``."""
        if len(self._failed) > _KEPT_FAILURES:
            return list(documents)
        return [document for document in documents if (source, document) in self._failed]

    def _added(self, name: str) -> list[Path]:
        """Return the paths of a table's files that were not there at the last call."""
        table = self._state.named_tables[name]
        seen, self._seen[name] = self._seen.get(name, set()), set(table.files)
        return table.paths(sorted(self._seen[name] - seen))
