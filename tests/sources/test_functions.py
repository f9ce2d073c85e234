"""``Rows`` and ``Cursor``: what a function yields becomes a listing, and what it does wrong is said."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.plan_world import PlanWorld, place, trial

from ferryman.document import Document
from ferryman.errors import Misconfigured, TransientError, UsageError
from ferryman.operations import retry
from ferryman.sources import Bookmark, Complete, Cursor, CursorExpired, Note, Rows, Source
from ferryman.sources import functions as module
from ferryman.testing.sources import SourceSuite

__all__ = ["place", "trial"]


def listed(source: Rows | Cursor, bookmarks: dict[str, Any] | None = None) -> list[Any]:
    """Everything that a scan with these bookmarks yields; an error is its last entry."""
    found: list[Any] = []
    try:
        for partition in source.partitions_after(bookmarks or {}):
            for entry in source.listing(partition):
                found.append(entry)  # noqa: PERF402 - what came before an error stays
    except Exception as e:
        found.append(e)
    return found


def ids(entries: list[Any]) -> list[str]:
    return [entry.id for entry in entries if isinstance(entry, Document)]


def test_rows_are_documents() -> None:
    rows = Rows(lambda: [{"key": 7, "title": "x", "raw": b"content"}, Document("b", n=1)], id="key")
    first, second, mark = listed(rows)
    assert (first.id, first.raw, first.fields) == ("7", b"content", {"key": 7, "title": "x"})
    assert (second.id, second.fields, mark) == ("b", {"n": 1}, Bookmark("", 2))


def test_partitions_are_read_one_by_one() -> None:
    rows = Rows(lambda name: [{"id": f"{name}/1"}], partitions=["a", "b"])
    assert listed(rows)[1::2] == [Bookmark("a", 1), Bookmark("b", 1)]
    assert ids(listed(Rows(lambda n: [{"id": str(n)}], partitions=lambda: range(3)))) == ["0", "1", "2"]
    with pytest.raises(UsageError, match="must differ"):
        Rows(lambda n: [], partitions=["a", "a"]).partitions_after({})


@pytest.mark.parametrize("may_be_empty", [True, False])
@pytest.mark.parametrize("known", [None, 0, 5])
def test_no_rows_where_some_were_known(known: int | None, may_be_empty: bool) -> None:
    found = listed(Rows(list, may_be_empty=may_be_empty), {"": known})
    if known and not may_be_empty:
        [error] = found
        assert isinstance(error, TransientError)
        assert "no rows, where 5 were known" in str(error)
    else:
        assert found == [Bookmark("", 0)]


@pytest.mark.parametrize("row", [{}, {"id": None}, {"id": ""}, {"id": 1.5}, {"id": True}, {"id": ["a"]}])
def test_a_row_without_an_id_makes_the_listing_incomplete(row: dict[str, Any]) -> None:
    *found, error = listed(Rows(lambda: [{"id": "a"}, row, {"id": "b"}]))
    assert (ids(found), isinstance(error, TransientError)) == (["a", "b"], True)
    assert "1 rows have no id in 'id'" in str(error)


@pytest.mark.parametrize("row", [None, "a", 1, [("id", "a")], {"id": "a", "raw": "text"}])
def test_what_is_no_row_is_said(row: Any) -> None:
    *found, error = listed(Rows(lambda: [{"id": "a"}, row]))
    assert (ids(found), isinstance(error, Misconfigured)) == (["a"], True)


@pytest.mark.parametrize("pages", [["last"], ["a", "b"], ["a", "b", "c", "a2"]])
def test_pages_that_come_again_and_again(pages: list[str]) -> None:
    def read() -> Iterator[dict[str, str]]:
        while True:
            for page in pages:
                yield from ({"id": f"{page}{n}"} for n in range(200))

    *found, error = listed(Rows(read))
    assert "reads the same pages again and again" in str(error)
    assert set(ids(found)) == {f"{page}{n}" for page in pages for n in range(200)}


def test_many_rows_and_then_the_last_page_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOP_ROWS", 1000)

    def read() -> Iterator[dict[str, str]]:
        yield from ({"id": f"https://example.org/articles/{n:045}"} for n in range(30_000))
        while True:
            yield from ({"id": f"https://example.org/articles/{n:045}"} for n in range(29_900, 30_000))

    *found, error = listed(Rows(read))
    assert (len(set(ids(found))), "again and again" in str(error)) == (30_000, True)


LARGE = """
import resource, sys
from ferryman.sources import Rows

