"""Each store of vectors keeps the promises of the port."""

from __future__ import annotations

import itertools
import multiprocessing
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ferryman import Document, Plan
from ferryman.destinations import DestinationContext, Guarantee, OpenSearch, Sql, VectorField
from ferryman.destinations.base import Hit
from ferryman.destinations.sql import sqlite_vectors
from ferryman.destinations.vectors import Declaration, VectorDestination, fuse_ranks, read_filter
from ferryman.document import encode_fields
from ferryman.errors import BadDocument, Misconfigured, PlanError, UsageError
from ferryman.sources import Memory as Listed
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.vectors import DIMENSIONS, MemoryVectors, VectorSuite, vector_delivery
from tests.destinations.tales import TALES, assert_hybrid
from tests.support.plan_world import PlanWorld, place
from tests.support.waiting import wait_until

__all__ = ["place"]


class TestMemoryVectors(VectorSuite):
    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return MemoryVectors(str(folder), vectors)


class TestSqlite(VectorSuite):
    metrics = ("cosine", "l2")

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return Sql(f"sqlite:///{folder / 'out.db'}", vectors=vectors)


class TestSqliteWithFullText(VectorSuite):
    metrics = ("cosine", "l2")

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        url, columns = f"sqlite:///{folder / 'out.db'}", {"number": "n"}
        return Sql(url, 'od"d table', columns=columns, full_text=["text"], vectors=vectors)


# Declarations, values, filters.


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: sqlite("x", {"vector": 0}), "'vector' has 0 dimensions: give a number from 1"),
        (lambda: sqlite("x", {"vector": True}), "'vector' has True dimensions"),
        (lambda: sqlite("x", {"vector": "256"}), "'vector' has '256' dimensions"),
        (lambda: sqlite("x", {"": 4}), "'' is not the name of a field"),
        (lambda: sqlite("x", ["vector"]), "give the dimensions of each field: vectors={'vector': 256}"),
        (lambda: sqlite("x", {"vector": VectorField(4, metric="hamming")}), "metric='hamming': use 'cosine' or 'l2'"),
        (lambda: sqlite("x", {"vector": VectorField(4, metric="dot")}), "sqlite-vec has no metric='dot': use 'cosine'"),
        (lambda: sqlite("x", {"vector": VectorField(4, index="hnsw")}), "leave index= out, or use PostgreSQL"),
        (lambda: sqlite("x", {"vector": VectorField(4, type="float16")}), "sqlite-vec has no type='float16'"),
        (lambda: sqlite("x", {"text": 4}), "'text' is the name of another column"),
        (lambda: sqlite("x", {"Sequence": 4}), "'Sequence' is the name of another column"),
        (lambda: sqlite("x", {"vector": 4}, mode="append"), "mode='append' keeps old versions"),
        (lambda: OpenSearch("http://x", "i", vectors={"text": 4}), "is the name of a field that is written anyway"),
        (lambda: OpenSearch("http://x", "i", vectors={"a.b": 4}), "meaning of its own for . and *"),
        (lambda: OpenSearch("http://x", "i", vectors={"v": VectorField(4, type="float16")}), "Lucene has no type="),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be_meant_is_refused(make: Callable[[], object], why: str) -> None:
    """When the plan is built, by its field, with what to write instead."""
    with pytest.raises(PlanError) as raised:
        make()
    assert why in str(raised.value)


def sqlite(folder: Any, vectors: Any, **options: Any) -> Sql:
    return Sql(f"sqlite:///{folder}/out.db", vectors=vectors, **options)


def test_arrays_are_fields() -> None:
    """Arrays of NumPy and Arrow, and values out of them, are lists and numbers in JSON; NaN in them is refused."""
    fields = {
        "a": np.array([1.5, 2], np.float32), "b": np.float32(1.5), "c": pa.array([1, 2]), "d": pa.scalar([1.5]),
        "e": [np.int64(3)],
    }  # fmt: skip
    assert encode_fields(fields) == b'{"a":[1.5,2.0],"b":1.5,"c":[1,2],"d":[1.5],"e":[3]}'
    for value in (np.array([1, np.nan]), pa.array([1.0, float("inf")]), np.float32("nan")):
        with pytest.raises(BadDocument, match="field 'x' holds"):
            encode_fields({"x": value})


@pytest.mark.parametrize("where", [{"a": None}, {"a": []}, {"a": [{}]}, {"": 1}, {"a": float("nan")}, {"a": 2**70},
                                   {"a": "\ud800"}, {"a": float("inf")}, {1: 2}, ["a"]])  # fmt: skip
def test_a_filter_that_cannot_be_meant_is_refused(where: Any) -> None:
    """Before anything is asked."""
    with pytest.raises(UsageError):
        read_filter(where)


