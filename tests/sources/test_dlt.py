"""``Dlt``: rows of dlt's own resources become documents, deletes and state, and what is wrong with them is said."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.servers.registry import require_package
from tests.sources.test_functions import ids, listed, rows_of
from tests.support import source_story
from tests.support.plan_world import place, run_plan
from tests.support.program import run_program

from ferryman.destinations import Sql
from ferryman.errors import Misconfigured, TransientError, UsageError
from ferryman.plan import Plan
from ferryman.sources import Bookmark, Complete, Dlt, Note, Source
from ferryman.testing.sources import SourceSuite

__all__ = ["place"]

dlt = require_package("dlt")

Page = list[dict[str, Any]]


def marks(entries: list[Any]) -> dict[str, Any]:
    """The bookmarks that count: of several of a resource the last one."""
    return {entry.partition: entry.value for entry in entries if isinstance(entry, Bookmark)}


def feed(pages: list[Page], seen: list[Any], *, fails_at: int = -1, **hints: Any) -> Callable[[], Any]:
    """A factory of a resource that yields pages of what is newer than its cursor, and notes where it began."""
    row_order = hints.pop("row_order", None)
    parallel = hints.pop("parallel", False)

    def factory() -> Any:
        cursor = dlt.sources.incremental("at", initial_value=0, row_order=row_order)

        @dlt.resource(name="feed", primary_key="id", **hints)
        def read(at: Any = cursor) -> Iterator[Page]:
            seen.append(at.last_value)
            for number, page in enumerate(pages):
                if number == fails_at:
                    raise ConnectionError("away")
                yield page

        return read.parallelize() if parallel else read

    return factory


PAGES: list[Page] = [
    [{"id": "a", "at": 1}, {"id": "b", "at": 2}],
    [{"id": "c", "at": 3}, {"id": "d", "at": 4}],
    [{"id": "e", "at": 5}],
]


def test_a_resource_that_replaces_lists_everything() -> None:
    @dlt.resource(primary_key="key", write_disposition="replace")
    def books() -> Iterator[Any]:
        yield [{"key": 7, "title": "x", "tags": ["a"], "nested": {"n": 1}}]
        yield {"key": 8}

    *found, mark, complete = listed(Dlt(lambda: books))
    assert ids(found) == ["7", "8"]
    assert found[0].fields == {"key": 7, "title": "x", "tags": ["a"], "nested": {"n": 1}}
    assert (mark.partition, mark.value["rows"], complete) == ("books", 2, Complete())


def test_rows_that_change_their_form() -> None:
    """A column that comes, goes, or becomes another type; what is nested changes in its depth."""
    rows = [
        {"key": 1, "n": 1},
        {"key": 2, "n": "two", "more": {"a": [{"b": None}]}},
        {"key": 3, "more": ["x", {"y": 1.5}]},
    ]

    @dlt.resource(primary_key="key", write_disposition="replace")
    def books() -> Iterator[Any]:
        yield from rows

    *found, _, complete = listed(Dlt(lambda: books))
    assert [doc.fields for doc in found] == rows
    assert complete == Complete()


@pytest.mark.parametrize("error", [ConnectionError("reset"), ValueError("401: the token has expired")])
def test_a_resource_that_fails_in_the_middle_is_not_complete(error: Exception) -> None:
    @dlt.resource(primary_key="key", write_disposition="replace")
    def books() -> Iterator[Any]:
        yield [{"key": n} for n in range(5)]
        raise error

    found = listed(Dlt(lambda: books))
    assert ids(found) == ["0", "1", "2", "3", "4"]
    assert isinstance(found[-1], Exception)
    assert not any(isinstance(entry, Complete | Bookmark) for entry in found)


def test_of_several_resources_each_is_complete_by_itself() -> None:
    @dlt.source
    def library() -> Any:
        books = dlt.resource([{"id": 1}], name="books", primary_key="id", write_disposition="replace")
        news = dlt.resource([{"id": 1}], name="news", primary_key="id", write_disposition="append")
        return books, news

    found = listed(Dlt(library))
    assert ids(found) == ["books/1", "news/1"]
    assert [entry for entry in found if isinstance(entry, Complete)] == [Complete("books/")]
    assert set(marks(found)) == {"books", "news"}


def test_pages_of_tables_and_frames() -> None:
    import pandas as pd
    import pyarrow as pa

    def read() -> Iterator[Any]:
        yield pa.table({"id": ["a"], "n": [1]})
        yield pa.record_batch({"id": ["b"], "n": [2]})
        yield pd.DataFrame({"id": ["c"], "n": [3]})
        yield dlt.mark.with_table_name({"id": "d", "n": 4}, "other")

    found = listed(Dlt(lambda: dlt.resource(read, name="all", primary_key="id")))
    assert [(entry.id, entry.fields["n"]) for entry in found[:4]] == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


def test_ids_of_several_columns() -> None:
    rows = [{"org": "a/b", "n": 1}, {"org": "c", "n": 2}]
    declared = Dlt(lambda: dlt.resource(rows, name="x", primary_key=["org", "n"]))
    assert ids(listed(declared)) == ["a%2Fb/1", "c/2"]
    assert ids(listed(Dlt(lambda: dlt.resource(rows, name="x"), id=["n", "org"]))) == ["1/a%2Fb", "2/c"]
    [error] = listed(Dlt(lambda: dlt.resource(rows, name="x")))
    assert isinstance(error, Misconfigured)
    assert "the resource x declares no primary key: say id=" in str(error)


def test_a_row_without_its_key_makes_the_listing_incomplete() -> None:
    *found, error = listed(Dlt(lambda: dlt.resource([{"id": "a"}, {"n": 1}], name="x", primary_key="id")))
    assert (ids(found), marks(found), isinstance(error, TransientError)) == (["a"], {}, True)


def test_a_column_that_says_that_a_row_is_deleted() -> None:
    rows = [{"id": "a", "gone": None}, {"id": "b", "gone": True}, {"id": "c", "gone": False}]
    columns = {"gone": {"hard_delete": True, "data_type": "bool"}}
    resource = dlt.resource(rows, name="x", primary_key="id", write_disposition="merge", columns=columns)
    found = listed(Dlt(lambda: resource))
    assert [(entry.id, entry.operation) for entry in found[:3]] == [("a", "upsert"), ("b", "delete"), ("c", "upsert")]
    assert found[0].fields == {"id": "a"}


@pytest.mark.parametrize("row_order", [None, "asc", "desc"])
def test_the_state_goes_on_where_it_was(row_order: str | None) -> None:
    seen: list[Any] = []
    pages = PAGES if row_order != "desc" else [page[::-1] for page in PAGES[::-1]]
    first = listed(Dlt(feed(pages, seen, row_order=row_order)))
    assert sorted(ids(first)) == ["a", "b", "c", "d", "e"]
    again = listed(Dlt(feed([[{"id": "e", "at": 5}, {"id": "f", "at": 6}]], seen, row_order=row_order)), marks(first))
    assert ids(again) == ["f"]  # dlt knows the row at its cursor
    assert seen == [0, 5]
    assert not any(isinstance(entry, Complete) for entry in (*first, *again))


@pytest.mark.parametrize(
    ("options", "resumes_at"),
    [({"row_order": "asc"}, 4), ({}, 0), ({"row_order": "desc"}, 0), ({"row_order": "asc", "parallel": True}, 0)],
)
def test_an_error_in_the_middle_loses_no_row(options: dict[str, Any], resumes_at: int) -> None:
    """The state of a page is kept if rows come in order; else everything is read again, and nothing is skipped."""
    seen: list[Any] = []
    *found, error = listed(Dlt(feed(PAGES, seen, fails_at=2, **options)))
    assert isinstance(error, Exception)
    again = listed(Dlt(feed(PAGES, seen, **options)), marks(found))
    assert seen == [0, resumes_at]
    assert {*ids(found), *ids(again)} == {"a", "b", "c", "d", "e"}


@pytest.mark.parametrize("taken", range(1, 6))
def test_a_reader_that_stops_after_any_row_has_the_state_of_whole_pages(taken: int) -> None:
    """Before a page's rows dlt counts them already; what is bookmarked never does."""
    source = Dlt(feed(PAGES, [], row_order="asc"))
    [partition] = source.partitions_after({})
    reading = source.listing(partition)
    found: list[Any] = [next(reading) for _ in range(taken)]
    with contextlib.suppress(RuntimeError):
        found.append(reading.throw(RuntimeError("stopped")))
    seen: list[Any] = []
    again = listed(Dlt(feed(PAGES, seen, row_order="asc")), marks(found))
    assert seen == [0 if taken < 3 else 2 if taken < 5 else 4]
    assert {*ids(found), *ids(again)} == {"a", "b", "c", "d", "e"}


