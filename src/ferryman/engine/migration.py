"""Migration: a new version of a plan continues from the state of an older one.

``migrate`` builds the new state. ``finish`` is its first wave: rows for removed destinations are dropped, and documents
whose path has changed are read again. ``migration.json`` exists until that is done; it may be done twice.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa

from ferryman import crash
from ferryman.engine import commands
from ferryman.engine.at_most_once import recover_once_wave
from ferryman.engine.commit import commit_wave
from ferryman.engine.settle import in_process, settle
from ferryman.engine.transform.once_reader import doubt_notes
from ferryman.errors import StateDamaged, UsageError
from ferryman.limits import format_count, plural
from ferryman.plan import (
    KeyedNode,
    Plan,
    changed_sources,
    keyed_nodes,
    logs_of_versions,
    logs_read,
    read_once_sources,
    sources_of,
    structure,
    upstream_sources,
)
from ferryman.plan.structure import DELIVERED_KINDS, Structure, is_version, keyed_node_names, reachable_destinations
from ferryman.records.families import was_published_sql
from ferryman.records.keys import FOLDER, FORGOTTEN, PUBLISHED, feed_id, lanes, place_id
from ferryman.records.rows import DOCUMENTS, EVENT_OF_ROW, LEDGER, ORDINAL_COMMAND, OUTBOX_SMALL, Status, table_of
from ferryman.sources import Log
from ferryman.state.commands import queued_commands
from ferryman.state.keyed import MERGED
from ferryman.state.logs import RANGES, LogPositions, counted_and_failed, reader_name, unfinished_work
from ferryman.state.maintenance import chosen_rows_by_file, last_rows, rows_by_document
from ferryman.state.source_memory import copy_memories
from ferryman.state.state import (
    IDENTITY,
    MIGRATED,
    MIGRATION,
    MISSED,
    NOTIFIED,
    SEQUENCE,
    SETTLED,
    TARGETS,
    VERIFIED,
    WAVE,
    State,
    record_missed_entries,
    sender_of,
    stream_files,
)
from ferryman.state.targets import Target
from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.locks import take_lock
from ferryman.storage.parquet import Part, PartWriter, RowGroups, read_part, write_part
from ferryman.storage.query import connect, quote_list, verify
from ferryman.storage.tables import Table, copy_table


def is_pending(state: State) -> bool:
    """Return whether ``finish`` is still to be done."""
    return files.exists(state.root / MIGRATION)


def finish(state: State) -> str:
    """Run the new state's first wave, and return a line about what it did."""
    before, after = state.recorded_structure(), structure(state.plan)
    older: Any = files.unseal(state.root / MIGRATION)
    why = f"plan version {state.plan.version} continues from version {older['from']}"
    number = state.wave + 1
    removed = [name for name, node in before.items() if node.kind in DELIVERED_KINDS and name not in after]
    paths = [f.path for f in state.outbox.files.values() if f.partition["destination"] in removed]
    dropped = [_drop_events(state, path, number, why) for path in paths]
    parts = [write_part(state.ledger.folder, table, epoch=state.epoch) for table in dropped if table.num_rows]
    condition = _reprocess_condition(state.plan, before, after)
    staged, restart_parts = _stage_reprocessing(state, condition, number, why)
    parts += restart_parts
    crash.point("version.staged")
    if parts or staged:
        commit_wave(state, number, documents=staged, ledger=parts, replaced=[(path, None) for path in paths])
        settle(state, number, in_process)
        state.retire(state.outbox, paths)
    record_missed_entries(state.root, before, after, state.outbox.log.transactions)
    state.record_structure(after)
    files.remove(state.root / MIGRATION)
    files.fsync_folder(state.root)
    crash.point("version.adopted")
    rows = sum(t.num_rows for t in dropped)
    ended = (
        f"; dropped {plural(rows, 'row', 'rows')} for {', '.join(removed)}, which the plan no longer has"
        if rows
        else ""
    )
    many = sum(part.rows for part in staged)
    what = f"{format_count(many)} documents are processed again because their path has changed or they"
    one = "1 document is processed again because its path has changed or it"
    keys = "".join(f"; {each}" for each in _describe_keyed_nodes(state, before, after))
    return f"{why}: {one if many == 1 else what} had failed{ended}{keys}"


