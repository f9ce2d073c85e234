"""The account: what became of every delivery. Answers without Spark, and without touching the state.

Readers see committed facts only. Between a wave's commit and its settling, the files that the commit names count too,
and rows of the outbox that have no event yet are BATCHED.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb

from ferryman.errors import StateDamaged, UsageError
from ferryman.ledger.schemas import DOCUMENTS, LEDGER, LEDGER_COLUMNS, OUTBOX, OUTBOX_PARTITION
from ferryman.ledger.settle import find_info
from ferryman.ledger.state import SETTLED, WAVE, State
from ferryman.plan import Plan, paths
from ferryman.storage import parquet
from ferryman.storage.query import connect
from ferryman.storage.tables import Table

COUNTS: Final = ("indexed", "deleted", "dropped", "dead", "error_doc", "error", "owed", "unknown")

_LOOKS: Final = 5
"""How often a reader looks before it believes that a file is missing: a driver commits every few 100 ms at most."""

_T = TypeVar("_T")

_CURRENT = """
    SELECT source, document, unnest(arg_max({revision: revision, operation: operation, given: given, due: due, wave: wave}, wave))
    FROM documents {where} GROUP BY source, document
"""
_LATEST = """
    SELECT delivery_hash, unnest(arg_max({source: source, origin: origin, revision: revision, operation: operation,
        destination: destination, status: status}, wave * 4 + ordinal))
    FROM ledger WHERE destination <> '' GROUP BY delivery_hash
"""


def status(root: Path, plan: Plan) -> dict[str, Any]:
    """What ``status --json`` shows; see semantics. ``balanced``: does every delivery of every document add up?"""
    return _reading(root, plan, lambda view: view.status())


def left_over(root: Path, plan: Plan) -> dict[str, int]:
    """How many deliveries of current documents are ``dead``, ``error_doc``, ``unknown`` or still ``owed``."""
    return _reading(root, plan, lambda view: view.left_over())


def waves(root: Path, limit: int = 5, plan: Plan | None = None) -> list[dict[str, Any]]:
    """The last waves, newest first: ``wave``, ``created``, ``events``, ``indexed``, ``failed``."""
    query = f"""
        SELECT wave, max(created) AS created, count(*) AS events, count(*) FILTER (status = 'INDEXED') AS indexed,
               count(*) FILTER (status IN ('ERROR', 'DEAD', 'ERROR_DOC', 'INDEXING')) AS failed
        FROM ledger GROUP BY wave ORDER BY wave DESC LIMIT {int(limit)}
    """
    return _reading(root, plan, lambda view: view.rows(query))


def docs(
    root: Path,
    *,
    status: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    limit: int | None = None,
    plan: Plan | None = None,
) -> list[dict[str, Any]]:
    """Deliveries of current documents, each by its latest event, newest first; rows have the ledger's columns.

    Args:
        status: as in the ledger, any case; also BATCHED (committed, not sent).
    """
    return _reading(root, plan, lambda view: view.docs(status and status.upper(), destination, source, limit))


def history(root: Path, document: str, plan: Plan | None = None) -> list[dict[str, Any]]:
    """Every event of a document and of what was made from it, oldest first; rows have the ledger's columns."""
    columns = ", ".join(LEDGER_COLUMNS)
    query = f"""
        SELECT {columns} FROM (
            SELECT {columns}, ordinal FROM ledger WHERE document = $1 OR origin = $1
            UNION ALL SELECT {columns}, 9 AS ordinal FROM waiting WHERE (document = $1 OR origin = $1)
                AND delivery_hash NOT IN (SELECT delivery_hash FROM ledger WHERE document = $1 OR origin = $1)
        ) ORDER BY wave, ordinal, created
    """
    return _reading(root, plan, lambda view: view.rows(query, [document]))