@pytest.mark.parametrize(
    ("hints", "incremental", "is_complete"),
    [
        ({"write_disposition": "replace"}, False, True),
        ({"write_disposition": "replace"}, True, False),
        ({"write_disposition": {"disposition": "merge", "strategy": "scd2"}}, False, True),
        ({"write_disposition": "merge"}, False, False),
        ({"write_disposition": "append"}, False, False),
    ],
)
def test_what_is_a_complete_listing(hints: dict[str, Any], incremental: bool, is_complete: bool) -> None:
    if incremental:
        source = Dlt(feed(PAGES, [], **hints))
    else:
        source = Dlt(lambda: dlt.resource([{"id": 1}], name="x", primary_key="id", **hints))
    assert any(isinstance(entry, Complete) for entry in listed(source)) == is_complete


def test_nothing_where_something_was_known_deletes_nothing() -> None:
    def source(rows: Page, **more: Any) -> Dlt:
        return Dlt(lambda: dlt.resource(rows, name="x", primary_key="id", write_disposition="replace"), **more)

    known = marks(listed(source([{"id": 1}])))
    *_, error = listed(source([]), known)
    assert isinstance(error, TransientError)
    assert "no rows of x, where 1 were known" in str(error)
    assert listed(source([], may_be_empty=True), known)[-1] == Complete()


