"""The first wave of a state that continues from an older version's (see ``operations.migrate``).

Rows for destinations that are not in the plan any more are dropped, and documents whose way has changed are read again.
Until this is through, ``migration.json`` says that it is to be done; it may be done twice.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferryman import crash
from ferryman.engine import commands
from ferryman.engine.commit import commit_wave
from ferryman.engine.once import recover_intake
from ferryman.engine.settle import in_process, settle
from ferryman.errors import UsageError
from ferryman.plan import KeyedNode, Plan, changed_sources, keyed_nodes, logs_read, sources_of, structure
from ferryman.plan.keyed import counted_once, sources_above
from ferryman.plan.structure import DELIVERED, Structure, keyed_of, reached
from ferryman.records.families import had_sql
from ferryman.records.keys import FOLDER, FORGOTTEN, PUBLISHED, feed_of, lanes, place_id
from ferryman.records.rows import DOCUMENTS, EVENT_OF_ROW, LEDGER, ORDINAL_COMMAND, OUTBOX_KEPT, Status, table_of
from ferryman.sources import Log
from ferryman.state.commands import queued_commands
from ferryman.state.keyed import MERGED
from ferryman.state.logs import RANGES, LogPositions, counted_and_failed, reader_name, unfinished_work
from ferryman.state.maintenance import chosen_rows_by_file, last_rows, rows_by_document
from ferryman.state.state import (
    IDENTITY,
    MIGRATED,
    MIGRATION,
    MISSED,
    NOTIFIED,
    SEQUENCE,
    SETTLED,
    WAVE,
    State,
    record_missed_entries,
    sender_of,
)
from ferryman.storage import files
from ferryman.storage import files as seals
from ferryman.storage.files import StatePath
from ferryman.storage.locks import take_lock
from ferryman.storage.parquet import Part, PartWriter, RowGroups, read_part, write_part
from ferryman.storage.query import connect, quote_list, verify
from ferryman.storage.tables import Table, copy_table


def is_pending(state: State) -> bool:
    """Return whether ``finish`` is still to be done."""
    return files.exists(state.root / MIGRATION)


def finish(state: State) -> str:
    """The new state's first wave; what it did, in one line."""
    before, after = state.recorded_structure(), structure(state.plan)
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
    record_missed_entries(state.root, before, after, state.outbox.log.transactions)
    state.record_structure(after)
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
    once = quote_list(counted_once(plan.nodes) - keyed)
    counted = " OR ".join(map(had_sql, sorted(keyed))) or "false"
    return (
        f"operation = 'upsert' AND source NOT IN (SELECT unnest({quote_list(keyed)})) AND CASE "
        f"WHEN source IN (SELECT unnest({once})) THEN failed IS NOT NULL AND NOT ({counted}) "
        f"ELSE failed IS NOT NULL OR source IN (SELECT unnest({quote_list(sources)})) END"
    )


def _of_keys(state: State, before: Structure, after: Structure) -> Iterator[str]:
    """Yield a line for each keyed node: what it has not received of logs, and what it continues with."""
    for node in keyed_nodes(state.plan.nodes):
        above = [s.name for s in sources_above(node, state.plan.nodes) if isinstance(s.source, Log)]
        known = before.get(node.name)
        new = [name for name in above if LogPositions(state, name).was_read and node.name not in reached(before, name)]
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
    with tempfile.TemporaryDirectory(dir=state.local_scratch) as folder, connect(Path(folder)) as db:
        for last in map(last_rows, rows_by_document(db, paths, sum(file.rows for file in files), Path(folder), more)):
            for number_of_file, rows in chosen_rows_by_file(last, last["again"]):
                wanted[number_of_file][rows] = True
    staged, events = [], []
    for path, mask in zip(paths, wanted, strict=True):
        if mask.any():
            documents, restarted = (
                PartWriter(state.documents.folder, DOCUMENTS, epoch=state.epoch),
                PartWriter(state.ledger.folder, LEDGER, epoch=state.epoch),
            )
            with RowGroups(str(path), DOCUMENTS.names, verified=True) as file:
                for rows in file.rows_at(np.flatnonzero(mask)):
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


# State by key when a new version continues from an older one: what can be carried over, and how it is.
#
# A keyed node that both versions have keeps its states, what it was given of documents, and the numbers of its
# exports. The documents whose way has changed are read again and replace what they were. That is right only where
# nothing is under way at the node or below it, and where what is in its state can be taken out again by the node as it
# is now.


