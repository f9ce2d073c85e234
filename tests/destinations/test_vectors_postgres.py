"""Vectors in PostgreSQL with pgvector: the promises of the port, indexes, and what is checked before."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import psycopg
import pytest

from ferryman.destinations import Delivery, DestinationContext, Guarantee, Sql
from ferryman.destinations.vectors import Declaration, VectorDestination, VectorField, vector_fields
from ferryman.errors import Misconfigured, PlanError, Unavailable
from ferryman.testing.destinations import delivery
from ferryman.testing.vectors import DIMENSIONS, VectorSuite, vector_delivery
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.tales import TALES, assert_hybrid
from tests.servers.postgres import PostgresServer
from tests.support.waiting import wait_until

__all__ = ["database", "postgres"]


class OnPostgres(VectorSuite):
    @pytest.fixture(autouse=True)
    def _database(self, database: Database) -> None:
        self.database = database

    def table(self, folder: Path) -> str:
        return f"t{abs(hash(str(folder)))}"


@pytest.mark.slow
class TestPostgres(OnPostgres):
    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return Sql(self.database.url, self.table(folder), vectors=vectors)


class TestPostgresWithIndex(OnPostgres):
    """With an index "hnsw" that is there before the first row, full text, and columns."""

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        indexed = {
            name: VectorField(v.dimensions, metric=v.metric, index="hnsw") for name, v in vector_fields(vectors).items()
        }
        return Sql(
            self.database.url,
            self.table(folder),
            columns={"number": "n"},
            full_text=["text"],
            vectors=indexed,
        )

    def settle(self, destination: VectorDestination) -> None:
        destination.maintain()

    def test_an_index_that_finds_too_few_is_not_believed(self, tmp_path: Path) -> None:
        """Where its walk ends before enough rows fit the filter, they are looked for without it."""
        url = self.database.url + "%20-chnsw.max_scan_tuples%3D1%20-chnsw.ef_search%3D1"
        near = [vector_delivery(f"near-{i}", i + 1, [1, i / 9000, 0, 0], team="a") for i in range(900)]
        far = [vector_delivery(f"far-{i}", i + 1000, [-1, i / 90, 0, 0], team="b") for i in range(20)]
        self._write(tmp_path, near + far)
        destination = self.destination(tmp_path, {"vector": DIMENSIONS})
        assert len(destination.maintain()) == 1
        few = Sql(url, self.table(tmp_path), vectors={"vector": VectorField(DIMENSIONS, index="hnsw")})
        assert {hit.id for hit in few.nearest("vector", [1, 0, 0, 0], 20, {"team": "b"})} == {d.id for d in far}


@pytest.mark.slow
class TestHalfPrecision(OnPostgres):
    """With ``halfvec``: verify compares what is stored with what was rounded."""

    metrics = ("cosine", "l2")

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        halves = {
            name: VectorField(v.dimensions, metric=v.metric, type="float16", index="hnsw")
            for name, v in vector_fields(vectors).items()
        }
        return Sql(self.database.url, self.table(folder), vectors=halves)

    def test_the_nearest_come_first(self, tmp_path: Path) -> None:
        """The order is that of rounded numbers, so it is compared loosely."""
        self._write(tmp_path, [vector_delivery(f"{i}", i + 1, [1, i / 10, 0, 0]) for i in range(20)])
        assert self._nearest(tmp_path, [1, 0.5, 0, 0], 3)[0].id == "5"


DECLARED: Declaration = {"vector": VectorField(DIMENSIONS, index="hnsw")}


def rows(count: int) -> list[Delivery]:
    points = np.random.default_rng(1).standard_normal((count, DIMENSIONS))
    return [vector_delivery(f"doc-{i}", i + 1, point) for i, point in enumerate(points)]


def write(destination: VectorDestination, chunk: list[Delivery]) -> None:
    destination.check()
    destination.open(DestinationContext("test", 1, "index", 1, Guarantee.EXACTLY_ONCE))
    assert {o.kind for o in destination.write(chunk)} == {"ok"}
    destination.close()


def test_the_first_load_builds_the_index_last(database: Database) -> None:
    """No chunk finds an index to keep up to date; ``maintain`` builds it, once, and questions use it."""
    destination = Sql(database.url, vectors=DECLARED)
    destination.check()
    assert destination.maintain() == [], "an empty table has nothing to index"
    write(destination, rows(3000))
    assert database.query("SELECT 1 FROM pg_indexes WHERE indexname = 'documents_vector_hnsw'") == []
    assert destination.maintain() == ["built the index documents_vector_hnsw"]
    assert destination.maintain() == []
    [(definition,)] = database.query("SELECT indexdef FROM pg_indexes WHERE indexname = 'documents_vector_hnsw'")
    assert "vector_cosine_ops" in definition
    question = "[1,0,0,0]"
    plan = database.query(f"EXPLAIN SELECT id FROM documents ORDER BY vector OPERATOR(public.<=>) '{question}' LIMIT 5")
    assert any("documents_vector_hnsw" in line for (line,) in plan), plan
    assert len(destination.nearest("vector", [1, 0, 0, 0], 5)) == 5
    destination.check()  # the index that is there is the one that the plan says


def test_an_index_is_built_again_after_its_session_was_killed(database: Database) -> None:
    """A run that dies while it builds leaves no index, and the next one builds it."""
    destination = Sql(database.url, vectors=DECLARED)
    write(destination, rows(50))
    failures: list[BaseException] = []

    def maintain() -> None:
        try:
            destination.maintain()
        except BaseException as e:
            failures.append(e)

    with psycopg.connect(database.url) as other:
        other.execute("LOCK TABLE documents IN ROW EXCLUSIVE MODE")
        builder = threading.Thread(target=maintain)
        builder.start()
        waiting = "FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%' AND wait_event_type = 'Lock'"
        wait_until(lambda: bool(database.query(f"SELECT pid {waiting}")))
        database.query(f"SELECT pg_terminate_backend(pid) {waiting}")
        builder.join(60)
    assert [type(e) for e in failures] == [Unavailable], failures
    assert destination.maintain() == ["built the index documents_vector_hnsw"]
    assert len(destination.nearest("vector", [1, 0, 0, 0], 50)) == 50


def test_an_index_of_too_many_dimensions_is_refused_with_the_way_on(database: Database) -> None:
    """2 000 as float32 and 4 000 as float16 are the most; without an index there is no such limit."""
    with pytest.raises(PlanError, match="takes 2000 dimensions of float32, not 2001: give type='float16'"):
        Sql(database.url, vectors={"vector": VectorField(2001, index="hnsw")})
    with pytest.raises(PlanError, match=r"takes 4000 dimensions of float16, not 4001: leave index= out"):
        Sql(database.url, vectors={"vector": VectorField(4001, index="hnsw", type="float16")})
    for field in (VectorField(2001), VectorField(4000, index="hnsw", type="float16")):
        Sql(database.url, vectors={"vector": field})


def test_a_large_vector_with_an_index_is_stored_and_found(database: Database) -> None:
    """4 000 dimensions as float16, which is the most, work on the server too."""
    destination = Sql(database.url, vectors={"vector": VectorField(4000, index="hnsw", type="float16")})
    points = np.random.default_rng(2).standard_normal((5, 4000))
    write(destination, [vector_delivery(f"doc-{i}", i + 1, point) for i, point in enumerate(points)])
    assert len(destination.maintain()) == 1
    assert destination.nearest("vector", points[3], 1)[0].id == "doc-3"


def test_an_old_pgvector_is_warned_of(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Before 0.8.4 a vacuum may damage the index: ``check`` says so and goes on."""
    destination = Sql(database.url, vectors=DECLARED)
    destination.check()
    assert "pgvector" not in caplog.text
    [(there,)] = database.query("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    database.query("UPDATE pg_extension SET extversion = '0.8.3' WHERE extname = 'vector'")
    try:
        destination.check()
    finally:
        database.query("UPDATE pg_extension SET extversion = %s WHERE extname = 'vector'", there)
    assert "pgvector 0.8.3 may damage an index" in caplog.text
    assert "ALTER EXTENSION vector UPDATE" in caplog.text


def test_an_index_that_counts_otherwise_is_named(database: Database) -> None:
    """A plan of another metric would not use the index: it is stopped, with both ways on."""
    destination = Sql(database.url, vectors=DECLARED)
    write(destination, rows(5))
    destination.maintain()
    other = Sql(database.url, vectors={"vector": VectorField(DIMENSIONS, metric="l2", index="hnsw")})
    with pytest.raises(Misconfigured, match=r"documents_vector_hnsw counts distances as 'cosine', .*metric='l2'"):
        other.check()
    database.query("DROP INDEX documents_vector_hnsw")
    other.check()
    assert other.maintain() == ["built the index documents_vector_hnsw"]


def test_another_type_of_a_column_is_refused(database: Database) -> None:
    """A column of the other precision would give false alarms."""
    write(Sql(database.url, vectors=DECLARED), rows(5))
    halves = Sql(database.url, vectors={"vector": VectorField(DIMENSIONS, type="float16")})
    with pytest.raises(Misconfigured, match="is of the type vector, the plan says halfvec"):
        halves.check()


def test_a_table_without_vectors_is_refused(database: Database) -> None:
    """Its documents would be found by no question."""
    write(Sql(database.url), rows(5))
    with pytest.raises(Misconfigured, match=r"made without vectors of vector.*--from-version"):
        Sql(database.url, vectors=DECLARED).check()


def test_a_database_without_pgvector_is_said(database: Database, postgres: PostgresServer) -> None:
    """Who may not create the extension is told what an administrator has to run."""
    name = f"bare_{database.name}"
    database.query(f"CREATE DATABASE {name}")
    database.query(f"CREATE ROLE {name} LOGIN PASSWORD 'plain'")
    url = postgres.url_of(name, user=name, password="plain")
    try:
        with pytest.raises(Misconfigured, match="administrator run CREATE EXTENSION vector"):
            Sql(url, vectors=DECLARED).check()
    finally:
        database.query(f"DROP DATABASE {name}")
        database.query(f"DROP ROLE {name}")


def test_words_and_vectors_are_found_together(database: Database) -> None:
    """What has the words and is near stands first, and the filter holds for both."""
    destination = Sql(database.url, full_text=["text"], vectors={"vector": DIMENSIONS})
    write(destination, TALES)
    assert_hybrid(destination)


def test_names_of_any_kind(database: Database) -> None:
    """Tables, fields, ids and filters with quotes, colons and percent signs, with an index and words."""
    name, table = 've"c:t%or', 'od"d t:a%ble'
    destination = Sql(database.url, table, full_text=["text"], vectors={name: VectorField(4, index="hnsw")})
    ids = ["long/" * 400, "a'b\"c", "%s :x", "汉字/👩‍👩‍👧.txt", "x" * 45]
    write(
        destination,
        [delivery(id, i + 1, "a whale", {name: [1, i, 0, 0], "t'e:a%m": ["\0a", ":b"]}) for i, id in enumerate(ids)],
    )
    assert destination.maintain() == [f"built the index {table}_{name}_hnsw"]
    destination.check()
    for where in ({"t'e:a%m": "\0a"}, {"t'e:a%m": [":b", "c"]}, {}):
        assert [hit.id for hit in destination.nearest(name, [1, 0, 0, 0], 10, where)] == ids
        assert {hit.id for hit in destination.hybrid("whale", name, [1, 0, 0, 0], 10, where)} == set(ids)
    context = DestinationContext("test", 1, "index", 1, Guarantee.EXACTLY_ONCE)
    assert all(each.intact for each in destination.inventory(context))
