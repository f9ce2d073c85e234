"""``documents`` and the ledger stay small: outdated rows go, small files are merged, nothing that counts is lost."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferryman import limits
from ferryman.engine.pending_work import pending_retries
from ferryman.limits import KIB
from ferryman.observe import Silent
from ferryman.records.rows import DOCUMENTS, LEDGER, ORDINAL_SENT, ORDINAL_STEPS
from ferryman.state import maintenance
from ferryman.state.maintenance import maintain
from ferryman.state.state import State
from ferryman.storage import query
from ferryman.storage.parquet import content_size, write_part
from tests.support.invariants import rows
from tests.support.plan_world import Interrupted, PlanWorld, Until


class Enough(Exception):
    """Ends a run that would go on for ever."""


@pytest.fixture
def state(trial: PlanWorld) -> Any:
    """Empty, taken."""
    with trial.take() as taken:
        yield taken


def add(state: State, found: list[dict[str, Any]], stats: dict[str, Any] | None = None) -> None:
    """One file of ``documents`` with these rows."""
    table = pa.Table.from_pylist(found, schema=DOCUMENTS)
    part = write_part(state.documents.folder, table, epoch=state.epoch, stats=stats)
    state.documents.commit("documents", adds=[state.documents.data_file(part)])


def row(document: str, wave: int, **more: Any) -> dict[str, Any]:
    names = {"source": "docs", "document": document, "version": f"v{wave}", "revision": wave, "fingerprint": ""}
    return {**names, "operation": "upsert", "wave": wave, "given": "", "owed": 0, "forced": False, **more}


def any_row(chance: random.Random, wave: int) -> dict[str, Any]:
    """With all that ``documents`` says of one."""
    return row(
        f"d{chance.randrange(200)}",
        wave,
        source=chance.choice(["a", "b"]),
        operation=chance.choice(["upsert", "upsert", "delete"]),
        given=chance.choice(["", "x" * chance.randrange(400)]),
        due=chance.choice([None, wave]),
        owed=chance.randrange(3),
        failed=chance.choice([None, f"failed {wave}"]),
        held=chance.choice([None, "node"]),
        forced=chance.random() < 0.1,
        again=chance.choice([None, wave]),
    )


def last_rows(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(r["source"], r["document"]): r for r in sorted(found, key=lambda r: r["wave"])}


@pytest.mark.rule("merge.outdated")
def test_documents_that_change_all_the_time_take_a_bounded_room(trial: PlanWorld, small: None) -> None:
    """Twenty documents, changed in each of twelve waves; one is deleted, and comes back as what it was last."""
    trial.put("gone")
    trial.put(*(f"d{i}" for i in range(20)), text="first")
    found: list[int] = []

    def change(_pause: float) -> None:
        found.append(len(rows(trial.root, "documents")))
        if len(found) > 12:
            raise Enough
        trial.drop("gone")
        trial.put(*(f"d{i}" for i in range(20)), text=f"turn {len(found)}")

    with pytest.raises(Enough):
        trial.run(every=0, sleep=change, observer=Silent(), checked=False)
    trial.run()
    assert max(found) <= 2 * 21 + (limits.COMPACT_FILES + 1) * 20
    assert {e["revision"] for e in trial.history("d7")} == set(range(1, 14))
    trial.put("gone")
    assert trial.run().delivered == 1
    assert {e["revision"] for e in trial.history("gone")} == {1, 2, 3}


@pytest.mark.parametrize("limit", [limits.OUTDATED_BYTES, 1], ids=["all at once", "a file a pass"])
@pytest.mark.parametrize("parts", [limits.COMPARED_ROWS, 50], ids=["at once", "in parts"])
def test_what_counts_stays_as_it_is(
    state: State, small: None, monkeypatch: pytest.MonkeyPatch, limit: int, parts: int
) -> None:
    """Whatever a document's last row says; only rows with a later one of the same document go."""
    monkeypatch.setattr(limits, "OUTDATED_BYTES", limit)
    monkeypatch.setattr(limits, "COMPARED_ROWS", parts)
    chance = random.Random(7)
    written: list[dict[str, Any]] = []
    for wave in range(1, 25):
        of_wave = last_rows([any_row(chance, wave) for _ in range(chance.randrange(1, 90))])
        add(state, list(of_wave.values()))
        written += of_wave.values()
        assert maintain(state) == []
        found = rows(state.root, "documents")
        assert last_rows(found) == last_rows(written)
    while maintenance.has_outdated(state):
        maintain(state)
    assert len(rows(state.root, "documents")) <= 2 * len(last_rows(written))
    again = State(state.root, state.plan)
    assert again.open_for_reading()
    assert not maintenance.has_outdated(again), "what the last pass found is remembered durably"