def refuse_unfit(old: State, plan: Plan, *, begun: bool) -> None:
    """Refuse what could not be right.

    Args:
        old: the older state, settled.
        begun: it was fenced for this version before, when nothing was waiting.

    Raises:
        UsageError: why; nothing was changed.
    """
    before = old.recorded_structure()
    keyed = keyed_of(before)
    if not keyed and not keyed_nodes(plan.nodes):
        return
    version = old.plan.version
    if bad := [*_unlike(old, plan, before, version)]:
        raise UsageError("\n".join(f"--from-version {version}: {each}" for each in bad))
    if begun or not keyed:
        return
    logs = [name for name in counted_once(plan.nodes) if name not in keyed]
    found = [*unfinished_work(old, keyed, before), *counted_and_failed(old, logs, keyed)]
    found += [
        f"`{command.verb}` by {command.who} is queued, and was not carried out" for command in queued_commands(old)
    ]
    if found:
        raise UsageError(
            f"--from-version {version}: this plan keeps state by key, and version {version} is not done with what it "
            f"was given:\n  " + "\n  ".join(found) + f"\nRun version {version} to its end first; retry what has "
            "failed, or give it up with `ferryman resolve --as dropped`. Nothing was changed."
        )


def carried_nodes(old: State, plan: Plan) -> list[KeyedNode]:
    """Keyed nodes that both versions have."""
    had = keyed_of(old.recorded_structure())
    return [node for node in keyed_nodes(plan.nodes) if node.name in had]


def remembered_of(old: State, plan: Plan) -> dict[str, Any]:
    """Return what the new state stores about keyed nodes: the names under which readers of the older version know a
    node's changes, and all keyed nodes that ever existed, since places of exports are used once."""
    return {
        "feeds": {node.name: feed_of(old.root, node.name) for node in carried_nodes(old, plan)},
        "keyed": sorted(ever_keyed(old)),
    }


def ever_keyed(old: State) -> set[str]:
    """The keyed nodes of this version and of those before it."""
    return keyed_of(old.recorded_structure()).union(old.identity().get("keyed", ()))


def carry(old: State, new: State) -> None:
    """Fill the tables of the nodes that both versions have; one commit a table. Exports have all been carried on: only
    their places are kept, also for a node that comes back."""
    both = {node.name for node in carried_nodes(old, new.plan)}
    for node in keyed_nodes(new.plan.nodes):
        ours = new.keyed[node.name]
        places = LogPositions(old, node.name).places({"": ""}, {"": lanes()})
        numbers = {place_id(lane): place for lane, place in places.items() if place}
        if node.name in both:
            theirs = old.keyed[node.name]
            numbers = {place_id(lane): theirs.exports.transaction(place_id(lane)) for lane in lanes()}
            _copy(theirs.state, ours.state, (PUBLISHED, MERGED, FORGOTTEN))
            _copy(theirs.contributions, ours.contributions, (PUBLISHED, MERGED))
            numbers[PUBLISHED] = theirs.exports.transaction(PUBLISHED)
            readers = old.root / FOLDER / node.name
            for name in files.list_names(readers):  # what they have not had of deletions is kept
                files.make_folder(new.root / FOLDER / node.name)
                files.publish(new.root / FOLDER / node.name / name, files.read(readers / name))
        if any(numbers.values()):
            ours.exports.commit("version", transactions={key: number for key, number in numbers.items() if number})


def _copy(source: Table, target: Table, applications: Iterable[str]) -> None:
    numbers = {each: source.transaction(each) for each in applications}
    copy_table(source, target, {key: number for key, number in numbers.items() if number})


def _unlike(old: State, plan: Plan, before: Structure, version: int) -> Iterator[str]:
    """Yield the contradictions between the two plans."""
    after, ever = structure(plan), ever_keyed(old)
    for name in sorted(after):
        was_keyed = name in ever and (name not in before or before[name].kind == "keyed")
        if (name in before or was_keyed) and was_keyed != (after[name].kind == "keyed"):
            was = "keyed" if was_keyed else before[name].kind
            yield f"{name} is a {after[name].kind} node now, and was a {was} node before: give it another name."
    documents = {n.name for n in sources_of(plan.nodes) if not isinstance(n.source, Log)}
    for node in carried_nodes(old, plan):
        if before[node.name].code != after[node.name].code and old.keyed[node.name].contributions.files:
            yield (
                f"{node.name}: its update or key has changed since version {version}, and what the older one has made "
                "of documents could not be taken back by the newer one. Give the node another name: then it counts "
                "all documents from scratch. Or leave out --from-version."
            )
        if left := _left_behind(old, node.name, documents):
            yield (
                f"{node.name}: has counted documents of {', '.join(left)}, of which this version would never hear "
                "again: they would stay counted. Give the node another name: then it counts all documents "
                "from scratch. Or leave out --from-version."
            )


