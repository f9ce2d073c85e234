"""A new version of a plan carries on from the state of an older one.

Two halves. ``carry_over`` makes the new state, before anything runs:

1. become the older state's driver, and finish what it left
2. fence it: from now on nobody drives it any more
3. build the new state beside, under a temporary name, with the older one's data files
4. give it its name; until then the older state is held, so that only one makes it

A crash before 4 leaves a temporary folder and, after 2, a state that only this very version may take over again.
``adopt`` is the new state's first wave: rows for destinations that are gone end, and documents whose way has changed
are taken up again. Until it is through, ``takeover.json`` says that it is to be done; it may be done twice.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferryman.errors import UsageError
from ferryman.ledger import commands
from ferryman.ledger.commit import commit_wave
from ferryman.ledger.events import EVENT_OF_ROW, ORDINAL_COMMAND, table_of
from ferryman.ledger.folder import NOTIFIED, TAKEOVER
from ferryman.ledger.latest import chosen_by_file, every, last_of
from ferryman.ledger.schemas import DOCUMENTS, LEDGER, OUTBOX_KEPT
from ferryman.ledger.settle import settle
from ferryman.ledger.state import SEQUENCE, SETTLED, WAVE, State
from ferryman.ledger.statuses import Status
from ferryman.plan import Plan, changed_sources, structure
from ferryman.storage import files
from ferryman.storage.groups import RowGroups
from ferryman.storage.lock import Lock
from ferryman.storage.parquet import Part, PartWriter, read_part, write_part
from ferryman.storage.query import connect, quoted_list, verify
from ferryman.testing import crash


def carry_over(root: Path, plan: Plan, from_version: int) -> None:
    """Make the state of a plan from the one of an older version; nothing if that was done before.

    Raises:
        UsageError: there is no such state, it is no older one, or this version has a state of its own.
        StateHeld, StateDamaged, StateForeign: of the older state, or what is there instead of the new one is no state.
    """
    older = Plan(plan.name, from_version)
    older_root = root.with_name(older.key)
    if from_version >= plan.version:
        raise UsageError(f"--from-version {from_version}: this is version {plan.version}: give an older one.")
    if (root / "state.json").exists():
        if State(root, plan).identity().get("from") != from_version:
            raise UsageError(
                f"{root}: version {plan.version} has a state of its own. To carry on with it leave --from-version out."
            )
        return
    if not (older_root / "state.json").exists():
        raise UsageError(f"{older_root}: there is no state of version {from_version}. Give the version that ran here.")
    State(root, plan).refuse_foreign_folder()
    with State.take(older_root, older, successor=plan.version) as old:  # 1
        if (root / "state.json").exists():  # made by another who was faster
            return
        if old.wave > old.settled:
            settle(old, old.wave, _here)
        for command in commands.waiting(old):
            commands.apply(old, command)
        old.check_ours()
        old.hand_over(plan.version)  # 2
        crash.point("version.fenced")
        temporary = root.with_name(f"{files.TEMPORARY}{plan.key}")
        shutil.rmtree(temporary, ignore_errors=True)
        _build(old, State(temporary, plan), from_version)  # 3
        crash.point("version.built")
        if root.exists():
            _clear(root, temporary / "staging" / "begun", plan)
        os.rename(temporary, root)  # 4
        files.fsync_folder(root.parent)


def is_pending(state: State) -> bool:
    """Is ``adopt`` still to be done?"""
    return (state.root / TAKEOVER).exists()


def adopt(state: State) -> str:
    """The new state's first wave; what it did, in one line."""
    before, after = state.remembered(), structure(state.plan)
    older: Any = files.unseal(state.root / TAKEOVER)
    why = f"plan version {state.plan.version} carries on from version {older['from']}"
    number = state.wave + 1
    gone = [name for name, node in before.items() if node.kind in ("destination", "tee") and name not in after]
    paths = [f.path for f in state.outbox.files.values() if f.partition["destination"] in gone]
    dropped = [_dropped(state, path, number, why) for path in paths]
    parts = [write_part(state.ledger.folder, table, epoch=state.epoch) for table in dropped if table.num_rows]
    staged, restarted = _taken_up_again(state, changed_sources(before, after), number, why)
    parts += restarted
    crash.point("version.staged")
    if parts or staged:
        commit_wave(state, number, documents=staged, ledger=parts, replaced=[(path, None) for path in paths])
        settle(state, number, _here)
        state.retire(state.outbox, paths)
    state.remember(after)
    (state.root / TAKEOVER).unlink()
    files.fsync_folder(state.root)
    crash.point("version.adopted")
    rows = sum(t.num_rows for t in dropped)
    ended = f"; {rows} rows for {', '.join(gone)} were dropped, for they are not in it any more" if rows else ""
    again = sum(part.rows for part in staged)
    return f"{why}: {again} documents are done again, for their way has changed or had failed{ended}"


