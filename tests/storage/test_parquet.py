"""Data files: any flipped byte is found, and never comes back as another value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferryman import limits
from ferryman.errors import StateDamaged
from ferryman.storage import parquet
from ferryman.storage.query import connect, register
from tests.storage.conftest import SCHEMA

ROWS = pa.table({"number": list(range(300)), "text": [f"text of row {n}" for n in range(300)]}, schema=SCHEMA)


@pytest.fixture
def part(place: Path) -> Path:
    return place / parquet.write_part(place, ROWS, epoch=1).path


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def test_a_part_comes_back(place: Path) -> None:
    """Rows, number of rows and size are those that were written; columns can be chosen."""
    part = parquet.write_part(place, ROWS, epoch=1)
    path = place / part.path
    assert path.stat().st_size == part.size
    assert part.rows == 300
    assert parquet.read_part(path).equals(ROWS)
    assert parquet.read_part(path, ["text"]).column_names == ["text"]
    assert parquet.find_damage(path) is None


def test_an_empty_part_comes_back(place: Path) -> None:
    """No rows are rows too."""
    part = parquet.write_part(place, SCHEMA.empty_table(), epoch=1)
    assert parquet.read_part(place / part.path).num_rows == 0
    assert parquet.find_damage(place / part.path) is None


def test_verify_finds_every_flipped_byte(part: Path) -> None:
    """Each byte of the file, one after the other."""
    data = part.read_bytes()
    for at in range(len(data)):
        part.write_bytes(flipped(data, at))
        assert parquet.find_damage(part) == "its checksum does not match its content", at


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_verify_finds_a_cut_file(part: Path, length: int) -> None:
    """Truncated, to nothing or by one byte."""
    part.write_bytes(part.read_bytes()[:length])
    assert parquet.find_damage(part) is not None
    with pytest.raises(StateDamaged) as error:
        parquet.read_part(part)
    assert error.value.path == str(part)


def test_verify_and_read_name_a_missing_file(part: Path) -> None:
    """A file that is gone is told by its name."""
    part.unlink()
    assert "No such file" in (parquet.find_damage(part) or "")
    with pytest.raises(StateDamaged, match="the file is missing") as error:
        parquet.read_part(part)
    assert error.value.path == str(part)


def test_verify_refuses_a_strange_name(part: Path) -> None:
    """A file that Ferryman did not name cannot be checked, so it is not said to be well."""
    strange = part.rename(part.with_name("part-0000.parquet"))
    assert parquet.find_damage(strange) == "its name is not one that Ferryman gives"


def read(part: Path) -> dict[str, list[object]] | None:
    """Its rows; None if it is refused, by its name."""
    try:
        return parquet.read_part(part).to_pydict()  # type: ignore[no-any-return]
    except StateDamaged as e:
        return None if e.path == str(part) else {"refused": [e.path]}


def by_dataset(db: duckdb.DuckDBPyConnection, part: Path) -> None:
    db.register("rows", parquet.scan([part], SCHEMA))


def by_duckdb(db: duckdb.DuckDBPyConnection, part: Path) -> None:
    register(db, "rows", [part], SCHEMA)


def query(part: Path, way: Callable[[duckdb.DuckDBPyConnection, Path], None]) -> list[tuple[object, ...]] | None:
    """The same through DuckDB."""
    try:
        with connect(part.parent) as db:
            way(db, part)
            return db.execute("SELECT number, text FROM rows ORDER BY number").fetchall()
    except (duckdb.Error, StateDamaged):
        return None


def test_a_flipped_byte_is_never_read_as_another_value(part: Path) -> None:
    """Wherever it is (page, page header, footer): refused by name, or in bytes that nobody reads."""
    data = part.read_bytes()
    found = []
    for at in range(0, len(data), 3):
        part.write_bytes(flipped(data, at))
        found.append(read(part))
    assert all(rows is None or rows == ROWS.to_pydict() for rows in found)
    assert found.count(None) > len(found) * 0.9


@pytest.mark.parametrize("way", [by_dataset, by_duckdb])
def test_a_query_never_sees_a_flipped_byte(part: Path, way: Callable[[duckdb.DuckDBPyConnection, Path], None]) -> None:
    """DuckDB reads data files through the same verification, or after one of the whole file."""
    assert query(part, way) == list(zip(*ROWS.to_pydict().values(), strict=True))
    data = part.read_bytes()
    found = []
    for at in [*range(4, len(data), 151), len(data) - 1, len(data) - 6, len(data) - 100]:
        part.write_bytes(flipped(data, at))
        found.append(query(part, way))
    assert all(rows is None or rows == list(zip(*ROWS.to_pydict().values(), strict=True)) for rows in found)
    assert found.count(None) > len(found) * 0.9


def test_a_renamed_column_is_not_read_as_nulls(part: Path) -> None:
    """A flipped byte in the footer may rename a column; the file is refused, its rows are not without values."""
    data = part.read_bytes()
    at = data.rindex(b"number")
    part.write_bytes(data[:at] + b"nummer" + data[at + 6 :])
    with pytest.raises(StateDamaged, match="footer") as error:
        parquet.read_part(part, ["text"])
    assert error.value.path == str(part)
    with pytest.raises(StateDamaged, match="footer"):
        parquet.scan([part], SCHEMA)


@pytest.mark.parametrize("without", [1, 4])
def test_rows_without_a_status_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch, without: int) -> None:
    """Beside statuses that have row groups of their own, few or many."""
    monkeypatch.setattr(limits, "APART_EVENTS", 3)
    statuses = ["INDEXED", None, "INDEXED", "DEAD", "INDEXED", *[None] * (without - 1)]
    path = place / parquet.write_part(place, pa.table({"status": statuses}), epoch=1).path
    assert Counter(pq.read_table(path)["status"].to_pylist()) == Counter(statuses)


def test_rare_statuses_share_row_groups_however_often_is_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of one that has become frequent meanwhile are apart, too, and none waits once they fill a row group."""
    monkeypatch.setattr(limits, "APART_EVENTS", 3)
    monkeypatch.setattr(limits, "GROUP_BYTES", 150)
    writer = parquet.PartWriter(place, schema := pa.schema({"status": pa.string()}), epoch=1)
    for turn in range(40):
        statuses = ["INDEXED"] * 5 + ["DEAD"] + ["ERROR"] * (turn == 20)
        writer.write(pa.table({"status": statuses}, schema=schema))
    path = place / writer.finish().path
    with pq.ParquetFile(path) as file:
        groups = [Counter(file.read_row_group(n)["status"].to_pylist()) for n in range(file.num_row_groups)]
    assert writer.rows == 241
    assert all(len(each) == 1 for each in groups)
    assert 2 <= sum("DEAD" in each for each in groups) <= 8
    assert sum(groups, Counter()) == {"INDEXED": 200, "DEAD": 40, "ERROR": 1}


