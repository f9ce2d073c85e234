"""Is this file whole? Of each family, how many of its deliveries have ended.

A family is an origin with all that steps made of it. Rows of a file (``Csv``, ``Lines``, ``JsonLines``) are origins of
their own, called after their file: ``products.csv#row=2``. They count as the family of the file.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import duckdb

from ferryman import limits
from ferryman.account.questions import named_damage, retry_read, view
from ferryman.account.relations import View
from ferryman.errors import UsageError
from ferryman.plan import Plan, keyed_nodes
from ferryman.records.families import SEPARATOR, in_family
from ferryman.records.keys import KEY_STATE
from ferryman.records.rows import TERMINAL, Status, reason_of
from ferryman.state.state import State
from ferryman.storage.files import StatePath
from ferryman.storage.query import connect, quote, quote_list, register

_FAMILY: Final = f"split_part({{id}}, '{SEPARATOR}', 1)"


class Wholeness(NamedTuple):
    """How far a family has come; counts are of deliveries of current documents."""

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
        """Has everything of it ended, one way or the other?"""
        return self.ended == self.deliveries

    def told(self) -> str:
        """``incomplete: 3 of 5 deliveries have ended: 2 pending; 1 failed``."""
        what = "1 delivery" if self.deliveries == 1 else f"{self.deliveries} deliveries"
        has = "has" if self.deliveries == 1 else "have"
        said = f"{'complete' if self.complete else 'incomplete'}: {self.ended} of {what} {has} ended"
        still = [f"{n} {word}" for n, word in ((self.pending, "pending"), (self.in_doubt, "in doubt")) if n]
        badly = [f"{n} {word}" for n, word in ((self.failed, "failed"), (self.rejected, "rejected")) if n]
        return said + "".join(f"; {', '.join(words)}" for words in (still, badly) if words)


def of_family(root: StatePath, family: str, plan: Plan | None = None) -> list[Wholeness]:
    """How far this family has come, one for each source that has it; [] if none has.

    Raises:
        UsageError: there is no state yet.
        StateDamaged: by name.
    """

    def look(seen: View) -> list[Wholeness]:
        every = _found(seen, in_family(family), in_family(family, "document"))
        return [each._replace(family=family) for each in every]  # one row of a file may be asked for

    return _looked(root, plan, look)


def incomplete(
    root: StatePath, plan: Plan | None = None, source: str | None = None, family: str | None = None
) -> list[Wholeness]:
    """Families of which something is pending or in doubt; only of this source, only this family.

    Raises: as ``of_family``.
    """

    def look(seen: View) -> list[Wholeness]:
        if family is not None:
            every = _found(seen, in_family(family), in_family(family, "document"))
            return [each for each in every if not each.complete and source in (None, each.source)]
        only = "" if source is None else f" AND source = {quote(source)}"
        seen.keep("open_families", f"SELECT DISTINCT hash(source, {_family('id')}) AS h FROM ({_open(only)})")
        among = "hash(source, {family}) IN (SELECT h FROM open_families)"
        origins, documents = (among.format(family=_family(column)) for column in ("origin", "document"))
        return sorted(each for each in _found(seen, origins, documents) if not each.complete)

    return _looked(root, plan, look)


def _looked(root: StatePath, plan: Plan | None, ask: Any) -> list[Wholeness]:
    def look() -> list[Wholeness]:
        with view(root, plan) as seen:
            found: list[Wholeness] = ask(seen)
            return found

    return retry_read(root, look)


def _family(column: str) -> str:
    return _FAMILY.format(id=column)


def _open(only: str) -> str:
    """(source, id) of all origins of which something may not have ended."""
    return f"""
        SELECT source, origin AS id FROM waiting WHERE due IS NOT NULL{only}
        UNION ALL SELECT source, origin FROM ledger WHERE status = 'INDEXING'{only}
        UNION ALL SELECT source, document FROM documents WHERE (due IS NOT NULL OR forced){only}
    """


def _found(seen: View, origins: str, documents: str) -> Iterator[Wholeness]:
    """The families of these origins, in shares that fit into memory.

    Args:
        origins, documents: SQL on ``origin`` and ``document``: which ones are meant.
    """
    [counted] = seen.rows(f"SELECT count(*) AS n FROM ledger WHERE {origins}")
    shares = 1 + counted["n"] // limits.QUERY_ROWS
    for share in range(shares):
        of_share = f" AND hash({{column}}) % {shares} = {share}"
        query = _counts(
            origins + of_share.format(column=_family("origin")),
            documents + of_share.format(column=_family("document")),
        )
        for row in seen.rows(query):
            yield Wholeness(**row)


def _counts(origins: str, documents: str) -> str:
    ended = quote_list(sorted(TERMINAL))
    return f"""
        WITH last AS (
            SELECT arg_max({{source: source, origin: origin, revision: revision, status: status}},
                wave * 4 + ordinal) AS e
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


# What keyed nodes hold: how many keys have a state, and which.

_T = TypeVar("_T")


def key_counts(root: StatePath, plan: Plan) -> dict[str, int]:
    """Keyed node -> how many keys have a state.

    Raises:
        StateDamaged, StateForeign: by name.
    """
    names = [node.name for node in keyed_nodes(plan.nodes)]
    return {name: _asked(root, plan, name, _count) for name in names}


def key_states(root: StatePath, plan: Plan, name: str, limit: int | None) -> list[dict[str, Any]]:
    """The first states of a node by key: ``key``, ``value`` (JSON text), ``sequence``, ``wave``.

    Raises:
        UsageError: the plan has no such node.
        StateDamaged, StateForeign: by name.
    """
    names = [node.name for node in keyed_nodes(plan.nodes)]
    if name not in names:
        raise UsageError(f"{name} is not a keyed node of this plan. It has: {', '.join(names) or 'none'}.")

    def first(db: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        many = "" if limit is None else f"LIMIT {int(limit)}"
        found = db.execute(f"SELECT key, value, sequence, wave FROM last ORDER BY key {many}")
        columns = [column[0] for column in found.description or []]
        return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]

    return _asked(root, plan, name, first)


def _count(db: duckdb.DuckDBPyConnection) -> int:
    [(number,)] = db.execute("SELECT count(*) FROM last").fetchall()
    return int(number)


def _asked(root: StatePath, plan: Plan, name: str, ask: Callable[[duckdb.DuckDBPyConnection], _T]) -> _T:
    """What is found in ``last``, the last row of each key that has a state."""

    def look() -> _T:
        state = State(root, plan)
        with (
            state.readers.reading(),
            tempfile.TemporaryDirectory(prefix="ferryman-", ignore_cleanup_errors=True) as spill,
            named_damage(state, Path(spill)),
            connect(Path(spill)) as db,
        ):
            table = state.keyed[name].state
            if table.exists:
                table.load()
            register(db, "states", table.paths(), KEY_STATE)
            db.execute("""
                CREATE TEMP VIEW last AS SELECT * FROM (
                    SELECT * FROM states QUALIFY row_number() OVER (PARTITION BY bucket, key ORDER BY wave DESC) = 1
                ) WHERE value IS NOT NULL
            """)
            return ask(db)

    if not State(root, plan).exists:
        raise UsageError(
            f"{root}: there is no state of this plan yet. Run it first, or give the --state that it ran with."
        )
    return retry_read(root, look)


# What became of documents, one by one: for who waits for their last delivery.

FAILED: Final = frozenset({Status.DEAD, Status.ERROR_DOC, Status.INDEXING})
"""Ends that an operator has to look at. INDEXING: the outcome is unknown."""


class FailedDelivery(NamedTuple):
    """A delivery that did not end well."""

    document: str
    destination: str
    status: str
    why: str


class DocumentResult(NamedTuple):
    """A source document's current revision, with all that was made from it."""

    fingerprint: str
    """Of what was processed last; "" if that could not be read."""
    settled: bool
    """Has every delivery ended, so that none is pending?"""
    failures: tuple[FailedDelivery, ...]

    def speaks_of(self, fingerprint: str) -> bool:
        """Is it about this content? What could not be read has no fingerprint, and has failed."""
        return self.fingerprint == fingerprint or (not self.fingerprint and bool(self.failures))


def document_results(root: StatePath, plan: Plan, source: str, documents: Collection[str]) -> dict[str, DocumentResult]:
    """Source documents (ids with prefix) -> what became of them; those that were never processed are not in it.

    Raises:
        StateDamaged: by name.
    """

    def look() -> dict[str, DocumentResult]:
        with view(root, plan) as seen:
            return _of(seen, source, documents)

    return retry_read(root, look)


def _of(seen: View, source: str, documents: Collection[str]) -> dict[str, DocumentResult]:
    asked: dict[str, Any] = {"source": source, "wanted": list(documents)}
    wanted = "(SELECT unnest($wanted::VARCHAR[]))"
    known = seen.rows(
        f"""
        SELECT document,
            arg_max({{fingerprint: fingerprint, revision: revision, owed: due IS NOT NULL OR forced}}, wave) AS last
        FROM documents WHERE source = $source AND document IN {wanted} GROUP BY document
        """,
        asked,
    )
    current = {row["document"]: row["last"] for row in known}
    open_ones = {document for document, last in current.items() if last["owed"]}
    failures: dict[str, dict[FailedDelivery, None]] = defaultdict(dict)
    ended = seen.rows(
        f"""
        SELECT origin, revision, arg_max({{document: document, destination: destination, status: status,
            message: message}}, wave * 4 + ordinal) AS last
        FROM ledger WHERE source = $source AND destination <> '' AND origin IN {wanted}
        GROUP BY delivery_hash, origin, revision ORDER BY origin
        """,
        asked,
    )
    for row in ended:
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
            open_ones.add(origin)
    unsent = seen.rows(f"SELECT origin, revision FROM unsent WHERE source = $source AND origin IN {wanted}", asked)
    open_ones |= {
        row["origin"]
        for row in unsent
        if row["origin"] in current and row["revision"] == current[row["origin"]]["revision"]
    }
    return {
        document: DocumentResult(last["fingerprint"] or "", document not in open_ones, tuple(failures[document]))
        for document, last in current.items()
    }