def _reprocess_condition(plan: Plan, before: Structure, after: Structure) -> str:
    """Return an SQL condition on rows of ``documents`` that selects the documents to read again.

    These are all documents of sources whose paths have changed, and all documents that had failed, since the hashes of
    their deliveries are different now. Not selected are log entries that a keyed node has counted, and exports of keyed
    nodes, which must not be processed twice; and what else went through of a log, which is not read again.
    """
    keyed = keyed_node_names(before) | keyed_node_names(after)
    sources = set(changed_sources(before, after)) - logs_of_versions(plan.nodes)
    once = quote_list(read_once_sources(plan.nodes) - keyed)
    counted = " OR ".join(map(was_published_sql, sorted(keyed))) or "false"
    return (
        f"operation = 'upsert' AND source NOT IN (SELECT unnest({quote_list(keyed)})) AND CASE "
        f"WHEN source IN (SELECT unnest({once})) THEN failed IS NOT NULL AND NOT ({counted}) "
        f"ELSE failed IS NOT NULL OR source IN (SELECT unnest({quote_list(sources)})) END"
    )


def _describe_keyed_nodes(state: State, before: Structure, after: Structure) -> Iterator[str]:
    """Yield a message for each keyed node: which log entries it has missed, and what it continues with."""
    for node in keyed_nodes(state.plan.nodes):
        above = [s.name for s in upstream_sources(node, state.plan.nodes) if isinstance(s.source, Log)]
        before_node = before.get(node.name)
        new = [
            name
            for name in above
            if LogPositions(state, name).was_read and node.name not in reachable_destinations(before, name)
        ]
        if new:
            yield f"{node.name} counts what comes from now on in {', '.join(new)}, of which entries were read before"
        if before_node is not None and before_node.changed_parts(after[node.name]):
            yield f"{node.name} has changed, and its states stay what they are: it changes them from now on"


def _drop_events(state: State, path: str, number: int, why: str) -> pa.Table:
    """Return the events that drop all rows of an outbox file, whose destination was removed."""
    rows = read_part(state.outbox.path(path), OUTBOX_SMALL)
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


def _stage_reprocessing(state: State, condition: str, number: int, why: str) -> tuple[list[Part], list[Part]]:
    """Write ``documents`` rows that make the next scan read documents as new revisions, and their events.

    Args:
        condition: SQL on the last row of a document.

    Returns:
        Files of ``documents``, files of the ledger.
    """
    extra_columns = {"again": (f"({condition}) IS TRUE", pa.bool_())}
    files = list(state.documents.files.values())
    paths = state.documents.paths(file.path for file in files)
    masks = [np.zeros(file.rows, bool) for file in files]
    verify(paths)
    with tempfile.TemporaryDirectory(dir=state.local_scratch) as folder, connect(Path(folder)) as db:
        for last in map(
            last_rows, rows_by_document(db, paths, sum(file.rows for file in files), Path(folder), extra_columns)
        ):
            for number_of_file, rows in chosen_rows_by_file(last, last["again"]):
                masks[number_of_file][rows] = True
    staged, events = [], []
    for path, mask in zip(paths, masks, strict=True):
        if mask.any():
            documents_writer, events_writer = (
                PartWriter(state.documents.folder, DOCUMENTS, epoch=state.epoch),
                PartWriter(state.ledger.folder, LEDGER, epoch=state.epoch),
            )
            with RowGroups(str(path), DOCUMENTS.names, verified=True) as file:
                for rows in file.rows_at(np.flatnonzero(mask)):
                    forced = _forced_rows(rows, number)
                    documents_writer.write(forced)
                    events_writer.write(_restart_events(forced, why))
            staged.append(documents_writer.finish())
            events.append(events_writer.finish())
    return staged, events


def _forced_rows(rows: pa.Table, wave: int) -> pa.Table:
    columns = {f.name: rows[f.name].cast(f.type) for f in DOCUMENTS}
    return table_of(DOCUMENTS, rows.num_rows, **{**columns, "wave": wave, "forced": pa.array([True] * rows.num_rows)})


def _restart_events(documents: pa.Table, why: str) -> pa.Table:
    """Return one event per document, which is about none of its deliveries: these keep their status until the document
    is read again."""
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


