"""Tables: commits that are atomic and durable, and a driver that is stale is told so, whatever the order of things."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from ferryman import crash
from ferryman.errors import EngineError, StateDamaged, StateLost
from ferryman.storage.disk import TEMPORARY
from ferryman.storage.parquet import write_part
from ferryman.storage.tables import Table
from tests.storage.conftest import APPLICATION, SCHEMA, add, make_table
from tests.support.damage import versions_of


def open_table(table: Table) -> Table:
    """The same table in another driver's hands, loaded now."""
    other = Table(table.folder, SCHEMA, [])
    other.load([APPLICATION])
    return other


def numbers(table: Table) -> list[int]:
    """The rows as anybody reads them."""
    paths = [p.removeprefix("file://") for p in DeltaTable(str(table.folder)).file_uris()]
    return sorted(n for p in paths for n in pq.ParquetFile(p).read(["number"])["number"].to_pylist())


def entries(table: Table) -> int:
    return len(versions_of(table.log))


# --- one driver -----------------------------------------------------------------------------------------


def test_a_commit_adds_and_removes_at_once(table: Table) -> None:
    """Both or neither; the table's own view follows; numbers of other applications ride along."""
    old = add(table, 1, 2)
    rows = pa.table({"number": [3], "text": [None]}, schema=SCHEMA)
    new = write_part(table.folder, rows, epoch=1)
    table.commit("outbox", adds=[table.data_file(new)], removes=[old], transactions={"settled": 7})
    assert list(table.files) == [new.path]
    assert numbers(table) == [3]
    again = Table(table.folder, SCHEMA, [])
    again.load([APPLICATION, "settled", "unheard of"])
    assert again.files == table.files
    assert again.transactions == {APPLICATION: 1, "settled": 7, "unheard of": 0}


def test_statistics_and_partitions_come_back(place: Path) -> None:
    """What a wave must know of a file without opening it: rows, size, partition, minima."""
    schema = pa.schema([("wave", pa.int64()), ("destination", pa.string()), ("due", pa.int64())])
    table = Table(place / "t", schema, ["wave", "destination"])
    table.create()
    table.load()
    table.fence(APPLICATION, 1)
    stats = {"minValues": {"due": 5}, "maxValues": {"due": 9}, "nullCount": {"due": 1}}
    rows = pa.table({"due": [5, 9, None]}, schema=pa.schema([("due", pa.int64())]))
    part = write_part(table.folder, rows, stats=stats, epoch=1)
    file = table.data_file(part, {"wave": "3", "destination": "a/b c=d%"})
    table.commit("wave", adds=[file])
    table.checkpoint()
    again = Table(place / "t", schema, ["wave", "destination"])
    again.load()
    assert again.files == {part.path: file}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_every_commit_is_synced(table: Table, monkeypatch: pytest.MonkeyPatch, checkpointed: bool) -> None:
    """The entry is on the disk before it has its name, and then its folder: two syncs a commit."""
    if checkpointed:
        table.checkpoint()
    told = []
    real = os.fsync

    def fsync(fd: int) -> None:
        told.append(os.readlink(f"/proc/self/fd/{fd}").removeprefix(str(table.folder)))
        real(fd)

    part = write_part(table.folder, SCHEMA.empty_table(), epoch=1)
    monkeypatch.setattr(os, "fsync", fsync)
    table.commit("wave", adds=[table.data_file(part)])
    [entry] = [i for i, name in enumerate(told) if name.startswith("/_delta_log/.tmp-")]
    assert entry < told.index("/_delta_log")
    assert len(told) == 2


def test_a_table_is_fenced_before_it_is_written(place: Path) -> None:
    """Without an epoch nothing can be committed."""
    table = Table(place / "t", SCHEMA, [])
    table.create()
    table.load()
    with pytest.raises(AssertionError):
        table.commit("wave")


def test_sizes_are_verified(table: Table) -> None:
    """A live file that is missing or has another size is named."""
    path = table.folder / add(table, 1, 2, 3)
    table.verify_sizes()
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    with pytest.raises(StateDamaged, match=f"it has {len(data) + 1} bytes, not {len(data)}") as error:
        table.verify_sizes()
    assert error.value.path == str(path)
    path.unlink()
    with pytest.raises(StateDamaged, match="the file is missing") as error:
        table.verify_sizes()
    assert error.value.path == str(path)


