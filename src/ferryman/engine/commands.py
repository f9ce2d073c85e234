"""Operator commands (``retry``, ``resolve``): each becomes a wave of its own, or several waves if it affects many
deliveries.

A single commit makes waiting rows due, or removes them, and adds events (who, when, why); the wave is then settled as
usual. If a crash prevents the removal of a command's file, the command is applied twice, which is harmless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ferryman import crash, limits
from ferryman.account.queries import open_view, retry_read
from ferryman.account.relations import Filter
from ferryman.destinations.base import Guarantee
from ferryman.engine.commit import commit_wave
from ferryman.engine.pending_work import Hashes, pending_retries
from ferryman.engine.settle import in_process, settle
from ferryman.plan import DestinationNode, Plan, keyed_nodes, logs_read, nodes_by_target, read_once_sources
from ferryman.records.families import (
    FailedMember,
    MissingDelivery,
    Published,
    count_open_deliveries,
    decode_failures,
    decode_published,
    encode_failures,
    encode_published,
)
from ferryman.records.keys import export_name
from ferryman.records.rows import (
    COUNTING_COLUMNS,
    DELETE,
    DOCUMENTS,
    EVENT_OF_ROW,
    EVENT_ORDER,
    ORDINAL_COMMAND,
    OUTBOX_FILE,
    RANGE,
    Status,
    events,
    hasher,
    table_of,
)
from ferryman.state.commands import ADOPT, REPAIR, SKIP, Command, DocumentsEffect, ExtraRecord, OutboxEffect
from ferryman.state.logs import LogPositions
from ferryman.state.outbox import OutboxWriter, pending_rows, row_groups
from ferryman.state.state import State
from ferryman.storage import files
from ferryman.storage.delta import DataFile
from ferryman.storage.files import StatePath
from ferryman.storage.parquet import Part, read_part, write_part
from ferryman.storage.query import connect, quote_list, register

DocumentKey = tuple[str, str]
"""Source and document."""


def must_wait(state: State, command: Command, unlisted: Hashes | None = None) -> bool:
    """Return whether a command has to wait until what is missing has been sent: extra records are deleted after it, so
    that a repair that is killed leaves no less than there was.

    Args:
        unlisted: documents that no source lists: what is due of them is not waited for.
    """
    if not command.extra:
        return False
    names = {each.destination for each in command.extra}
    for nodes in nodes_by_target(state.plan.nodes).values():
        beside = {node.name for node in nodes}
        if names & beside and _has_pending_upserts(state, beside):
            return True
    return any(not each.unlisted for each in pending_retries(state, unlisted))


def _has_pending_upserts(state: State, destinations: Collection[str]) -> bool:
    for path, file in state.outbox.files.items():
        if file.partition["destination"] in destinations and pending_rows(file):
            rows = read_part(state.outbox.path(path), ["operation", "due"])
            if pc.any(pc.and_(pc.is_valid(rows["due"]), pc.not_equal(rows["operation"], DELETE))).as_py():
                return True
    return False


def apply(state: State, command: Command) -> int:
    """Apply a command; return the number of deliveries (or documents) that it affects."""
    shares = _count_shares(state, command)
    concerned = 0
    state.skip_sequences(command.above)
    extra = command.extra
    if command.verb == REPAIR and command.deliveries:
        extra = _lost_deletes(state, command.deliveries)
    if extra:
        _commit_deletes(state, msgspec.structs.replace(command, extra=extra))
        concerned = len(extra)
    if command.verb == ADOPT:
        concerned += _renumber_waiting(state)
    concerned += _retry_stopped(state, command)
    for share in range(shares):
        chosen = _select_deliveries(state, command, (share, shares))
        if chosen:
            _commit_share(state, command, chosen)
        documents = {(c["source"], c["origin"]) for c in chosen}
        concerned += len(documents) if command.definition.whole_documents else len(chosen)
    state.check_ownership()  # a commit would check the epoch, but a command that affects nothing makes no commit
    files.remove(state.commands / command.file)
    crash.point("command.done")
    return concerned


def _commit_share(state: State, command: Command, chosen: list[dict[str, Any]]) -> None:
    """Commit and settle one wave with the command's effect on these deliveries."""
    number, definition = state.wave + 1, command.definition
    event_rows = _one_per_document(chosen) if definition.event is Status.DIRTY else chosen
    event_rows = [{**c, "status": definition.event.value, "message": command.message, "attempt": 0} for c in event_rows]
    event_file = write_part(
        state.ledger.folder, events(event_rows, wave=number, ordinal=ORDINAL_COMMAND), epoch=state.epoch
    )
    in_outbox = {} if definition.whole_documents else _find_in_outbox(state, {c["delivery_hash"] for c in chosen})
    if definition.closes_claims:
        _close_claims(state, in_outbox)
    replaced = []
    if definition.outbox is not OutboxEffect.UNTOUCHED:
        replaced = [_rewrite_outbox_file(state, path, definition.outbox, hashes) for path, hashes in in_outbox.items()]
    waiting_rows = set().union(*in_outbox.values())
    elsewhere = [c for c in chosen if c["delivery_hash"] not in waiting_rows]
    document_file = _write_document_rows(state, elsewhere, number, definition.documents)
    crash.point("command.staged")
    commit_wave(state, number, documents=document_file, ledger=[event_file], replaced=replaced)
    settle(state, number, in_process)
    state.retire(state.outbox, [path for path, _ in replaced])


