"""Columns of the state's tables are what Arrow itself would make of the same values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.records import rows
from ferryman.records.rows import Status
from ferryman.storage.parquet import number_array, numbers_of

VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=12)


@given(values=VALUES)
def test_contents_are_what_they_were(values: list[bytes | None]) -> None:
    """Some, all or none of them missing."""
    made = rows.binary_array(values)
    made.validate(full=True)
    assert made.type == pa.binary()
    assert made.to_pylist() == values


def test_contents_of_many_bytes_take_the_longer_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array has offsets of 32 bits."""
    monkeypatch.setattr(rows, "BINARY_BYTES", 7)
    assert rows.binary_array([b"abcd", b"efgh"]).to_pylist() == [b"abcd", b"efgh"]
    assert rows.binary_array([b"abcd", b"efg"]).to_pylist() == [b"abcd", b"efg"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (st.lists(st.one_of(st.none(), st.text(max_size=9)), max_size=12), pa.string()),
        (st.lists(st.text(max_size=9), max_size=12), pa.string()),
        (st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=12), pa.int64()),
        (st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=12), pa.int64()),
        (st.lists(st.booleans(), max_size=20), pa.bool_()),
        (st.lists(st.one_of(st.none(), st.booleans()), max_size=20), pa.bool_()),
    ],
)
def test_values_are_what_they_were(values: st.SearchStrategy[list[Any]], kind: pa.DataType) -> None:
    """Of each type that is made without pandas, with missing ones and without."""

    @given(values)
    def made_of(values: list[Any]) -> None:
        made = rows.array_of(values, kind)
        made.validate(full=True)
        assert made.equals(pa.array(values, kind))

    made_of()


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["\ud800"], pa.string()), ([1], pa.string()), ([1 << 63], pa.int64()), (["1"], pa.int64()), ([2], pa.bool_())],
)
def test_what_cannot_be_stored_is_refused(values: list[Any], kind: pa.DataType) -> None:
    """By the errors that Arrow has."""
    with pytest.raises((TypeError, ValueError, OverflowError, pa.ArrowException)):
        rows.array_of(values, kind)


def test_texts_of_many_bytes_take_the_longer_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array has offsets of 32 bits."""
    monkeypatch.setattr(rows, "BINARY_BYTES", 3)
    assert rows.array_of(["ab", "cd"], pa.string()).to_pylist() == ["ab", "cd"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (st.text(max_size=9), pa.string()),
        (st.sampled_from(Status), pa.string()),
        (st.integers(-(1 << 63), (1 << 63) - 1), pa.int64()),
        (st.booleans(), pa.bool_()),
        (st.datetimes(timezones=st.timezones()), pa.timestamp("us", tz="UTC")),
        (st.datetimes(), pa.timestamp("us", tz="UTC")),
    ],
)
def test_one_value_is_what_it_was(values: st.SearchStrategy[Any], kind: pa.DataType) -> None:
    """Of each type that columns with one value have."""

    @given(values)
    def made_of(value: Any) -> None:
        assert rows.scalar_of(value, kind).equals(pa.scalar(value, kind))

    made_of()


NUMBERS = st.lists(st.one_of(st.none(), st.integers(0, (1 << 63) - 1)), max_size=12)


@given(NUMBERS, NUMBERS)
def test_numbers_are_what_they_were(some: list[int | None], others: list[int | None]) -> None:
    """As numpy has them, with -1 for missing ones, and back; of any number of chunks."""
    column = pa.chunked_array([pa.array(some, pa.int64()), pa.array(others, pa.int64())])
    for each in (column, column.slice(1), pa.chunked_array([], pa.int64())):
        numbers = numbers_of(each)
        assert numbers.tolist() == [-1 if value is None else value for value in each.to_pylist()]
        array = number_array(numbers)
        array.validate(full=True)
        assert array.to_pylist() == each.to_pylist()
