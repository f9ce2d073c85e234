"""The first wave of a state that continues from an older version's (see ``operations.migrate``).

Rows for destinations that are not in the plan any more are dropped, and documents whose way has changed are read again.
Until this is through, ``migration.json`` says that it is to be done; it may be done twice.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferryman import crash
from ferryman.engine.commit.commit import commit_wave
from ferryman.engine.settle.settle import in_process, settle
from ferryman.plan import Plan, changed_sources, keyed_nodes, structure
from ferryman.plan.keyed import counted_once, sources_above
from ferryman.plan.structure import DELIVERED, Structure, keyed_of, reached
from ferryman.records.events import EVENT_OF_ROW, ORDINAL_COMMAND, table_of
from ferryman.records.family import had_sql
from ferryman.records.schemas import DOCUMENTS, LEDGER, OUTBOX_KEPT
from ferryman.records.statuses import Status
from ferryman.sources import Log
from ferryman.state.latest import chosen_by_file, every, last_of
from ferryman.state.layout import MIGRATION
from ferryman.state.log_positions import LogPositions
from ferryman.state.passed import note_passed_over
from ferryman.state.state import State
from ferryman.storage import files, seals
from ferryman.storage.groups import RowGroups
from ferryman.storage.parquet import Part, PartWriter, read_part, write_part
from ferryman.storage.query import connect, quoted_list, verify


def is_pending(state: State) -> bool:
    """Is ``finish`` still to be done?"""
    return files.exists(state.root / MIGRATION)


def finish(state: State) -> str:
    """The new state's first wave; what it did, in one line."""
    before, after = state.remembered(), structure(state.plan)
    older: Any = seals.unseal(state.root / MIGRATION)
    why = f"plan version {state.plan.version} continues from version {older['from']}"
    number = state.wave + 1
    gone = [name for name, node in before.items() if node.kind in DELIVERED and name not in after]
    paths = [f.path for f in state.outbox.files.values() if f.partition["destination"] in gone]
    dropped = [_dropped(state, path, number, why) for path in paths]
    parts = [write_part(state.ledger.folder, table, epoch=state.epoch) for table in dropped if table.num_rows]
    again = _to_take_up_again(state.plan, before, after)
    staged, restarted = _taken_up_again(state, again, number, why)
    parts += restarted
    crash.point("version.staged")
    if parts or staged:
        commit_wave(state, number, documents=staged, ledger=parts, replaced=[(path, None) for path in paths])
        settle(state, number, in_process)
        state.retire(state.outbox, paths)
    note_passed_over(state.root, before, after, state.outbox.log.transactions())
    state.remember(after)
    files.remove(state.root / MIGRATION)
    files.fsync_folder(state.root)
    crash.point("version.adopted")
    rows = sum(t.num_rows for t in dropped)
    ended = f"; {rows} rows for {', '.join(gone)} were dropped because it no longer has them" if rows else ""
    many = sum(part.rows for part in staged)
    what = f"{many} documents are processed again because their path has changed or they"
    one = "1 document is processed again because its path has changed or it"
    keys = "".join(f"; {each}" for each in _of_keys(state, before, after))
    return f"{why}: {one if many == 1 else what} had failed{ended}{keys}"


def _to_take_up_again(plan: Plan, before: Structure, after: Structure) -> str:
    """Which documents are read again, as a condition on their rows in ``documents``.

    All of the changed sources, and everywhere what had failed, for its deliveries have other hashes now. But of a log
    no entry twice that a key has counted; and what a keyed node has exported goes its way once.
    """
    keyed = keyed_of(before) | keyed_of(after)
    sources = changed_sources(before, after)
    once = quoted_list(counted_once(plan.nodes) - keyed)
    counted = " OR ".join(map(had_sql, sorted(keyed))) or "false"
    return (
        f"operation = 'upsert' AND source NOT IN (SELECT unnest({quoted_list(keyed)})) AND CASE "
        f"WHEN source IN (SELECT unnest({once})) THEN failed IS NOT NULL AND NOT ({counted}) "
        f"ELSE failed IS NOT NULL OR source IN (SELECT unnest({quoted_list(sources)})) END"
    )


