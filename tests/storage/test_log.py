"""The log of a table: what a crash left is mended, what is damaged is refused by name; looking changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ferryman.errors import FerrymanError, StateDamaged, StateLost
from ferryman.storage.delta import TableLog
from ferryman.storage.tables import Table
from tests.storage.conftest import APPLICATION, SCHEMA, add, make_table


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def unmark(table: Table, version: int) -> None:
    """As a kill leaves it between commit and mark."""
    (table.log.marks / f"{version:020d}").unlink()


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
    [path] = table.log.folder.glob("*.checkpoint.parquet")
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
    """verify and mend find nothing, and write nothing."""
    before = snapshot(either.folder)
    either.log.verify()
    assert either.log.repair() is None
    assert either.log.torn_version() is None
    assert snapshot(either.folder) == before


def test_a_checkpoint_trims_the_log_and_its_marks(filled: Table) -> None:
    """Only the checkpoint's own commit stays; the rows are all there."""
    filled.checkpoint()
    assert filled.log.versions() == [4]
    assert sorted(p.name for p in filled.log.marks.iterdir()) == [f"{4:020d}", f"checkpoint-{4:020d}"]
    again = Table(filled.folder, SCHEMA, [])
    again.load([APPLICATION])
    assert again.files.keys() == filled.files.keys()
    assert again.version == 4
    assert again.transactions == {APPLICATION: 1}


def test_a_second_checkpoint_replaces_the_first(folded: Table) -> None:
    """One checkpoint, one mark of it, the log behind it."""
    folded.checkpoint()
    assert checkpoint_of(folded).name == f"{6:020d}.checkpoint.parquet"
    assert folded.log.versions() == [6]
    folded.log.verify()


def test_what_a_commit_said_is_found(filled: Table) -> None:
    """The information beside a commit's actions comes back; there is none in what delta-rs made by itself."""
    filled.commit("wave", info={"wave": 7, "documents": [["a", 1, 2]]})
    found = filled.log.info(filled.version)
    assert (found["kind"], found["wave"], found["documents"]) == ("wave", 7, [["a", 1, 2]])
    assert filled.log.info(0) == {}


# --- what a crash leaves --------------------------------------------------------------------------------


def test_a_whole_last_entry_without_mark_is_marked(either: Table) -> None:
    """Killed between commit and mark: it took effect."""
    last = either.version
    unmark(either, last)
    either.log.verify()
    assert either.log.torn_version() is None
    assert either.log.repair() is None
    assert (either.log.marks / f"{last:020d}").exists()
    either.log.verify()
    again = Table(either.folder, SCHEMA, [])
    again.load()
    assert again.version == last


@pytest.mark.parametrize("cut", [0, 1, 0.2, 0.5, 0.9, -1, "line"])
def test_a_torn_last_entry_without_mark_is_set_aside(either: Table, cut: float | str) -> None:
    """A power cut before the mark: it never took effect. It is told where it went, and the log goes on."""
    last = either.version
    add(either, 10, 11)
    torn = either.log.path(either.version)
    unmark(either, either.version)
    data = torn.read_bytes()
    if cut == "line":
        kept = b"".join(data.splitlines(keepends=True)[:-1])
    else:
        kept = data[: cut if isinstance(cut, int) else int(len(data) * cut)]  # type: ignore[misc]
    if cut == -1:
        kept = kept.rstrip(b"}")
    torn.write_bytes(kept)

    either.log.verify()
    assert either.log.torn_version() == last + 1
    reader = Table(either.folder, SCHEMA, [])
    reader.load()
    assert reader.version == last, "a reader does not look at it"
    said = either.log.repair()
    assert said is not None
    assert str(torn) in said
    assert not torn.exists()
    [aside] = either.log.marks.glob("set-aside-*")
    assert aside.read_bytes() == kept
    assert str(aside) in said
    either.log.verify()
    again = Table(either.folder, SCHEMA, [])
    again.load([APPLICATION])
    assert again.version == last
    again.fence(APPLICATION, 2)
    add(again, 12)
    again.log.verify()


def test_mending_twice_changes_nothing_more(filled: Table) -> None:
    """Mending is idempotent, also when it is killed half way (the file is moved, nothing else has happened)."""
    add(filled, 9)
    unmark(filled, filled.version)
    filled.log.path(filled.version).write_bytes(b'{"commitInfo"')
    assert filled.log.repair() is not None
    before = snapshot(filled.folder)
    assert filled.log.repair() is None
    assert snapshot(filled.folder) == before


def test_an_unmarked_checkpoint_means_nothing(either: Table) -> None:
    """Killed between making a checkpoint and marking it: it is only a copy of the log, even if something has torn it.
    The next checkpoint does not look at it, and removes it."""
    marked = set(either.log.folder.glob("*.checkpoint.parquet"))
    either.log.make_checkpoint(either.version)
    [unmarked] = set(either.log.folder.glob("*.checkpoint.parquet")) - marked
    unmarked.write_bytes(b"torn")
    either.log.verify()
    assert either.log.repair() is None
    again = Table(either.folder, SCHEMA, [])
    again.load()
    assert again.files.keys() == either.files.keys()
    add(either, 10)
    either.checkpoint()
    assert checkpoint_of(either).name == f"{either.version:020d}.checkpoint.parquet"
    either.log.verify()


