"""DataFrame: rows of a DataFrame as documents. Batches are Arrow's, as Spark hands them to a worker."""

from __future__ import annotations

import datetime
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.document import Document, decode_fields, encode_fields
from ferryman.errors import BadDocument, UsageError
from ferryman.sources import DataFrame
from ferryman.sources.stream import StoreRows

LOCAL = datetime.datetime(2024, 5, 1, 10)  # noqa: DTZ001 - a time without a zone is what is tested
DAY = datetime.date(2024, 5, 1)
UTC_TIME = pa.timestamp("us", "UTC")
DEEP = pa.list_(pa.map_(pa.string(), pa.struct([("t", UTC_TIME)])))


def table(**options: Any) -> DataFrame:
    return DataFrame(lambda spark: spark, **options)


def field(value: Any, kind: pa.DataType | None = None) -> Any:
    """What becomes of one value of a column, after null rows beside it came through as null."""
    batch = pa.record_batch({"id": ["1", "2"], "x": pa.array([value, None], kind)})
    first, second = table().documents([batch])
    assert second["x"] is None
    return first["x"]


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "json"),
    [
        ("text \"é\"\n", None, "text \"é\"\n"),
        (True, None, True),
        (2**63 - 1, None, 2**63 - 1),
        (-5, pa.int8(), -5),
        (1.5, None, 1.5),
        (0.1, pa.float32(), 0.1),
        ([-1e20, 16777216], pa.list_(pa.float32()), [-1e20, 16777216]),
        (math.nan, pa.float32(), None),
        (math.nan, None, None),
        (math.inf, None, None),
        (b"\x00\xff", None, "AP8="),
        (None, pa.null(), None),
        (Decimal("1.50"), None, "1.50"),
        (Decimal("0E-18"), pa.decimal128(38, 18), "0.000000000000000000"),
        (Decimal("-12345678901234567890.00000000001"), pa.decimal128(38, 11), "-12345678901234567890.00000000001"),
        (DAY, None, "2024-05-01"),
        (10**7, pa.date32(), "29349-01-26"),
        (LOCAL, None, "2024-05-01T10:00:00"),
        (LOCAL.replace(microsecond=120), None, "2024-05-01T10:00:00.000120"),
        (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), UTC_TIME, "0001-01-01T00:00:00Z"),
        (datetime.datetime(2024, 5, 1, 10, 0, 0, 5000, tzinfo=datetime.UTC), UTC_TIME, "2024-05-01T10:00:00.005000Z"),
        (317 * 10**15, UTC_TIME, "12015-05-01T11:33:20Z"),
        (1714557600, pa.timestamp("s", "UTC"), "2024-05-01T10:00:00Z"),
        (1714557600000000001, pa.timestamp("ns", "UTC"), "2024-05-01T10:00:00.000000001Z"),
        (1714557600000001000, pa.timestamp("ns"), "2024-05-01T10:00:00.000001"),
        (datetime.time(3, 4, 5), pa.time64("ns"), "03:04:05"),
        (datetime.time(3, 4, 5, 60), pa.time64("us"), "03:04:05.000060"),
        (datetime.timedelta(days=1, seconds=3), None, "P1DT3S"),
        ([1, None, 2], None, [1, None, 2]),
        ([Decimal("1.0"), None], None, ["1.0", None]),
        ({"b": 1, "a": {"c": DAY, "d": None}}, None, {"a": {"c": "2024-05-01", "d": None}, "b": 1}),
        ([("k", 1), ("j", None)], pa.map_(pa.string(), pa.int32()), {"j": None, "k": 1}),
        ([("k", 1), ("k", 2)], pa.map_(pa.string(), pa.int32()), {"k": 2}),
        ([(1, b"\xff")], pa.map_(pa.int32(), pa.binary()), {"1": "/w=="}),
        ([(True, 1)], pa.map_(pa.bool_(), pa.int32()), {"true": 1}),
        ([(DAY, [Decimal("2.0")])], pa.map_(pa.date32(), pa.list_(pa.decimal128(3, 1))), {"2024-05-01": ["2.0"]}),
        ([[("k", {"t": 0})], None], DEEP, [{"k": {"t": "1970-01-01T00:00:00Z"}}, None]),
    ],
)  # fmt: skip
def test_values_become_json(value: Any, kind: pa.DataType | None, json: Any) -> None:
    """Every type of Spark's has one JSON value, also deep inside of others."""
    assert field(value, kind) == json


def test_an_instant_does_not_depend_on_the_time_zone_of_the_session() -> None:
    """Else another session would make another version of every document."""
    at = datetime.datetime(2024, 5, 1, 10, tzinfo=datetime.UTC)
    for zone in ("UTC", "America/New_York", "+05:30"):
        here = pa.timestamp("us", zone)
        assert field(at, here) == "2024-05-01T10:00:00Z"
        assert field([at], pa.list_(here)) == ["2024-05-01T10:00:00Z"]
        assert field({"at": at}, pa.struct([("at", here)])) == {"at": "2024-05-01T10:00:00Z"}


