"""The log of a table: what is damaged is refused by name; other programs read it; two drivers do no harm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ferryman import crash
from ferryman.errors import StateDamaged, StateLost
from ferryman.storage import files
from ferryman.storage.delta import DataFile, DeltaLog
from ferryman.storage.tables import Table
from tests.storage.conftest import APPLICATION, SCHEMA, add, make_table
from tests.support.damage import versions_of


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def flip(path: Path, at: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[min(int(len(data) * at), len(data) - 1)] ^= 0x01
    path.write_bytes(data)


def refused(table: Table) -> StateDamaged:
    """What ``verify`` raises; it changes nothing."""
    before = snapshot(table.folder)
    with pytest.raises(StateDamaged) as error:
        table.log.verify()
    assert snapshot(table.folder) == before
    return error.value


def checkpoint_of(table: Table) -> Path:
    [path] = (table.folder / "_delta_log").glob("*.checkpoint.parquet")
    return path


@pytest.fixture
def filled(table: Table) -> Table:
    """Versions: 0 made, 1 fenced, 2 to 4 three commits."""
    for n in range(3):
        add(table, n)
    return table


@pytest.fixture
def folded(filled: Table) -> Table:
    """The same, with a checkpoint at 4 and two commits after it."""
    filled.checkpoint()
    add(filled, 3)
    add(filled, 4)
    return filled


@pytest.fixture(params=["filled", "folded"])
def either(request: pytest.FixtureRequest) -> Table:
    table: Table = request.getfixturevalue(request.param)
    return table


# --- whole --------------------------------------------------------------------------------------------


def test_a_whole_log_is_accepted_and_left_alone(either: Table) -> None:
    """To verify it finds nothing, and writes nothing."""
    before = snapshot(either.folder)
    either.log.verify()
    assert snapshot(either.folder) == before


def test_a_checkpoint_trims_the_log(filled: Table) -> None:
    """Only the checkpoint's own commit stays; the rows are all there."""
    filled.checkpoint()
    assert versions_of(filled.log) == [4]
    again = Table(filled.folder, SCHEMA, [])
    again.load([APPLICATION])
    assert again.files.keys() == filled.files.keys()
    assert again.version == 4
    assert again.transactions == {APPLICATION: 1}


def test_a_second_checkpoint_replaces_the_first(folded: Table) -> None:
    """One checkpoint, the log behind it."""
    folded.checkpoint()
    assert checkpoint_of(folded).name == f"{6:020d}.checkpoint.parquet"
    assert versions_of(folded.log) == [6]
    folded.log.verify()


def test_what_a_commit_said_is_found(filled: Table) -> None:
    """The information beside a commit's actions comes back, from this log and from one that is opened."""
    filled.commit("wave", info={"wave": 7, "documents": [["a", 1, 2]]})
    for log in (filled.log, DeltaLog(filled.folder, DataFile)):
        found = log.find("wave", 7)
        assert (found["kind"], found["wave"], found["documents"]) == ("wave", 7, [["a", 1, 2]])
        with pytest.raises(StateDamaged, match="the commit of wave 8 is missing"):
            log.find("wave", 8)


# --- what a crash leaves --------------------------------------------------------------------------------


def test_half_written_files_are_removed(filled: Table) -> None:
    """What was not finished when a driver was killed does not pile up; what is young may be of one who is at work."""
    half = filled.folder / "_delta_log" / ".tmp-1"
    half.write_bytes(b"half")
    written = half.stat().st_mtime
    filled.log.verify()
    filled.log.remove_temporary(before=written - 1)
    assert half.exists()
    filled.log.remove_temporary(before=written + 60)
    assert not half.exists()


# --- damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, -1])
def test_an_entry_that_is_torn_is_refused_by_name(filled: Table, which: int) -> None:
    """It took effect, so it is damage, first or last."""
    path = filled.log.path(versions_of(filled.log)[which])
    path.write_bytes(path.read_bytes()[:-20])
    assert refused(filled).path == str(path)