# Migration of keyed nodes.
#
# A keyed node that exists in both versions keeps its states, the contributions of documents, and the numbering of its
# exports. Documents whose path has changed are read again and replace their contributions. That is correct only if
# nothing is pending at the node or downstream of it, and if the new version of the node can subtract what is in its
# state.


def refuse_incompatible(old: State, plan: Plan, *, fenced: bool) -> None:
    """Refuse a migration after which the states of keyed nodes could be wrong.

    Args:
        old: the older version's state; it must be settled.
        fenced: whether an earlier attempt has fenced that state for this version, which it does only when nothing is
            pending.

    Raises:
        UsageError: the migration is refused, with the reasons; nothing was changed.
    """
    before = old.recorded_structure()
    keyed = keyed_node_names(before)
    if not keyed and not keyed_nodes(plan.nodes):
        return
    version = old.plan.version
    if problems := [*_find_incompatibilities(old, plan, before, version)]:
        raise UsageError("\n".join(f"--from-version {version}: {each}" for each in problems))
    if fenced or not keyed:
        return
    logs = [name for name in read_once_sources(plan.nodes) if name not in keyed]
    unfinished = [*unfinished_work(old, keyed, before), *counted_and_failed(old, logs, keyed)]
    unfinished += [
        f"`{command.verb}` by {command.who} is queued, and was not carried out" for command in queued_commands(old)
    ]
    if unfinished:
        raise UsageError(
            f"--from-version {version}: this plan keeps state by key, and version {version} is not done with what it "
            f"was given:\n  " + "\n  ".join(unfinished) + f"\nRun version {version} to its end first; retry what has "
            "failed, or give it up with `ferryman resolve PLAN --as dropped`. Nothing was changed."
        )


def shared_keyed_nodes(old: State, plan: Plan) -> list[KeyedNode]:
    """Return the keyed nodes that both versions have."""
    had = keyed_node_names(old.recorded_structure())
    return [node for node in keyed_nodes(plan.nodes) if node.name in had]


def keyed_identity(old: State, plan: Plan) -> dict[str, Any]:
    """Return what the new state stores about keyed nodes: the names under which readers of the older version know their
    changes, and the names of all keyed nodes that ever existed, since places of exports are never reused."""
    return {
        "feeds": {node.name: feed_id(old.root, node.name) for node in shared_keyed_nodes(old, plan)},
        "keyed": sorted(all_keyed_names(old)),
    }


def all_keyed_names(old: State) -> set[str]:
    """Return the names of all keyed nodes of this version and all earlier ones."""
    return keyed_node_names(old.recorded_structure()).union(old.identity().get("keyed", ()))


def copy_keyed_tables(old: State, new: State) -> None:
    """Copy the tables of keyed nodes that both versions have, in one commit per table.

    All exports have been processed, so only the next places are copied, also for nodes that only older versions had.
    """
    both = {node.name for node in shared_keyed_nodes(old, new.plan)}
    for node in keyed_nodes(new.plan.nodes):
        new_tables = new.keyed[node.name]
        places = LogPositions(old, node.name).places({"": ""}, {"": lanes()})
        numbers = {place_id(lane): place for lane, place in places.items() if place}
        if node.name in both:
            old_tables = old.keyed[node.name]
            numbers = {place_id(lane): old_tables.exports.transaction(place_id(lane)) for lane in lanes()}
            _copy_table(old_tables.state, new_tables.state, (PUBLISHED, MERGED, FORGOTTEN))
            _copy_table(old_tables.contributions, new_tables.contributions, (PUBLISHED, MERGED))
            numbers[PUBLISHED] = old_tables.exports.transaction(PUBLISHED)
            readers = old.root / FOLDER / node.name
            for name in files.list_names(readers):  # keep deletions that readers have not read yet
                files.make_folder(new.root / FOLDER / node.name)
                files.publish(new.root / FOLDER / node.name / name, files.read(readers / name))
        if any(numbers.values()):
            new_tables.exports.commit(
                "version", transactions={key: number for key, number in numbers.items() if number}
            )


def _copy_table(source: Table, target: Table, applications: Iterable[str]) -> None:
    numbers = {each: source.transaction(each) for each in applications}
    copy_table(source, target, {key: number for key, number in numbers.items() if number})


