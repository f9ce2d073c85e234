"""Memory: documents of the program itself."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pytest

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import UsageError
from ferryman.sources import Listed, Memory
from ferryman.sources.memory import PIECE_DOCUMENTS


def scan(source: Memory) -> list[Listed | Document]:
    return [entry for piece in source.partitions() for entry in source.listing(piece)]


def test_dicts_and_documents_are_taken() -> None:
    """Of a dict, "id" and "raw" are not fields; everything else is."""
    found = scan(Memory([{"id": "a", "raw": b"x", "title": "A"}, Document("b", title="B"), {"id": "c", "raw": None}]))

    assert found == [Document("a", raw=b"x", title="A"), Document("b", title="B"), Document("c")]


def test_values_arrive_as_json() -> None:
    """What JSON writes as text or as an array arrives so."""
    [doc] = scan(Memory([{"id": "a", "day": datetime.date(2024, 5, 1), "pair": (1, 2), 3: "number as a name"}]))

    assert isinstance(doc, Document)
    assert doc.fields == {"day": "2024-05-01", "pair": [1, 2], "3": "number as a name"}


def test_steps_cannot_change_what_was_given() -> None:
    """Also deep inside."""
    given = Document("a", tags=["x"])
    source = Memory([given])
    [doc] = scan(source)
    assert isinstance(doc, Document)

    doc["tags"].append("y")
    doc["new"] = 1

    assert given.fields == {"tags": ["x"]}
    assert scan(source) == [given]


def test_a_list_may_change_between_scans() -> None:
    """Each scan looks at it anew; so does a function."""
    documents: list[Any] = [{"id": "a"}]
    calls = []

    def fetch() -> Any:
        calls.append(1)
        return (d for d in documents)

    sources = [Memory(documents), Memory(fetch)]
    assert not calls, "a function is called by a scan, not before"
    for source in sources:
        assert [entry.id for entry in scan(source)] == ["a"]
    documents[:] = [{"id": "b"}, {"id": "c"}]
    for source in sources:
        assert [entry.id for entry in scan(source)] == ["b", "c"]
    assert len(calls) == 2


def test_order_is_kept_and_ids_may_repeat() -> None:
    """Of two documents with one id the later counts, so the pieces keep the order."""
    ids = [str(i % 1500) for i in range(2 * PIECE_DOCUMENTS + 1)]
    source = Memory([{"id": id} for id in ids])

    assert [len(piece) for piece in source.partitions()] == [PIECE_DOCUMENTS, PIECE_DOCUMENTS, 1]
    assert [entry.id for entry in scan(source)] == ids


def test_pieces_are_cut_by_bytes_too() -> None:
    """A piece travels to a worker whole."""
    big = bytes(limits.TASK_BYTES // 2)

    assert [len(piece) for piece in Memory([{"id": str(i), "raw": big} for i in range(5)]).partitions()] == [2, 2, 1]


def test_no_documents_are_no_pieces() -> None:
    """An empty list is a complete listing of nothing."""
    assert Memory([]).partitions() == []


def test_workers_get_only_their_piece() -> None:
    """The documents travel in the pieces; a copy of the source has none, and does not take that for an empty list."""
    source = Memory(lambda: [{"id": "a"}])  # a lambda is not picklable, nor need it be
    copy = pickle.loads(pickle.dumps(source))

    assert [entry.id for piece in source.partitions() for entry in copy.listing(piece)] == ["a"]
    with pytest.raises(UsageError, match="stay in the program that made it"):
        copy.partitions()


def test_a_field_that_is_no_json_refuses_one_document() -> None:
    """The others go on."""
    found = scan(Memory([{"id": "a"}, {"id": "b", "raw": b"x", "thing": object()}, {"id": "c"}]))

    assert [entry.id for entry in found] == ["a", "b", "c"]
    assert isinstance(found[1], Listed)
    assert found[1].refused.startswith("b: field 'thing' holds a object that JSON cannot hold")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("text", r"documents\[1\] is a str: give a Document, or a dict with 'id'"),
        ({"title": "no id"}, r"documents\[1\] has the id None"),
        ({"id": 7}, r"documents\[1\] has the id 7"),
        ({"id": ""}, r"documents\[1\] has the id ''"),
        ({"id": "\udcff"}, r"documents\[1\] has the id '\\udcff', which is not text that UTF-8 can hold"),
        ({"id": "x", "raw": "text"}, r"documents\[1\] \(x\): raw is a str: give bytes"),
    ],
)
def test_what_is_no_document_is_named_by_its_index(bad: Any, says: str) -> None:
    """A list is looked through when the source is made, what a function brings in the scan."""
    with pytest.raises(UsageError, match=says):
        Memory([{"id": "good"}, bad])
    source = Memory(lambda: [{"id": "good"}, bad])
    with pytest.raises(UsageError, match=says):
        source.partitions()


def test_a_delete_is_not_given_but_left_out() -> None:
    """A source says what is there; what is gone follows from it."""
    doc = Document("a")
    doc.operation = "delete"

    with pytest.raises(UsageError, match="leave it out of the list"):
        Memory([doc])


@pytest.mark.parametrize("documents", [iter([{"id": "a"}]), ({"id": x} for x in "ab"), 3, None])
def test_what_can_be_read_only_once_is_refused(documents: Any) -> None:
    """The second scan would find a generator empty, and delete everything."""
    with pytest.raises(UsageError, match="give a list of documents, or a function"):
        Memory(documents)
