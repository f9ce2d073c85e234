"""The whole trip of a table into a store, beside what a user of Spark would take instead.

A trip is: first load, 1 % changed, 1 % deleted, nothing changed, then all changed, 1 % deleted and 1 % new, killed half
way and run again until all is right. Ferryman and the other program run the same stages in turn, each into a store of
its own, as whole commands. After each stage the store is compared with the truth: a program that is fast because it
leaves deleted documents where they are shows that in its cell. docs/performance.md says what each one gives.

It starts servers of the tests.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from tests.servers.opensearch import OpenSearchServer
from tests.servers.postgres import PostgresServer

from bench import data, environment
from bench.command import QUIET, command, command_until, ferryman
from bench.harness import ROOT, Measurement, Row, Sizes, compare, empty_folder, median, print_progress
from bench.judge import join_verdicts, judge, query_sqlite

MOST: Final = 100_000
"""Greatest number of documents; a trip is eleven commands or more."""
SHARE: Final = 100
MOST_RUNS: Final = 4
"""Runs after a kill, at most; a program that changes nothing more is not run again."""
TARGET: Final = 1.0
OPENSEARCH: Final = ("org.apache.spark:spark-sql_2.13:3.5.7", "org.opensearch.client:opensearch-spark-30_2.13:1.2.0")
"""The newest connector that Maven has, and the newest Spark with which it runs."""
JDBC: Final = "org.postgresql:postgresql:42.7.14"
PEERS: Final = ROOT / "bench" / "peers"
PARTS: Final = 4
HALF: Final = 0.5

PLAN: Final = """
from ferryman import Plan
from ferryman.destinations import OpenSearch, Sql
from ferryman.sources import DataFrame, Parquet

def text(doc):
    doc.raw = doc.fields.pop("body").encode()
    return doc