def read():
    for n in range(10_000_000):
        yield {"id": f"r{n}", "text": "one of ten million rows"}

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

source = Rows(read)
[partition] = source.partitions_after({})
count = 0
for count, _ in enumerate(source.listing(partition), 1):
    if count == 10_000:
        before = peak()
print(count, peak() - before)
"""


@pytest.mark.rule("source.large")
@pytest.mark.slow
def test_ten_million_rows_in_bounded_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True, timeout=3600)
    entries, mb = map(int, done.stdout.split())
    assert entries == 10_000_001, "with the bookmark"
    assert mb < 50


def test_pages_that_shift_are_no_loop() -> None:
    rows = [{"id": str(n)} for start in range(0, 5000, 90) for n in range(start, start + 100)]
    assert isinstance(listed(Rows(lambda: rows))[-1], Bookmark)


@pytest.mark.parametrize(
    ("ordered", "cursors", "last"),
    [
        (False, [3, 1, 2], 3),
        (True, [3, 1, 2], 2),
        (False, ["2024-05-01", "2024-04-01"], "2024-05-01"),
        (True, ["token9", "token10"], "token10"),
        (False, [{"t": 1}, {"t": 0}], {"t": 0}),
        (False, [None, 5, 4.5], 5),
        (False, [], None),
    ],
)
def test_where_the_cursor_stands_at_the_end(ordered: bool, cursors: list[Any], last: Any) -> None:
    source = Cursor(lambda _: [({"id": str(n)}, cursor) for n, cursor in enumerate(cursors)], ordered=ordered)
    assert listed(source)[-1].value["cursor"] == last


@pytest.mark.parametrize("ordered", [True, False])
def test_where_the_cursor_stands_after_an_error(ordered: bool) -> None:
    def read(cursor: int) -> Iterator[Any]:
        yield {"id": "a"}, 1
        yield {"id": "b"}, 2
        raise ConnectionError("gone")

    found = listed(Cursor(read, start=0, ordered=ordered))
    marks = [entry.value["cursor"] for entry in found if isinstance(entry, Bookmark)]
    assert (ids(found), marks, isinstance(found[-1], ConnectionError)) == (["a", "b"], [2] if ordered else [], True)


def test_an_ordered_cursor_moves_only_past_what_was_taken() -> None:
    """A reader that fails on its way to the document after the cursor has not yielded that one."""

    def read(cursor: int) -> Iterator[Any]:
        yield {"id": "a"}, 1
        yield {"no": "id"}, 2

    found = listed(Cursor(read, start=0, ordered=True))
    assert not any(isinstance(entry, Bookmark) for entry in found)


def test_a_pair_without_a_document_moves_the_cursor() -> None:
    assert listed(Cursor(lambda _: [(None, "t7")], ordered=True))[-1].value["cursor"] == "t7"


@pytest.mark.parametrize("pair", [{"id": "a"}, Document("a"), None, ("a",), ({"id": "a"}, 1, 2)])
def test_what_is_no_pair_is_said(pair: Any) -> None:
    [error] = listed(Cursor(lambda _: [pair]))
    assert isinstance(error, Misconfigured)
    assert "yield a pair (document, cursor)" in str(error) or "yield a dict or a Document" in str(error)


@pytest.mark.parametrize(
    ("cursor", "before"),
    [
        ("2024-05-01T10:00:00+00:00", "2024-05-01T09:55:00+00:00"),
        ("2024-05-01T10:00:00Z", "2024-05-01T09:55:00+00:00"),
        ("2024-05-01", "2024-04-30T23:55:00"),
        (1_700_000_000, 1_699_999_700),
        (1_700_000_000_000, 1_699_999_700_000),
        (None, None),
    ],
)
def test_a_lag_begins_before_the_cursor(cursor: Any, before: Any) -> None:
    asked: list[Any] = []
    source = Cursor(lambda c: asked.append(c) or [], lag="5m")  # type: ignore[func-returns-value]
    assert listed(source, {"": {"cursor": cursor, "listed": 0}}) == [Bookmark("", {"cursor": cursor, "listed": 0})]
    assert asked == [before]


@pytest.mark.parametrize("cursor", ["token", {"at": 1}, True, [1]])
def test_a_lag_needs_a_time(cursor: Any) -> None:
    [error] = listed(Cursor(lambda _: [], lag="5m"), {"": {"cursor": cursor, "listed": 0}})
    assert isinstance(error, Misconfigured)
    assert "lag= needs a cursor that is a time" in str(error)


def test_what_is_deleted_and_what_has_expired() -> None:
    def read(cursor: str) -> Iterator[Any]:
        if cursor == "old":
            raise CursorExpired("410 Gone")
        yield Document.deleted("a"), "new"

    note, deleted, mark, complete = listed(
        Cursor(read, start="start", relist="7d"), {"": {"cursor": "old", "listed": int(time.time())}}
    )
    assert note == Note("the cursor 'old' has expired (410 Gone): everything is read from the start")
    assert (deleted.id, deleted.operation, mark.value["cursor"], complete) == ("a", "delete", "start", Complete())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rows([{"id": "a"}]),  # type: ignore[arg-type]
        lambda: Cursor(None),  # type: ignore[arg-type]
        lambda: Cursor(lambda _: [], lag="soon"),
        lambda: Cursor(lambda _: [], relist=-1),
        lambda: Cursor(lambda _: [], relist=float("nan")),
        lambda: Rows(list, max_deleted=2),
        lambda: Rows(list, detect="often"),  # type: ignore[arg-type]
    ],
)
def test_bad_options_are_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("also", [False, True])
def test_a_run_that_cannot_read_what_an_operator_asks_for_is_not_done(trial: PlanWorld, also: bool) -> None:
    """Its exit and its count say the same as ``status``, also beside other documents that went through."""
    rows = [({"id": "a"}, 1), ({"id": "b"}, 2)]
    trial.build(source=Cursor(lambda at: [row for row in rows if row[1] > at], start=0, ordered=True))
    assert trial.run().exit == 0
    retry(trial.plan, state=trial.state, force=True)
    rows += [({"id": "c"}, 3)] if also else []
    for _ in range(2):
        summary = trial.run(wait=0)
        assert (summary.exit, summary.pending) == (4, 2)
        assert trial.status()["destinations"]["out"]["pending"] == 2
    rows += [({"id": "a"}, 4), ({"id": "b"}, 5)]
    assert trial.run(wait=0).exit == 0


# --- the conformance suites -------------------------------------------------------------------------------------------


def rows_of(folder: Path, fails: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the rows of a folder, each of them a file; perhaps the second one does not come."""
    for number, path in enumerate(sorted(folder.glob("*.json"))):
        if fails and number:
            raise ConnectionError("page 2 of 3: 503")
        yield json.loads(path.read_text())