def test_a_log_that_was_not_trimmed_after_its_checkpoint_is_whole(filled: Table) -> None:
    """Killed between marking a checkpoint and trimming: both are there; the next checkpoint trims both."""
    filled.log.make_checkpoint(filled.version)
    filled.log.mark_checkpoint(filled.version)
    filled.log.verify()
    filled.log.repair()
    add(filled, 8)
    filled.log.verify()
    filled.checkpoint()
    assert filled.log.versions() == [5]


def test_half_written_files_are_removed(filled: Table) -> None:
    """What was not finished when a driver was killed does not pile up; what is young may be of one who is at work."""
    half = [filled.log.folder / ".tmp-1", filled.log.marks / ".tmp-1"]
    for path in half:
        path.write_bytes(b"half")
    written = half[0].stat().st_mtime
    filled.log.verify()
    filled.log.repair()
    filled.log.remove_half_written(before=written - 1)
    assert all(p.exists() for p in half)
    filled.log.remove_half_written(before=written + 60)
    assert not any(p.exists() for p in half)


# --- damage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, -1])
def test_a_marked_entry_that_is_torn_is_refused_by_name(filled: Table, which: int) -> None:
    """It took effect, so it cannot be set aside: damage, first or last."""
    path = filled.log.path(filled.log.versions()[which])
    path.write_bytes(path.read_bytes()[:-20])
    assert refused(filled).path == str(path)


@pytest.mark.parametrize("at", [0, 0.3, 0.7, 1])
def test_a_flipped_byte_in_a_marked_entry_is_refused_by_name(either: Table, at: float) -> None:
    """Wherever it is, in whichever entry."""
    for version in either.log.versions():
        path = either.log.path(version)
        flip(path, at)
        assert refused(either).path == str(path)
        flip(path, at)
    either.log.verify()


def test_a_missing_entry_is_refused_by_name(either: Table) -> None:
    """First, in the middle, or last."""
    for version in either.log.versions():
        path = either.log.path(version)
        data = path.read_bytes()
        path.unlink()
        assert refused(either).path == str(path)
        path.write_bytes(data)


def test_a_missing_mark_is_refused_by_name(filled: Table) -> None:
    """But for the last entry's, which may be a crash's work."""
    for version in filled.log.versions()[:-1]:
        mark = filled.log.marks / f"{version:020d}"
        data = mark.read_bytes()
        mark.unlink()
        error = refused(filled)
        assert (error.path, error.what) == (str(mark), "the mark is missing")
        mark.write_bytes(data)


@pytest.mark.parametrize("at", [0, 0.5, 1])
def test_a_damaged_mark_is_refused_by_name(filled: Table, at: float) -> None:
    """The mark, not the entry that it is of."""
    for version in filled.log.versions():
        mark = filled.log.marks / f"{version:020d}"
        flip(mark, at)
        assert refused(filled).path == str(mark)
        flip(mark, at)


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-1])])
def test_a_damaged_checkpoint_is_refused_by_name(folded: Table, damage: Callable[[Path], object]) -> None:
    """Flipped, missing or cut."""
    path = checkpoint_of(folded)
    damage(path)
    assert refused(folded).path == str(path)


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda p: p.write_bytes(b"")])
def test_a_damaged_mark_of_the_checkpoint_is_refused_by_name(folded: Table, damage: Callable[[Path], object]) -> None:
    """Flipped, missing or empty."""
    [mark] = folded.log.marks.glob("checkpoint-*")
    damage(mark)
    assert refused(folded).path == str(mark)


@pytest.mark.parametrize("hint", [b"", b'{"version":2,"size":3}', b'{"version":99,"size":3}'])
def test_a_hint_is_not_looked_at(folded: Table, hint: bytes) -> None:
    """``_last_checkpoint`` tells other programs where to begin. Marks tell us; the next checkpoint removes it."""
    path = folded.log.folder / "_last_checkpoint"
    path.write_bytes(hint)
    folded.log.verify()
    folded.log.repair()
    again = Table(folded.folder, SCHEMA, [])
    again.load([APPLICATION])
    assert again.files.keys() == folded.files.keys()
    again.fence(APPLICATION, 2)
    add(again, 5)
    again.checkpoint()
    assert not path.exists()
    assert DeltaTable(str(folded.folder)).version() == again.version


def test_the_one_mark_of_an_older_release_is_read(folded: Table) -> None:
    """It had one mark for all checkpoints; it goes with the next checkpoint, which has its own."""
    [mark] = folded.log.marks.glob("checkpoint-*")
    mark.rename(folded.log.marks / "checkpoint")
    folded.log.verify()
    again = Table(folded.folder, SCHEMA, [])
    again.load([APPLICATION])
    assert again.files.keys() == folded.files.keys()
    again.fence(APPLICATION, 2)
    again.checkpoint()
    assert [path.name for path in folded.log.marks.glob("checkpoint*")] == [f"checkpoint-{again.version:020d}"]
    folded.log.verify()


