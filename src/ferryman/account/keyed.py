"""What keyed nodes hold: how many keys have a state, and which."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from ferryman.account.questions import named_damage, retry_read
from ferryman.errors import UsageError
from ferryman.plan import Plan, keyed_nodes
from ferryman.records.keyed import KEY_STATE
from ferryman.state.state import State
from ferryman.storage.files import StatePath
from ferryman.storage.query import connect, register

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
            if table.made:
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