class InFolder(SourceSuite):
    def source(self, folder: Path) -> Source:
        self.folder = folder
        for name in "abc":
            (folder / f"{name}.json").write_text(json.dumps({"id": name, "tags": [name], "n": 1}))
        return self.reading(partial(rows_of, folder))

    def broken(self, folder: Path) -> Source:
        self.source(folder)
        return self.reading(partial(rows_of, folder, fails=True))

    def change(self, source: Source, id: str) -> None:
        (self.folder / f"{id}.json").write_text(json.dumps({"id": id, "tags": [], "n": 2}))

    def remove(self, source: Source, id: str) -> None:
        (self.folder / f"{id}.json").unlink()

    def reading(self, read: Any) -> Source:
        raise NotImplementedError


class TestRows(InFolder):
    """The promises of the port."""

    def reading(self, read: Any) -> Rows:
        return Rows(read)


class TestCursor(InFolder):
    """The promises of the port, of a reader that is asked from its start."""

    def reading(self, read: Any) -> Cursor:
        return Cursor(partial(_with_numbers, read), relist=0)


def _with_numbers(read: Any, cursor: int | None) -> Iterator[tuple[dict[str, Any], int]]:
    return ((row, number) for number, row in enumerate(read(), 1))


del InFolder  # pytest would collect it