def _renumber_waiting(state: State) -> int:
    """Commit and settle one wave that gives the rows in the outbox new sequences, above all that targets have; return
    their number. Rows for at-most-once destinations keep theirs, by which they are claimed."""
    number, sequence, rows = state.wave + 1, state.next_sequence, 0
    claimed = {
        node.name
        for node in state.plan.nodes
        if isinstance(node, DestinationNode) and node.policy.guarantee is Guarantee.AT_MOST_ONCE
    }
    replaced: list[tuple[str, DataFile | None]] = []
    for file in sorted(state.outbox.files.values(), key=lambda file: int(file.partition["first_sequence"])):
        if file.partition["destination"] in claimed:
            continue
        part = _renumber_rows(state, file.path)
        partition = {**file.partition, "first_sequence": str(sequence)}
        replaced.append((file.path, None if part is None else state.outbox.data_file(part, partition)))
        sequence += 0 if part is None else part.rows
        rows += 0 if part is None else part.rows
    state.skip_sequences(sequence - 1)
    crash.point("command.staged")
    commit_wave(state, number, replaced=replaced)
    settle(state, number, in_process)
    state.retire(state.outbox, [path for path, _ in replaced])
    return rows


def _renumber_rows(state: State, path: str) -> Part | None:
    """Write the rows of an outbox file again, numbered from 0."""
    writer, rows = OutboxWriter(state.outbox.folder, epoch=state.epoch), 0
    for table in row_groups(state.outbox.path(path)):
        at = table.schema.get_field_index("row")
        numbers = pa.array(range(rows, rows + table.num_rows), table.schema.field(at).type)
        writer.write(table.set_column(at, table.schema.field(at), numbers))
        rows += table.num_rows
    return writer.finish()


_RETRIES: Final = ("retry", "retry --force", SKIP)
"""Verbs after which an entry that stops the plan is tried again."""