class View:
    """The tables as one consistent set of files, queried with DuckDB."""

    def __init__(self, db: duckdb.DuckDBPyConnection, state: State) -> None:
        self._db = db
        self._state = state
        for table in state.tables:
            table.load([WAVE, SETTLED])
        staged: dict[str, list[str]] = {"documents": [], "ledger": []}
        wave = state.outbox.transactions[WAVE]
        if wave > state.outbox.transactions[SETTLED]:
            info = find_info(state.outbox, "wave", wave)
            for table in (state.documents, state.ledger):
                if table.transactions[SETTLED] < wave:
                    staged[table.name] = [p[0] for p in info[table.name]]
        self.wave = wave
        self._register(state.documents, DOCUMENTS, staged["documents"])
        self._register(state.ledger, LEDGER, staged["ledger"])
        self._register_outbox(state.outbox)

    def rows(self, query: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
        """A query's rows as dicts; times as ISO-8601 text."""
        found = self._db.execute(query, parameters or [])
        names = [d[0] for d in found.description or []]
        return [
            {n: v.isoformat() if n == "created" and v is not None else v for n, v in zip(names, row, strict=True)}
            for row in found.fetchall()
        ]

    def status(self) -> dict[str, Any]:
        plan = self._state.plan
        self._deliveries()
        ways = paths(plan.nodes)
        destinations = {way.destination.name: dict.fromkeys(COUNTS, 0) for way in ways.values()}
        counted = self._db.execute(
            "SELECT destination, status, operation, failed, count(*) FROM deliveries GROUP BY ALL"
        ).fetchall()
        for destination, status, operation, failed, n in counted:
            counts = destinations.setdefault(destination, dict.fromkeys(COUNTS, 0))
            key = _count_of(status, operation)
            counts[key] += n
            if key == "owed" and failed:
                counts["error"] += n
        sources = {
            name: {"documents": 0, "deleted": 0} for name in ways
        } | {
            source: {"documents": documents, "deleted": deleted}
            for source, documents, deleted in self._db.execute(
                "SELECT source, count(*) FILTER (operation = 'upsert'), count(*) FILTER (operation = 'delete') FROM current GROUP BY source"
            ).fetchall()
        }  # fmt: skip
        return {
            "plan": plan.name,
            "version": plan.version,
            "waves": self.wave,
            "sources": sources,
            "destinations": destinations,
            "balanced": not self._unaccounted(ways) and not self._two_ends(),
        }

    def left_over(self) -> dict[str, int]:
        """Looks only at what is not simply delivered: cheap also on a large ledger."""
        self._db.execute("""
            CREATE TEMP TABLE ends AS SELECT delivery_hash, source, origin, revision, status FROM ledger
            WHERE status IN ('DEAD', 'ERROR_DOC', 'INDEXING') AND destination <> ''
        """)
        counts = {
            "dead": 0,
            "error_doc": 0,
            "unknown": 0,
            "owed": self._one("SELECT count(*) FROM waiting WHERE due IS NOT NULL"),
        }
        due = "SELECT DISTINCT document FROM documents WHERE due IS NOT NULL"
        where = f"WHERE document IN ({due}) OR document IN (SELECT origin FROM ends)"
        self._db.execute(f"CREATE TEMP TABLE suspects AS {_CURRENT.replace('{where}', where)}")
        counts["owed"] += self._one("SELECT count(*) FROM suspects WHERE due IS NOT NULL AND operation = 'upsert'")
        ended = self._db.execute("""
            SELECT status, count(*) FROM (
                SELECT delivery_hash, unnest(arg_max({source: source, origin: origin, revision: revision, status: status}, wave * 4 + ordinal))
                FROM ledger WHERE delivery_hash IN (SELECT delivery_hash FROM ends) GROUP BY delivery_hash
            ) e JOIN suspects s ON e.source = s.source AND e.origin = s.document AND e.revision = s.revision
            GROUP BY status
        """).fetchall()
        for status, n in ended:
            key = _count_of(status, "upsert")
            if key in ("dead", "error_doc", "unknown"):
                counts[key] += n
        return counts

    def docs(
        self, status: str | None, destination: str | None, source: str | None, limit: int | None
    ) -> list[dict[str, Any]]:
        self._current()
        wanted = [("status", status), ("destination", destination), ("source", source)]
        where = (
            " AND ".join(f"{column} = ${i}" for i, (column, value) in enumerate(wanted, 1) if value is not None)
            or "true"
        )
        columns = ", ".join(LEDGER_COLUMNS)
        parameters = {str(i): value for i, (_, value) in enumerate(wanted, 1) if value is not None}
        query = f"""
            WITH latest AS (
                SELECT {columns}, ordinal FROM ledger WHERE destination <> ''
                QUALIFY row_number() OVER (PARTITION BY delivery_hash ORDER BY wave DESC, ordinal DESC) = 1
            ), every AS (
                SELECT * FROM latest UNION ALL
                SELECT {columns}, 9 FROM waiting ANTI JOIN latest USING (delivery_hash)
            )
            SELECT {", ".join("e." + c for c in LEDGER_COLUMNS)} FROM every e
            JOIN current c ON e.source = c.source AND e.origin = c.document AND e.revision = c.revision
            WHERE {where.replace("status", "e.status").replace("destination", "e.destination").replace("source =", "e.source =")}
            ORDER BY e.wave DESC, e.ordinal DESC, e.document {f"LIMIT {int(limit)}" if limit is not None else ""}
        """
        found = self._db.execute(query, parameters or None)
        names = [d[0] for d in found.description or []]
        return [
            {n: v.isoformat() if n == "created" and v is not None else v for n, v in zip(names, row, strict=True)}
            for row in found.fetchall()
        ]

    # -- inside ------------------------------------------------------------------------------------

    def _register(self, table: Table, schema: Any, staged: list[str]) -> None:
        files = [*table.paths(), *(table.folder / p for p in staged)]
        self._db.register(table.name, parquet.scan(files, schema) if files else schema.empty_table())

    def _register_outbox(self, outbox: Table) -> None:
        """Rows of the outbox without their payload, in the ledger's columns: ``waiting``."""
        import pyarrow as pa

        schema = pa.schema([f for f in OUTBOX if f.name not in (*OUTBOX_PARTITION, "fields", "raw")])
        pieces = []
        by_place: dict[tuple[str, str], list[Path]] = {}
        for file in outbox.files.values():
            by_place.setdefault((file.partition["wave"], file.partition["destination"]), []).append(
                outbox.folder / file.path
            )
        for i, ((wave, destination), files) in enumerate(by_place.items()):
            self._db.register(f"outbox_{i}", parquet.scan(files, schema))
            pieces.append(f"SELECT *, {int(wave)}::BIGINT AS wave, '{destination}' AS destination FROM outbox_{i}")
        if not pieces:
            self._db.register("outbox_none", schema.empty_table())
            pieces = ["SELECT *, 0::BIGINT AS wave, '' AS destination FROM outbox_none"]
        self._db.execute(f"""
            CREATE TEMP VIEW waiting AS SELECT *, 'BATCHED' AS status, NULL::VARCHAR AS message, NULL::TIMESTAMPTZ AS created
            FROM ({" UNION ALL ".join(pieces)})
        """)

    def _current(self) -> None:
        self._db.execute(f"CREATE TEMP TABLE current AS {_CURRENT.replace('{where}', '')}")

    def _deliveries(self) -> None:
        """Each delivery that counts, once, with its status: those of current documents, and whatever still has to be sent."""
        self._current()
        self._db.execute(f"CREATE TEMP TABLE latest AS {_LATEST}")
        self._db.execute("""
            CREATE TEMP TABLE deliveries AS
            SELECT l.source, l.origin, l.destination, l.operation, l.status, l.status = 'ERROR' AS failed
            FROM latest l JOIN current c ON l.source = c.source AND l.origin = c.document AND l.revision = c.revision
            UNION ALL
            SELECT w.source, w.origin, w.destination, w.operation, 'BATCHED', false
            FROM waiting w ANTI JOIN latest l USING (delivery_hash)
            UNION ALL
            SELECT w.source, w.origin, w.destination, w.operation, 'BATCHED', l.status = 'ERROR'
            FROM waiting w JOIN latest l USING (delivery_hash) JOIN current c ON w.source = c.source AND w.origin = c.document
            WHERE l.revision <> c.revision AND w.due IS NOT NULL AND l.status <> 'INDEXED'
        """)

    def _unaccounted(self, ways: dict[str, Any]) -> int:
        """Current documents of which no delivery to a destination of their source is known."""
        missing = 0
        for source, way in ways.items():
            missing += self._one(
                """
                SELECT count(*) FROM current c ANTI JOIN
                    (SELECT DISTINCT origin FROM deliveries WHERE source = $1 AND destination = $2) d ON c.document = d.origin
                WHERE c.source = $1 AND (c.operation = 'upsert' OR c.given <> '')
                """,
                [source, way.destination.name],
            )
        return missing

    def _two_ends(self) -> int:
        """Deliveries that ended more often than they were begun (a person's word begins one again)."""
        return self._one("""
            SELECT count(*) FROM (
                SELECT delivery_hash FROM ledger WHERE destination <> '' GROUP BY delivery_hash
                HAVING count(*) > 1 AND count(*) FILTER (status IN ('INDEXED', 'DROPPED', 'DEAD', 'ERROR_DOC'))
                    > 1 + count(*) FILTER (status IN ('RESTART', 'FORCE'))
            )
        """)

    def _one(self, query: str, parameters: list[Any] | None = None) -> int:
        [(value,)] = self._db.execute(query, parameters or []).fetchall()
        return int(value)


def _count_of(status: str, operation: str) -> str:
    """Under which name of ``status --json`` a delivery is counted."""
    match status:
        case "INDEXED":
            return "indexed" if operation == "upsert" else "deleted"
        case "DROPPED" | "DEAD" | "ERROR_DOC":
            return status.lower()
        case "INDEXING":
            return "unknown"
        case _:
            return "owed"


@contextlib.contextmanager
def view(root: Path, plan: Plan | None) -> Iterator[View]:
    """The state's tables, for questions.

    Raises:
        UsageError: there is no state yet.
        StateDamaged, StateForeign: by name.
    """
    state = State(root, plan if plan is not None else State.plan_of(root))
    if not state.exists:
        raise UsageError(
            f"{root}: there is no state of this plan yet. Run it first, or give the --state that it ran with."
        )
    state.verify()
    with connect() as db:
        try:
            yield View(db, state)
        except duckdb.Error as e:
            found = state.damage()  # DuckDB does not say over which file it stumbled
            raise found or StateDamaged(str(root), f"cannot be queried ({str(e).splitlines()[0]})") from e


def _reading(root: Path, plan: Plan | None, ask: Callable[[View], _T]) -> _T:
    """Ask; again if a running driver replaced files under our eyes, which looks like damage."""
    for _ in range(_LOOKS - 1):
        with contextlib.suppress(StateDamaged), view(root, plan) as seen:
            return ask(seen)
    with view(root, plan) as seen:
        return ask(seen)
