"""Columns that an Arrow step returns: encoded at once, they are what each document would be encoded as."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ferryman.document import Document, encode_fields
from ferryman.engine.transform.calls import DocumentBatch
from ferryman.errors import BadDocument, PermanentError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
NAMES = st.text(st.sampled_from('abAé"\\\n0_ 😀'), min_size=1, max_size=3) | st.sampled_from(["id", "raw"])
NUMBERS = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.one_of(st.none(), st.booleans(), NUMBERS, FINITE, TEXT, st.lists(NUMBERS, max_size=2))
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.string_view(), TEXT),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.float16(), st.floats(width=16)),
    (pa.bool_(), st.booleans()),
    (pa.binary(), st.binary(max_size=3)),
    (pa.null(), st.none()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(5, 2), st.decimals("-9", "9", places=2)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("ab")),
    (pa.list_(pa.float32()), st.lists(st.floats(width=32) | st.none(), max_size=3)),
    (pa.list_(pa.string()), st.lists(TEXT | st.none(), max_size=3)),
    (pa.list_(pa.list_(pa.int64())), st.lists(st.lists(NUMBERS, max_size=2), max_size=2)),
    (pa.struct([("b", pa.int64()), ("a", pa.string())]), st.fixed_dictionaries({"b": NUMBERS, "a": TEXT})),
    (pa.map_(pa.string(), pa.int64()), st.dictionaries(TEXT, NUMBERS, max_size=2).map(lambda d: list(d.items()))),
]


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[Document], Any]:
    """Documents of a call, and a function that returns what the step makes of their batch."""
    count = draw(st.integers(1, 4))
    same = draw(st.lists(NAMES, max_size=3, unique=True))
    docs = []
    for n in range(count):
        names = same[:1] if draw(st.integers(0, 5)) == 5 else same
        fields = {name: f"doc-{n}" if name == "id" else draw(VALUES) for name in names}
        docs.append(Document.of(f"doc-{n}", fields, draw(st.none() | st.binary(max_size=3)), "v"))
    kept = draw(st.sets(st.integers(0, 5)))
    added = draw(
        st.lists(st.tuples(NAMES, st.sampled_from(KINDS)), min_size=1, max_size=3, unique_by=lambda each: each[0])
    )
    columns = {
        name: pa.array([draw(values) for _ in range(count)], kind) for name, (kind, values) in added if name != "id"
    }
    reverse = draw(st.integers(0, 5)) == 5

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [name for at, name in enumerate(batch.schema.names) if name == "id" or at not in kept]
        made = {name: batch[name] for name in names} | columns
        if reverse:
            made = {name: pa.array(column.to_pylist()[::-1], column.type) for name, column in made.items()}
        return pa.RecordBatch.from_arrays(list(made.values()), list(made))

    return docs, step


@examples(max_examples=200, deadline=None, database=None)
@given(call=calls())
def test_columns_are_encoded_as_documents_are(call: tuple[list[Document], Any]) -> None:
    docs, step = call
    copies = deepcopy(docs)
    try:
        batch = DocumentBatch([d.id for d in docs], [d.fields for d in docs], [d.raw for d in docs], ["v"] * len(docs))
    except PermanentError:
        assume(False)
    rows = batch.encode(step(batch.batch))
    if rows is None:
        return
    matched = DocumentBatch.of(copies)
    answers = matched.match(step(matched.batch))
    assert all(answer is not None for answer in answers)
    assert rows.raws == [doc.raw for doc in answers if doc is not None]
    assert rows.fields == [encode_fields(doc.fields) for doc in answers if doc is not None]


def test_a_column_that_json_cannot_hold_is_left_to_the_documents() -> None:
    """The walk says of which document it is."""
    batch = DocumentBatch(["a", "b"], [{"n": 1}, {"n": 2}], [None, None], ["v", "v"])
    out = batch.batch.append_column("x", pa.array([1.0, float("inf")]))
    assert batch.encode(out) is None
    good, bad = batch.match(out)
    assert good is not None
    assert bad is not None
    assert encode_fields(good.fields) == b'{"n":1,"x":1.0}'
    with pytest.raises(BadDocument, match="x"):
        encode_fields(bad.fields)
