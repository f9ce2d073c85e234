"""Rows of a query come a batch at a time; the next batch is made meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ferryman.storage import query
from ferryman.storage.files import is_disk_full
from ferryman.storage.query import connect, register_spooled, spool, stream

SCHEMA = pa.schema([("n", pa.int64())])
MANY = 300_000


def ahead() -> bool:
    return any(thread.name.startswith("ferryman-query") for thread in threading.enumerate())


@pytest.mark.parametrize("rows", [0, 1, 20_000, MANY], ids=["none", "one", "one batch", "several batches"])
def test_all_rows_come_in_their_order(tmp_path: Path, rows: int) -> None:
    """However many batches they make."""
    with connect(tmp_path) as db:
        found = [n for batch in stream(db, f"SELECT range FROM range({rows})", SCHEMA) for n in batch["n"].to_pylist()]
        assert found == list(range(rows))
        assert db.execute("SELECT 1").fetchall() == [(1,)]


def test_few_rows_are_the_same_however_they_are_fetched(tmp_path: Path) -> None:
    """Texts, hashes of texts, numbers, truth and nulls: a caller that knows that few come gets what others get."""
    schema = pa.schema(
        [
            *(("hash", pa.uint64()), ("none", pa.uint64()), ("number", pa.uint64()), ("text", pa.string())),
            *(("small", pa.int8()), ("truth", pa.bool_()), ("bytes", pa.binary()), ("null", pa.int64())),
        ]
    )
    asked = """
        SELECT 'é' || range, NULL::VARCHAR, (18446744073709551615 - range)::UBIGINT,
            CASE range WHEN 1 THEN NULL ELSE 'x' END, range - 2, range > 1, 'b'::BLOB, NULL FROM range({})
    """
    with connect(tmp_path) as db:
        for rows in (0, 1, 3):
            many, few = (list(stream(db, asked.format(rows), schema, most)) for most in (None, rows))
            assert few == many
            assert sum(batch.num_rows for batch in few) == rows


@pytest.mark.parametrize("rows", [1, query._READ_AHEAD_ROWS], ids=["small batches", "large batches"])
def test_few_rows_are_in_memory(rows: int) -> None:
    """One batch ahead of the reader at most, however small they are."""
    made: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(9):
            made.append(number)
            yield pa.RecordBatch.from_pydict({"n": [number] * rows}, schema=SCHEMA)

    for read, batch in enumerate(query._read_ahead(batches())):
        assert batch["n"][0].as_py() == read
        assert len(made) <= read + 2
    assert len(made) == 9


def test_few_rows_start_no_thread(tmp_path: Path) -> None:
    with connect(tmp_path) as db:
        rows = stream(db, "SELECT range FROM range(100)", SCHEMA)
        assert next(rows).num_rows == 100
        assert not ahead()


def test_what_is_left_unread_is_given_up(tmp_path: Path) -> None:
    """Nobody reads on, and the connection answers again."""
    with connect(tmp_path) as db:
        rows = stream(db, f"SELECT range FROM range({MANY})", SCHEMA)
        next(rows)
        assert ahead()
        del rows
        assert not ahead()
        assert db.execute("SELECT 1").fetchall() == [(1,)]


def test_an_error_in_a_later_batch_is_the_readers(tmp_path: Path) -> None:
    bad = f"CASE WHEN range = {MANY - 1} THEN error('here') ELSE range END"
    with connect(tmp_path) as db, pytest.raises(OSError, match="here"):
        list(stream(db, f"SELECT {bad} FROM range({MANY})", SCHEMA))
    assert not ahead()


@pytest.mark.parametrize(
    "text", ["plain", "it's", "\0", "a\0b'\0", "'); SELECT 1; --", "\\", "\udc80".encode("utf-8", "replace").decode()]
)
def test_a_literal_is_the_text_itself(tmp_path: Path, text: str) -> None:
    """Quotes and NUL characters too, at which DuckDB 1.5 ended a literal; each can stand in a list."""
    with connect(tmp_path) as db:
        assert db.execute(f"SELECT {query.quote(text)}, {query.quote_list([text, 'x'])}").fetchall() == [
            (text, [text, "x"])
        ]


@pytest.mark.parametrize("rows", [0, 3, 12], ids=["none", "few", "many"])
def test_a_view_of_batches_is_read_as_often_as_needed(tmp_path: Path, rows: int) -> None:
    """Of more than 8 MiB from a file. Texts, truth and nulls are what they were."""
    schema = pa.schema([("text", pa.string()), ("truth", pa.bool_())])
    large = [(f"{n}-é" * 300_000 if n % 4 else None, [True, False, None][n % 3]) for n in range(rows)]
    batches = (pa.record_batch([pa.array([text]), pa.array([truth])], schema=schema) for text, truth in large)
    with connect(tmp_path) as db:
        register_spooled(db, "kept", spool(tmp_path / "kept.parquet", schema, batches))
        assert (tmp_path / "kept.parquet").exists() is (rows == 12)
        for _ in range(2):
            assert db.execute("SELECT * FROM kept").fetchall() == large
        assert db.execute("SELECT count(*) FROM kept k JOIN kept USING (text)").fetchall() == [(rows - -(-rows // 4),)]


def test_a_full_disk_under_a_view_of_batches() -> None:
    batch = pa.record_batch([pa.array(["x" * (9 << 20)])], ["text"])
    with pytest.raises(OSError, match="No space left") as caught:
        spool(Path("/dev/full"), batch.schema, [batch])
    assert is_disk_full(caught.value)