def test_ranks_are_fused() -> None:
    """What stands in both rankings comes first; ties go by id, and text is taken from whoever has it."""
    one = [Hit("a", None, "", 0.1, 0.9, {"n": 1}, "text"), Hit("b", None, "", 0.2, 0.8, {}, "")]
    other = [Hit("c", "C", "the c", -3.0), Hit("a", "A", "the a", -2.0)]
    fused = fuse_ranks(one, other)
    assert [hit.id for hit in fused] == ["a", "c", "b"]
    assert (fused[0].snippet, fused[0].fields, fused[0].text) == ("the a", {"n": 1}, "text")
    assert [hit.score for hit in fused] == sorted((hit.score or 0 for hit in fused), reverse=True)
    assert [hit.id for hit in fuse_ranks(one, other, limit=1)] == ["a"]


# SQLite.


def write(destination: VectorDestination, *chunk: Any) -> None:
    destination.check()
    destination.open(DestinationContext("test", 1, "index", 1, Guarantee.EXACTLY_ONCE))
    assert {o.kind for o in destination.write(list(chunk))} == {"ok"}
    destination.close()


def test_words_and_vectors_are_found_together(tmp_path: Path) -> None:
    """What has the words and is near stands first, and the filter holds for both."""
    destination = sqlite(tmp_path, {"vector": 4}, full_text=["text"])
    write(destination, *TALES)
    assert_hybrid(destination)
    without = sqlite(tmp_path, {"vector": 4}, table="other")
    write(without, *TALES)
    with pytest.raises(UsageError, match="no full-text index"):
        without.hybrid("whale", "vector", [1, 0, 0, 0])


def test_a_table_without_vectors_is_refused(tmp_path: Path) -> None:
    """Its documents would be found by no question."""
    write(Sql(f"sqlite:///{tmp_path}/out.db"), vector_delivery("a", 1, [1, 0, 0, 0]))
    with pytest.raises(Misconfigured, match=r"made without vectors of vector.*--from-version"):
        sqlite(tmp_path, {"vector": 4}).check()


def test_another_model_is_refused(tmp_path: Path) -> None:
    """Though it has the same dimensions; a plan that names none goes on."""
    named = VectorField(4, model="small/4")
    write(sqlite(tmp_path, {"vector": named}), vector_delivery("a", 1, [1, 0, 0, 0]))
    sqlite(tmp_path, {"vector": 4}).check()
    sqlite(tmp_path, {"vector": 4}, table="later").check()
    sqlite(tmp_path, {"vector": named}, table="later").check()  # named later, it is remembered from then on
    with pytest.raises(Misconfigured, match="of the model small/4"):
        sqlite(tmp_path, {"vector": replace(named, model="large/4")}, table="later").check()
    with pytest.raises(Misconfigured, match="of the model small/4 there, the plan says vectors of the model large/4"):
        sqlite(tmp_path, {"vector": replace(named, model="large/4")}).check()


def test_a_table_that_was_dropped_leaves_no_vectors(tmp_path: Path) -> None:
    """Made again, it has those that are written again, also of another model."""
    write(sqlite(tmp_path, {"vector": VectorField(4, model="one")}), vector_delivery("a", 1, [1, 0, 0, 0]))
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection, connection:
        connection.execute("DROP TABLE documents")
    again = sqlite(tmp_path, {"vector": VectorField(3, model="two")})
    write(again, vector_delivery("a", 1, [1, 0, 0]))
    assert [hit.id for hit in again.nearest("vector", [1, 0, 0], 5)] == ["a"]


def test_who_writes_without_vectors_leaves_no_old_ones(tmp_path: Path) -> None:
    """A plan without vectors= that changes a row of such a table takes its vector away: it is that of an older text."""
    destination = sqlite(tmp_path, {"vector": 4})
    write(destination, vector_delivery("a", 1, [1, 0, 0, 0]), vector_delivery("b", 2, [0, 1, 0, 0]))
    write(Sql(f"sqlite:///{tmp_path}/out.db"), vector_delivery("a", 3, [1, 0, 0, 0]), delete("b", 4))
    assert destination.nearest("vector", [1, 0, 0, 0], 5) == []


def test_verify_sees_a_vector_that_was_changed(tmp_path: Path) -> None:
    """One number, changed by hand, is found; nothing else is."""
    destination = sqlite(tmp_path, {"vector": 4})
    write(destination, *(vector_delivery(f"{i}", i, [1, i, 0.1, 0]) for i in range(1, 4)))
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection, connection:
        vector = np.array([1, 2, 0.1, 1e-6], "<f4").tobytes()
        connection.execute("UPDATE documents_vectors SET vector = ? WHERE id = '2'", (vector,))
    context = DestinationContext("test", 1, "index", 1, Guarantee.EXACTLY_ONCE)
    assert {each.id: each.intact for each in destination.inventory(context)} == {"1": True, "2": False, "3": True}


