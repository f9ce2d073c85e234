"""Any chunks in any order, with repeats, deletes and bad values, against a small model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferryman.destinations import Delivery, Sql
from ferryman.destinations.base import LastDelivery
from ferryman.destinations.sql import sqlite
from ferryman.destinations.sql.sqlite import SQLite
from ferryman.testing.destinations import delete, delivery
from tests.destinations.sql_table import matching, opened, query, verify_index
from tests.destinations.test_sequences import one_by_one

BAD = {"title": 2**70}
"""An integer that SQLite cannot hold."""


def make(id: str, sequence: int, kind: str) -> Delivery:
    if kind == "delete":
        return delete(id, sequence)
    title = BAD if kind == "bad" else {"title": f"title{sequence}"}
    one = delivery(id, sequence, f"word{sequence} common words of {id}", title)
    return Delivery(
        one.id, hash=one.hash[:-1] + kind[0], sequence=sequence, fields=one.fields, raw=one.raw, version=one.version
    )


kinds = st.sampled_from(["upsert", "upsert", "upsert", "delete", "bad"])
deliveries = st.builds(make, st.sampled_from("abcdef"), st.integers(1, 12), kinds)
histories = st.lists(st.tuples(st.lists(deliveries, max_size=9), st.booleans()), max_size=7)
few = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def is_bad(one: Delivery) -> bool:
    return one.fields == BAD


@contextmanager
def database() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sqlite, "IDS_PER_STATEMENT", 3):
        yield Path(folder) / "out.db"


@few
@given(histories)
def test_upsert_mode_is_a_dict(history: list[tuple[list[Delivery], bool]]) -> None:
    """A row an id, of the highest sequence; a deleted id has none and stays deleted; the index holds the same."""
    with database() as path:
        sql = Sql(f"sqlite:///{path}", columns={"title": "title"}, full_text=["text", "title"])
        opened(sql)
        known: dict[str, LastDelivery] = {}
        last: dict[str, Delivery] = {}
        for chunk, reopen in history:
            if reopen:
                sql.close()
                opened(sql)
            outcomes = sql.write(chunk)
            good = [d for d in chunk if not is_bad(d)]
            expected, after = one_by_one(good, known)
            for d in sorted(good, key=lambda d: d.sequence):
                if after[d.id].hash == d.hash and known.get(d.id) != after[d.id]:
                    last[d.id] = d
            known = after
            for d, outcome in zip(chunk, outcomes, strict=True):
                assert is_bad(d) or outcome.kind != "permanent"  # a stale bad one never comes to the database
            if len(good) == len(chunk):
                assert dict(enumerate(outcomes)) == expected
        sql.close()
        alive = {id: d for id, d in last.items() if d.operation == "upsert"}
        rows = query(path, "SELECT id, delivery_hash, sequence, text, title, fields FROM documents")
        assert {row[0]: row[1:5] for row in rows} == {
            id: (d.hash, d.sequence, d.text(), d.fields["title"]) for id, d in alive.items()
        }
        assert {row[0]: json.loads(row[5]) for row in rows} == {id: d.fields for id, d in alive.items()}
        tombstones = query(path, "SELECT id, sequence, delivery_hash FROM documents_tombstones")
        assert {id: LastDelivery(*known) for id, *known in tombstones} == {
            id: known[id] for id in last.keys() - alive.keys()
        }
        verify_index(path)
        for sequence in range(1, 13):
            found = matching(path, f"word{sequence} title{sequence}")
            assert found == sorted(id for id, d in alive.items() if d.sequence == sequence)


@few
@given(histories)
def test_append_mode_is_a_set(history: list[tuple[list[Delivery], bool]]) -> None:
    """A row a delivery, whatever comes how often and in which order."""
    with database() as path:
        sql = Sql(f"sqlite:///{path}", mode="append", columns={"title": "title"}, full_text=["text", "title"])
        opened(sql)
        expected: dict[str, Delivery] = {}
        for chunk, reopen in history:
            if reopen:
                sql.close()
                opened(sql)
            outcomes = sql.write(chunk)
            assert [o.kind for o in outcomes] == ["permanent" if is_bad(d) else "ok" for d in chunk]
            for d in chunk:
                if not is_bad(d):
                    expected.setdefault(d.hash, d)
        sql.close()
        rows = query(path, "SELECT delivery_hash, id, operation, text, title FROM documents")
        assert sorted(rows) == sorted(
            (
                (d.hash, d.id, "upsert", d.text(), d.fields["title"])
                if d.operation == "upsert"
                else (d.hash, d.id, "delete", None, None)
            )
            for d in expected.values()
        )
        verify_index(path)


def test_the_model_knows_bad_values() -> None:
    """The bad value of these tests is one that SQLite refuses."""
    assert SQLite().is_row_error(OverflowError("Python int too large to convert to SQLite INTEGER"))
