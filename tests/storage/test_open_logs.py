"""A log that is kept open answers as one that was just opened."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ferryman.errors import StateDamaged
from ferryman.storage import delta
from ferryman.storage.delta import DataFile, DeltaLog, open_log, read_log
from ferryman.storage.tables import Table
from tests.storage.conftest import SCHEMA, add, make_table

Answers = tuple[int, dict[str, int], dict[str, DataFile]]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    delta.forget_logs()
    yield
    delta.forget_logs()


def answers(log: DeltaLog[DataFile] | None) -> Answers:
    assert log is not None
    return log.version, dict(log.transactions), dict(log.files)


def opened_again(folder: Path) -> Answers:
    log = DeltaLog(folder, DataFile)
    log.refresh()
    return answers(log)


def test_it_is_moved_on(table: Table) -> None:
    first = read_log(table.folder)
    for number in (2, 3):
        add(table, number, transactions={"us": number})
        assert read_log(table.folder) is first
        assert answers(first) == opened_again(table.folder)
    assert first is not None
    assert len(first.files) == 2


def test_it_is_read_again_where_another_table_was_put(table: Table, place: Path) -> None:
    """A copy of an older state, or a longer log of another one."""
    folder = table.folder
    add(table, 1, transactions={"us": 1})
    shutil.copytree(folder, place / "copy")
    add(table, 2, transactions={"us": 2})
    before = answers(read_log(folder))
    shutil.rmtree(folder)
    shutil.copytree(place / "copy", folder)
    assert answers(read_log(folder)) == opened_again(folder)
    assert answers(read_log(folder)) != before

    shutil.rmtree(folder)
    other = make_table(folder)
    for number in (7, 8, 9):
        add(other, number, transactions={"us": number})
    assert answers(read_log(folder)) == opened_again(folder)
    assert open_log(folder).transactions["us"] == 9


def test_a_table_that_is_removed_is_missing(table: Table) -> None:
    """Before the log was read, and after."""
    assert read_log(table.folder / "elsewhere") is None
    assert read_log(table.folder) is not None
    shutil.rmtree(table.folder)
    assert read_log(table.folder) is None


@pytest.mark.parametrize("behind", [0, 1, 5])
def test_it_is_read_again_where_the_log_was_trimmed(table: Table, behind: int) -> None:
    log = read_log(table.folder)
    for number in range(behind):
        add(table, number)
    table.checkpoint()
    add(table, 10, transactions={"us": 10})
    assert answers(read_log(table.folder)) == opened_again(table.folder)
    assert read_log(table.folder) is log


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("known", [True, False])
def test_a_log_that_is_trimmed_while_it_is_read(
    table: Table, monkeypatch: pytest.MonkeyPatch, when: str, known: bool
) -> None:
    """An entry that was there when the log was listed, and is not any more, or is removed as soon as it was read."""
    for number in (1, 2):
        add(table, number)
    reader = DeltaLog(table.folder, DataFile)
    if known:
        reader.refresh()
    for number in (3, 4):
        add(table, number)
    read, done = DeltaLog._read_entry, []

    def overtaken(log: DeltaLog[Any], version: int) -> Any:
        if log is not reader or done:
            return read(log, version)
        done.append(version)
        found = read(log, version) if when == "after" else None
        add(table, 5)
        table.checkpoint()
        add(table, 6)
        return found or read(log, version)

    monkeypatch.setattr(DeltaLog, "_read_entry", overtaken)
    reader.refresh()
    assert answers(reader) == opened_again(table.folder)


def test_an_entry_that_is_missing_is_named(table: Table) -> None:
    for number in (1, 2, 3):
        add(table, number)
    path = table.log.path(2)
    assert isinstance(path, Path)
    path.unlink()
    with pytest.raises(StateDamaged, match=f"{2:020d}.json: the log file is missing"):
        DeltaLog(table.folder, DataFile).refresh()


def test_other_programs_find_the_same(table: Table) -> None:
    """Adds, removes and numbers, from entries and from a checkpoint, are what delta-rs reads."""
    for number in (1, 2, 3):
        add(table, number, transactions={"us": number})
    for further in range(3):
        removed = add(table, 10 + further)
        table.commit("compact", removes=[removed], data_change=False)
        theirs = DeltaTable(str(table.folder))
        assert (theirs.version(), theirs.transaction_version("us")) == (table.version, 3)
        assert {Path(uri).name for uri in theirs.file_uris()} == set(table.files)
        if further:
            table.checkpoint()


def test_a_driver_has_one_of_its_own(table: Table) -> None:
    """Else a reader in its process would move on the log on which it has checked that it is alone."""
    shared = open_log(table.folder)
    assert table.log is not shared
    other = Table(table.folder, SCHEMA, [])
    other.load()
    assert other.log is shared
    other.fence("another", 2)
    assert other.log is not shared
    read_log(table.folder)
    assert table.log.version == table.version


def test_threads_may_share_one(table: Table) -> None:
    """Each sees a whole version, while the log is moved on and trimmed."""
    problems: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                seen = Table(table.folder, SCHEMA, [])
                seen.load(["us"])
                assert len(seen.files) == seen.transactions["us"]
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 30):
        add(table, number, transactions={"us": number})
        if number % 7 == 0:
            table.checkpoint()
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems


def test_few_are_kept(table: Table, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_MAX_OPEN_LOGS", 2)
    first = open_log(table.folder)
    assert open_log(table.folder) is first
    for name in ("a", "b"):
        open_log(place / name)
    assert open_log(table.folder) is not first