@pytest.mark.parametrize("at", [0, 0.3, 0.7, 1])
def test_a_flipped_byte_in_an_entry_is_refused_by_name(either: Table, at: float) -> None:
    """Wherever it is, in whichever entry."""
    for version in versions_of(either.log):
        path = either.log.path(version)
        flip(path, at)
        assert refused(either).path == str(path)
        flip(path, at)
    either.log.verify()


def test_a_missing_entry_is_refused_by_name(either: Table) -> None:
    """First or in the middle; the last is missed by another table of the state."""
    for version in versions_of(either.log)[:-1]:
        path = either.log.path(version)
        data = path.read_bytes()
        path.unlink()
        assert refused(either).path == str(path)
        path.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-1])])
def test_a_damaged_checkpoint_is_refused_by_name(folded: Table, damage: Callable[[Path], object]) -> None:
    """Flipped, missing or cut."""
    path = checkpoint_of(folded)
    damage(path)
    assert refused(folded).path == str(path)


def test_no_byte_of_a_checkpoint_can_change(folded: Table) -> None:
    """Its footer has a checksum of all of it: one in a hundred is tried, and all of the checksum's own."""
    path = checkpoint_of(folded)
    data = path.read_bytes()
    seal = data.rindex(b'"crc":"')
    for at in [*range(0, len(data), 101), *range(seal, seal + 16)]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert refused(folded).path == str(path)


@pytest.mark.parametrize("hint", [b"", b'{"version":2,"size":3}', b'{"version":99,"size":3}'])
def test_a_hint_is_not_looked_at(folded: Table, hint: bytes) -> None:
    """``_last_checkpoint`` tells other programs where to begin. The next checkpoint removes it."""
    path = folded.folder / "_delta_log" / "_last_checkpoint"
    path.write_bytes(hint)
    folded.log.verify()
    again = Table(folded.folder, SCHEMA, [])
    again.load([APPLICATION])
    assert again.files.keys() == folded.files.keys()
    again.fence(APPLICATION, 2)
    add(again, 5)
    again.checkpoint()
    assert not path.exists()
    assert DeltaTable(str(folded.folder)).version() == again.version


# --- two drivers, where a lock was lost -----------------------------------------------------------------


def overtaken(table: Table, epoch: int = 2) -> Table:
    """Another driver takes the table over."""
    newer = Table(table.folder, SCHEMA, [])
    newer.load([APPLICATION])
    newer.fence(APPLICATION, epoch)
    return newer


def test_a_log_that_is_there_is_adopted(filled: Table) -> None:
    """A driver that slept before it made the log leaves it as another one has made it since, also where that has
    trimmed the first entry."""
    before = snapshot(filled.folder)
    filled.create()
    assert snapshot(filled.folder) == before
    filled.checkpoint()
    assert files.publish(filled.log.path(0), b"the first entry of a driver that slept")
    filled.create()
    filled.log.verify()
    again = Table(filled.folder, SCHEMA, [])
    again.load()
    assert again.files.keys() == filled.files.keys()


@pytest.mark.parametrize("point", ["wave.written", "wave.logged"])
@pytest.mark.parametrize("further", ["epoch", "commit", "checkpoint"])
def test_a_driver_that_slept_in_a_commit(
    filled: Table, monkeypatch: pytest.MonkeyPatch, point: str, further: str
) -> None:
    """Another one has taken over, has perhaps used the number of its entry, and has perhaps trimmed that. An entry that
    counts is not removed, one that does not means nothing."""
    kept: dict[str, object] = {}

    def sleep(name: str) -> None:
        if name != point or kept:
            return
        kept["begun"] = None
        newer = overtaken(filled)
        if further != "epoch":
            add(newer, 10)
        if further == "checkpoint":
            newer.checkpoint()
        kept.update(newer.files)

    monkeypatch.setattr(crash, "point", sleep)
    with contextlib.suppress(StateLost):
        kept[add(filled, 11)] = None
        assert point == "wave.logged", "its number was taken"
    with pytest.raises(StateLost):
        add(filled, 12)
    del kept["begun"]
    filled.log.verify()
    again = Table(filled.folder, SCHEMA, [])
    again.load()
    assert again.files.keys() == kept.keys()
    assert {Path(uri).name for uri in DeltaTable(str(filled.folder)).file_uris()} == set(again.files)