def _find_incompatibilities(old: State, plan: Plan, before: Structure, version: int) -> Iterator[str]:
    """Yield the reasons why the keyed nodes of the two plans are incompatible."""
    after, ever_keyed = structure(plan), all_keyed_names(old)
    for name in sorted(after):
        was_keyed = name in ever_keyed and (name not in before or before[name].kind == "keyed")
        if (name in before or was_keyed) and was_keyed != (after[name].kind == "keyed"):
            was = "keyed" if was_keyed else before[name].kind
            yield f"{name} is a {after[name].kind} node now, and was a {was} node before: give it another name."
    documents = {n.name for n in sources_of(plan.nodes) if not isinstance(n.source, Log)}
    for node in shared_keyed_nodes(old, plan):
        changed = [part for part in before[node.name].changed_parts(after[node.name]) if not is_version(part)]
        if changed and old.keyed[node.name].contributions.files:
            yield (
                f"{node.name}: its update or key has changed since version {version}, and what the older one has made "
                "of documents could not be taken back by the newer one. Give the node another name: then it counts "
                "all documents from scratch. Or leave out --from-version."
            )
        if unlisted := _find_unlisted_sources(old, node.name, documents):
            yield (
                f"{node.name}: has counted documents of {', '.join(unlisted)}, of which this version would never hear "
                "again: they would stay counted. Give the node another name: then it counts all documents "
                "from scratch. Or leave out --from-version."
            )


def _find_unlisted_sources(old: State, node: str, documents: set[str]) -> list[str]:
    """Return the sources that a keyed node's state contains documents of, and that the new plan does not list."""
    table = old.keyed[node].contributions
    if not table.files:
        return []
    rows = f"read_parquet({quote_list(map(str, table.paths()))})"
    with connect(old.local_scratch) as db:
        sources = {source for (source,) in db.execute(f"SELECT DISTINCT source FROM {rows}").fetchall()}
        if not (unlisted := sources - documents):
            return []
        rest = db.execute(f"""
            SELECT DISTINCT source FROM (
                SELECT source, fields FROM {rows} WHERE source IN (SELECT unnest({quote_list(unlisted)}))
                QUALIFY row_number() OVER (PARTITION BY source, document, key ORDER BY wave DESC) = 1
            ) WHERE fields IS NOT NULL ORDER BY source
        """).fetchall()
    return [source for (source,) in rest]


# Building the new state. ``migrate`` does this before anything runs:
#
# 1. become the older state's driver, and finish what its last driver left unfinished
# 2. fence it, so that nobody can drive it any more
# 3. build the new state, except state.json, from the older state's data files and its positions in logs
# 4. write state.json, which completes the new state; until then the older state is held, so that only one process does
#    all this
#
# After a crash before step 4, the same command continues; after step 2, only this version may migrate from the older
# state. Nothing is removed meanwhile, since a process that was suspended might remove files that are in use.


def migrate(root: StatePath, plan: Plan, from_version: int) -> None:
    """Create the state of a plan from that of an older version; do nothing if that was done before.

    Raises:
        UsageError: there is no such state, it is not older, this version already has a state of its own, or a state by
            key cannot be carried over.
        StateHeld, StateDamaged, StateForeign: raised for the older state, or the new state's path is taken by something
            else.
    """
    older = Plan(plan.name, from_version)
    older_root = root.parent / older.key
    if from_version >= plan.version:
        raise UsageError(f"--from-version {from_version}: this is version {plan.version}: give an older one.")
    if files.exists(root / IDENTITY):
        if State(root, plan).identity().get("from") != from_version:
            raise UsageError(
                f"{root}: version {plan.version} has a state of its own. To continue with it, leave out --from-version."
            )
        return
    if not files.exists(older_root / IDENTITY):
        raise UsageError(f"{older_root}: there is no state of version {from_version}. Give the version that ran here.")
    State(root, plan).refuse_foreign_folder()
    with State.take(older_root, older, successor=plan.version) as old:  # 1
        if files.exists(root / IDENTITY):  # another process was faster
            return
        if old.wave > old.settled:
            settle(old, old.wave, in_process, plan)
        recover_once_wave(old, in_process, lambda _, split, notes: doubt_notes(split, notes), plan)
        fenced = files.exists(old.root / MIGRATED)
        refuse_incompatible(old, plan, fenced=fenced)
        if not keyed_node_names(old.recorded_structure()):  # with them, refused if any is queued
            for command in queued_commands(old):
                commands.apply(old, command)
        old.check_ownership()
        old.close_for_version(plan.version)  # 2
        crash.point("version.fenced")
        old.check_ownership()  # a driver that announces itself after this finds the state closed
        _create_state(old, State(root, plan), from_version)


