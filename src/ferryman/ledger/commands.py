"""A person's word: `retry`, `resolve`. Queued as a file, taken up between waves, an event of the ledger like all else.

A command becomes a wave of its own, or several if it concerns very many deliveries: one commit that puts waiting rows
due and names the events (who, when, why), then settled as usual. A command that is taken up twice (a crash came before
its file was removed) does no harm.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
import socket
import uuid
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import limits
from ferryman.errors import StateHeld, UsageError
from ferryman.ledger.account import named_statuses, view
from ferryman.ledger.commit import commit_wave
from ferryman.ledger.events import EVENT_OF_ROW, ORDINAL_COMMAND, events, table_of
from ferryman.ledger.family import FailedMember, Owed, decode_failures, encode_failures, open_deliveries
from ferryman.ledger.outbox import OutboxWriter, row_groups
from ferryman.ledger.schemas import DOCUMENTS
from ferryman.ledger.settle import settle
from ferryman.ledger.state import State, state_root
from ferryman.ledger.statuses import Status
from ferryman.plan import Plan
from ferryman.storage import files
from ferryman.storage.parquet import Part, read_part, write_part
from ferryman.storage.query import connect, register
from ferryman.storage.tables import DataFile
from ferryman.testing import crash


class Command(msgspec.Struct, frozen=True):
    """What a person says of some deliveries."""

    verb: str
    """What they typed: "retry --force"."""
    say: Status
    """What the deliveries become."""
    who: str
    why: str
    statuses: frozenset[str] | None
    """Only deliveries of these; None: any that the verb is about."""
    document: str | None
    destination: str | None
    source: str | None
    file: str = ""
    documents: frozenset[str] | None = None
    """Only source documents of these ids; None: any."""

    @property
    def message(self) -> str:
        return f"{self.verb} by {self.who}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a command."""

    count: int | None
    """Deliveries (with ``force`` and ``dirty``: documents) that it concerns; None while it is queued."""
    queued: bool
    """A run holds the state, or was killed in the middle of a wave: the next wave takes it up."""


_STORED: Final = frozenset(Status) - {Status.BATCHED}
"""What waits in the outbox is sent anyway."""

_CONCERNS: Final[dict[str, frozenset[Status]]] = {
    "retry": frozenset({Status.ERROR, Status.DEAD, Status.ERROR_DOC}),
    "retry --force": _STORED,
    "dirty": _STORED,
    "resolve": frozenset({Status.INDEXING}),
}
"""Verb -> statuses of the deliveries that it is about."""

_OF_DOCUMENTS: Final = (Status.FORCE, Status.DIRTY)
"""What is said of whole documents, wherever they are delivered."""

RESOLVED: Final = {"delivered": Status.INDEXED, "failed": Status.DEAD, "pending": Status.RESTART}
"""What may be recorded of a delivery in doubt -> what becomes of it."""


def retry(
    plan: Plan,
    *,
    state: str | Path | None = None,
    status: str | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    force: bool = False,
    dirty: bool = False,
    why: str = "",
) -> Retried:
    """Try again what failed: due now, attempts from zero (RESTART). With ``force`` documents are read again, changed or
    not, as a new revision (FORCE); with ``dirty`` the next scan reads them, whatever their fingerprints say, and they
    are fed if they have changed (DIRTY). The filters narrow it down.

    Raises:
        UsageError: there is no state yet, or no such status.
    """
    if force and dirty:
        raise UsageError("force and dirty: force reads again in any case, give one of them.")
    verb = "retry --force" if force else "dirty" if dirty else "retry"
    say = Status.FORCE if force else Status.DIRTY if dirty else Status.RESTART
    command = Command(verb, say, _who(), why, _statuses_of(status), document, destination, source)
    return _give(plan, state, command)


def resolve(
    plan: Plan,
    word: str,
    *,
    state: str | Path | None = None,
    document: str | None = None,
    destination: str | None = None,
    source: str | None = None,
    why: str = "",
) -> Retried:
    """Record what became of deliveries in doubt (at-most-once, killed in flight).

    Args:
        word: "delivered": they took effect. "failed": they did not, and must not be sent again.
            "pending": they did not, send them.

    Raises:
        UsageError: there is no state yet, or no such word.
    """
    if word.lower() not in RESOLVED:
        raise UsageError(f"resolve as {word!r}: choose one of {', '.join(RESOLVED)}.")
    verb = f"resolve --as {word.lower()}"
    command = Command(verb, RESOLVED[word.lower()], _who(), why, None, document, destination, source)
    return _give(plan, state, command)


