"""A handle that is kept answers as one that was just opened."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from ferryman.storage import delta
from ferryman.storage.delta import (
    MAX_OPEN_TABLES,
    LogChanges,
    LogUnreadable,
    OpenTable,
    open_newest,
    open_newest_cached,
    read_entry,
)


def commit(folder: Path, number: int) -> None:
    mark = CommitProperties(app_transactions=[Transaction("us", number)])
    write_deltalake(str(folder), pa.table({"number": [number]}), mode="append", commit_properties=mark)


def told(handle: OpenTable) -> tuple[int, int, set[str]]:
    return handle.version, handle.transaction("us"), set(handle.files())


@pytest.fixture(params=[open_newest_cached, None], ids=["to read", "to commit"])
def opened(request: pytest.FixtureRequest) -> Callable[[Path], OpenTable]:
    if request.param is not None:
        return open_newest_cached
    kept: dict[Path, OpenTable] = {}

    def to_commit(folder: Path) -> OpenTable:
        kept[folder] = open_newest(folder, kept.get(folder))
        return kept[folder]

    return to_commit


def test_it_is_moved_on(tmp_path: Path, opened: Callable[[Path], OpenTable]) -> None:
    commit(tmp_path, 1)
    first = opened(tmp_path)
    assert told(first) == told(OpenTable(tmp_path))
    for number in (2, 3):
        commit(tmp_path, number)
        assert opened(tmp_path) is first
        assert told(first) == told(OpenTable(tmp_path)) == (number - 1, number, set(first.files()))
    assert len(first.files()) == 3


def test_it_is_opened_again_where_another_table_was_put(tmp_path: Path, opened: Callable[[Path], OpenTable]) -> None:
    """A copy of an older state, or a longer log of another one."""
    table, copy = tmp_path / "table", tmp_path / "copy"
    commit(table, 1)
    shutil.copytree(table, copy)
    commit(table, 2)
    before = opened(table)
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    assert told(opened(table)) == told(OpenTable(table)) == (0, 1, set(before.files()) & set(OpenTable(table).files()))

    shutil.rmtree(table)
    for number in (7, 8, 9):
        commit(table, number)
    assert told(opened(table)) == told(OpenTable(table))
    assert opened(table).transaction("us") == 9


def test_it_is_opened_again_where_the_log_was_trimmed(tmp_path: Path, opened: Callable[[Path], OpenTable]) -> None:
    commit(tmp_path, 1)
    before = opened(tmp_path)
    for number in (2, 3):
        commit(tmp_path, number)
    assert opened(tmp_path) is before
    DeltaTable(str(tmp_path)).create_checkpoint()
    newest = opened(tmp_path)
    assert newest is not before, "it may be trimmed at any moment"
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    assert opened(tmp_path) is not newest
    assert told(opened(tmp_path)) == told(OpenTable(tmp_path))


def test_it_is_opened_again_where_a_checkpoint_was_removed(tmp_path: Path, opened: Callable[[Path], OpenTable]) -> None:
    """One that a kill has left before it was marked: the next driver removes it, and the log is whole without it."""
    for number in (1, 2):
        commit(tmp_path, number)
    DeltaTable(str(tmp_path)).create_checkpoint()
    before = opened(tmp_path)
    for left in (tmp_path / "_delta_log").glob("*checkpoint*"):
        left.unlink()
    assert opened(tmp_path) is not before
    assert told(opened(tmp_path)) == told(OpenTable(tmp_path))


def test_it_is_opened_again_where_the_log_was_trimmed_while_it_was_opened(
    tmp_path: Path, opened: Callable[[Path], OpenTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun at what is removed: what follows may be removed, too, before it moves on."""
    for number in (1, 2):
        commit(tmp_path, number)

    def overtaken(path: Path) -> LogChanges:
        changes = read_entry(path)
        if path.name == f"{0:020d}.json":
            DeltaTable(str(tmp_path)).create_checkpoint()
            path.unlink()
        return changes

    with monkeypatch.context() as patch:
        patch.setattr(delta, "read_entry", overtaken)
        before = opened(tmp_path)
    assert opened(tmp_path) is not before
    assert told(opened(tmp_path)) == told(OpenTable(tmp_path))


def test_it_is_read_again_where_the_log_was_trimmed_under_its_eyes(
    tmp_path: Path, opened: Callable[[Path], OpenTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that was there when the log was listed, and is not any more."""
    for number in (1, 2):
        commit(tmp_path, number)

    def overtaken(path: Path) -> LogChanges:
        if path.name == f"{0:020d}.json":
            DeltaTable(str(tmp_path)).create_checkpoint()
            path.unlink()
        return read_entry(path)

    with monkeypatch.context() as patch:
        patch.setattr(delta, "read_entry", overtaken)
        assert told(opened(tmp_path)) == told(OpenTable(tmp_path))


def test_an_entry_that_is_missing_is_named(tmp_path: Path, opened: Callable[[Path], OpenTable]) -> None:
    for number in (1, 2, 3):
        commit(tmp_path, number)
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(LogUnreadable, match=f"{1:020d}.json: the log file is missing"):
        opened(tmp_path)


def test_it_finds_what_others_find(tmp_path: Path, opened: Callable[[Path], OpenTable]) -> None:
    """Adds, removes and numbers, from entries and from a checkpoint, are what delta-rs reads."""
    for number in (1, 2, 3):
        commit(tmp_path, number)
    for _ in range(2):
        theirs = DeltaTable(str(tmp_path))
        assert told(opened(tmp_path)) == (theirs.version(), theirs.transaction_version("us"), live(theirs))
        theirs.optimize.compact()
        theirs = DeltaTable(str(tmp_path))
        assert told(opened(tmp_path)) == (theirs.version(), theirs.transaction_version("us"), live(theirs))
        theirs.create_checkpoint()
        for entry in range(theirs.version()):
            (tmp_path / "_delta_log" / f"{entry:020d}.json").unlink(missing_ok=True)
        commit(tmp_path, 4)


def live(table: DeltaTable) -> set[str]:
    return {uri.rpartition("/")[2] for uri in table.file_uris()}


def test_two_that_commit_do_not_share_one(tmp_path: Path) -> None:
    """Else the commit of one would move on the handle on which the other has checked that it is alone."""
    commit(tmp_path, 1)
    ours = open_newest(tmp_path)
    assert open_newest(tmp_path) is not ours
    assert open_newest_cached(tmp_path) is not ours
    commit(tmp_path, 2)
    open_newest_cached(tmp_path)
    assert told(ours)[:2] == (0, 1)


def test_threads_do_not_share_one(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    found: list[OpenTable] = []
    thread = threading.Thread(target=lambda: found.append(open_newest_cached(tmp_path)))
    thread.start()
    thread.join()
    assert open_newest_cached(tmp_path) is open_newest_cached(tmp_path)
    assert found != [open_newest_cached(tmp_path)]


def test_few_are_kept(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(MAX_OPEN_TABLES + 1)]
    for folder in folders:
        commit(folder, 1)
    handles = [open_newest_cached(folder) for folder in folders]
    assert open_newest_cached(folders[-1]) is handles[-1]
    assert open_newest_cached(folders[0]) is not handles[0]


def test_what_is_asked_of_it_can_be_changed(tmp_path: Path) -> None:
    """The answer is the caller's own."""
    commit(tmp_path, 1)
    open_newest_cached(tmp_path).files().clear()
    assert len(open_newest_cached(tmp_path).files()) == 1