plan = Plan("trip")
rows = plan.source("rows", {source})
rows.step("text", text).destination("table", {destination})
"""
FILES: Final = "Parquet({rows!r}, id='id')"
FRAME: Final = "DataFrame(lambda spark: spark.read.parquet({rows!r}))"


class Catalog:
    """A table of documents in a folder of Parquet, which changes, and a feed with a file for each change.

    Attributes:
        truth: id -> body, which begins with the number of its change.
    """

    def __init__(self, folder: Path, documents: int) -> None:
        self.rows, self.feed = empty_folder(folder / "rows"), empty_folder(folder / "feed")
        table = pq.read_table(data.table(folder.parent / f"rows-{documents}", documents))
        self._texts = dict(zip(table["id"].to_pylist(), table["body"].to_pylist(), strict=True))
        self._updated = dict.fromkeys(self._texts, 0)
        self._changes = 0
        self._store(self._texts, ())

    @property
    def truth(self) -> dict[str, str]:
        return {id: self._body(id) for id in self._updated}

    @property
    def mark(self) -> str:
        """Beginning of the bodies that the last change has touched."""
        return f"{self._changes} "

    def change(self, share: int = SHARE) -> None:
        """Give one in so many documents a new body."""
        self._changes += 1
        self._set([id for n, id in enumerate(self._updated) if n % share == self._changes % share])

    def delete(self) -> None:
        """Delete one in a hundred."""
        self._changes += 1
        self._store((), self._drop())

    def change_all(self) -> None:
        """Delete one in a hundred, add as many, and give all others a new body."""
        self._changes += 1
        deleted = self._drop()
        for n in range(len(deleted)):
            self._texts[f"new-{self._changes}-{n}"] = "new"
            self._updated[f"new-{self._changes}-{n}"] = self._changes
        self._set(list(self._updated), deleted)

    def _set(self, ids: Iterable[str], deleted: Sequence[str] = ()) -> None:
        ids = list(ids)
        self._updated.update(dict.fromkeys(ids, self._changes))
        self._store(ids, deleted)

    def _drop(self) -> list[str]:
        gone = list(self._updated)[self._changes :: SHARE]
        for id in gone:
            del self._updated[id]
        return gone

    def _body(self, id: str) -> str:
        return f"{self._updated[id]} {self._texts[id]}"

    def _store(self, changed: Iterable[str], deleted: Iterable[str]) -> None:
        """Write the whole table anew, and the changes as a file of the feed."""
        ids = list(self._updated)
        for part in range(PARTS):
            pq.write_table(self._table(ids[part::PARTS]), self.rows / f"part-{part}.parquet")
        last = self._table(changed)
        gone = list(deleted)
        empty = [""] * len(gone)
        marked = pa.table({"id": gone, "title": empty, "body": empty, "updated": [self._changes] * len(gone)})
        both = pa.concat_tables([last, marked.cast(last.schema)])
        flags = pa.array([False] * len(last) + [True] * len(gone))
        if len(both):
            pq.write_table(both.append_column("deleted", flags), self.feed / f"change-{self._changes:04d}.parquet")

    def _table(self, ids: Iterable[str]) -> pa.Table:
        ids = list(ids)
        return pa.table(
            {
                "id": pa.array(ids, pa.string()),
                "title": pa.array([f"Title of {id}" for id in ids], pa.string()),
                "body": pa.array([self._body(id) for id in ids], pa.string()),
                "updated": pa.array([self._updated[id] for id in ids], pa.int64()),
            }
        )


class Store(ABC):
    """Where a program writes: the documents that it has now."""

    @abstractmethod
    def rows(self) -> Iterable[tuple[str, str | None]]:
        """Return id and body of each row; nothing if there is no table yet."""

    @abstractmethod
    def unchanged(self, mark: str) -> int:
        """Return the number of rows whose body does not begin with the mark of the last change."""


class Postgres(Store):
    """A table in a database."""

    def __init__(self, url: str, table: str, body: str = "body", id: str = "id") -> None:
        self._url, self._table, self._body, self._id = url, table, body, id

    def rows(self) -> Iterable[tuple[str, str | None]]:
        return self._ask(f"SELECT {self._id}, {self._body} FROM {self._table}")

    def unchanged(self, mark: str) -> int:
        query = f"SELECT count(*) FROM {self._table} WHERE {self._body} NOT LIKE '{mark}%'"
        return sum(count for (count,) in self._ask(query))

    def _ask(self, query: str) -> list[Any]:
        with psycopg.connect(self._url) as connection:
            try:
                return connection.execute(query.encode()).fetchall()
            except psycopg.errors.UndefinedTable:
                return []


class Sqlite(Store):
    """A table in a file."""

    def __init__(self, file: Path, table: str, body: str = "body") -> None:
        self._file, self._table, self._body = file, table, body

    def rows(self) -> Iterable[tuple[str, str | None]]:
        return query_sqlite(self._file, f"SELECT id, {self._body} FROM {self._table}")

    def unchanged(self, mark: str) -> int:
        query = f"SELECT count(*) FROM {self._table} WHERE {self._body} NOT LIKE '{mark}%'"
        return sum(count for (count,) in query_sqlite(self._file, query))


class DuckDb(Store):
    """A table in a file of DuckDB, which no other process may read while one writes."""

    def __init__(self, file: Path, table: str) -> None:
        self._file, self._table = file, table

    def rows(self) -> Iterable[tuple[str, str | None]]:
        if not self._file.exists():
            return []
        with duckdb.connect(str(self._file), read_only=True) as connection:
            try:
                return connection.execute(f"SELECT id, body FROM {self._table}").fetchall()
            except duckdb.CatalogException:
                return []

    def unchanged(self, mark: str) -> int:
        raise NotImplementedError("DuckDB locks its file")


class OpenSearchIndex(Store):
    """An index of a server."""

    def __init__(self, url: str, index: str, body: str) -> None:
        self._url, self._index, self._body = url, index, body

    def rows(self) -> Iterable[tuple[str, str | None]]:
        found: list[dict[str, Any]] = self._search(f"{self._index}/_search?scroll=1m", {"size": 5000})
        while found:
            yield from ((hit["_id"], hit["_source"][self._body]) for hit in found)
            found = self._search("_search/scroll", {"scroll": "1m", "scroll_id": self._scroll})

    def unchanged(self, mark: str) -> int:
        answer = self._ask(f"{self._index}/_count", {"query": {"bool": {"must_not": {"term": {"updated": int(mark)}}}}})
        return int(answer.get("count", 0))

    def _search(self, path: str, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer = self._ask(path, query)
        self._scroll = answer.get("_scroll_id", "")
        return answer.get("hits", {}).get("hits", [])

    def _ask(self, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer, of all that was written so far; nothing if there is no index yet."""
        headers = {"Content-Type": "application/json"}
        try:
            urlopen(Request(f"{self._url}/{self._index}/_refresh", method="POST")).read()
            return json.load(urlopen(Request(f"{self._url}/{path}", json.dumps(query).encode(), headers)))
        except HTTPError as e:
            if e.code == HTTPStatus.NOT_FOUND:
                return {}
            raise


class Program(NamedTuple):
    """A program with its store.

    ``gradual``: readers see what it writes meanwhile, so that it is killed once half of the rows are not as they were.
    Others, which write in one transaction, are killed after half of the time that the first load took.
    """

    name: str
    line: Sequence[str | Path]
    store: Store
    gradual: bool = True
    environment: Mapping[str, str] = QUIET


class Stage(NamedTuple):
    """One program's part of a stage."""

    took: Measurement
    verdict: str
    right: bool