@pytest.mark.parametrize("point", ["", "checkpoint.made"])
@pytest.mark.parametrize("further", ["epoch", "checkpoint"])
def test_a_driver_that_slept_in_a_checkpoint(
    filled: Table, monkeypatch: pytest.MonkeyPatch, point: str, further: str
) -> None:
    """Another one has taken over, and perhaps made a checkpoint of its own. The first one's takes nothing away."""
    kept: dict[str, object] = {}
    replace = files.replace

    def sleep() -> None:
        if not kept:
            kept["begun"] = None
            newer = overtaken(filled)
            add(newer, 10)
            if further == "checkpoint":
                newer.checkpoint()
            kept.update(newer.files)

    def sleep_and_replace(path: Path, data: bytes) -> None:
        sleep()
        replace(path, data)

    if point:
        monkeypatch.setattr(crash, "point", lambda name: sleep() if name == point else None)
    else:
        monkeypatch.setattr(files, "replace", sleep_and_replace)
    filled.checkpoint()
    del kept["begun"]
    filled.log.verify()
    with pytest.raises(StateLost):
        filled.checkpoint()
    again = Table(filled.folder, SCHEMA, [])
    again.load()
    assert again.files.keys() == kept.keys()


def test_an_empty_or_missing_log_is_refused_by_name(filled: Table) -> None:
    """The folder is named."""
    for path in (filled.folder / "_delta_log").iterdir():
        path.unlink()
    assert refused(filled).what == "the log is empty"
    (filled.folder / "_delta_log").rmdir()
    assert refused(filled).path == str(filled.log.entries_folder)


# --- others ---------------------------------------------------------------------------------------------


def test_a_commit_of_somebody_else_is_refused_by_name(filled: Table) -> None:
    """A table that Spark or delta-rs wrote to is not what our epochs protect: last or in the middle."""
    write_deltalake(str(filled.folder), pa.table({"number": [99], "text": ["foreign"]}, schema=SCHEMA), mode="append")
    foreign = filled.log.path(5)
    error = refused(filled)
    assert (error.path, error.what) == (str(foreign), "it was not written by Ferryman")
    assert "Another program added it: remove it, and keep that program away; `ferryman fsck PLAN`" in str(error)
    write_deltalake(str(filled.folder), pa.table({"number": [99], "text": ["foreign"]}, schema=SCHEMA), mode="append")
    assert (refused(filled).path, refused(filled).remedy) == (str(foreign), error.remedy)
    for version in (6, 5):
        filled.log.path(version).unlink()
    filled.log.verify()


def test_an_entry_that_is_replaced_is_restored(filled: Table) -> None:
    """By what another program wrote, with entries of ours after it; or by what is no entry."""
    foreign = b'{"commitInfo": {"operation": "WRITE"}}\n'
    for version, content in ((3, foreign), (filled.log.version, b"\0" * 200), (filled.log.version, b"{}")):
        before = filled.log.path(version).read_bytes()
        filled.log.path(version).write_bytes(content)
        assert "Restore this file from a copy; `ferryman fsck PLAN`" in str(refused(filled))
        filled.log.path(version).write_bytes(before)


def test_an_optimize_of_somebody_else_is_refused_by_name(filled: Table) -> None:
    """Though it changes no row: what it removes we may still have named."""
    DeltaTable(str(filled.folder)).optimize.compact()
    error = refused(filled)
    assert (error.path, error.what) == (str(filled.log.path(5)), "it was not written by Ferryman")


def test_a_new_table_is_whole(place: Path) -> None:
    """Made and not yet fenced; made twice is made once."""
    table = Table(place / "t", SCHEMA, [])
    table.create()
    table.create()
    table.log.verify()
    assert make_table(place / "t").version == 1