# --- two drivers, where a lock was lost -----------------------------------------------------------------


def overtaken(table: Table, epoch: int = 2) -> Table:
    """Another driver takes the table over."""
    newer = Table(table.folder, SCHEMA, [])
    newer.log.repair()
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
    filled.log.write(0, b"the first entry of a driver that slept")
    filled.create()
    filled.log.verify()
    again = Table(filled.folder, SCHEMA, [])
    again.load()
    assert again.files.keys() == filled.files.keys()


def test_an_entry_that_counts_is_never_removed(filled: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver sleeps between linking its entry and looking whether the log was trimmed. Another one has counted the
    entry meanwhile, and is killed before it marks a checkpoint."""
    write = TableLog.write

    def and_sleep(log: TableLog, version: int, data: bytes) -> bool:
        with monkeypatch.context() as awake:
            awake.setattr(TableLog, "write", write)
            ours = write(log, version, data)
            newer = overtaken(filled)
            newer.log.make_checkpoint(newer.version)
        return ours

    monkeypatch.setattr(TableLog, "write", and_sleep)
    add(filled, 10)
    with pytest.raises(StateLost):
        add(filled, 11)
    filled.log.verify()


def test_a_number_that_was_trimmed_is_not_taken(filled: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver sleeps before it links its entry; another one has used the number meanwhile, and trimmed it. What the
    first has left means nothing, whether there is a mark of the number or not."""
    write = TableLog.write

    def sleep_and(log: TableLog, version: int, data: bytes) -> bool:
        with monkeypatch.context() as awake:
            awake.setattr(TableLog, "write", write)
            newer = overtaken(filled)
            add(newer, 10)
            newer.checkpoint()
            kept.update(newer.files)
            return write(log, version, data)

    kept: dict[str, object] = {}
    monkeypatch.setattr(TableLog, "write", sleep_and)
    with pytest.raises(StateLost):
        add(filled, 11)
    (filled.log.marks / f"{filled.version + 1:020d}").write_bytes(b"of the entry that was trimmed")
    filled.log.verify()
    again = Table(filled.folder, SCHEMA, [])
    again.load()
    assert again.files.keys() == kept.keys()


@pytest.mark.parametrize("step", ["make_checkpoint", "mark_checkpoint", "trim"])
@pytest.mark.parametrize("further", ["epoch", "checkpoint"])
def test_a_driver_that_slept_before_a_step_of_a_checkpoint(
    filled: Table, monkeypatch: pytest.MonkeyPatch, step: str, further: str
) -> None:
    """Another one has taken over, and perhaps made a checkpoint of its own. The first one's takes nothing away."""
    real = getattr(TableLog, step)

    def sleep_and(log: TableLog, version: int) -> None:
        with monkeypatch.context() as awake:
            awake.setattr(TableLog, step, real)
            newer = overtaken(filled)
            add(newer, 10)
            if further == "checkpoint":
                newer.checkpoint()
            kept.update(newer.files)
        real(log, version)

    kept: dict[str, object] = {}
    monkeypatch.setattr(TableLog, step, sleep_and)
    with pytest.raises(FerrymanError) if further == "checkpoint" else contextlib.nullcontext():
        filled.checkpoint()
    filled.log.verify()
    again = Table(filled.folder, SCHEMA, [])
    again.log.repair()
    again.load()
    assert again.files.keys() == kept.keys()


def test_an_empty_or_missing_log_is_refused_by_name(filled: Table) -> None:
    """The folder is named."""
    for path in filled.log.folder.iterdir():
        path.unlink()
    for path in filled.log.marks.iterdir():
        path.unlink()
    assert refused(filled).what == "the log is empty"
    filled.log.folder.rmdir()
    assert refused(filled).path == str(filled.log.folder)


# --- others ---------------------------------------------------------------------------------------------


def test_a_commit_of_somebody_else_is_refused_by_name(filled: Table) -> None:
    """A table that Spark or delta-rs wrote to is not what our epochs protect: last or in the middle."""
    write_deltalake(str(filled.folder), pa.table({"number": [99], "text": ["foreign"]}, schema=SCHEMA), mode="append")
    foreign = filled.log.path(5)
    error = refused(filled)
    assert (error.path, error.what) == (str(foreign), "it was not written by Ferryman")
    write_deltalake(str(filled.folder), pa.table({"number": [99], "text": ["foreign"]}, schema=SCHEMA), mode="append")
    assert refused(filled).path == str(foreign)


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


def test_an_entry_that_goes_while_it_is_looked_at(filled: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver trims the log under a reader's eyes: a problem for whoever looks again, not the end of the look."""
    unmark(filled, 2)

    def gone(log: TableLog, version: int) -> None:
        raise StateDamaged(str(log.path(version)), "the file is missing")

    monkeypatch.setattr(TableLog, "_written_by", gone)
    assert [(problem.path, problem.what) for problem in filled.log.problems()] == [
        (str(filled.log.path(2)), "the file is missing")
    ]
