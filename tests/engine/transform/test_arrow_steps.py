"""``step(…, arrow=True)``: a function of record batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ferryman import account
from ferryman.document import Document
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld


def build(net: PlanWorld, fn: Callable[[pa.RecordBatch], Any], **options: Any) -> None:
    step = net.source().step("embed", fn, arrow=True, **options)
    step.destination("out", net.out("out"), backoff=0)


def fields(net: PlanWorld) -> dict[str, dict[str, Any]]:
    return {line["id"]: line["fields"] for line in net.out("out").lines()}


def with_column(batch: pa.RecordBatch, name: str, values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(values)], [*batch.schema.names, name])


@pytest.mark.rule("step.arrow")
def test_a_document_is_its_row(net: PlanWorld) -> None:
    """Columns of all fields, and of raw; a row that is missing is dropped, null is no field, the order is free."""

    def embed(batch: pa.RecordBatch) -> pa.RecordBatch:
        length = pc.binary_length(batch["raw"])
        batch = with_column(batch, "vector", [[float(n), 0.5] for n in length.to_pylist()])
        batch = batch.filter(pc.not_equal(batch["id"], "b"))
        return batch.take(list(reversed(range(batch.num_rows))))

    build(net, embed)
    net.put("a", text="one", title="A", year=1599)
    net.put("b", text="two", title="B")
    net.put("c", text="three", title="C", tags=["x", "y"])
    summary = net.run(runner=InProcess(slots=1))
    assert (summary.exit, summary.dropped) == (0, 1)
    assert fields(net) == {
        "a": {"title": "A", "year": 1599, "vector": [3.0, 0.5]},
        "c": {"title": "C", "tags": ["x", "y"], "vector": [5.0, 0.5]},
    }
    assert [line["text"] for line in net.out("out").lines()] == ["one", "three"]


@pytest.mark.rule("step.arrow")
def test_what_the_step_leaves_alone_stays_as_it_was(net: PlanWorld) -> None:
    """Arrow makes one type of 1 and 2.5, and objects with all names of them all: that stays within the step."""
    build(net, lambda batch: with_column(batch, "n", range(batch.num_rows)))
    net.put("a", score=1, meta={"lang": "en"}, none=None)
    net.put("b", score=2.5, meta={"pages": 3})
    assert net.run(runner=InProcess(slots=1)).exit == 0
    assert fields(net) == {
        "a": {"score": 1, "meta": {"lang": "en"}, "none": None, "n": 0},
        "b": {"score": 2.5, "meta": {"pages": 3}, "n": 1},
    }
    assert repr(fields(net)["a"]["score"]) == "1"


@pytest.mark.rule("step.arrow")
def test_a_field_that_is_the_id_is_the_column_id(net: PlanWorld) -> None:
    """A table's rows have their id as a field, too: it stays, whatever columns the step returns."""
    build(net, lambda batch: with_column(batch, "n", range(batch.num_rows)).select(["id", "n"]), attempts=1)
    net.documents += [{"id": "a", "raw": None, "year": 1}, Document("b", id_="x")]
    for doc in ("c", "d"):
        net.documents.append(Document.of(doc, {"id": doc, "year": 2}))
    net.documents.append(Document.of("e", {"id": "another", "year": 2}))
    assert net.run(runner=InProcess(slots=1)).exit == 3
    assert {id: each.get("id") for id, each in fields(net).items()} == {"a": None, "b": None, "c": "c", "d": "d"}
    [event] = account.history(net.root, "e", net.plan)
    assert "a field is called 'id'" in event["message"]


WRONG: dict[str, tuple[Callable[[pa.RecordBatch], Any], str]] = {
    "nothing": (lambda batch: None, "returned None, not a pyarrow.RecordBatch"),
    "no id": (lambda batch: batch.select(["raw"]), "without its column 'id'"),
    "another id": (
        lambda batch: pa.RecordBatch.from_pydict({"id": ["other"]}),
        "returned a row for 'other' that it was not called with",
    ),
    "a row twice": (lambda batch: batch.take([0, 0]), "returned a row for 'bad' that it was not called with, or a sec"),
    "two columns of a name": (
        lambda batch: pa.RecordBatch.from_arrays([batch["id"], batch["id"]], ["id", "id"]),
        "two columns of one name",
    ),
}


@pytest.mark.rule("step.arrow")
@pytest.mark.parametrize("what", WRONG)
def test_a_batch_that_does_not_match_is_halved(net: PlanWorld, what: str) -> None:
    """Down to the document with which it does not."""
    wrong, message = WRONG[what]
    build(net, lambda batch: wrong(batch) if "bad" in batch["id"].to_pylist() else batch, attempts=1)
    net.put("a", "b", "bad", "c", "d")
    assert net.run().exit == 3
    assert net.arrived("out") == dict.fromkeys("abcd", 1)
    [event] = account.history(net.root, "bad", net.plan)
    assert message in event["message"]


@pytest.mark.rule("step.arrow")
def test_fields_that_make_no_column_part_the_batch(net: PlanWorld) -> None:
    """Text in one document and a number in another have no common type: each goes in a batch with its like."""
    build(net, lambda batch: with_column(batch, "rows", [batch.num_rows] * batch.num_rows), attempts=1)
    net.put("a", "b", year="1599")
    net.put("c", "d", year=1600)
    net.put("e", id_="kept")
    assert net.run(runner=InProcess(slots=1)).exit == 0
    assert {id: each.get("year") for id, each in fields(net).items()} == {
        "a": "1599", "b": "1599", "c": 1600, "d": 1600, "e": None,
    }  # fmt: skip
