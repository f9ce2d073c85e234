"""Documents to be tried again: a failed step is due, or an operator has requested it."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from ferryman.engine.results import PendingRetries
from ferryman.plan import keyed_nodes
from ferryman.records.rows import latest_us
from ferryman.state.maintenance import DOCUMENT, Columns, last_rows, rows_by_document
from ferryman.state.state import State
from ferryman.storage.query import connect, hash_texts, quote_list, stream, verify

_NAMED: Final = pa.schema([("h", pa.uint64()), ("source", pa.string()), ("document", pa.string())])
_NEVER: Final = 1 << 62

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
"""Hashes of documents, as in ``maintenance.DOCUMENT``."""


def _waits_sql(state: State) -> str:
    """Return SQL that tests whether rows of ``documents`` wait to be tried again. Exports of keyed nodes are excluded;
    they are read by place, see ``logs.HeldExports``."""
    exports = [node.name for node in keyed_nodes(state.plan.nodes)]
    return f"(due IS NOT NULL OR forced){f' AND source NOT IN {quote_list(exports)}' if exports else ''}"


def pending_retries(state: State, unlisted: Hashes | None = None) -> list[PendingRetries]:
    """Return the pending retries of steps; those of ``unlisted`` documents are separate."""
    if all(f.stats.get("nullCount", {}).get("due", 0) == f.rows for f in state.documents.files.values()):
        return []
    owed: Counter[tuple[int, bool]] = Counter()
    due: dict[tuple[int, bool], int] = {}
    with connect(state.local_scratch) as db:
        for last in _waiting_rows(state, db):
            not_found = np.isin(last["h"], [] if unlisted is None else unlisted)
            for held, is_unlisted in product(np.unique(last["held"]).tolist(), (False, True)):
                mine = (last["held"] == held) & (not_found == is_unlisted)
                if mine.any():
                    owed[held, is_unlisted] += int(last["owed"][mine].sum())
                    due[held, is_unlisted] = min(due.get((held, is_unlisted), _NEVER), int(last["due"][mine].min()))
        names = _held_names(state, db)
    return [
        PendingRetries(names[held], owed[held, is_unlisted], first, is_unlisted)
        for (held, is_unlisted), first in due.items()
    ]


def _are_due(dues: np.ndarray[Any, Any], now_us: int, longest_s: float) -> np.ndarray[Any, Any]:
    """Return which of these times are due now, or are later than a correct clock can have set; see
    ``records.rows.latest_us``."""
    found: np.ndarray[Any, Any] = (dues <= now_us) | (dues > latest_us(now_us, longest_s))
    return found


def due_documents(state: State, now_us: int, waiting: Collection[str] = ()) -> Hashes:
    """Return the documents with a retry that is due, or that an operator has requested.

    Args:
        waiting: values of ``held`` whose documents are not tried now, even if they are due.
    """
    longest_s = state.plan.longest_backoff_s
    with connect(state.local_scratch) as db:
        not_yet = hash_texts(pa.array(list(waiting), pa.string()))
        due = [
            last["h"][_are_due(last["due"], now_us, longest_s) & ~np.isin(last["held"], not_yet)]
            for last in _waiting_rows(state, db)
        ]
    return np.concatenate(due) if due else np.empty(0, np.uint64)


def ids_by_source(state: State, hashes: Hashes, sources: Collection[str] | None = None) -> dict[str, frozenset[str]]:
    """Return source -> ids of the documents with these hashes, and possibly of a few others that wait.

    Args:
        sources: only of these; None: of all.
    """
    if not len(hashes) or (sources is not None and not sources):
        return {}
    only = "" if sources is None else f" AND source IN {quote_list(sources)}"
    ids: dict[str, set[str]] = defaultdict(set)
    with connect(state.local_scratch) as db:
        query = f"SELECT {DOCUMENT}, source, document FROM {_files_sql(state)} WHERE {_waits_sql(state)}{only}"
        for batch in stream(db, query, _NAMED):
            mine = batch.filter(pa.array(np.isin(batch.column(0).to_numpy(), hashes)))
            for source, document in zip(*(mine.column(i).to_pylist() for i in (1, 2)), strict=True):
                ids[source].add(document)
    return {source: frozenset(documents) for source, documents in ids.items()}


def _waiting_rows(state: State, db: duckdb.DuckDBPyConnection) -> Iterator[Columns]:
    """Yield the last rows of waiting documents: ``due`` (0: requested by an operator), ``owed``, and the hash of
    ``held``."""
    more = {
        "waits": (_waits_sql(state), pa.bool_()),
        "due": ("CASE WHEN forced THEN 0 ELSE coalesce(due, 0) END", pa.int64()),
        "owed": ("owed", pa.int64()),
        "held": ("held", pa.uint64()),
    }
    rows = sum(f.rows for f in state.documents.files.values())
    verify(state.documents.paths())
    with tempfile.TemporaryDirectory(dir=state.local_scratch) as folder:
        for last in map(
            last_rows, rows_by_document(db, state.documents.paths(), rows, Path(folder), more, _waits_sql(state))
        ):
            yield {name: column[last["waits"]] for name, column in last.items()}


def _held_names(state: State, db: duckdb.DuckDBPyConnection) -> dict[int, str | None]:
    """Return hash of a value of ``held`` -> the value, for all values in ``documents``."""
    names = [None, *(held for (held,) in db.execute(f"SELECT DISTINCT held FROM {_files_sql(state)}").fetchall())]
    return dict(zip(hash_texts(pa.array(names, pa.string())).tolist(), names, strict=True))


def _files_sql(state: State) -> str:
    return f"read_parquet({quote_list(map(str, state.documents.paths()))})"
