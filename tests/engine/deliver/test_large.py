"""Content larger than memory, or than Arrow's 2 GiB: it is staged, sent, settled and retried a row group at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferryman import limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.destinations.memory import Null
from ferryman.document import Document
from ferryman.engine.settle import Rewrite, rewrite
from ferryman.limits import KIB, MIB
from ferryman.plan import Plan
from ferryman.records.families import Published, decode_published, encode_published
from ferryman.records.rows import OUTBOX_CONTENT, OUTBOX_FILE
from ferryman.sources import Memory
from ferryman.state.outbox import OutboxWriter, first_sequence, split_family
from ferryman.storage.parquet import RowGroups, write_part
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import Interrupted, PlanWorld, Until, run_plan


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files close at 32 KiB of content, row groups at 8 KiB."""
    monkeypatch.setattr(limits, "PART_BYTES", 32 * KIB)
    monkeypatch.setattr(limits, "GROUP_BYTES", 8 * KIB)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How often the content of each row group of the outbox was decoded. Nobody may decode that of a whole file."""
    found: Counter[tuple[str, int]] = Counter()
    group, whole = RowGroups._read, pq.ParquetFile.read

    def counted(self: RowGroups, number: int) -> pa.Table:
        if Path(self.path).parent.name == "outbox":
            found[self.path, number] += 1
        table = group(self, number)
        assert table.num_rows == 1 or table.nbytes <= limits.GROUP_BYTES
        return table

    def of_small_columns(self: Any, columns: list[str] | None = None, **options: Any) -> pa.Table:
        names = self.schema_arrow.names if columns is None else columns
        assert not set(names) & {*OUTBOX_CONTENT}, "the content of a whole file is decoded at once"
        return whole(self, columns, **options)

    monkeypatch.setattr(RowGroups, "_read", counted)
    monkeypatch.setattr(pq.ParquetFile, "read", of_small_columns)
    return found


def pages(doc: Document) -> list[Document]:
    """One of 1 KiB for each word."""
    return [doc.child(word, raw=word.encode().ljust(KIB)) for word in doc.text().split()]


def in_outbox(trial: PlanWorld) -> list[Any]:
    with trial.take() as state:
        return sorted(state.outbox.files.values(), key=first_sequence)


def interrupted(trial: PlanWorld, wave: int) -> None:
    with pytest.raises(Interrupted):
        trial.run(observer=Until(wave, "deliver"), checked=False)


# --- staging --------------------------------------------------------------------------------------------


def test_a_file_closes_within_a_block(trial: PlanWorld, small: None) -> None:
    """However many documents are handled at a time."""
    trial.put(*(f"d{i:03}" for i in range(100)), text="x" * KIB)
    interrupted(trial, 1)
    files = in_outbox(trial)
    assert len(files) >= 4
    assert sum(file.rows for file in files) == 100
    assert not any(split_family(a, b) for a, b in itertools.pairwise(files)), "each can have a lane"
    assert trial.run().exit == 0
    assert len(set(trial.out().arrived())) == 100


@pytest.mark.rule("size.files")
def test_a_file_closes_within_a_family(trial: PlanWorld, small: None) -> None:
    """What follows it in the wave does not go into its last file."""
    trial.build(pages)
    trial.put("a", text="x")
    trial.put("b", text=" ".join(f"p{i}" for i in range(100)))
    trial.put("c", text="x")
    interrupted(trial, 1)
    files = in_outbox(trial)
    assert len(files) >= 4
    assert {split_family(a, b) for a, b in itertools.pairwise(files[1:-1])} == {True}
    assert not split_family(files[-2], files[-1])
    assert trial.run().exit == 0
    assert len(set(trial.out().arrived())) == 102


@pytest.mark.rule("child.after")
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_deletes_of_a_large_family_go_after_its_upserts(trial: PlanWorld, small: None, slots: int) -> None:
    """Also if it does not fit into one file, and several lanes send."""
    trial.build(pages)
    trial.put("a", text=" ".join(f"old{i}" for i in range(100)))
    trial.put(*(f"d{i:03}" for i in range(40)), text="x y")
    trial.run(runner=InProcess(slots=slots))
    trial.out().forget()
    trial.put("a", text=" ".join(f"new{i}" for i in range(100)))
    trial.put(*(f"d{i:03}" for i in range(40)), text="x z")
    trial.run(runner=InProcess(slots=slots))
    said = [line["op"] for line in trial.out().lines() if line["id"].startswith("a#")]
    assert said == ["upsert"] * 100 + ["delete"] * 100


# --- single contents ------------------------------------------------------------------------------------


@pytest.mark.rule("size.content")
def test_a_document_that_is_too_large_is_rejected_alone(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it comes from its source, and as a step makes it; it says how large it is, and what to do."""
    monkeypatch.setattr(limits, "MAX_CONTENT_BYTES", 5000)

    def grow(doc: Document) -> Document:
        doc.raw = doc.raw and doc.raw * (100 if doc.id == "b" else 1)
        return doc

    trial.build(grow)
    trial.put("a", text="x" * 5001)
    trial.put("b", text="x" * 51)
    trial.put("c", text="x" * 5000)
    trial.documents.append({"id": "d", "text": "x" * 5000})
    assert trial.run().exit == 3
    assert trial.out().arrived() == ["c"]
    assert {id: trial.statuses(id) for id in "abcd"} == {
        "a": ["ERROR_DOC"],
        "b": ["ERROR_DOC"],
        "c": ["INDEXED"],
        "d": ["ERROR_DOC"],
    }
    [event] = trial.history("b")
    assert "its raw bytes are too large: 5 100 bytes, and a document holds 5 000 at most" in event["message"]
    trial.put("b", text="x" * 5)
    trial.drop("a", "d")
    trial.run()
    assert trial.statuses("b") == ["ERROR_DOC", "INDEXED"]