def _build(old: State, new: State, from_version: int) -> None:
    """The new state's folder: made as ever, then filled with the older one's data files in one commit a table."""
    files.make_folder(new.root)
    new.create({"from": from_version}, remembered=old.remembered())
    new.load()
    new.announce(after=old.epoch)  # the files that it gets are named after that one's epochs
    wave = old.wave
    numbers = {SETTLED: wave}
    for table, source in ((new.ledger, old.ledger), (new.documents, old.documents)):
        _link(source.folder, table.folder, source.files)
        table.commit("version", adds=source.files.values(), transactions=numbers)
    _link(old.outbox.folder, new.outbox.folder, old.outbox.files)
    sequence = max(old.next_sequence, new.next_sequence)
    new.outbox.commit(
        "version", adds=old.outbox.files.values(), transactions={**numbers, WAVE: wave, SEQUENCE: sequence}
    )
    new.journal.close(wave)
    if (notified := old.root / NOTIFIED).exists():  # the waves' numbers go on: nobody is told of the past again
        files.replace(new.root / NOTIFIED, notified.read_bytes())
    files.replace(new.root / TAKEOVER, files.sealed({"from": from_version}))


def _clear(root: Path, scratch: Path, plan: Plan) -> None:
    """Out of the way with what a run of this version left that was killed while it made a state of its own.

    Raises:
        StateHeld: it is not killed.
        UsageError: it has made it.
    """
    lock = Lock.take(root / "lock")
    try:
        if (root / "state.json").exists():
            raise UsageError(f"{root}: version {plan.version} has just been given a state of its own by another run.")
        os.rename(root, scratch)  # every start empties that folder
    finally:
        lock.release()


def _link(source: Path, target: Path, paths: Any) -> None:
    """The same files under another folder; copies where the file system has no links."""
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / path, target / path)
        except OSError:
            shutil.copyfile(source / path, target / path)
            files.fsync_file(target / path)
    for folder in {target, *((target / path).parent for path in paths)}:
        files.fsync_folder(folder)


def _dropped(state: State, path: str, number: int, why: str) -> pa.Table:
    """Events of all rows of an outbox file whose destination is gone."""
    rows = read_part(state.outbox.folder / path, OUTBOX_KEPT)
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


def _taken_up_again(state: State, sources: list[str], number: int, why: str) -> tuple[list[Part], list[Part]]:
    """Files of ``documents`` rows that make the next scan read these documents as new revisions, and of their events.

    All of the changed sources; and everywhere what had failed, for its deliveries have other hashes now.
    """
    changed = f"source IN (SELECT unnest({quoted_list(sources)}))" if sources else "false"
    more = {"again": (f"operation = 'upsert' AND ({changed} OR failed IS NOT NULL)", pa.bool_())}
    files = list(state.documents.files.values())
    paths = [state.documents.folder / file.path for file in files]
    wanted = [np.zeros(file.rows, bool) for file in files]
    verify(paths)
    with tempfile.TemporaryDirectory(dir=state.staging) as folder, connect(Path(folder)) as db:
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
    """An event a document, of none of its deliveries: they are what they are until they are made anew."""
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


def _here(task: Any, items: Any) -> list[Any]:
    return [task(item) for item in items]