json_columns = {
    "text": st.text(),
    "a number": st.integers(-(2**63), 2**63 - 1),
    'odd "name"\n': st.floats(allow_nan=False, allow_infinity=False),
    "é": st.booleans(),
    "list": st.lists(st.text(max_size=3), max_size=3),
    "class": st.dates(),
    "Z": st.datetimes(),
    "at": st.datetimes(timezones=st.just(ZoneInfo("UTC"))),
}
rows = st.lists(st.fixed_dictionaries({n: st.none() | s for n, s in json_columns.items()}), min_size=1, max_size=5)
KINDS = pa.schema(
    {
        "id": pa.string(),
        "text": pa.string(),
        "a number": pa.int64(),
        'odd "name"\n': pa.float64(),
        "é": pa.bool_(),
        "list": pa.list_(pa.string()),
        "class": pa.date32(),
        "Z": pa.timestamp("us"),
        "at": UTC_TIME,
    }
)


@given(rows=rows, nested=st.booleans())
def test_fields_are_what_encode_fields_makes(rows: list[dict[str, Any]], nested: bool) -> None:
    """By whole columns as one by one: a document's version must not depend on how it was encoded."""
    rows = [{"id": f"row {i}", **row} for i, row in enumerate(rows)]
    kinds = KINDS
    if not nested:
        kinds = pa.schema([f for f in KINDS if f.name != "list"])
        for row in rows:
            del row["list"]

    [(ids, fields)] = table().columns([pa.RecordBatch.from_pylist(rows, kinds)])

    assert ids == [row["id"] for row in rows]
    assert fields == [encode_fields(row) for row in rows]


def test_the_order_of_columns_changes_nothing() -> None:
    """Equal rows are equal bytes."""
    one = pa.record_batch({"id": ["1"], "b": [{"y": 1, "x": 2}], "a": [2]})
    other = pa.record_batch({"a": [2], "b": [{"x": 2, "y": 1}], "id": ["1"]})

    assert (
        next(table().columns([one]))
        == next(table().columns([other]))
        == (["1"], [b'{"a":2,"b":{"x":2,"y":1},"id":"1"}'])
    )


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "id"),
    [
        ("a#1/ü", pa.string(), "a#1/ü"),
        ("a", pa.large_string(), "a"),
        (7, pa.int32(), "7"),
        (2**63 - 1, pa.int64(), "9223372036854775807"),
        (1.5, pa.float64(), "1.5"),
        (0.1, pa.float32(), "0.1"),
        (Decimal("1.50"), pa.decimal128(5, 2), "1.50"),
        (Decimal("0E-9"), pa.decimal128(12, 9), "0.000000000"),
    ],
)
def test_an_id_is_text_or_the_text_of_a_number(value: Any, kind: pa.DataType, id: str) -> None:
    """The column is a field as well, with its own type."""
    [doc] = table(id="key").documents([pa.record_batch({"key": pa.array([value], kind), "x": [1]})])

    assert doc.id == doc.origin_id == id
    assert doc.raw is None
    assert doc.fields == {"key": id if isinstance(value, Decimal) else value, "x": 1}


@pytest.mark.parametrize("kind", [pa.binary(), pa.bool_(), pa.date32(), pa.list_(pa.string())])
def test_other_types_are_no_ids(kind: pa.DataType) -> None:
    """What its text would be is for `read` to say."""
    with pytest.raises(UsageError, match=r"id='id'\): the column holds .* Cast it to text"):
        list(table().columns([pa.record_batch({"id": pa.array([], kind)})]))


@pytest.mark.parametrize(
    ("ids", "left"),
    [
        (pa.array(["a", None, "b", ""]), ["a", "b"]),
        (pa.array([1, None]), ["1"]),
        (pa.array([1.0, math.nan, None]), ["1.0"]),
        (pa.array([None, None], pa.string()), []),
    ],
)
def test_rows_without_an_id_leave_the_listing_incomplete(ids: pa.Array, left: list[str]) -> None:
    """All others are listed first; then the error counts them and shows one, so that nothing is deleted unnoticed."""
    lost = len(ids) - len(left)
    batches = [
        pa.record_batch({"id": ids, "x": list(range(len(ids)))}),
        pa.record_batch({"id": pa.array(["9"]).cast(ids.type), "x": [99]}),
    ]
    found: list[Document] = []
    with pytest.raises(BadDocument) as caught:
        found.extend(table().documents(batches))

    assert [doc.id for doc in found[:-1]] == left
    assert found[-1]["x"] == 99
    text = str(caught.value)
    assert text.startswith(f"{lost} of {len(ids) + 1} rows have no 'id' (null or empty)")
    assert '.where("id is not null")' in text
    assert '"x":' in text