@pytest.mark.parametrize(("rows", "pages", "asked"), [(100, 1, True), (100, 2, False), (99, 1, False)])
def test_one_page_of_a_hundred_is_asked_about(rows: int, pages: int, asked: bool) -> None:
    def read() -> Iterator[Page]:
        for number in range(pages):
            yield [{"id": n} for n in range(number, rows, pages)]

    found = listed(Dlt(lambda: dlt.resource(read, name="x", primary_key="id")))
    assert any(isinstance(entry, Note) and "paginator" in entry.text for entry in found) == asked


def test_a_state_that_has_grown_says_what_grew() -> None:
    @dlt.resource(primary_key="id")
    def hoards() -> Iterator[Any]:
        dlt.current.resource_state()["seen"] = ["x" * 1000] * 2000
        yield {"id": 1}

    *_, error = listed(Dlt(lambda: hoards))
    assert isinstance(error, Misconfigured)
    assert "the state of the resource hoards has grown to 2 0" in str(error)
    assert "resources.hoards.seen" in str(error)


@pytest.mark.parametrize("given", [7, [], None])
def test_what_is_no_factory(given: Any) -> None:
    with pytest.raises(UsageError, match="give a function"):
        Dlt(given)
    [error] = listed(Dlt(lambda: given))
    assert isinstance(error, Misconfigured)
    assert "return a source or a resource of dlt" in str(error)


def test_a_resource_itself_is_no_factory() -> None:
    """It could be called, and does not travel."""
    with pytest.raises(UsageError, match="Dlt\\(lambda"):
        Dlt(dlt.resource([{"id": 1}], name="x"))