def test_rows_are_counted_by_their_values(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with nothing in a column, too. Row groups of one value are not read: no flipped byte there is noticed."""
    monkeypatch.setattr(limits, "APART_EVENTS", 4)
    statuses = ["INDEXED"] * 5 + ["DEAD", "ERROR", "DEAD"]
    rows = pa.table({"status": statuses, "wave": [1] * 5 + [1, 2, None]})
    paths = [place / parquet.write_part(place, each, epoch=1).path for each in (rows, rows[:0], rows[5:])]
    expected = Counter(zip(*rows.to_pydict().values(), strict=True)) + Counter(
        zip(*rows[5:].to_pydict().values(), strict=True)
    )
    assert parquet.count_by(paths, ["status", "wave"]) == expected
    groups = pq.read_metadata(paths[0])
    ends = [
        column.data_page_offset + column.total_compressed_size - 1
        for column in (groups.row_group(n).column(0) for n in range(groups.num_row_groups))
    ]
    paths[0].write_bytes(flipped(paths[0].read_bytes(), ends[0]))
    assert parquet.count_by(paths, ["status", "wave"]) == expected
    paths[0].write_bytes(flipped(paths[0].read_bytes(), ends[1]))
    with pytest.raises(StateDamaged, match=paths[0].name):
        parquet.count_by(paths, ["status", "wave"])
