"""The account: what became of every delivery. Answers without Spark, and without touching the state.

Readers see committed facts only. Between a wave's commit and its settling, the files that the commit names count too,
and rows of the outbox that have no event yet are BATCHED.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb

from ferryman import settings
from ferryman.errors import EngineError, StateDamaged, UsageError
from ferryman.ledger.family import in_family
from ferryman.ledger.folder import TABLES
from ferryman.ledger.schemas import LEDGER_COLUMNS
from ferryman.ledger.state import State
from ferryman.ledger.statuses import Status, stored
from ferryman.ledger.view import View
from ferryman.plan import Plan
from ferryman.storage.files import disk_full
from ferryman.storage.log import Log
from ferryman.storage.query import connect

_LOOKS: Final = 20
"""How often a reader looks beside a driver that commits all the time before it believes that a file is damaged."""

_PAUSE_S: Final = 0.05
"""Between two looks: what a driver removes from its logs is removed within moments."""

_T = TypeVar("_T")


def status(root: Path, plan: Plan) -> dict[str, Any]:
    """What ``status --json`` shows; see semantics. ``balanced``: does every delivery of every document add up?"""
    return _reading(root, plan, lambda view: view.status())


def left_over(root: Path, plan: Plan) -> dict[str, int]:
    """How many deliveries of current documents are ``failed``, ``rejected``, ``in_doubt`` or still ``pending``."""
    return _reading(root, plan, lambda view: view.left_over())


def waves(root: Path, limit: int = 5, plan: Plan | None = None) -> list[dict[str, Any]]:
    """The last waves, newest first: ``wave``, ``created``, ``events``, ``delivered``, ``failed``."""
    query = f"""
        SELECT wave, max(created) AS created, count(*) AS events, count(*) FILTER (status = 'INDEXED') AS delivered,
               count(*) FILTER (status IN ('ERROR', 'DEAD', 'ERROR_DOC', 'INDEXING')) AS failed
        FROM ledger GROUP BY wave ORDER BY wave DESC LIMIT {int(limit)}
    """
    return _reading(root, plan, lambda view: view.rows(query))


def deliveries(
    root: Path,
    *,
    status: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    family: str | None = None,
    limit: int | None = None,
    plan: Plan | None = None,
) -> list[dict[str, Any]]:
    """Deliveries of current documents, each by its latest event, newest first; rows have the ledger's columns.

    Args:
        status: as shown (``failed``, ``pending`` …) or as stored (``DEAD``, ``BATCHED`` …), in any case.
        family: only of this origin and what was made of it; or of the rows of this file.

    Raises:
        UsageError: there is no such status; there is no state yet.
    """
    statuses, operation = named_statuses(status)

    def look(seen: View) -> list[dict[str, Any]]:
        return seen.docs(statuses, destination, source, limit=limit, operation=operation, family=family)

    return _reading(root, plan, look)


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


def history(root: Path, document: str, plan: Plan | None = None) -> list[dict[str, Any]]:
    """Every event of a document and of what was made from it, oldest first; rows have the ledger's columns. Of a file
    with rows that are documents: of its rows."""
    columns, rows_too = ", ".join(LEDGER_COLUMNS), in_family(document)
    query = f"""
        SELECT {columns} FROM (
            SELECT {columns}, ordinal FROM ledger WHERE document = $document OR {rows_too}
            UNION ALL SELECT {columns}, 3 AS ordinal FROM unsent WHERE document = $document OR {rows_too}
        ) ORDER BY wave, ordinal, created
    """
    return _reading(root, plan, lambda view: view.rows(query, {"document": document}))


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
    with (
        state.readers.reading(),
        tempfile.TemporaryDirectory(prefix="ferryman-", ignore_cleanup_errors=True) as spill,
        named_damage(state, Path(spill)),
        connect(Path(spill)) as db,
    ):
        state.verify()
        yield View(db, state, Path(spill))


@contextlib.contextmanager
def named_damage(state: State, spill: Path) -> Iterator[None]:
    """A query of the state's files that fails says over which; DuckDB does not.

    Args:
        spill: where it puts what does not fit into memory.

    Raises:
        StateDamaged: names the file.
        EngineError: no file is damaged, there is too little room for the query.
    """
    try:
        yield
    except FileNotFoundError as e:
        raise StateDamaged(str(e.filename or e), "the file is missing") from e
    except duckdb.Error as e:
        if isinstance(e, duckdb.OutOfMemoryException) or disk_full(e):
            raise EngineError(
                f"{state.root}: a question needs more than {settings.QUERY_MEMORY} of memory, and there is no room for "
                f"the rest in {spill}: make room there, or set TMPDIR."
            ) from e
        found = state.damage() if state.exists else None
        raise found or StateDamaged(str(state.root), f"cannot be queried ({str(e).splitlines()[0]})") from e


def looking_again(root: Path, look: Callable[[], _T]) -> _T:
    """What a look at a state finds; it looks again if a running driver changed files under its eyes, which looks like
    damage. It is damage if two looks find the same and nothing was committed in between."""
    before: tuple[object, ...] = ()
    for _ in range(_LOOKS - 1):
        logs = last_entries(root)
        try:
            return look()
        except StateDamaged as e:
            found = (e.path, e.what, logs)
            if found == before:
                raise
            before = (e.path, e.what, last_entries(root))
        time.sleep(_PAUSE_S)
    return look()


def last_entries(root: Path) -> tuple[int, ...]:
    """The last entry of each table's log: what changes when a driver commits."""
    return tuple(max(Log(root / name).versions(), default=-1) for name in TABLES)


def _reading(root: Path, plan: Plan | None, ask: Callable[[View], _T]) -> _T:
    def look() -> _T:
        with view(root, plan) as seen:
            return ask(seen)

    return looking_again(root, look)