STAGES: Final[Mapping[str, Callable[[Catalog], None]]] = {
    "first load": lambda _: None,
    "1 % changed": Catalog.change,
    "1 % deleted": Catalog.delete,
    "nothing changed": lambda _: None,
}
KILLED: Final = "all changed, 1 % deleted, 1 % new; killed half way, run until right"


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = min(sizes.documents, MOST)
    ferryman("warm-up")
    with ExitStack() as stack:
        for what, make in groups(stack).items():
            yield from trip(what, make, folder / "trips", count, sizes.rounds)


Make = Callable[[Catalog, Path], Sequence[Program]]
"""Function: (the table, an empty folder) -> Ferryman, and the programs beside it, each with an empty store."""


def groups(stack: ExitStack) -> dict[str, Make]:
    """Return what is compared: its name in the table -> how its programs are made; the stack stops their servers."""
    numbers = itertools.count()

    @cache
    def postgres() -> PostgresServer:
        return stack.enter_context(PostgresServer())

    @cache
    def opensearch() -> OpenSearchServer:
        return stack.enter_context(OpenSearchServer())

    def database() -> str:
        server = postgres()
        name = f"trip{next(numbers)}"
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
            connection.execute(f"CREATE DATABASE {name}".encode())
        return server.url_of(name)

    def into_postgresql(catalog: Catalog, folder: Path) -> Sequence[Program]:
        return (
            ferryman_into(catalog, folder, _sql(url := database()), Postgres(url, "documents", "text")),
            ferryman_into(catalog, folder, _sql(url := database()), Postgres(url, "documents", "text"), on_spark=True),
            _jdbc("overwrite", catalog, database()),
            _jdbc("merge", catalog, database()),
            _stream(catalog, folder, database()),
            _dlt("merge", "postgres", catalog, folder, database()),
            _dlt("replace", "postgres", catalog, folder, database()),
        )

    def into_files(catalog: Catalog, folder: Path) -> Sequence[Program]:
        file = folder / "ferryman.db"
        return (
            ferryman_into(catalog, folder, _sql(f"sqlite:///{file}"), Sqlite(file, "documents", "text")),
            _dlt("merge", "sqlite", catalog, folder, str(folder / "dlt.sqlite")),
            _dlt("merge", "duckdb", catalog, folder, str(folder / "dlt.duckdb")),
        )

    def into_opensearch(catalog: Catalog, folder: Path) -> Sequence[Program]:
        url, round_ = opensearch().url, next(numbers)
        own, other = f"ferryman-{round_}", f"connector-{round_}"
        destination = f"OpenSearch({url!r}, {own!r})"
        jars = environment.jars("opensearch-spark-1.2.0", "".join(map(environment.artifact, OPENSEARCH)))
        line = [sys.executable, PEERS / "opensearch_spark.py", catalog.rows, url, other, *jars]
        return (
            ferryman_into(catalog, folder, destination, OpenSearchIndex(url, own, "text")),
            Program("opensearch-spark 1.2.0 on Spark 3.5.7", line, OpenSearchIndex(url, other, "body")),
        )

    return {"PostgreSQL": into_postgresql, "SQLite": into_files, "OpenSearch": into_opensearch}


def _jdbc(mode: str, catalog: Catalog, url: str) -> Program:
    line = [sys.executable, PEERS / "spark_jdbc.py", mode, catalog.rows, url, _jdbc_jar()]
    name = {"overwrite": "Spark's JDBC writer, overwrite", "merge": "Spark's JDBC writer, staging table and MERGE"}
    return Program(name[mode], line, Postgres(url, "documents"), gradual=mode == "overwrite")


def _stream(catalog: Catalog, folder: Path, url: str) -> Program:
    line = [sys.executable, PEERS / "spark_stream.py", catalog.feed, url, folder / "checkpoint", _jdbc_jar()]
    name = "Structured Streaming, foreachBatch, given a feed of changes"
    return Program(name, line, Postgres(url, "documents"), gradual=False)


def _jdbc_jar() -> Path:
    jars = environment.jars("postgresql-jdbc-42.7.14", environment.artifact(JDBC))
    return next(jar for jar in jars if jar.name.startswith("postgresql-"))


def _dlt(how: str, where: str, catalog: Catalog, folder: Path, url: str) -> Program:
    stores: Mapping[str, Callable[[], Store]] = {
        "postgres": lambda: Postgres(url, "trip.documents"),
        "sqlite": lambda: Sqlite(Path(url), "documents"),
        "duckdb": lambda: DuckDb(Path(url), "trip.documents"),
    }
    python = environment.python(environment.PEERS_PINS)
    line = [python, PEERS / "dlt_load.py", how, catalog.rows, where, url, folder / f"pipelines-{where}-{how}"]
    name = f"dlt, {how}" + (", into DuckDB" if where == "duckdb" else "")
    return Program(name, line, stores[where](), gradual=False)


def _sql(url: str) -> str:
    return f'Sql({url!r}, columns={{"title": "title"}})'


