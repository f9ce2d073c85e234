"""A person's word: `retry`. Queued as a file, taken up between waves, an event of the ledger like everything else.

A command becomes a wave of its own: one commit that puts waiting rows due and names the events (who, when, why), then
settled as usual. A command that is taken up twice (a crash came before its file was removed) does no harm.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
import socket
import uuid
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ferryman.errors import StateHeld, UsageError
from ferryman.ledger.account import view
from ferryman.ledger.commit import commit_wave
from ferryman.ledger.events import ORDINAL_COMMAND, events, table_of
from ferryman.ledger.family import Failure, Owed, decode_failures, encode_failures, open_deliveries
from ferryman.ledger.schemas import DOCUMENTS
from ferryman.ledger.settle import due_stats, settle
from ferryman.ledger.state import State, state_root
from ferryman.ledger.statuses import Status
from ferryman.plan import Plan
from ferryman.storage import files
from ferryman.storage.parquet import Part, read_part, write_part
from ferryman.storage.query import connect, register
from ferryman.storage.tables import DataFile
from ferryman.testing import crash


class Command(msgspec.Struct, frozen=True):
    """What to try again, and who says so."""

    who: str
    why: str
    force: bool
    status: str | None
    document: str | None
    destination: str | None
    source: str | None
    file: str = ""


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a ``retry``."""

    count: int | None
    """Deliveries (with ``force``: documents) that will be tried again; None while it is queued."""
    queued: bool
    """A run holds the state, or was killed in the middle of a wave: the next wave takes it up."""


_AGAIN = (Status.ERROR, Status.DEAD, Status.ERROR_DOC)


def retry(
    plan: Plan,
    *,
    state: str | Path | None = None,
    status: str | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    force: bool = False,
    why: str = "",
) -> Retried:
    """Try again what failed: due now, attempts from zero (RESTART). With ``force`` documents are read again, changed or
    not, as a new revision (FORCE). The filters narrow it down.

    Raises:
        UsageError: there is no state yet, or no such status.
    """
    root = state_root(plan, state)
    if not (root / "state.json").exists():
        raise UsageError(f"{root}: there is no state of this plan yet: nothing to retry.")
    if status is not None and status.upper() not in set(Status):
        raise UsageError(f"status {status!r}: choose one of {', '.join(s.lower() for s in Status)}.")
    command = Command(_who(), why, force, status and status.upper(), document, destination, source)
    name = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}.json"
    files.publish(root / "commands" / name, files.sealed(command))
    crash.point("command.queued")
    try:
        with State.take(root, plan) as taken:
            if taken.wave > taken.settled:
                return Retried(None, queued=True)  # the next run recovers first
            counts = {c.file: apply(taken, c) for c in waiting(taken)}
            return Retried(counts.get(name, 0), queued=False)
    except StateHeld:
        return Retried(None, queued=True)


def waiting(state: State) -> list[Command]:
    """Commands that were given and not taken up, oldest first."""
    found = []
    for path in sorted(state.commands.glob("*.json")):
        command = msgspec.convert(files.unseal(path), Command)
        found.append(msgspec.structs.replace(command, file=path.name))
    return found


def apply(state: State, command: Command) -> int:
    """Carry out a command as a wave of its own; how many deliveries (or documents) it concerns."""
    chosen = _chosen(state, command)
    if chosen:
        number = state.wave + 1
        status = Status.FORCE if command.force else Status.RESTART
        message = f"{'retry --force' if command.force else 'retry'} by {command.who}" + (
            f": {command.why}" if command.why else ""
        )
        said = [{**c, "status": status.value, "message": message, "attempt": 0} for c in chosen]
        event_file = write_part(state.ledger.folder, events(said, wave=number, ordinal=ORDINAL_COMMAND))
        hashes = {c["delivery_hash"] for c in chosen}
        replaced = [] if command.force else _put_due(state, hashes)
        in_outbox = set() if command.force else _hashes_in(state, [path for path, _ in replaced])
        document_file = _documents_again(
            state, [c for c in chosen if c["delivery_hash"] not in in_outbox], number, force=command.force
        )
        crash.point("command.staged")
        commit_wave(state, number, documents=document_file, ledger=[event_file], replaced=replaced)
        settle(state, number, lambda task, items: [task(i) for i in items])
        for path, _ in replaced:
            (state.outbox.folder / path).unlink(missing_ok=True)
    (state.commands / command.file).unlink(missing_ok=True)
    crash.point("command.done")
    return len({(c["source"], c["origin"]) for c in chosen}) if command.force else len(chosen)