def test_a_long_row_is_shown_shortened() -> None:
    """A message is for reading."""
    with pytest.raises(BadDocument) as caught:
        list(table().columns([pa.record_batch({"id": pa.array([None], pa.string()), "x": ["y" * 10_000]})]))

    assert len(str(caught.value)) < 600


# --- the frame --------------------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """What ``read`` looks at of a DataFrame."""

    dtypes: list[tuple[str, str]]


def test_read_is_called_with_the_session() -> None:
    """Once a scan, in the driver."""
    frame = Frame(
        [("id", "bigint"), ("x", "struct<variant:int,geometry:array<string>>"), ("y", "interval day to second")]
    )
    sessions = []
    source = DataFrame(lambda spark: sessions.append(spark) or frame)

    assert not sessions
    assert source.read("session") is frame
    assert sessions == ["session"]


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (Frame([("key", "string"), ("title", "string")]), r"id='id'\): there is no such column. There are: key, title"),
        (Frame([("id", "string"), ("x", "int"), ("x", "int")]), "two columns are called x"),
        (Frame([("id", "date")]), "the column holds date"),
        (Frame([("id", "array<string>")]), "the column holds array<string>"),
        (Frame([("id", "string"), ("x", "variant")]), "column 'x' holds variant"),
        (Frame([("id", "string"), ("x", "array<struct<a:geometry(0)>>")]), "column 'x' holds geometry"),
        (Frame([("id", "string"), ("x", "map<string,interval year to month>")]), "column 'x' holds interval year"),
        (Frame([("id", "string"), ("x", "interval month")]), "column 'x' holds interval month"),
        (None, "returned a NoneType, not one of Spark's. Is a `return` missing"),
    ],
)
def test_a_frame_that_cannot_be_is_refused_in_the_driver(frame: Any, says: str) -> None:
    """Before Spark computes anything."""
    with pytest.raises(UsageError, match=says):
        DataFrame(lambda spark: frame).read(None)


@pytest.mark.parametrize("kind", ["string", "char(5)", "varchar(5)", "int", "bigint", "decimal(10,0)", "double"])
def test_ids_of_sparks_types(kind: str) -> None:
    """Text and numbers by the names that Spark gives them."""
    frame = Frame([("id", kind)])

    assert DataFrame(lambda spark: frame).read(None) is frame


def test_batches_are_checked_too() -> None:
    """A frame may be read anew, and be another."""
    with pytest.raises(UsageError, match="no such column"):
        list(table().columns([pa.record_batch({"key": ["a"]})]))
    assert list(table().columns([])) == []


def test_batches_may_change_their_schema() -> None:
    """Spark's do not; other callers' may."""
    batches = [pa.record_batch({"id": ["a"], "x": [1]}), pa.record_batch({"id": [2], "y": ["z"]})]

    assert [dict(doc) for doc in table().documents(batches)] == [{"id": "a", "x": 1}, {"id": 2, "y": "z"}]


def test_the_function_stays_in_the_driver() -> None:
    """It may hold a DataFrame, which cannot travel; a worker needs only the columns."""
    copy = pickle.loads(pickle.dumps(table(id="key", prefix="p/")))

    assert (copy.id, copy.prefix) == ("key", "p/")
    assert list(copy.columns([pa.record_batch({"key": ["a"]})])) == [(["a"], [b'{"key":"a"}'])]
    with pytest.raises(UsageError, match="stays in the program that made it"):
        copy.read(None)


@pytest.mark.parametrize("read", ["catalog.table", None])
def test_only_a_function_is_taken(read: Callable[[Any], Any]) -> None:
    """A DataFrame itself would tie the plan to one session."""
    with pytest.raises(UsageError, match="give a function of the SparkSession"):
        DataFrame(read)


def test_decoding_gives_back_what_was_encoded() -> None:
    """Documents are the columns, decoded."""
    batch = pa.record_batch({"id": ["a", "b"], "x": [1, 2]})

    [(_, fields)] = table().columns([batch])

    assert [decode_fields(text) for text in fields] == [doc.fields for doc in table().documents([batch])]
    assert all(msgspec.json.format(text, indent=-1) == text for text in fields)


@pytest.mark.parametrize("columns", [{"x": [1]}, {"id": [[1]]}])
def test_errors_name_the_source_that_was_written(columns: dict[str, Any], tmp_path: Path) -> None:
    """``TableChanges`` and ``Stream`` make fields of rows as ``DataFrame`` does."""
    batch = pa.record_batch(columns)
    with pytest.raises(UsageError) as caught:
        StoreRows(str(tmp_path), "id")(0, [batch])
    assert str(caught.value).startswith("Stream")