def _give(plan: Plan, state: str | Path | None, command: Command) -> Retried:
    """Queue it, and take up what is queued unless a run does."""
    root = state_root(plan, state)
    if not (root / "state.json").exists():
        raise UsageError(f"{root}: there is no state of this plan yet: nothing to {command.verb.split()[0]}.")
    name = _queue(root / "commands", command)
    try:
        with State.take(root, plan) as taken:
            if taken.wave > taken.settled:
                return Retried(None, queued=True)  # the next run recovers first
            counts = {c.file: apply(taken, c) for c in waiting(taken)}
            return Retried(counts.get(name, 0), queued=False)
    except StateHeld:
        return Retried(None, queued=True)


def restart(state: State, source: str, documents: Collection[str], why: str) -> None:
    """As the driver, on somebody's behalf: try again what failed of these documents of a source. The next wave takes it
    up."""
    command = Command("retry", Status.RESTART, _who(), why, None, None, None, source, documents=frozenset(documents))
    _queue(state.commands, command)


def _queue(folder: Path, command: Command) -> str:
    name = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}.json"
    files.publish(folder / name, files.sealed(command))
    crash.point("command.queued")
    return name


def _statuses_of(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(named_statuses(text)[0])


def waiting(state: State) -> list[Command]:
    """Commands that were given and not taken up, oldest first."""
    found = []
    for path in sorted(state.commands.glob("*.json")):
        command = msgspec.convert(files.unseal(path), Command)
        found.append(msgspec.structs.replace(command, file=path.name))
    return found


def apply(state: State, command: Command) -> int:
    """Carry out a command; how many deliveries (or documents) it concerns."""
    shares = _shares(state, command)
    concerned = 0
    for share in range(shares):
        chosen = _chosen(state, command, (share, shares))
        if chosen:
            _say(state, command, chosen)
        of_documents = {(c["source"], c["origin"]) for c in chosen}
        concerned += len(of_documents) if command.say in _OF_DOCUMENTS else len(chosen)
    state.check_ours()  # where nothing is concerned, nothing was committed that would have told
    (state.commands / command.file).unlink(missing_ok=True)
    crash.point("command.done")
    return concerned


def _say(state: State, command: Command, chosen: list[dict[str, Any]]) -> None:
    """A wave: it is said of these deliveries."""
    number = state.wave + 1
    said = _dirty_events(chosen) if command.say is Status.DIRTY else chosen
    said = [{**c, "status": command.say.value, "message": command.message, "attempt": 0} for c in said]
    said_table = events(said, wave=number, ordinal=ORDINAL_COMMAND)
    event_file = write_part(state.ledger.folder, said_table, epoch=state.epoch)
    hashes = {c["delivery_hash"] for c in chosen}
    in_outbox = {} if command.say in _OF_DOCUMENTS else _in_outbox(state, hashes)
    if command.verb.startswith("resolve"):
        _hear_no_more(state, in_outbox)
    replaced = []
    if command.say is not Status.DEAD:  # a dead row stays where it is: a retry may want it again
        replaced = [_without_or_due(state, f, command.say, h) for f, h in in_outbox.items()]
    waiting_rows = set().union(*in_outbox.values())
    elsewhere = [c for c in chosen if c["delivery_hash"] not in waiting_rows]
    document_file = _documents_again(state, elsewhere, number, command.say)
    crash.point("command.staged")
    commit_wave(state, number, documents=document_file, ledger=[event_file], replaced=replaced)
    settle(state, number, lambda task, items: [task(i) for i in items])
    state.retire(state.outbox, [path for path, _ in replaced])


def _statuses(command: Command) -> frozenset[str]:
    """Of the deliveries that it concerns."""
    concerned = _CONCERNS[command.verb.partition(" --as ")[0]]
    return concerned if command.statuses is None else concerned & command.statuses


def _shares(state: State, command: Command) -> int:
    """Into how many waves it is cut: all that it concerns need not fit into memory."""
    if not (statuses := _statuses(command)):
        return 0
    with view(state.root, state.plan) as seen:
        most = seen.docs_at_most(statuses, command.destination, command.source, command.document)
    return -(-most // limits.COMMAND_DELIVERIES)


def _chosen(state: State, command: Command, share: tuple[int, int]) -> list[dict[str, Any]]:
    """Deliveries the command concerns, a share of them: their columns."""
    with view(state.root, state.plan) as seen:
        found = seen.docs(_statuses(command), command.destination, command.source, command.document, share=share)
    if command.documents is not None:
        found = [d for d in found if d["origin"] in command.documents]
    if command.say in _OF_DOCUMENTS:
        found = [d for d in found if d["operation"] == "upsert"]
    return [{name: d[name] for name in (*EVENT_OF_ROW, "destination")} for d in found]


def _dirty_events(chosen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each document, of none of its deliveries: they are what they are until it is found changed."""
    about: dict[tuple[str, str], dict[str, Any]] = {}
    for c in chosen:
        origin = {**c, "document": c["origin"], "parent": None, "route": "", "branches": ""}
        about[c["source"], c["origin"]] = {**origin, "destination": "", "delivery_hash": ""}
    return list(about.values())


def _in_outbox(state: State, hashes: set[str]) -> dict[str, set[str]]:
    """Outbox files that hold such rows -> their hashes."""
    found = {}
    for path in state.outbox.files:
        column = read_part(state.outbox.folder / path, ["delivery_hash"])["delivery_hash"]
        if there := hashes.intersection(column.to_pylist()):
            found[path] = there
    return found


def _without_or_due(state: State, path: str, say: Status, hashes: set[str]) -> tuple[str, DataFile | None]:
    """An outbox file and what takes its place, not yet committed: these rows due now from attempt zero, or gone."""
    file = state.outbox.files[path]
    wanted = pa.array(list(hashes), pa.string())
    writer = OutboxWriter(state.outbox.folder, epoch=state.epoch)
    for rows in row_groups(state.outbox.folder / path):
        concerned = pc.is_in(rows["delivery_hash"], value_set=wanted)
        if say is Status.INDEXED:
            writer.write(rows.filter(pc.invert(concerned)))
            continue
        again = rows
        for column in ("attempt", "due"):
            at = rows.schema.get_field_index(column)
            again = again.set_column(at, column, pc.if_else(concerned, pa.scalar(0, pa.int64()), rows[column]))
        for column in ("since", "transient"):
            at = rows.schema.get_field_index(column)
            again = again.set_column(at, column, pc.if_else(concerned, pa.scalar(None, pa.int64()), rows[column]))
        writer.write(again)
    part = writer.finish()
    return path, None if part is None else state.outbox.data_file(part, file.partition)


def _hear_no_more(state: State, in_outbox: dict[str, set[str]]) -> None:
    """A person has spoken: what a late worker says of these chunks does not count any more."""
    for path, hashes in in_outbox.items():
        key = int(state.outbox.files[path].partition["first_sequence"])
        table = read_part(state.outbox.folder / path, ["row", "delivery_hash"])
        rows = [r for r, h in zip(*(c.to_pylist() for c in table.columns), strict=True) if h in hashes]
        for number in state.journal.passes():
            for claim in state.journal.claims(number, key):
                if any(claim.first <= row < claim.end for row in rows):
                    state.journal.forget(number, claim)


def _documents_again(state: State, chosen: list[dict[str, Any]], number: int, say: Status) -> list[Part]:
    """``documents`` rows that make the next scan take these deliveries, or their documents, up again."""
    if not chosen or not state.documents.files or say in (Status.INDEXED, Status.DEAD):
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
    columns |= {"wave": number, "forced": pa.array([say is Status.FORCE] * len(found))}
    if say is Status.DIRTY:
        columns |= {"fingerprint": ""}
    elif say is Status.RESTART:  # a forced document is taken up because it is forced, nothing of it is owed by steps
        names = zip(columns["source"], columns["document"], strict=True)
        failures = [
            [_opened(f, wanted[name]) for f in decode_failures(text)]
            for name, text in zip(names, columns["failed"], strict=True)
        ]
        columns |= {
            "due": 0,
            "owed": [open_deliveries(each) for each in failures],
            "held": None,
            "failed": [encode_failures(each) for each in failures],
        }
    return [write_part(state.documents.folder, table_of(DOCUMENTS, len(found), **columns), epoch=state.epoch)]


def _opened(failure: FailedMember, wanted: set[tuple[str, str, str]]) -> FailedMember:
    """The failure with these deliveries, (member, destination, route), owed again from attempt zero."""
    owed = [Owed(*o.end, 0, True) if (failure.member, *o.end) in wanted else o for o in failure.owed]
    return FailedMember(failure.member, failure.node, failure.route, failure.branches, owed)


def _who() -> str:
    with contextlib.suppress(OSError, KeyError):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return f"somebody@{socket.gethostname()}"
