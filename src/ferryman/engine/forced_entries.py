"""Entries of logs that an operator wants read again though they went through: nothing is known of them but their
deliveries, and what ``documents`` would say is made of these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

from ferryman.account.questions import view
from ferryman.plan import logs_read
from ferryman.records.family import Published, encode_published
from ferryman.records.statuses import Status
from ferryman.state.state import State
from ferryman.storage.query import quoted_list

Name = tuple[str, str]
"""Source and document."""

_COLUMNS: Final = ("source", "origin", "document", "version", "revision", "operation", "route", "destination")


def of_logs(state: State, names: Collection[Name]) -> list[Name]:
    """Those of them that are entries of logs."""
    logs = {n.name for n in logs_read(state.plan.nodes)}
    return [name for name in names if name[0] in logs]


def forced_entries(state: State, names: Collection[Name], wave: int) -> list[dict[str, Any]]:
    """Rows of ``documents`` that make the next scan read these entries as new revisions."""
    deliveries: dict[Name, list[dict[str, Any]]] = defaultdict(list)
    for row in _deliveries(state, names) if names else ():
        deliveries[row["source"], row["origin"]].append(row)
    return [_row(name, deliveries[name], wave) for name in names if name in deliveries]


def _row(name: Name, deliveries: list[dict[str, Any]], wave: int) -> dict[str, Any]:
    source, document = name
    newest = max(deliveries, key=lambda d: d["revision"])
    published: dict[tuple[str, str, str], bool] = {}
    for d in sorted(deliveries, key=lambda d: (d["revision"], d["happened"])):
        if d["published"]:
            published[d["document"][len(document) :], d["route"], d["destination"]] = d["operation"] == "upsert"
    return {
        "source": source,
        "document": document,
        "version": newest["version"],
        "revision": newest["revision"],
        "fingerprint": "",
        "operation": "upsert",
        "wave": wave,
        "given": encode_published([Published(*place) for place, there in published.items() if there]),
        "due": 0,
        "owed": 0,
        "failed": None,
        "held": None,
        "forced": True,
        "again": None,
    }


def _deliveries(state: State, names: Collection[Name]) -> list[dict[str, Any]]:
    """All deliveries of these entries by their latest events; ``published``: was it committed for the destination?"""
    columns = ", ".join(_COLUMNS)
    mine = f"source IN {quoted_list({s for s, _ in names})} AND origin IN {quoted_list([d for _, d in names])}"
    with view(state.root, state.plan) as seen:
        return seen.rows(f"""
            SELECT {columns}, happened,
                status = '{Status.INDEXED}' OR delivery_hash IN (SELECT delivery_hash FROM waiting WHERE {mine})
                AS published
            FROM (
                SELECT {columns}, delivery_hash, max(wave * 4 + ordinal) AS happened,
                    arg_max(status, wave * 4 + ordinal) AS status
                FROM ledger WHERE destination <> '' AND {mine} GROUP BY {columns}, delivery_hash
                UNION ALL
                SELECT {columns}, delivery_hash, wave * 4 + 3, status FROM unsent WHERE {mine}
            )
        """)