class Library:
    """A plan over resources whose rows a test changes; runs in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.books: Page = [{"id": n, "title": f"book {n}"} for n in range(20)]
        self.feed: list[Page] = PAGES
        self.fails_at = -1

    def source(self) -> Any:
        books = dlt.resource(self.books, name="books", primary_key="id", write_disposition="replace")
        return dlt.source(lambda: [books, feed(self.feed, [], fails_at=self.fails_at, row_order="asc")()], name="lib")()

    def run(self) -> Any:
        plan = Plan("library", version=1)
        plan.source("lib", Dlt(self.source)).destination("out", Sql(f"sqlite:///{self.folder}/out.db"), backoff=0)
        return run_plan(plan, self.folder / "state")

    def ids(self) -> set[str]:
        import sqlite3

        with sqlite3.connect(self.folder / "out.db") as db:
            return {id for (id,) in db.execute("SELECT id FROM documents")}


def test_a_plan_over_resources(tmp_path: Path) -> None:
    """A complete one deletes, a feed does not; an error in one holds up no other; nothing is sent twice."""
    library = Library(tmp_path)
    library.fails_at = 1
    assert library.run().delivered == 22
    library.fails_at = -1
    assert library.run().delivered == 3
    library.books[3]["title"] = "changed"
    gone = library.books.pop()
    library.feed = [[{"id": "z", "at": 9}]]
    summary = library.run()
    assert (summary.delivered, summary.deleted) == (2, 1)
    kept = {f"books/{book['id']}" for book in library.books}
    assert library.ids() == kept | {f"feed/{name}" for name in "abcdez"}
    assert f"books/{gone['id']}" not in library.ids()
    assert library.run().waves == 0


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    """No pipeline, no folder in the home, no telemetry."""
    program = (
        "from ferryman.sources import Dlt; import dlt, os\n"
        "s = Dlt(lambda: dlt.resource([{'id': 1}], name='x', primary_key='id'))\n"
        "print(len([e for p in s.partitions_after({}) for e in s.listing(p)]), os.environ['RUNTIME__DLTHUB_TELEMETRY'])"
    )
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HOME": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2", "false"]
    assert [path.name for path in tmp_path.rglob("*")] == ["home"]


# --- the conformance suite --------------------------------------------------------------------------------------------


def resource_of(folder: Path, fails: bool = False) -> Any:
    return dlt.resource(lambda: rows_of(folder, fails), name="rows", write_disposition="replace")


class TestDlt(SourceSuite):
    """The promises of the port."""

    def source(self, folder: Path) -> Source:
        self.folder = folder
        for name in "abc":
            (folder / f"{name}.json").write_text(json.dumps({"id": name, "tags": [name], "n": 1}))
        return Dlt(partial(resource_of, folder), id="id")

    def broken(self, folder: Path) -> Source:
        self.source(folder)
        return Dlt(partial(resource_of, folder, fails=True), id="id")

    def change(self, source: Source, id: str) -> None:
        (self.folder / f"{id}.json").write_text(json.dumps({"id": id, "tags": [], "n": 2}))

    def remove(self, source: Source, id: str) -> None:
        (self.folder / f"{id}.json").unlink()


# --- kills ------------------------------------------------------------------------------------------------------------


ORDERS = ("asc", "desc", "unordered", "parallel", "transformed")


@pytest.mark.rule("dlt.state")
@pytest.mark.parametrize(
    ("order", "row"),
    [
        pytest.param(order, row, marks=[] if (order, row) == ("asc", 4) else [pytest.mark.slow])
        for order in ORDERS
        for row in range(1, 6 if order == "desc" else 8)  # in descending order dlt asks for no page below its cursor
    ],
)
def test_a_resource_is_killed_before_a_row(place: Path, order: str, row: int) -> None:
    """Every row is delivered, and once, whatever order its pages have."""
    rows = [{"id": f"r{n}", "at": n, "text": f"Row {n}"} for n in range(1, 8)]
    options: dict[str, Any] = {"path": str(place / "rows.json"), "order": order}
    for count in (3, 7):
        (place / "rows.json").write_text(json.dumps(rows[:count]))
        told = (place / "killed", "newer of Dlt", json.dumps({**options, "kill_at": min(row, count)}))
        ended = run_program("tests.support.source_story", *told)
        assert ended.returncode == -signal.SIGKILL, (ended.returncode, ended.stderr)
        source_story.run(place / "killed", "newer of Dlt", options)
    there, sent = source_story.delivered(place / "killed")
    assert [id for id, _, _ in there] == [row["id"] for row in rows]
    assert sent == ["upsert"] * 7


@pytest.mark.rule("dlt.state")
@pytest.mark.parametrize(
    "order", [pytest.param(each, marks=[] if each == "asc" else [pytest.mark.slow]) for each in ORDERS]
)
def test_a_resource_that_fails_at_its_second_page(place: Path, order: str) -> None:
    """What came before the failure is delivered or comes again; all of it arrives once."""
    rows = [{"id": f"r{n}", "at": n, "text": f"Row {n}"} for n in range(1, 8)]
    (place / "rows.json").write_text(json.dumps(rows))
    options: dict[str, Any] = {"path": str(place / "rows.json"), "order": order}
    with pytest.raises(AssertionError, match="page 2"):
        source_story.run(place / "failed", "newer of Dlt", {**options, "fails_at": 3})
    source_story.run(place / "failed", "newer of Dlt", options)
    there, sent = source_story.delivered(place / "failed")
    assert [id for id, _, _ in there] == [row["id"] for row in rows]
    assert sent == ["upsert"] * 7