def _retry_stopped(state: State, command: Command) -> int:
    """Commit and settle one wave after which the entries that the plan stops before are tried again, with attempts
    from zero; return their number."""
    logs = {node.name: LogPositions(state, node.name) for node in logs_read(state.plan.nodes)}
    if command.verb not in _RETRIES or not any(stored.stopped() for stored in logs.values()):
        return 0
    wanted = Filter(
        command.statuses or frozenset(), command.destination, command.source, command.document, reason=command.reason
    )
    with open_view(state.root, state.plan) as view:
        found = view.stopped(wanted)
    rows = [row for row in found if command.documents is None or row["origin"] in command.documents]
    if not rows:
        return 0
    number = state.wave + 1
    positions: dict[str, int] = {}
    for row in rows:
        positions |= logs[row["source"]].retry_transactions(row["partition"], passed=command.verb == SKIP)
    again = [{name: row[name] for name in (*EVENT_OF_ROW, "destination")} for row in rows]
    again = [{**row, "status": Status.RESTART.value, "message": command.message, "attempt": 0} for row in again]
    event_file = write_part(state.ledger.folder, events(again, wave=number, ordinal=ORDINAL_COMMAND), epoch=state.epoch)
    crash.point("command.staged")
    commit_wave(state, number, ledger=[event_file], positions=positions)
    settle(state, number, in_process)
    return len(rows)


def _commit_deletes(state: State, command: Command) -> None:
    """Commit and settle one wave with a delete for each extra record; if one arrived before, it is sent again.

    A delete that is in the outbox already is left out: the command was applied before, by a driver that was killed.
    """
    number = state.wave + 1
    earlier = _earlier_deletes(state, command.extra)
    deletes = [
        {**(earlier.get((each.document, each.destination)) or _delete_of(state, each)), "destination": each.destination}
        for each in command.extra
    ]
    waiting = set().union(*_find_in_outbox(state, {each["delivery_hash"] for each in deletes}).values())
    deletes = [each for each in deletes if each["delivery_hash"] not in waiting]
    if not deletes:
        return
    again = [each for each in deletes if (each["document"], each["destination"]) in earlier]
    again = [{**each, "status": Status.RESTART.value, "message": command.message, "attempt": 0} for each in again]
    ledger = []
    if again:
        table = events(again, wave=number, ordinal=ORDINAL_COMMAND)
        ledger.append(write_part(state.ledger.folder, table, epoch=state.epoch))
    crash.point("command.staged")
    commit_wave(state, number, outbox=_stage_deletes(state, deletes), ledger=ledger)
    settle(state, number, in_process)


def _stage_deletes(state: State, deletes: list[dict[str, Any]]) -> list[tuple[str, Part]]:
    """Write outbox rows for these deletes; return (destination, file)."""
    staged = []
    for destination in sorted({each["destination"] for each in deletes}):
        rows = [each for each in deletes if each["destination"] == destination]
        columns: dict[str, Any] = {name: [each[name] for each in rows] for name in EVENT_OF_ROW}
        writer = OutboxWriter(state.outbox.folder, epoch=state.epoch)
        writer.write(table_of(OUTBOX_FILE, len(rows), **columns, row=list(range(len(rows))), attempt=0, due=0))
        if (part := writer.finish()) is not None:
            staged.append((destination, part))
    return staged


def _lost_deletes(state: State, hashes: frozenset[str]) -> tuple[ExtraRecord, ...]:
    """Return those of these deliveries that are deletes, and the last that arrived of their document: a log has lost
    them. Nothing makes them again, because the document is gone. Left out are documents that are on their way again."""
    with open_view(state.root, state.plan) as view:
        found = view.rows(f"""
            SELECT document, destination FROM (
                SELECT * FROM ledger WHERE status = '{Status.INDEXED}'
                QUALIFY row_number() OVER (PARTITION BY document, destination ORDER BY wave DESC, ordinal DESC) = 1
            ) ANTI JOIN waiting USING (document, destination)
            WHERE operation = 'delete' AND delivery_hash IN {quote_list(hashes)}
        """)
    return tuple(ExtraRecord(each["document"], each["destination"]) for each in found)