def _of_keys(state: State, before: Structure, after: Structure) -> Iterator[str]:
    """What keyed nodes have not got of logs, and what they go on with, a line each."""
    for node in keyed_nodes(state.plan.nodes):
        above = [s.name for s in sources_above(node, state.plan.nodes) if isinstance(s.source, Log)]
        known = before.get(node.name)
        new = [name for name in above if LogPositions(state, name).known and node.name not in reached(before, name)]
        if new:
            yield f"{node.name} counts what comes from now on in {', '.join(new)}, of which entries were read before"
        if known is not None and known.code != after[node.name].code:
            yield f"{node.name} has changed, and its states stay what they are: it changes them from now on"


def _dropped(state: State, path: str, number: int, why: str) -> pa.Table:
    """Events of all rows of an outbox file whose destination was removed."""
    rows = read_part(state.outbox.path(path), OUTBOX_KEPT)
    destination = state.outbox.files[path].partition["destination"]
    return table_of(
        LEDGER,
        rows.num_rows,
        **{name: rows[name] for name in EVENT_OF_ROW},
        destination=destination,
        status=Status.DROPPED.value,
        message=f"{why}: it has no {destination}",
        attempt=rows["attempt"],
        wave=number,
        ordinal=ORDINAL_COMMAND,
        created=dt.datetime.now(dt.UTC),
    )


def _taken_up_again(state: State, which: str, number: int, why: str) -> tuple[list[Part], list[Part]]:
    """Files of ``documents`` rows that make the next scan read these documents as new revisions, and of their events.

    Args:
        which: a condition on the last row of a document, as SQL.
    """
    more = {"again": (f"({which}) IS TRUE", pa.bool_())}
    files = list(state.documents.files.values())
    paths = state.documents.paths(file.path for file in files)
    wanted = [np.zeros(file.rows, bool) for file in files]
    verify(paths)
    with tempfile.TemporaryDirectory(dir=state.spill) as folder, connect(Path(folder)) as db:
        for last in map(last_of, every(db, paths, sum(file.rows for file in files), Path(folder), more)):
            for number_of_file, rows in chosen_by_file(last, last["again"]):
                wanted[number_of_file][rows] = True
    staged, events = [], []
    for path, mask in zip(paths, wanted, strict=True):
        if mask.any():
            documents, restarted = (
                PartWriter(state.documents.folder, DOCUMENTS, epoch=state.epoch),
                PartWriter(state.ledger.folder, LEDGER, epoch=state.epoch),
            )
            with RowGroups(str(path), DOCUMENTS.names, verified=True) as file:
                for rows in file.pick(np.flatnonzero(mask)):
                    again = _forced(rows, number)
                    documents.write(again)
                    restarted.write(_restarted(again, why))
            staged.append(documents.finish())
            events.append(restarted.finish())
    return staged, events


def _forced(rows: pa.Table, wave: int) -> pa.Table:
    columns = {f.name: rows[f.name].cast(f.type) for f in DOCUMENTS}
    return table_of(DOCUMENTS, rows.num_rows, **{**columns, "wave": wave, "forced": pa.array([True] * rows.num_rows)})


def _restarted(documents: pa.Table, why: str) -> pa.Table:
    """An event a document, of none of its deliveries: they are what they are until they are made again."""
    return table_of(
        LEDGER,
        documents.num_rows,
        source=documents["source"],
        document=documents["document"],
        origin=documents["document"],
        version=documents["version"],
        revision=documents["revision"],
        operation="upsert",
        route="",
        branches="",
        destination="",
        delivery_hash="",
        status=Status.RESTART.value,
        message=why,
        attempt=0,
        wave=documents["wave"],
        ordinal=ORDINAL_COMMAND,
        created=dt.datetime.now(dt.UTC),
    )