def _left_behind(old: State, node: str, documents: set[str]) -> list[str]:
    """Sources of which the node has documents, and that the new plan does not list."""
    table = old.keyed[node].contributions
    if not table.files:
        return []
    rows = f"read_parquet({quote_list(map(str, table.paths()))})"
    with connect(old.local_scratch) as db:
        known = {source for (source,) in db.execute(f"SELECT DISTINCT source FROM {rows}").fetchall()}
        if not (gone := known - documents):
            return []
        found = db.execute(f"""
            SELECT DISTINCT source FROM (
                SELECT source, fields FROM {rows} WHERE source IN (SELECT unnest({quote_list(gone)}))
                QUALIFY row_number() OVER (PARTITION BY source, document, key ORDER BY wave DESC) = 1
            ) WHERE fields IS NOT NULL ORDER BY source
        """).fetchall()
    return [source for (source,) in found]


# A new version of a plan continues from the state of an older one, and from its deliveries.
#
# ``migrate`` makes the new state, before anything runs:
#
# 1. become the older state's driver, and finish what it left
# 2. fence it: from now on nobody drives it any more
# 3. build the new state in its place, but for state.json, with the older one's data files and its positions in logs
# 4. give it its state.json, which makes it one; until then the older state is held, so that only one makes it
#
# A crash before 4 leaves what the same command builds on; and, after 2, a state from which only this version may
# migrate. Nothing is removed on the way: a run that slept meanwhile might remove what is in use. The first wave of the
# new state is ``engine.migration``'s.


def migrate(root: StatePath, plan: Plan, from_version: int) -> None:
    """Make the state of a plan from the one of an older version; nothing if that was done before.

    Raises:
        UsageError: there is no such state, it is not an older one, this version has a state of its own, or a state by
            key cannot be carried over.
        StateHeld, StateDamaged, StateForeign: of the older state, or what is in the new one's place is not a state.
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
        if files.exists(root / IDENTITY):  # made by another who was faster
            return
        if old.wave > old.settled:
            settle(old, old.wave, in_process, plan)
        recover_intake(old, in_process, plan)
        begun = files.exists(old.root / MIGRATED)
        refuse_unfit(old, plan, begun=begun)
        if not keyed_of(old.recorded_structure()):  # else there is none, or it came when we had begun
            for command in queued_commands(old):
                commands.apply(old, command)
        old.check_ownership()
        old.close_for_version(plan.version)  # 2
        crash.point("version.fenced")
        old.check_ownership()  # whoever announces itself after this look finds the state closed
        _make(old, State(root, plan), from_version)


def _make(old: State, new: State, from_version: int) -> None:
    files.make_folder(new.root)
    lock = take_lock(new.root / "lock")
    try:
        if new.exists:
            raise _had_another(new)
        _build(old, new, from_version)  # 3
        crash.point("version.built")
        new.publish_identity()  # 4
    finally:
        lock.release()


def _build(old: State, new: State, from_version: int) -> None:
    """The new state's folder: made as ever, then filled with the older one's data files in one commit a table. All of
    it may be done again."""
    readers = [
        reader_name(old, name)
        for name, node in old.recorded_structure().items()
        if node.kind in ("source", "join", "alts")
    ]
    sender = sender_of(old.root)._asdict()
    more = {"from": from_version, "readers": readers, "sender": sender, **remembered_of(old, new.plan)}
    wave = old.wave
    new.create(more, recorded=old.recorded_structure(), publish=False)
    new.journal.close(wave)
    new.load()
    files.publish(new.root / MIGRATION, seals.seal({"from": from_version}))
    new.announce_epoch(after=old.epoch)  # the files that it gets are named after that one's epochs
    if new.exists:  # by another one, while this one slept; from now on one of the two can commit
        raise _had_another(new)
    numbers = {SETTLED: wave}
    copy_table(old.ledger, new.ledger, numbers)
    copy_table(old.documents, new.documents, numbers)
    carry(old, new)
    sequence = max(old.next_sequence, new.next_sequence)
    transactions = {**numbers, WAVE: wave, SEQUENCE: sequence, **_positions(old, new.plan)}
    copy_table(old.outbox, new.outbox, transactions)
    for name in (NOTIFIED, MISSED):  # the waves' numbers go on: nobody is told of the past again
        if files.exists(noted := old.root / name):
            files.publish(new.root / name, files.read(noted))


def _positions(old: State, plan: Plan) -> dict[str, int]:
    """How far the older version has read the logs that this one has under the same names. The logs are not asked: one
    that is away is read on where it was, like the others."""
    names = {node.name for node in logs_read(plan.nodes)} | ever_keyed(old)
    logs = [LogPositions(old, name) for name in sorted(names)]
    found = {key: number for log in logs for key, number in log.all_transactions().items()}
    return {**found, RANGES: ranges} if (ranges := old.outbox.transaction(RANGES)) else found


def _had_another(new: State) -> UsageError:
    return UsageError(f"{new.root}: version {new.plan.version} was given a state by another run just now.")
