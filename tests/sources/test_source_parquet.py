"""Rows of Parquet files: their values, ids, contents, folders with values, and files that are none."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows import documents, failures, refusals, told
from tests.support.plan_world import PlanWorld

from ferryman.errors import UsageError
from ferryman.sources import DataFrame, Parquet


def write(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def test_values_are_those_of_a_data_frame(tmp_path: Path) -> None:
    """Also of categories, views and extension types, which only Arrow has, and across several batches."""
    table = pa.table(
        {
            "id": pa.array([f"id-{n}" for n in range(9000)]),
            "whole": pa.array(range(9000), pa.int64()),
            "single": pa.array([0.1] * 9000, pa.float32()),
            "amount": pa.array([Decimal("1.10")] * 9000),
            "when": pa.array([dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)] * 9000, pa.timestamp("us", "UTC")),
            "bytes": pa.array([b"\x00\xff"] * 9000),
            "nested": pa.array([{"tags": ["x", None], "n": None}] * 9000),
            "missing": pa.nulls(9000, pa.string()),
        }
    )
    odd = table.append_column("kind", pa.array(["a"] * 9000).dictionary_encode())
    odd = odd.append_column("view", pa.array(["v"] * 9000, pa.string_view()))
    odd = odd.append_column("uuid", pa.array([b"0123456789abcdef"] * 9000, pa.uuid()))
    pq.write_table(odd, tmp_path / "a.parquet", row_group_size=2500)
    plain = table.append_column("kind", pa.array(["a"] * 9000)).append_column("view", pa.array(["v"] * 9000))
    plain = plain.append_column("uuid", pa.array([b"0123456789abcdef"] * 9000))

    found = documents(Parquet(tmp_path, id="id"))

    wanted = {doc.id: doc.fields for doc in DataFrame(lambda _: None).documents(plain.to_batches(3000))}
    assert {id: doc.fields for id, doc in found.items()} == wanted
    assert found["id-3"].raw is None


def test_ids_contents_and_columns(tmp_path: Path) -> None:
    """Rows are counted from 1 in each file, over its batches and row groups."""
    rows = [{"key": n, "text": f"text {n}", "more": n} for n in range(3)]
    write(tmp_path / "b/x.parquet", rows, row_group_size=1)
    write(tmp_path / "a.parquet", rows[:1])
    (tmp_path / "notes.txt").write_text("not taken")
    write(tmp_path / "_temporary/0/part.parquet", rows)
    write(tmp_path / ".hidden.parquet", rows)

    assert list(documents(Parquet(tmp_path))) == [
        "a.parquet#row=1", "b/x.parquet#row=1", "b/x.parquet#row=2", "b/x.parquet#row=3",
    ]  # fmt: skip
    found = documents(Parquet(tmp_path / "b", id="key", content="text", columns=["key"]))
    assert {id: (doc.fields, doc.raw) for id, doc in found.items()} == {
        str(n): ({"key": n}, f"text {n}".encode()) for n in range(3)
    }
    alone = documents(Parquet(tmp_path / "b/x.parquet", content="text", columns=["more"]))
    assert [(id, doc.fields) for id, doc in alone.items()] == [
        (f"x.parquet#row={n + 1}", {"more": n}) for n in range(3)
    ]


def test_bytes_and_nulls_as_content(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [{"raw": b"\x00\xff"}, {"raw": None}, {"raw": b""}])
    assert [doc.raw for doc in documents(Parquet(tmp_path, content="raw")).values()] == [b"\x00\xff", None, b""]


def test_folders_named_by_a_value_are_fields(tmp_path: Path) -> None:
    """Unless the file has the column; as Hive and Spark write them."""
    write(tmp_path / "year=2024/lang=d%2Fe/a.parquet", [{"id": "1"}])
    write(tmp_path / "year=__HIVE_DEFAULT_PARTITION__/a.parquet", [{"id": "2", "lang": "own"}])
    write(tmp_path / "year=1/lang=x/a.parquet", [{"id": "3", "lang": None}])
    found = documents(Parquet(tmp_path, id="id"))
    assert {id: (doc["year"], doc["lang"]) for id, doc in found.items()} == {
        "1": ("2024", "d/e"), "2": (None, "own"), "3": ("1", None),
    }  # fmt: skip


def test_rows_that_are_refused(tmp_path: Path) -> None:
    """By file and row; the others go on. Whose a row without an id is, is not known: the listing is incomplete."""
    write(tmp_path / "a.parquet", [{"id": "1", "t": "x"}, {"id": None, "t": "y"}, {"id": "3", "t": "z" * 99}])
    source = Parquet(tmp_path, id="id", max_bytes=50)
    assert list(documents(source, all_readable=False)) == ["1"]
    where = f"{tmp_path}/a.parquet"
    assert refusals(source) == {
        "a.parquet#row=2": f"{where}, row 2: it has no id (in column 'id').",
        "3": f"{where}, row 3: 116 bytes, more than max_bytes=50.",
    }
    assert told(source).startswith(f"{where} has rows (1) whose id cannot be known; the first: {where}, row 2")


@pytest.mark.parametrize(
    ("made", "options", "why"),
    [
        ("text", {}, "not a whole Parquet file: Parquet magic bytes not found in footer"),
        ("empty", {}, "not a whole Parquet file: Parquet file size is 0 bytes"),
        ("cut", {}, "not a whole Parquet file: "),
        ("damaged", {}, "not a whole Parquet file: "),
        ("rows", {"id": "key"}, "Parquet(id='key'): there is no such column. There are: id, t"),
        ("rows", {"columns": ["x"]}, "there is no such column. There are: id, t"),
        ("rows", {"content": "id"}, "Parquet(content='id'): the column holds int64, not text or bytes"),
        ("twins", {}, "Parquet: two columns are called id"),
        ("lists", {"id": "t"}, "Parquet(id='t'): the column holds list"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, made: str, options: dict[str, Any], why: str) -> None:
    """It is named, and the listing is incomplete; rows of other files are there."""
    rows = [{"id": n, "t": f"{n * 7919 % 10007}"} for n in range(5000)]
    write(tmp_path / "good.parquet", [{"id": 9, "t": "x", "key": "k", "x": 1, "content": "c"}])
    bad = write(tmp_path / "bad.parquet", rows, compression="snappy")
    whole = bad.read_bytes()
    if made == "twins":
        pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["id", "id"]), bad)
    elif made == "lists":
        write(bad, [{"id": 1, "t": ["x"]}])
    elif made != "rows":
        content = {"text": b"no parquet " * 9, "empty": b"", "cut": whole[: len(whole) // 2]}
        middle = len(whole) // 3
        content["damaged"] = (
            whole[:middle] + bytes(byte ^ 0x5A for byte in whole[middle : 2 * middle]) + whole[2 * middle :]
        )
        bad.write_bytes(content[made])
    source = Parquet(tmp_path, **options)
    [said] = [each for each in failures(source) if "bad.parquet" in each]
    assert said.startswith(f"{bad}, ")
    assert why in said
    assert said.endswith("Not all that is in this file is known.")


@pytest.mark.parametrize(
    ("log", "table"),
    [("_delta_log/00000000000000000000.json", "Delta"), ("db/t/metadata/00001-x.metadata.json", "Iceberg")],
)
def test_the_folder_of_a_table_is_refused(tmp_path: Path, log: str, table: str) -> None:
    """It keeps files of rows that were deleted."""
    write(tmp_path / "a.parquet", [{"id": 1}])
    (tmp_path / log).parent.mkdir(parents=True)
    (tmp_path / log).write_text("{}")
    source = Parquet(tmp_path)
    assert documents(source, all_readable=False) == {}
    assert f"this is a table of {table}" in told(source)


def test_at_a_url(tmp_path: Path) -> None:
    """A member of an archive: its stream has to seek, as a store's."""
    import zipfile

    path = write(tmp_path / "a.parquet", [{"id": n, "text": "x" * n} for n in range(2000)])
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.write(path, "part/a.parquet")
    found = documents(Parquet(f"zip://::{tmp_path}/c.zip", id="id"))
    assert found["1999"].fields == {"id": 1999, "text": "x" * 1999}
    assert len(found) == 2000


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="give two columns"):
        Parquet("x", id="a", content="a")


def test_changes_and_deletes(tmp_path: Path) -> None:
    """A run sees by the values which rows have changed, wherever they stand."""
    folder = tmp_path / "rows"
    rows = [{"id": f"{n}", "text": f"text {n}"} for n in range(20)]
    write(folder / "a.parquet", rows)
    trial = PlanWorld(tmp_path).build(source=Parquet(folder, id="id"))
    assert trial.run().delivered == 20
    assert trial.run().waves == 0
    rows[3]["text"] = "another"
    write(folder / "b.parquet", rows[:0:-1])
    (folder / "a.parquet").unlink()
    summary = trial.run()
    assert (summary.delivered, summary.deleted) == (1, 1)