def ferryman_into(catalog: Catalog, folder: Path, destination: str, store: Store, *, on_spark: bool = False) -> Program:
    """Return Ferryman with its plan: it reads the files itself, or a DataFrame with two tasks at once, as others do."""
    home = folder / ("spark" if on_spark else "files")
    home.mkdir()
    source = (FRAME if on_spark else FILES).format(rows=str(catalog.rows))
    (home / "plan.py").write_text(PLAN.format(source=source, destination=destination))
    line: list[str | Path] = [sys.executable, "-m", "ferryman.cli", "run", home / "plan.py", "--state", home / "state"]
    spark = ["--master", "local[2]", "--conf", "spark.driver.memory=2g"]
    return Program("Ferryman, DataFrame", [*line, *spark], store) if on_spark else Program("Ferryman", line, store)


def trip(what: str, make: Make, folder: Path, count: int, rounds: int) -> Iterator[Row]:
    """Go the whole trip with all programs, as often as there are rounds; yield a row for each stage, and one for all.

    In each stage the programs run one after the other.
    """
    results: dict[str, dict[str, list[Stage]]] = {}
    for _ in range(rounds):
        place = empty_folder(folder / "trip")
        catalog = Catalog(place, count)
        programs = make(catalog, place)
        for stage in (*STAGES, KILLED):
            STAGES.get(stage, Catalog.change_all)(catalog)
            for program in programs:
                stages = results.setdefault(program.name, {}).setdefault(stage, [])
                loads = results[program.name]["first load"]
                stages.append(
                    _run_killed(program, catalog, loads[-1].took) if stage == KILLED else _run(program, catalog)
                )
                print_progress(f"    {stage}: {program.name}: {_describe(stages[-1:])}")
    own, *others = results
    for other in others:
        yield from rows(f"{count} documents into {what}; {other}", results[own], results[other])


def rows(what: str, own: Mapping[str, Sequence[Stage]], other: Mapping[str, Sequence[Stage]]) -> Iterator[Row]:
    """Yield the rows of two programs' stages, and of the whole trip."""
    for name, stages in own.items():
        _, ratio, _ = compare(name, 0, _took(stages), _took(other[name]), longer=True)
        right = all(stage.right for stage in stages)
        yield Row(f"{what}: {name}", _describe(stages), _describe(other[name]), ratio, "right", right)
    sums = [[_sum(stages) for stages in zip(*each.values(), strict=True)] for each in (own, other)]
    ratio, text, _ = compare(what, 0, _took(sums[0]), _took(sums[1]), longer=True)
    cells = (f"{what}: the whole trip", *map(_describe, sums), text, f"≤ {TARGET:g}×")
    yield Row(*cells, ratio <= TARGET and all(stage.right for stage in sums[0]))


def _run(program: Program, catalog: Catalog) -> Stage:
    took = command(program.line, program.environment)
    verdict = judge(catalog.truth, program.store.rows())
    return Stage(took, str(verdict), verdict.right)


def _run_killed(program: Program, catalog: Catalog, load: Measurement) -> Stage:
    """Kill the program half way; then run it until all is right, or nothing changes any more."""
    half = len(catalog.truth) * HALF
    is_time = (lambda: program.store.unchanged(catalog.mark) <= half) if program.gradual else _after(load.wall_s * HALF)
    took, killed = command_until(program.line, is_time, program.environment)
    left = judge(catalog.truth, program.store.rows())
    verdict, runs, all_took = left, 0, [took]
    while not verdict.right and runs < MOST_RUNS:
        before = verdict
        all_took.append(command(program.line, program.environment))
        verdict, runs = judge(catalog.truth, program.store.rows()), runs + 1
        if verdict == before and runs > 1:
            break
    how = f"after the kill {left}" if killed else "ended before the kill"
    again = f"run {runs}× more: {verdict}" if runs else str(verdict)
    return Stage(total_of(all_took), f"{how}; {again}", verdict.right)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end


def _sum(stages: Iterable[Stage]) -> Stage:
    stages = list(stages)
    right = all(stage.right for stage in stages)
    wrong = sum(not stage.right for stage in stages)
    return Stage(total_of(s.took for s in stages), "right" if right else f"wrong after {wrong} of {len(stages)}", right)


def total_of(runs: Iterable[Measurement]) -> Measurement:
    """Return the sum of their times."""
    runs = list(runs)
    return Measurement(sum(run.wall_s for run in runs), sum(run.cpu_s for run in runs))


def _took(stages: Sequence[Stage]) -> Measurement:
    return median([stage.took for stage in stages])


def _describe(stages: Sequence[Stage]) -> str:
    took = _took(stages)
    return f"{took.wall_s:.1f} s (CPU {took.cpu_s:.1f} s), {join_verdicts(stage.verdict for stage in stages)}"