def _earlier_deletes(state: State, records: Collection[ExtraRecord]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return (document, destination) -> the last delete that arrived there, as columns."""
    columns = ", ".join((*EVENT_OF_ROW, "destination"))
    with open_view(state.root, state.plan) as view:
        found = view.rows(f"""
            SELECT {columns} FROM ledger WHERE operation = 'delete' AND status = '{Status.INDEXED}'
                AND document IN {quote_list({record.document for record in records})}
                AND destination IN {quote_list({record.destination for record in records})}
            QUALIFY row_number() OVER (PARTITION BY document, destination ORDER BY wave DESC, ordinal DESC) = 1
        """)
    wanted = {(record.document, record.destination) for record in records}
    return {name: row for row in found if (name := (row["document"], row["destination"])) in wanted}


def _delete_of(state: State, record: ExtraRecord) -> dict[str, Any]:
    """Return the delete of a record that the ledger does not have, as columns."""
    hash_of = hasher(state.plan.name, state.plan.version, record.source, record.destination, record.route, "delete")
    return {
        "source": record.source,
        "document": record.document,
        "parent": None,
        "origin": record.document,
        "version": record.version,
        "revision": record.revision,
        "operation": "delete",
        "route": record.route,
        "branches": "",
        "delivery_hash": hash_of(record.document, record.version, record.revision),
    }


def _make_filter(command: Command) -> Filter:
    """Return the filter for the deliveries that a command affects; an empty set of statuses selects none."""
    concerned = command.definition.concerns
    statuses = concerned if command.statuses is None else concerned & command.statuses
    return Filter(statuses, command.destination, command.source, command.document, reason=command.reason)


def count_concerned(root: StatePath, plan: Plan, command: Command) -> int:
    """Count the deliveries that a command would concern now."""
    if not (query := _make_filter(command)).statuses:
        return 0
    return retry_read(root, lambda: _count(root, plan, query))


def _count(root: StatePath, plan: Plan, query: Filter) -> int:
    with open_view(root, plan, wanted=partial(query.selection, COUNTING_COLUMNS)) as view:
        return view.count_deliveries(query)


def _count_shares(state: State, command: Command) -> int:
    """Return the number of waves for a command, so that each wave's deliveries fit into memory."""
    if not (query := _make_filter(command)).statuses:
        return 0
    if command.deliveries is not None:
        return 1
    with open_view(state.root, state.plan, wanted=partial(query.selection, COUNTING_COLUMNS)) as view:
        most = view.count_events(query)
    return -(-most // limits.COMMAND_DELIVERIES)


def _select_deliveries(state: State, command: Command, share: tuple[int, int]) -> list[dict[str, Any]]:
    """Return one share of the deliveries that a command affects, as columns."""
    if command.deliveries is not None:
        return _select_missing(state, command.deliveries)
    query = _make_filter(command)
    with open_view(state.root, state.plan, wanted=query.selection) as view:
        selected = view.deliveries(query, share=share)
    if command.documents is not None:
        selected = [d for d in selected if d["origin"] in command.documents]
    if command.definition.whole_documents:
        once = read_once_sources(state.plan.nodes)
        selected = [
            d
            for d in selected
            if d["operation"] == "upsert" and not _is_closed_range(d, command) and d["source"] not in once
        ]
    return [{name: d[name] for name in (*EVENT_OF_ROW, "destination")} for d in selected]


def _select_missing(state: State, hashes: frozenset[str]) -> list[dict[str, Any]]:
    """Return deliveries that arrived and are to be made again, as columns.

    Left out are those of documents that were deleted at their source, and of members that their document does not have
    any more. A child that was not sent again when its document changed gets the document's revision, and so the hash of
    a new delivery.
    """
    columns = ", ".join((*EVENT_OF_ROW, "destination"))
    with open_view(state.root, state.plan) as view:
        found = view.rows(f"""
            SELECT {columns} FROM ledger
            WHERE status = '{Status.INDEXED}' AND operation = 'upsert' AND delivery_hash IN {quote_list(hashes)}
            QUALIFY row_number() OVER (PARTITION BY delivery_hash ORDER BY wave DESC, ordinal DESC) = 1
        """)
    names = {(each["source"], each["origin"]) for each in found}
    known = _current_rows(state, names)
    known += make_forced_rows(state, select_log_entries(state, names - set(map(_name_of, known))), state.wave)
    rows = {_name_of(row): row for row in known}
    selected = {}
    for each in found:
        row = rows.get((each["source"], each["origin"]))
        place = (each["document"][len(each["origin"]) :], each["route"], each["destination"])
        if row is None or place not in {published.place for published in decode_published(row["given"])}:
            continue
        identity = (each["source"], each["destination"], each["route"], each["operation"])
        digest = hasher(state.plan.name, state.plan.version, *identity)(
            each["document"], row["version"], row["revision"]
        )
        selected[digest] = {**each, "version": row["version"], "revision": row["revision"], "delivery_hash": digest}
    return list(selected.values())


def _is_closed_range(delivery: dict[str, Any], command: Command) -> bool:
    """Return whether the delivery stands for a range of log entries that has since been run entry by entry, or can no
    longer be read."""
    closed = delivery["status"] == Status.DROPPED or command.definition.documents is not DocumentsEffect.FORCED
    return closed and delivery["version"].startswith(RANGE)


def _one_per_document(chosen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one event row per document, which is about none of its deliveries: these keep their status until the
    document is read again."""
    by_document: dict[tuple[str, str], dict[str, Any]] = {}
    for c in chosen:
        origin = {**c, "document": c["origin"], "parent": None, "route": "", "branches": ""}
        by_document[c["source"], c["origin"]] = {**origin, "destination": "", "delivery_hash": ""}
    return list(by_document.values())


def _find_in_outbox(state: State, hashes: set[str]) -> dict[str, set[str]]:
    """Return outbox file -> those of the delivery hashes that it contains."""
    by_file = {}
    for path in state.outbox.files:
        column = read_part(state.outbox.path(path), ["delivery_hash"])["delivery_hash"]
        if hits := hashes.intersection(column.to_pylist()):
            by_file[path] = hits
    return by_file


def _rewrite_outbox_file(
    state: State, path: str, effect: OutboxEffect, hashes: set[str]
) -> tuple[str, DataFile | None]:
    """Write the replacement of an outbox file, in which these rows are removed, or due now with attempts from zero.

    Returns:
        The old file's path, and the new file, which is not yet committed; None if no rows are left.
    """
    file = state.outbox.files[path]
    wanted = pa.array(list(hashes), pa.string())
    writer = OutboxWriter(state.outbox.folder, epoch=state.epoch)
    for rows in row_groups(state.outbox.path(path)):
        concerned = pc.is_in(rows["delivery_hash"], value_set=wanted)
        if effect is OutboxEffect.REMOVED:
            writer.write(rows.filter(pc.invert(concerned)))
            continue
        changed = rows
        for column in ("attempt", "due"):
            at = rows.schema.get_field_index(column)
            changed = changed.set_column(at, column, pc.if_else(concerned, pa.scalar(0, pa.int64()), rows[column]))
        for column in ("since", "transient"):
            at = rows.schema.get_field_index(column)
            changed = changed.set_column(at, column, pc.if_else(concerned, pa.scalar(None, pa.int64()), rows[column]))
        writer.write(changed)
    part = writer.finish()
    return path, None if part is None else state.outbox.data_file(part, file.partition)


def _close_claims(state: State, in_outbox: dict[str, set[str]]) -> None:
    """Remove the claims on these rows: the operator's decision counts, and late results of workers are ignored."""
    for path, hashes in in_outbox.items():
        key = int(state.outbox.files[path].partition["first_sequence"])
        table = read_part(state.outbox.path(path), ["row", "delivery_hash"])
        rows = [r for r, h in zip(*(c.to_pylist() for c in table.columns), strict=True) if h in hashes]
        for number in state.journal.passes():
            for claim in state.journal.claims(number, key):
                if any(claim.first <= row < claim.end for row in rows):
                    state.journal.forget(number, claim)


def _write_document_rows(
    state: State, chosen: list[dict[str, Any]], number: int, effect: DocumentsEffect
) -> list[Part]:
    """Write ``documents`` rows that make the next scan process these deliveries, or their documents, again."""
    if not chosen or effect is DocumentsEffect.UNTOUCHED:
        return []
    wanted: dict[tuple[str, str], set[tuple[str, str, str]]] = defaultdict(set)
    for c in chosen:
        member = c["document"][len(c["origin"]) :]
        wanted[c["source"], _family_name(state, c)].add((member, c["destination"], c["route"]))
    rows = _current_rows(state, wanted.keys())
    if effect in (DocumentsEffect.FORCED, DocumentsEffect.MISSING):
        ranges = {(c["source"], c["origin"]) for c in chosen if c["version"].startswith(RANGE)}
        entries = select_log_entries(state, wanted.keys() - set(map(_name_of, rows)) - ranges)
        rows += make_forced_rows(state, entries, number)
    if not rows:
        return []
    columns: dict[str, Any] = {f.name: [row[f.name] for row in rows] for f in DOCUMENTS}
    columns |= {"wave": number, "forced": pa.array([effect is DocumentsEffect.FORCED] * len(rows))}
    if effect is DocumentsEffect.UNVERIFIED:
        columns |= {"fingerprint": ""}
    elif effect is DocumentsEffect.MISSING:
        missing = _missing_members(chosen)
        failures = [[*_other_failures(row, wanted[_name_of(row)]), *missing[_name_of(row)]] for row in rows]
        columns |= {"failed": list(map(encode_failures, failures)), "owed": list(map(count_open_deliveries, failures))}
        columns |= {"due": 0, "held": None}
    elif effect in (DocumentsEffect.DUE, DocumentsEffect.GIVEN_UP):  # forced documents are processed anyway
        change = _reopen_deliveries if effect is DocumentsEffect.DUE else _remove_deliveries
        names = zip(columns["source"], columns["document"], strict=True)
        failures = [
            [changed for f in decode_failures(text) if (changed := change(f, wanted[name])).owed]
            for name, text in zip(names, columns["failed"], strict=True)
        ]
        owed = [count_open_deliveries(each) for each in failures]
        columns |= {"owed": owed, "failed": [encode_failures(each) for each in failures]}
        if effect is DocumentsEffect.DUE:
            columns |= {"due": 0, "held": None}
    return [write_part(state.documents.folder, table_of(DOCUMENTS, len(rows), **columns), epoch=state.epoch)]


def _current_rows(state: State, names: Collection[DocumentKey]) -> list[dict[str, Any]]:
    """Return the rows of those of these documents that are not deleted."""
    with connect(state.local_scratch) as db:
        register(db, "documents", state.documents.paths(), DOCUMENTS)
        db.register("wanted", pa.table({"source": [s for s, _ in names], "document": [d for _, d in names]}))
        rows = db.execute("""
            SELECT * FROM (
                SELECT d.* FROM documents d SEMI JOIN wanted w ON d.source = w.source AND d.document = w.document
                QUALIFY row_number() OVER (PARTITION BY d.source, d.document ORDER BY wave DESC) = 1
            ) WHERE operation = 'upsert'
        """).fetchall()  # a deleted document cannot be read again
    return [dict(zip(DOCUMENTS.names, row, strict=True)) for row in rows]


def _name_of(row: dict[str, Any]) -> DocumentKey:
    return row["source"], row["document"]


def _other_failures(row: dict[str, Any], wanted: set[tuple[str, str, str]]) -> list[FailedMember]:
    """Return the failures of a row of ``documents`` without these deliveries, which may be due from an earlier
    repair."""
    kept = [_remove_deliveries(failure, wanted) for failure in decode_failures(row["failed"])]
    return [failure for failure in kept if failure.owed]


def _missing_members(chosen: list[dict[str, Any]]) -> dict[DocumentKey, list[FailedMember]]:
    """Return document -> failures at destinations, from which a retry continues for these deliveries alone."""
    missing = defaultdict(list)
    for c in chosen:
        owed = [MissingDelivery(c["destination"], c["route"], 0)]
        member = c["document"][len(c["origin"]) :]
        missing[c["source"], c["origin"]].append(
            FailedMember(member, c["destination"], c["route"], c["branches"], owed)
        )
    return missing


def _remove_deliveries(failure: FailedMember, wanted: set[tuple[str, str, str]]) -> FailedMember:
    """Return the failure without these deliveries."""
    owed = [o for o in failure.owed if (failure.member, *o.end) not in wanted]
    return FailedMember(failure.member, failure.node, failure.route, failure.branches, owed)


def _family_name(state: State, delivery: dict[str, Any]) -> str:
    """Return the name of the delivery's family in ``documents``."""
    exported = delivery["source"] in {node.name for node in keyed_nodes(state.plan.nodes)}
    return export_name(delivery["revision"]) if exported else delivery["origin"]


def _reopen_deliveries(failure: FailedMember, wanted: set[tuple[str, str, str]]) -> FailedMember:
    """Return the failure with these deliveries, (member, destination, route), pending again from attempt zero."""
    owed = [MissingDelivery(*o.end, 0, True) if (failure.member, *o.end) in wanted else o for o in failure.owed]
    return FailedMember(failure.member, failure.node, failure.route, failure.branches, owed)


# Log entries that an operator wants read again although they succeeded. ``documents`` has no rows for them, so rows are
# made from their deliveries.

_COLUMNS: Final = ("source", "origin", "document", "version", "revision", "operation", "route", "destination")


def select_log_entries(state: State, names: Collection[DocumentKey]) -> list[DocumentKey]:
    """Return those of the documents that are log entries."""
    logs = {n.name for n in logs_read(state.plan.nodes)}
    return [name for name in names if name[0] in logs]


def make_forced_rows(state: State, names: Collection[DocumentKey], wave: int) -> list[dict[str, Any]]:
    """Return rows of ``documents`` that make the next scan read these entries as new revisions."""
    deliveries: dict[DocumentKey, list[dict[str, Any]]] = defaultdict(list)
    for row in _latest_deliveries(state, names) if names else ():
        deliveries[row["source"], row["origin"]].append(row)
    return [_forced_row(name, deliveries[name], wave) for name in names if name in deliveries]


def _forced_row(name: DocumentKey, deliveries: list[dict[str, Any]], wave: int) -> dict[str, Any]:
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


def _latest_deliveries(state: State, names: Collection[DocumentKey]) -> list[dict[str, Any]]:
    """Return all deliveries of these entries by their latest events; ``published``: an upsert was committed for the
    destination."""
    columns = ", ".join(_COLUMNS)
    among = f"source IN {quote_list({s for s, _ in names})} AND origin IN {quote_list([d for _, d in names])}"
    with open_view(state.root, state.plan) as view:
        return view.rows(f"""
            SELECT {columns}, happened,
                status = '{Status.INDEXED}' OR delivery_hash IN (SELECT delivery_hash FROM waiting WHERE {among})
                AS published
            FROM (
                SELECT {columns}, delivery_hash, max({EVENT_ORDER}) AS happened,
                    arg_max(status, {EVENT_ORDER}) AS status
                FROM ledger WHERE destination <> '' AND {among} GROUP BY {columns}, delivery_hash
                UNION ALL
                SELECT {columns}, delivery_hash, wave * 4 + 3, status FROM unsent WHERE {among}
            )
        """)