def test_sweep_removes_what_no_commit_names(table: Table) -> None:
    """Staged files of a crashed wave go; live and kept ones, log and marks stay."""
    live = add(table, 1)
    kept = write_part(table.folder, SCHEMA.empty_table(), epoch=1).path
    write_part(table.folder, SCHEMA.empty_table(), epoch=1)
    write_part(table.folder, SCHEMA.empty_table(), epoch=1)
    (table.folder / ".tmp-abc").write_bytes(b"half")
    before = {p for p in table.folder.rglob("*") if p.is_file() and p.parent != table.folder}
    assert table.sweep([kept]) == 3
    assert {p.name for p in table.folder.iterdir()} == {live, kept, "_delta_log"}
    assert {p for p in table.folder.rglob("*") if p.is_file() and p.parent != table.folder} == before
    assert table.sweep([kept]) == 0


def test_a_full_disk_is_no_other_driver(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit or checkpoint that fails by itself says why, on one line; nothing took effect, it can be made again."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = numbers(table)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(EngineError, match=r"the commit failed: \[Errno 28\] No space left on device"):
            add(table, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(EngineError, match=r"the checkpoint failed: \[Errno 28\] No space left on device") as error:
            table.checkpoint()
        assert "\n" not in str(error.value)
    assert numbers(table) == before
    add(table, 2)
    assert numbers(table) == [*before, 2]
    assert not [path for path in (table.folder / "_delta_log").iterdir() if path.name.startswith(TEMPORARY)]
    table.log.verify()


# --- two drivers ----------------------------------------------------------------------------------------


def lost(action: Callable[[], object], table: Table) -> StateLost:
    """The stale driver's action is refused, and leaves no trace in the log."""
    before = {p.name: p.read_bytes() for p in (table.folder / "_delta_log").iterdir()}
    with pytest.raises(StateLost, match="this one stops") as error:
        action()
    assert {p.name: p.read_bytes() for p in (table.folder / "_delta_log").iterdir()} == before
    return error.value


def test_an_epoch_announced_after_our_load_stops_us(table: Table) -> None:
    """The other announced its epoch; the next commit of ours is refused, and so is every later one."""
    open_table(table).fence(APPLICATION, 2)
    lost(lambda: add(table, 1), table)
    lost(lambda: add(table, 1), table)
    assert "epoch 2, ours is 1" in str(lost(lambda: table.commit("wave"), table))


def test_a_reload_does_not_hide_the_other_epoch(table: Table) -> None:
    """A handle loaded after the other's epoch would commit; we look at the epoch on it."""
    open_table(table).fence(APPLICATION, 2)
    table.load([APPLICATION])
    lost(lambda: add(table, 1), table)


def test_an_epoch_announced_before_our_load_is_seen(table: Table) -> None:
    """Who loads late and thinks its epoch is the highest is refused when it announces it."""
    late = open_table(table)
    open_table(table).fence(APPLICATION, 2)
    lost(lambda: late.fence(APPLICATION, 2), table)
    later = open_table(table)
    lost(lambda: later.fence(APPLICATION, 2), table)
    lost(lambda: later.fence(APPLICATION, 1), table)
    later.fence(APPLICATION, 3)
    add(later, 1)


def test_one_epoch_is_announced_once(table: Table) -> None:
    """Of two that take the same number one wins, whoever is first."""
    first, second = open_table(table), open_table(table)
    first.fence(APPLICATION, 2)
    lost(lambda: second.fence(APPLICATION, 2), table)
    add(first, 1)
    lost(lambda: add(table, 2), table)
    assert numbers(table) == [1]


def test_a_commit_of_the_same_epoch_by_another_handle_stops_us(table: Table) -> None:
    """Not possible under the lock; if it happens, an unexpected version is enough to stop."""
    twin = Table(table.folder, SCHEMA, [])
    twin.load([APPLICATION])
    twin._fence = (APPLICATION, 1)
    add(twin, 1)
    lost(lambda: add(table, 2), table)
    assert numbers(table) == [1]


def between(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Let something happen between the moment when our next commit checks the epoch, and the commit."""
    done = []

    def happen(name: str) -> None:
        if name == "wave.written" and not done:
            done.append(name)
            what()

    monkeypatch.setattr(crash, "point", happen)


def foreign_epoch(table: Table) -> None:
    open_table(table).fence(APPLICATION, 2)


def foreign_commit(table: Table) -> None:
    other = open_table(table)
    other.fence(APPLICATION, 2)
    add(other, 50)


def same_epoch(table: Table) -> None:
    twin = open_table(table)
    twin._fence = (APPLICATION, 1)
    add(twin, 50)


def stranger(table: Table) -> None:
    """A commit without any epoch: Spark, or a person with delta-rs."""
    rows = pa.table({"number": [50], "text": ["foreign"]}, schema=SCHEMA)
    write_deltalake(str(table.folder), rows, mode="append")


def optimizer(table: Table) -> None:
    DeltaTable(str(table.folder)).optimize.compact()


@pytest.mark.parametrize("happens", [foreign_epoch, foreign_commit, same_epoch, stranger, optimizer])
def test_nothing_can_come_between_our_look_and_our_commit(
    table: Table, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Table], None]
) -> None:
    """Whatever is committed after we checked the handle makes our commit fail: it is never put on top."""
    add(table, 1)
    add(table, 2)
    between(monkeypatch, lambda: happens(table))
    before = entries(table)
    with pytest.raises(StateLost, match="this one stops"):
        add(table, 3)
    assert entries(table) > before, "the other's commit is there"
    assert 3 not in numbers(table), "ours is not"
    lost(lambda: add(table, 4), table)


def test_a_number_that_is_free_because_the_log_was_trimmed_stops_us(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has committed the version that we are about to commit, and has removed its entry."""
    add(table, 1)

    def overtaken() -> None:
        other = open_table(table)
        other.fence(APPLICATION, 2)
        add(other, 50)
        other.checkpoint()

    between(monkeypatch, overtaken)
    with pytest.raises(StateLost, match="this one stops"):
        add(table, 3)
    assert numbers(table) == [1, 50]
    table.log.verify()
    lost(lambda: add(table, 4), table)


def test_a_real_second_process_stops_us(table: Table) -> None:
    """The other driver is another process; after it, nothing of ours gets in, and everything of it stays."""
    add(table, 1)
    code = """
import sys
from pathlib import Path
import pyarrow as pa
from ferryman.storage.parquet import write_part
from ferryman.storage.tables import Table
schema = pa.schema([("number", pa.int64()), ("text", pa.string())])
table = Table(Path(sys.argv[1]), schema, [])
table.load([sys.argv[2]])
table.fence(sys.argv[2], 2)
part = write_part(table.folder, pa.table({"number": [2], "text": ["row 2"]}, schema=schema), epoch=1)
table.commit("wave", adds=[table.data_file(part)])
"""
    subprocess.run([sys.executable, "-c", code, str(table.folder), APPLICATION], check=True)
    lost(lambda: add(table, 3), table)
    assert numbers(table) == [1, 2]


def test_a_stale_driver_reads_no_number_of_its_successor(table: Table) -> None:
    """What it has not asked for yet is not mixed with what it knew: it notices that it was overtaken."""
    add(table, 1, transactions={"position": 1, "other": 1})
    stale = open_table(table)
    stale.fence(APPLICATION, 2)
    assert stale.transaction("other") == 1
    make_table(table.folder, epoch=3).commit("wave", transactions={"position": 2, "other": 2})
    with pytest.raises(StateLost, match="epoch 3, ours is 2"):
        stale.transaction("position")
    assert stale.transaction("other") == 1


@pytest.mark.parametrize("after", range(4))
def test_a_wave_commits_at_most_once(table: Table, after: int) -> None:
    """Two drivers race for wave 1, the takeover coming after 0 … 3 actions of the first: the log has it once."""
    first, second = table, open_table(table)

    def commit(driver: Table) -> bool:
        if driver.transactions.get("wave", 0) >= 1:
            return False
        try:
            add(driver, 1, transactions={"wave": 1}, info={"wave": 1})
        except StateLost:
            return False
        return True

    done = []
    if after >= 1:
        done.append(commit(first))
    if after >= 2:
        second.load([APPLICATION, "wave"])
    if after >= 3:
        done.append(commit(first))
    try:
        second.fence(APPLICATION, 2)
    except StateLost:  # it had loaded before the first one committed: it looks again
        second.load([APPLICATION, "wave"])
        second.fence(APPLICATION, 2)
    done += [commit(first), commit(second), commit(first), commit(second)]
    assert sum(done) == 1
    waves = [e for e in (table.folder / "_delta_log").glob("*.json") if b'"wave":1' in e.read_bytes()]
    assert len(waves) == 1
    assert numbers(table) == [1]


def test_a_table_that_was_swapped_for_an_older_copy_stops_us(table: Table, place: Path) -> None:
    """A restored backup under a running driver: another version than we left, so we stop."""
    shutil.copytree(table.folder, place / "copy")
    add(table, 1)
    shutil.rmtree(table.folder)
    shutil.copytree(place / "copy", table.folder)
    lost(lambda: add(table, 2), table)


def test_a_log_that_cannot_be_read_is_damage(table: Table) -> None:
    """What is wrong is said, and the file is named."""
    path = table.log.path(1)
    path.write_bytes(b"{")
    with pytest.raises(StateDamaged) as error:
        open_table(table)
    assert error.value.path == str(path)


def test_making_a_table_is_finished_by_making_it_again(place: Path) -> None:
    """Killed before the name of its first entry was durable."""
    table = make_table(place / "t")
    table.log.path(1).unlink()
    again = Table(place / "t", SCHEMA, [])
    again.create()
    again.load([APPLICATION])
    again.log.verify()
    assert again.version == 0