def next_step_due(state: State) -> int | None:
    """When the next failed step is tried again, µs since 1970; 0: a person waits for it; None: no step is owed."""
    if all(f.stats.get("nullCount", {}).get("due", 0) == f.rows for f in state.documents.files.values()):
        return None
    with connect(state.staging) as db:
        register(db, "documents", state.documents.paths(), DOCUMENTS)
        [(due,)] = db.execute("""
            SELECT min(last.due) FROM (
                SELECT arg_max({due: CASE WHEN forced THEN 0 ELSE due END}, wave) AS last
                FROM documents
                WHERE document IN (SELECT document FROM documents WHERE due IS NOT NULL OR forced)
                GROUP BY source, document
            )
        """).fetchall()
    return None if due is None else int(due)


def _chosen(state: State, command: Command) -> list[dict[str, Any]]:
    """Deliveries the command concerns: their columns."""
    with view(state.root, state.plan) as seen:
        found = seen.docs(command.status, command.destination, command.source, None)
    found = [d for d in found if command.document in (None, d["document"], d["origin"])]
    if command.force:  # what waits in the outbox is sent anyway
        found = [d for d in found if d["operation"] == "upsert" and d["status"] != Status.BATCHED]
    else:
        found = [d for d in found if d["status"] in _AGAIN]
    keep = (
        "source",
        "document",
        "parent",
        "origin",
        "version",
        "revision",
        "operation",
        "route",
        "branches",
        "destination",
        "delivery_hash",
    )
    return [{k: d[k] for k in keep} for d in found]


def _put_due(state: State, hashes: set[str]) -> list[tuple[str, DataFile]]:
    """Outbox files with these rows due now, attempts from zero; rewritten, not yet committed."""
    replaced = []
    for file in list(state.outbox.files.values()):
        table = read_part(state.outbox.folder / file.path)
        again = pc.is_in(table["delivery_hash"], value_set=pa.array(list(hashes), pa.string()))
        if not pc.any(again).as_py():
            continue
        for column in ("attempt", "due"):
            at = table.schema.get_field_index(column)
            table = table.set_column(at, column, pc.if_else(again, pa.scalar(0, pa.int64()), table[column]))
        part = write_part(state.outbox.folder, table, stats=due_stats(table["due"].to_pylist()))
        replaced.append((file.path, state.outbox.data_file(part, file.partition)))
    return replaced


def _hashes_in(state: State, paths: list[str]) -> set[str]:
    return {
        h for p in paths for h in read_part(state.outbox.folder / p, ["delivery_hash"])["delivery_hash"].to_pylist()
    }


def _documents_again(state: State, chosen: list[dict[str, Any]], number: int, *, force: bool) -> list[Part]:
    """``documents`` rows that make the next scan take these deliveries up again."""
    if not chosen or not state.documents.files:
        return []
    wanted: dict[tuple[str, str], set[tuple[str, str, str]]] = defaultdict(set)
    for c in chosen:
        member = c["document"][len(c["origin"]) :]
        wanted[c["source"], c["origin"]].add((member, c["destination"], c["route"]))
    with connect(state.staging) as db:
        register(db, "documents", state.documents.paths(), DOCUMENTS)
        db.register("wanted", pa.table({"source": [s for s, _ in wanted], "document": [d for _, d in wanted]}))
        found = db.execute("""
            SELECT * FROM (
                SELECT d.* FROM documents d SEMI JOIN wanted w ON d.source = w.source AND d.document = w.document
                QUALIFY row_number() OVER (PARTITION BY d.source, d.document ORDER BY wave DESC) = 1
            ) WHERE operation = 'upsert'
        """).fetchall()  # a deleted document cannot be read again
    if not found:
        return []
    columns: dict[str, Any] = {f.name: [row[i] for row in found] for i, f in enumerate(DOCUMENTS)}
    columns |= {"wave": number, "forced": pa.array([force] * len(found))}
    if not force:  # a forced document is taken up because it is forced, nothing of it is owed by steps
        names = zip(columns["source"], columns["document"], strict=True)
        failures = [
            [_opened(f, wanted[name]) for f in decode_failures(text)]
            for name, text in zip(names, columns["failed"], strict=True)
        ]
        columns |= {
            "due": 0,
            "owed": [open_deliveries(each) for each in failures],
            "failed": [encode_failures(each) for each in failures],
        }
    return [write_part(state.documents.folder, table_of(DOCUMENTS, len(found), **columns))]


def _opened(failure: Failure, wanted: set[tuple[str, str, str]]) -> Failure:
    """The failure with these deliveries, (member, destination, route), owed again from attempt zero."""
    owed = [Owed(*o.end, 0, True) if (failure.member, *o.end) in wanted else o for o in failure.owed]
    return Failure(failure.member, failure.node, failure.route, failure.branches, owed)


def _who() -> str:
    with contextlib.suppress(OSError, KeyError):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return f"somebody@{socket.gethostname()}"
