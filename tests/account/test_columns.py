"""Columns of the state's tables are what Arrow itself would make of the same values."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.records import rows

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
    monkeypatch.setattr(rows, "_BINARY_BYTES", 7)
    assert rows.binary_array([b"abcd", b"efgh"]).to_pylist() == [b"abcd", b"efgh"]
    assert rows.binary_array([b"abcd", b"efg"]).to_pylist() == [b"abcd", b"efg"]
