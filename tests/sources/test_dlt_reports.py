"""Reports about dlt, rebuilt with its own resources in a plan: each with its address, and what happens here."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.registry import require_package
from tests.sources.test_functions import ids, listed
from tests.support.plan_world import Interrupted, Until, place, run_plan

from ferryman.destinations import Sql
from ferryman.errors import Misconfigured
from ferryman.plan import Plan
from ferryman.sources import Bookmark, Complete, Dlt

__all__ = ["place"]

dlt = require_package("dlt")

Rows = list[dict[str, Any]]


class Loaded:
    """A plan from a resource to two tables: the newest version of each row, and each delivery."""

    def __init__(self, place: Path, factory: Callable[[], Any]) -> None:
        self.place = place
        self.factory = factory

    def run(self, **options: Any) -> Any:
        plan = Plan("loaded", version=1)
        node = plan.source("rows", Dlt(self.factory, id="id")).tee("log", Sql(self.url("log"), mode="append"))
        node.destination("out", Sql(self.url("out"), columns={"status": "status"}), backoff=0)
        return run_plan(plan, self.place / "state", **options)

    def url(self, name: str) -> str:
        return f"sqlite:///{self.place}/{name}.db"

    def _select(self, name: str, what: str) -> list[Any]:
        with sqlite3.connect(self.place / f"{name}.db") as db:
            return db.execute(f"SELECT {what} FROM documents ORDER BY id").fetchall()

    def there(self) -> dict[str, Any]:
        return dict(self._select("out", "id, status"))

    def sent(self) -> list[str]:
        """Ids of all deliveries."""
        return [id for (id,) in self._select("log", "id")]


def changes(rows: Rows, **options: Any) -> Callable[[], Any]:
    """A factory of a resource that yields rows, of which dlt leaves out those before its cursor."""

    def factory() -> Any:
        cursor = dlt.sources.incremental("at", **options)

        @dlt.resource(name="rows", primary_key="id", write_disposition="merge")
        def read(at: Any = cursor) -> Iterator[Rows]:
            yield [dict(row) for row in rows]

        return read

    return factory


@pytest.mark.parametrize("lag", [0, 100])
def test_rows_that_commit_late(place: Path, lag: int) -> None:
    """https://github.com/dlt-hub/dlt/issues/2269, https://github.com/dlt-hub/dlt/issues/2479: a row that is written, or
    changed, with an older time than the newest that was read is never read. dlt's ``lag=`` reads them; those that it
    reads again, and that have not changed, are not sent again."""
    rows = [{"id": "a", "at": 1000, "status": "new"}, {"id": "b", "at": 1010, "status": "new"}]
    loaded = Loaded(place, changes(rows, lag=lag))
    assert loaded.run().delivered == 4
    rows.append({"id": "c", "at": 1005, "status": "late"})
    rows[0]["status"] = "changed"
    loaded.run()
    is_read = bool(lag)
    assert loaded.there() == {"a": "changed", "b": "new", "c": "late"} if is_read else {"a": "new", "b": "new"}
    assert loaded.sent() == (["a", "a", "b", "c"] if is_read else ["a", "b"])
    assert loaded.run().waves == 0


def test_a_state_that_was_not_written_doubles_nothing(place: Path) -> None:
    """https://github.com/dlt-hub/dlt/issues/4052: rows were appended, the state could not be written, and the next run
    appended them again. Here both are one commit, and what was sent before a kill is known."""
    loaded = Loaded(place, changes([{"id": name, "at": n, "status": "new"} for n, name in enumerate("abc", 1)]))
    for wave, phase in ((1, "transform"), (1, "commit"), (1, "deliver"), (2, "settle")):
        with pytest.raises(Interrupted):
            loaded.run(observer=Until(wave, phase))
    loaded.run()
    assert loaded.sent() == ["a", "b", "c"]


@pytest.mark.parametrize("resets", ["replace", "append"])
def test_files_that_a_resource_has_noted(place: Path, resets: str) -> None:
    """https://github.com/dlt-hub/dlt/issues/3809, https://github.com/dlt-hub/dlt/issues/2738: a resource that replaces
    its table has no state. Had it one here, what it skips would be taken for deleted."""
    files = {"a": "1", "b": "1"}

    @dlt.resource(name="rows", write_disposition=resets)
    def snapshots() -> Iterator[Any]:
        seen = dlt.current.resource_state().setdefault("seen", [])
        for name in files:
            if name not in seen:
                seen.append(name)
                yield {"id": name, "status": files[name]}

    loaded = Loaded(place, lambda: snapshots)
    loaded.run()
    files["c"] = "1"
    summary = loaded.run()
    assert (summary.exit, summary.delivered, summary.deleted) == (0, 2, 0)
    assert loaded.there() == {"a": "1", "b": "1", "c": "1"}
    assert loaded.sent() == ["a", "b", "c"]


@pytest.mark.parametrize("disposition", ["replace", "merge"])
def test_a_paginator_that_does_not_end(disposition: str) -> None:
    """https://github.com/dlt-hub/dlt/issues/3358, https://github.com/dlt-hub/dlt/issues/1637: an API has a cursor on
    its last page, too, or ignores the number of the page, and the same rows are asked for without end. It is noticed,
    and nothing counts as deleted."""

    @dlt.resource(name="rows", primary_key="id", write_disposition=disposition)
    def read() -> Iterator[Rows]:
        yield [{"id": n} for n in range(150)]
        while True:
            yield [{"id": n} for n in range(100, 150)]

    *found, error = listed(Dlt(lambda: read))
    assert {*ids(found)} == {str(n) for n in range(150)}
    assert isinstance(error, Misconfigured), error
    assert not any(isinstance(entry, Complete | Bookmark) for entry in found)


@pytest.mark.parametrize("missing", ["raise", "include", "exclude"])
def test_a_cursor_that_is_null(place: Path, missing: str) -> None:
    """https://github.com/dlt-hub/dlt/issues/1571, https://github.com/dlt-hub/dlt/issues/1935: one row without a value
    ended the pipeline, or was left out without a word. By default the run names the column and moves no cursor; rows
    that are included come each time, and are sent once."""
    rows = [{"id": "a", "at": 1, "status": "new"}, {"id": "b", "at": None, "status": "open"}]
    loaded = Loaded(place, changes(rows, on_cursor_value_missing=missing))
    summary = loaded.run(wait=0)
    if missing == "raise":
        assert summary.exit == 4
        assert any("at" in message and "None" in message for message in summary.messages), summary.messages
        rows[1]["at"] = 2
    loaded.run()
    loaded.run()
    assert loaded.sent() == (["a"] if missing == "exclude" else ["a", "b"])


def test_a_page_of_nulls(place: Path) -> None:
    """https://github.com/dlt-hub/dlt/issues/4284: of Arrow tables in the order of a bounded cursor, one with nothing
    but nulls ends the reading. What was not read is not skipped by the next run."""
    pages = [{"id": ["a", "b"], "at": [None, None]}, {"id": ["c", "d"], "at": [5, 6]}]

    def factory(**bounds: Any) -> Any:
        cursor = dlt.sources.incremental(
            "at", initial_value=0, row_order="asc", on_cursor_value_missing="include", **bounds
        )

        @dlt.resource(name="rows", primary_key="id")
        def read(at: Any = cursor) -> Iterator[pa.Table]:
            for page in pages:
                yield pa.table({"id": page["id"], "at": pa.array(page["at"], pa.int64())})

        return read

    bounded = listed(Dlt(lambda: factory(end_value=10)))
    marks = {each.partition: each.value for each in bounded if isinstance(each, Bookmark)}
    assert {*ids(bounded), *ids(listed(Dlt(factory), marks))} == {"a", "b", "c", "d"}