def test_nothing_is_in_memory_but_a_row_group(state: State, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the rows of families are, and however small on the disk."""
    write = maintenance.PartWriter.write

    def checked(writer: Any, table: pa.Table) -> None:
        assert table.num_rows == 1 or table.nbytes <= 2 * limits.GROUP_BYTES
        write(writer, table)

    monkeypatch.setattr(maintenance.PartWriter, "write", checked)
    for wave in range(1, 13):
        with monkeypatch.context() as patch:
            patch.setattr(maintenance.PartWriter, "write", write)
            add(state, [row(f"d{i}", wave, given="x" * 2 * KIB) for i in range(10 * (wave % 3), 40)])
        maintain(state)
    sizes = [content_size(path) for path in state.documents.paths()]
    assert len(rows(state.root, "documents")) <= 80 + limits.COMPACT_FILES * 40
    assert max(sizes) <= 3 * limits.PART_BYTES


def test_two_documents_with_one_hash_are_two(state: State, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dropped is gone: documents are told apart by more than one hash."""
    monkeypatch.setattr(query, "hash_texts", lambda texts: np.zeros(len(texts), np.uint64))
    for wave in range(1, 5):
        add(state, [row(f"d{i}", wave) for i in range(10)])
    assert maintenance.has_outdated(state)
    maintain(state)
    assert sorted(r["document"] for r in rows(state.root, "documents")) == sorted(f"d{i}" for i in range(10))


@pytest.mark.parametrize("wave_bytes", [1, limits.WAVE_BYTES])
def test_a_file_goes_with_the_wave_that_replaces_its_last_row(trial: PlanWorld, wave_bytes: int) -> None:
    """However many waves it takes; no search for outdated rows is needed."""
    ids = [f"d{i}" for i in range(20)]
    for version in range(1, 4):
        trial.put(*ids, text=f"version {version}")
        trial.run(wave_bytes=wave_bytes)
        found = rows(trial.root, "documents")
        assert sorted((row["document"], row["revision"]) for row in found) == sorted((id, version) for id in ids)
    assert trial.run().waves == 0


def test_a_file_stays_for_one_document_that_has_not_changed(trial: PlanWorld) -> None:
    """Also for one that was deleted at the source, and would come back."""
    ids = [f"d{i}" for i in range(20)]
    trial.put("same", *ids, text="version 1")
    trial.run()
    trial.put(*ids, text="version 2")
    trial.run()
    assert len(rows(trial.root, "documents")) == 41
    trial.drop("same")
    trial.run()
    trial.put(*ids, text="version 3")
    trial.run()
    trial.put("same", text="back")
    assert trial.run().documents == 1
    assert max(row["revision"] for row in rows(trial.root, "documents") if row["document"] == "same") == 3
    assert trial.run().waves == 0


@pytest.mark.parametrize("phase", ["deliver", "settle"])
def test_a_kill_forgets_only_what_was_counted(trial: PlanWorld, phase: str) -> None:
    trial.put(*(f"d{i}" for i in range(20)), text="version 1")
    trial.run()
    trial.put(*(f"d{i}" for i in range(20)), text="version 2")
    with contextlib.suppress(Interrupted):
        trial.run(observer=Until(2, phase))
    trial.run()
    assert len(rows(trial.root, "documents")) == 40
    trial.put(*(f"d{i}" for i in range(20)), text="version 3")
    trial.run()
    assert {row["revision"] for row in rows(trial.root, "documents")} == {1, 3}
    assert trial.run().waves == 0


def test_a_table_without_outdated_rows_is_looked_at_once(state: State, small: None) -> None:
    """And again when it has twice as many rows."""
    for wave in range(1, 9):
        add(state, [row(f"d{wave}-{i}", wave) for i in range(30)])
    assert maintenance.has_outdated(state)
    maintain(state)
    version = state.documents.version
    maintain(state)
    assert state.documents.version == version
    assert len(rows(state.root, "documents")) == 240


def test_new_documents_are_not_outdated(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many a first run brings: nobody looks through them before they have changed."""
    for turn in range(3):
        trial.put(*(f"d{turn}-{i}" for i in range(10)))
        trial.run(checked=False)
    monkeypatch.setattr(limits, "COMPACT_FILES", 1)
    with trial.take() as state:
        assert len(rows(state.root, "documents")) == 30
        assert not maintenance.has_outdated(state)
    monkeypatch.undo()
    for some in (range(9), range(1, 10)):  # all but one of each file
        trial.put(*(f"d{turn}-{i}" for turn in range(3) for i in some), text=f"changed from {some.start} on")
        trial.run(checked=False)
    monkeypatch.setattr(limits, "COMPACT_FILES", 1)
    with trial.take() as state:
        assert len(rows(state.root, "documents")) == 30 + 2 * 27
        assert maintenance.has_outdated(state)
    trial.run()
    found = rows(trial.root, "documents")
    assert len(found) == len({r["document"] for r in found}) == 30


def test_small_files_are_left_for_longer_than_tiny_ones(
    state: State, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that lies among many others is copied once there are a few times as many files."""
    monkeypatch.setattr(maintenance, "TINY_PER_SMALL", 3)
    for wave in range(1, 12):
        add(state, [row(f"d{wave}-{i}", wave, given="x" * 100) for i in range(20)])
        assert not list(maintenance.small_batches(state.documents, list(state.documents.files.values())))
    add(state, [row(f"d12-{i}", 12, given="x" * 100) for i in range(20)])
    [batch, *_] = maintenance.small_batches(state.documents, list(state.documents.files.values()))
    assert len(batch) > 1
    for wave in range(13, 17):
        add(state, [row(f"d{wave}", wave)])
    assert sum(map(len, maintenance.small_batches(state.documents, list(state.documents.files.values())))) == 16


def test_what_a_person_forced_is_still_due_in_a_merged_file(state: State, small: None) -> None:
    """A file's statistics say that something in it waits."""
    for wave in range(1, 5):
        add(state, [row(f"d{wave}", wave, forced=wave == 2)])
    maintain(state)
    assert len(state.documents.files) == 1
    assert [debt.due for debt in pending_retries(state)] == [0]


@pytest.mark.rule("merge.failed")
@pytest.mark.parametrize("error", [pa.ArrowCapacityError("too large"), MemoryError("no more"), OSError(28, "full")])
@pytest.mark.parametrize("pieces", [["_last_positions", "combine_small_tables"], ["combine_small_tables"]])
def test_a_failure_is_skipped_and_told(
    state: State, small: None, monkeypatch: pytest.MonkeyPatch, error: Exception, pieces: list[str]
) -> None:
    """Nothing is changed and nothing lies about; the next time it is done."""
    for wave in range(1, 6):
        add(state, [row(f"d{i}", wave) for i in range(wave)])
    before = dict(state.documents.files)

    def failing(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        for piece in pieces:
            patch.setattr(maintenance, piece, failing)
        outdated, merge = maintain(state)
    assert outdated.startswith("outdated rows of documents could not be dropped")
    assert merge.startswith("small files of documents could not be merged")
    assert state.documents.files == before
    assert not list(state.documents.folder.glob(".tmp*"))
    assert maintain(state) == []
    assert len(rows(state.root, "documents")) == 5


def test_the_ledger_is_merged_in_its_order(trial: PlanWorld, small: None) -> None:
    """A file that is merged has its events by wave, so that what is asked for the newest reads little."""
    for turn in range(6):
        trial.put("a", "b", text=f"turn {turn}")
        trial.run(checked=False)
    trial.run()
    files = sorted((pq.read_table(p)["wave"].to_pylist() for p in paths(trial.root / "ledger")), key=len)
    assert len(files) <= limits.COMPACT_FILES
    assert len(files[-1]) >= 8
    assert files[-1] == sorted(files[-1])


@pytest.mark.rule("merge.ledger")
def test_a_merge_of_the_ledger_holds_a_few_row_groups(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many events it puts in order: these take forty-five row groups. Those that failed lie
    together nevertheless. Before, all events were in memory twice."""
    for name, value in {"GROUP_BYTES": 64 * KIB, "COMPACT_FILES": 4, "MERGED_EVENTS": 40, "APART_EVENTS": 20}.items():
        monkeypatch.setattr(limits, name, value)
    chance = random.Random(3)
    written: list[dict[str, Any]] = []
    for file in range(60):
        found = [
            {
                "document": f"{file}-{n}",
                "status": chance.choice(["INDEXED"] * 59 + ["DEAD"]),
                "message": "x" * 200,
                "wave": 2 * file + n % 3,  # the last one of these is the first one of the next file
                "ordinal": chance.choice([ORDINAL_STEPS, ORDINAL_SENT]),
            }
            for n in range(150)
        ]
        part = write_part(state.ledger.folder, pa.Table.from_pylist(found, schema=LEDGER), epoch=state.epoch)
        state.ledger.commit("ledger", adds=[state.ledger.data_file(part)])
        written += found
    held, before, write = [0], pa.total_allocated_bytes(), maintenance.PartWriter.write

    def measured(writer: Any, table: pa.Table) -> None:
        held.append(pa.total_allocated_bytes() - before)
        write(writer, table)

    monkeypatch.setattr(maintenance.PartWriter, "write", measured)
    assert maintain(state) == []
    [path] = state.ledger.paths()
    merged = pq.read_table(path, columns=list(written[0])).to_pylist()
    for status in ("INDEXED", "DEAD"):
        events = [event for event in merged if event["status"] == status]
        assert [(e["wave"], e["ordinal"]) for e in events] == sorted((e["wave"], e["ordinal"]) for e in events)
    assert sorted(map(repr, merged)) == sorted(map(repr, written))
    metadata, column = pq.read_metadata(path), LEDGER.get_field_index("status")
    statistics = [metadata.row_group(n).column(column).statistics for n in range(metadata.num_row_groups)]
    assert [each.min for each in statistics] == sorted((each.max for each in statistics), reverse=True)
    assert 0 < max(held) <= 8 * limits.GROUP_BYTES, "many small columns take more than their values"


def paths(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.suffix == ".parquet"]