@pytest.mark.slow
def test_contents_of_2_gib_for_real(place: Path) -> None:
    """One that is too large is rejected; two that are more than 2 GiB together are delivered."""

    def grow(doc: Document) -> Document:
        doc.raw = bytes(int(doc.text()) * MIB)
        return doc

    sizes = {"a": 2048, "b": 1100, "c": 1100}
    plan = Plan("large", 1)
    documents = [{"id": id, "raw": str(size).encode()} for id, size in sizes.items()]
    plan.source("docs", Memory(documents)).step("grow", grow).destination("out", Null())
    summary = run_plan(plan, place / "state", checked=False)
    assert (summary.delivered, summary.rejected, summary.exit) == (2, 1, 3)


# --- sending, settling, commands ------------------------------------------------------------------------


def test_each_row_group_is_decoded_once(trial: PlanWorld, small: None, decoded: Counter[tuple[str, int]]) -> None:
    """Whatever a chunk takes: the rest of a group goes into the next one."""
    trial.build(batch=3)
    trial.put(*(f"d{i:03}" for i in range(100)), text="x" * KIB)
    assert trial.run(checked=False).delivered == 100
    assert len(decoded) > 8
    assert set(decoded.values()) == {1}


@pytest.mark.rule("size.chunks")
@pytest.mark.parametrize("batch", [1, 3, 7, 50])
@pytest.mark.parametrize("batch_bytes", [1, 3000, 10 * KIB])
def test_chunks_are_cut_by_rows_and_bytes(trial: PlanWorld, small: None, batch: int, batch_bytes: int) -> None:
    """As many rows as ``batch`` and ``batch_bytes`` allow, wherever a row group ends; at least one."""
    trial.build(batch=batch, batch_bytes=batch_bytes)
    sizes = {f"d{i:02}": (i * 389) % 4000 for i in range(60)}
    for id, size in sizes.items():
        trial.put(id, text="x" * size)
    trial.run()
    chunks: dict[str, list[str]] = {}
    for line in trial.out().lines():
        chunks.setdefault(line["call"], []).append(line["id"])
    cut: list[list[str]] = []
    files = 0
    for chunk in chunks.values():
        cut.append(chunk)
        assert len(chunk) <= batch
        assert len(chunk) == 1 or sum(sizes[id] + 2 for id in chunk) <= batch_bytes
    for chunk, after in itertools.pairwise(cut):
        full = len(chunk) == batch or sum(sizes[id] + 2 for id in (*chunk, after[0])) > batch_bytes
        files += not full  # only the end of a file ends a chunk that has room
    assert files <= 6


@pytest.mark.rule("size.files")
def test_settling_and_commands_read_a_row_group_at_a_time(
    trial: PlanWorld, small: None, decoded: Counter[tuple[str, int]]
) -> None:
    """What stays in the outbox is written anew: once it has failed, once somebody asks for it again."""
    broken = True

    def answer(delivery: Delivery) -> Outcome:
        bad = broken and delivery.id.endswith("7")
        return Outcome.permanent("no") if bad else Outcome.ok()

    trial.build(answer=answer, batch=5)
    trial.put(*(f"d{i:03}" for i in range(100)), text="x" * KIB)
    assert trial.run(checked=False).delivered == 90
    broken = False
    trial.retry()
    assert trial.run(checked=False).delivered == 10
    assert trial.counts() == {"delivered": 100}


def test_of_families_only_small_ones_are_remembered() -> None:
    """Most are a document alone, and alike; large ones would fill a worker's memory."""
    small, large = ([["#" + "x" * n, "", "out"]] for n in (10, 100_000))
    for family, same in ((small, True), (large, False)):
        text = msgspec.json.encode(family).decode()
        assert (decode_published(text) is decode_published(text)) is same
        assert encode_published(decode_published(text)) == text
    many = tuple(Published(f"#{i}", "", "out") for i in range(1000))
    assert encode_published(many) is not encode_published(many)


@pytest.mark.slow
def test_a_file_of_more_than_2_gib_is_rewritten(place: Path) -> None:
    """For real: 35 rows of 64 MiB, of which each second one stays."""
    for table in ("outbox", "ledger"):
        (place / table).mkdir()
    writer = OutboxWriter(place / "outbox", epoch=1)
    for i in range(35):
        columns = {f.name: pa.nulls(1, f.type) for f in OUTBOX_FILE}
        columns |= {"row": pa.array([i]), "origin": pa.array([f"d{i}"]), "delivery_hash": pa.array([f"h{i}"])}
        columns |= {"attempt": pa.array([0]), "due": pa.array([0]), "raw": pa.array([bytes(64 * MIB)], pa.binary())}
        writer.write(pa.table(columns, schema=OUTBOX_FILE))
    part = writer.finish()
    assert part is not None
    said = pa.table(
        {
            "delivery_hash": [f"h{i}" for i in range(35)],
            "status": ["INDEXED" if i == 0 else "ERROR" for i in range(35)],
            "attempt": [1] * 35,
            "due": list(range(35)),
            "since": pa.nulls(35, pa.int64()),
            "transient": [0] * 35,
            "message": pa.nulls(35, pa.string()),
        }
    )
    events = write_part(place / "ledger", said, epoch=1)
    after, _ = rewrite(Rewrite(str(place), part.path, (events.path,), epoch=1))
    assert after is not None
    assert after.rows == 34
    assert after.stats == {
        "nullCount": {"due": 0, "key_hash": 34},
        "minValues": {"due": 1, "origin": "d1"},
        "maxValues": {"due": 34, "origin": "d9"},
    }