def test_a_python_without_extensions_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are written all the same; a question says what is missing."""
    destination = sqlite(tmp_path, {"vector": 4})
    write(destination, vector_delivery("a", 1, [1, 0, 0, 0]))
    monkeypatch.setattr(sqlite_vectors, "find_spec", lambda name: None)
    with pytest.raises(Misconfigured, match="pip install 'ferryman"):
        destination.nearest("vector", [1, 0, 0, 0])


def edit_until_killed(folder: Path, progress: Path) -> None:
    """Replace and delete documents with vectors, in a child process."""
    destination = sqlite(folder, {"vector": 4})
    destination.open(DestinationContext("test", 1, "index", 1, Guarantee.EXACTLY_ONCE))
    for sequence in itertools.count((destination.highest_sequence() or 0) + 1, 100):
        chunk = [vector_delivery(f"doc-{i}", sequence + i, [1, i, sequence % 97, 0]) for i in range(40)]
        destination.write([*chunk, *(delete(f"doc-{i}", sequence + 50 + i) for i in range(0, 40, 7))])
        progress.touch()


def test_a_killed_writer_leaves_rows_and_their_vectors(tmp_path: Path) -> None:
    """Whenever it dies: each row has the vector that was written with it, and no vector is left without a row."""
    sqlite(tmp_path, {"vector": 4}).check()
    spawn = multiprocessing.get_context("spawn")
    for number in range(3):
        progress = tmp_path / f"progress-{number}"
        writer = spawn.Process(target=edit_until_killed, args=(tmp_path, progress), daemon=True)
        writer.start()
        wait_until(progress.exists)
        writer.kill()
        writer.join(60)
        context = DestinationContext("test", 1, "index", 1, Guarantee.EXACTLY_ONCE)
        stored = list(sqlite(tmp_path, {"vector": 4}).inventory(context))
        assert stored
        assert all(each.intact for each in stored)
        with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
            ids = {id for (id,) in connection.execute("SELECT id FROM documents_vectors")}
        assert ids == {each.id for each in stored}


def test_ids_and_names_of_any_kind(tmp_path: Path) -> None:
    """Ids longer than a page, with quotes and NULs, and fields whose names are SQL, are stored, filtered and found."""
    name = 'vec"tor; DROP TABLE documents; --'
    destination = sqlite(tmp_path, {name: 4})
    ids = ["long/" * 4000, "a'b\"c", "nul\0inside", "汉字/👩‍👩‍👧.txt", "%s ? :x", "x" * 45]
    chunk = [delivery(id, i + 1, "text", {name: [1, i, 0, 0], 'te"am$': "a"}) for i, id in enumerate(ids)]
    write(destination, *chunk)
    hits = destination.nearest(name, [1, 0, 0, 0], 10, {'te"am$': "a"})
    assert [hit.id for hit in hits] == ids
    write(destination, *(delete(id, i + 100) for i, id in enumerate(ids)))
    assert destination.nearest(name, [1, 0, 0, 0], 10) == []


# In a run.


def embed(doc: Document) -> Document:
    doc["vector"] = np.array(doc["numbers"], np.float32)
    return doc


def build(world: PlanWorld, **destinations: Any) -> Plan:
    plan = Plan("vectors", version=1)
    step = plan.source("docs", Listed(world.documents, max_deleted=1.0)).step("embed", embed)
    [(name, destination)] = destinations.items()
    step.destination(name, destination, backoff=0)
    return plan


class Maintained(MemoryVectors):
    """Says what it did, or fails."""

    def __init__(self, name: str, fails: bool) -> None:
        super().__init__(name, {"vector": DIMENSIONS})
        self.fails = fails

    def maintain(self) -> list[str]:
        if self.fails:
            raise OSError("no room")
        return ["built the index"]


@pytest.mark.parametrize(
    ("fails", "line"),
    [(False, "built the index"), (True, "not maintained, which the next run tries again: OSError: no room")],
)
def test_a_run_has_its_destinations_maintained(place: Path, fails: bool, line: str) -> None:
    """After it has delivered, also if there was nothing to deliver; what fails there fails no run."""
    world = PlanWorld(place, partial(build, index=Maintained(str(place), fails)))
    world.put("a", "b", numbers=[1, 2, 3, 4])
    for delivered in (2, 0):
        summary = world.run()
        assert (summary.exit, summary.delivered) == (0, delivered)
        assert f"destination index: {line}" in summary.messages


def test_a_run_stores_arrays_and_fails_what_is_no_vector(place: Path) -> None:
    """A step's NumPy array is stored; a document of another dimension fails with its reason, the others go on."""
    destination = sqlite(place, {"vector": DIMENSIONS})
    world = PlanWorld(place, partial(build, index=destination))
    world.put("a", "b", numbers=[1, 2, 3, 4.1])
    world.put("short", numbers=[1, 2])
    summary = world.run()
    assert (summary.delivered, summary.failed) == (2, 1)
    assert [hit.id for hit in destination.nearest("vector", [1, 2, 3, 4.1], 5)] == ["a", "b"]