def _create_state(old: State, new: State, from_version: int) -> None:
    files.make_folder(new.root)
    lock = take_lock(new.root / "lock")
    try:
        if new.exists:
            raise _already_created(new)
        _build(old, new, from_version)  # 3
        crash.point("version.built")
        new.publish_identity()  # 4
    finally:
        lock.release()


def _build(old: State, new: State, from_version: int) -> None:
    """Create the new state's folder, and fill it with the older one's data files, in one commit per table.
    Idempotent."""
    readers = [
        reader_name(old, name)
        for name, node in old.recorded_structure().items()
        if node.kind in ("source", "join", "alts")
    ]
    sender = sender_of(old.root)._asdict()
    identity = {"from": from_version, "readers": readers, "sender": sender, **keyed_identity(old, new.plan)}
    wave = old.wave
    new.create(identity, recorded=old.recorded_structure(), publish=False)
    new.journal.close(wave)
    new.load()
    files.publish(new.root / MIGRATION, files.seal({"from": from_version}))
    new.announce_epoch(after=old.epoch)  # the copied files are named after the older state's epochs
    if new.exists:  # another process created it while this one slept; from now on one of the two can commit
        raise _already_created(new)
    numbers = {SETTLED: wave}
    copy_table(old.ledger, new.ledger, numbers)
    copy_table(old.documents, new.documents, numbers)
    copy_keyed_tables(old, new)
    sequence = max(old.next_sequence, new.next_sequence)
    memories = copy_memories(old, new, [node.name for node in sources_of(new.plan.nodes)])
    transactions = {**numbers, WAVE: wave, SEQUENCE: sequence, **_log_transactions(old, new.plan), **memories}
    copy_table(old.outbox, new.outbox, transactions)
    for name in (NOTIFIED, MISSED):  # wave numbers continue, so that nobody is notified of old failures again
        if files.exists(recorded := old.root / name):
            files.publish(new.root / name, files.read(recorded))
    for name in stream_files(old.root):
        files.make_folder((new.root / name).parent)
        files.replace(new.root / name, files.read(old.root / name))
    for name in (TARGETS, VERIFIED):
        if files.exists(old.root / name):
            files.publish(new.root / name, _records_of_kept_targets(old, new, name))


def _records_of_kept_targets(old: State, new: State, name: str) -> bytes:
    """Return a file with what is recorded of each destination's target. Of those that write to another target now,
    nothing is kept but the wave: all documents are processed again for them, so what was in the older target says
    nothing."""
    try:
        recorded = cast("dict[str, object]", files.unseal(old.root / name))
    except StateDamaged:  # `fsck` reports it
        return files.read(old.root / name)
    before, after = old.recorded_structure(), structure(new.plan)
    moved = {each for each in before if each in after and before[each].target != after[each].target}
    kept = {each: record for each, record in recorded.items() if each not in moved}
    if name == TARGETS:
        kept |= {each: msgspec.to_builtins(Target(wave=old.wave)) for each in moved}
    return files.seal(kept)


def _log_transactions(old: State, plan: Plan) -> dict[str, int]:
    """Return application transactions with the older version's positions in those logs that this version reads under
    the same names.

    The logs themselves are not accessed, so one that is unavailable now is later read from its old position.
    """
    names = {node.name for node in logs_read(plan.nodes)} | all_keyed_names(old)
    logs = [LogPositions(old, name) for name in sorted(names)]
    transactions = {key: number for log in logs for key, number in log.all_transactions().items()}
    return {**transactions, RANGES: ranges} if (ranges := old.outbox.transaction(RANGES)) else transactions


def _already_created(new: State) -> UsageError:
    return UsageError(f"{new.root}: version {new.plan.version} was given a state by another run just now.")
