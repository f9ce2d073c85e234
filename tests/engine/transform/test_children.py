"""Children: documents that steps make of others, and their ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ferryman import account, limits
from ferryman.document import Document
from ferryman.errors import Dropped, PermanentError
from ferryman.storage.parquet import PartWriter
from tests.support.families import end, letters, net, words
from tests.support.invariants import rows
from tests.support.plan_world import PlanWorld

__all__ = ["net"]


@pytest.mark.rule("step.several", "child.version", "child.history")
def test_a_step_may_make_children(net: PlanWorld) -> None:
    """Each goes on as a document of its own: with its parent, its origin, and the origin's version."""
    end(net.source().step("words", words), net)
    net.put("a", text="to be")
    assert net.run().delivered == 2
    lines = {line["id"]: line for line in net.out("out").lines()}
    assert set(lines) == {"a#to", "a#be"}
    for line in lines.values():
        assert (line["parent"], line["origin"]) == ("a", "a")
    assert len({line["version"] for line in lines.values()} | {rows(net.root, "documents")[0]["version"]}) == 1
    assert net.run().waves == 0
    history = account.history(net.root, "a", net.plan)
    assert {(e["document"], e["parent"], e["origin"], e["status"]) for e in history} == {
        ("a#to", "a", "a", "INDEXED"),
        ("a#be", "a", "a", "INDEXED"),
    }


def test_as_many_children_as_documents(net: PlanWorld) -> None:
    """A block of which some documents give nothing, and another as many children as the block has documents."""
    end(net.source().step("words", words), net)
    net.put("a", "b", text="old")
    net.run()
    net.put("b", text="to be")
    net.run()
    now = {line["id"]: line for line in net.out("out").lines()[2:]}
    assert {id: line["origin"] for id, line in now.items()} == {"b#to": "b", "b#be": "b", "b#old": "b"}
    changed = max(rows(net.root, "documents"), key=lambda row: row["wave"])
    assert {line["version"] for line in now.values()} == {changed["version"]}
    assert {e["document"] for e in account.history(net.root, "b", net.plan)} == set(now)
    net.put("c", text="")  # of which no child is made
    net.put("d", text="not to")
    net.run()
    assert {line["origin"] for line in net.out("out").lines() if line["id"].startswith("d#")} == {"d"}


@pytest.mark.rule("step.several", "child.default-key", "child.nested")
def test_children_may_have_children(net: PlanWorld) -> None:
    """Ids nest; the default key is the number among its siblings."""
    end(net.source().step("words", words).step("letters", letters), net)
    net.put("a", text="to be")
    net.run()
    assert set(net.arrived("out")) == {"a#to", "a#to#0", "a#to#1", "a#be", "a#be#0", "a#be#1"}
    assert {line["id"]: line["parent"] for line in net.out("out").lines()}["a#to#1"] == "a#to"


def test_a_large_family_is_written_in_large_pieces(net: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it passes the size of a row group, it is written piece by piece: not row by row from there on."""
    pieces: list[int] = []
    write = PartWriter.write

    def noted(writer: PartWriter, table: pa.Table) -> None:
        if "delivery_hash" in table.schema.names and "row" in table.schema.names:
            pieces.append(table.num_rows)
        write(writer, table)

    monkeypatch.setattr(PartWriter, "write", noted)
    monkeypatch.setattr(limits, "GROUP_BYTES", 15_000)
    end(net.source().step("letters", letters), net)
    net.put("a", text="x" * 200)
    assert net.run().delivered == 201
    assert sum(pieces) == 201
    assert len(pieces) <= 5


@pytest.mark.rule("child.id")
def test_keys_are_encoded(net: PlanWorld) -> None:
    """So that none can look like another's descendant, or like a path."""

    def odd(doc: Document) -> list[Document]:
        return [doc.child(key) for key in ("x#y", "x/y", "ä", 7, "100%")]

    end(net.source().step("odd", odd), net)
    net.put("a")
    net.run()
    assert set(net.arrived("out")) == {"a#x%23y", "a#x%2Fy", "a#%C3%A4", "a#7", "a#100%25"}


def empty(doc: Document) -> list[Document]:
    return []


def twins(doc: Document) -> list[Document]:
    return [doc.child("k"), doc.child("k")]


def itself_twice(doc: Document) -> list[Document]:
    return [doc, doc]


def strangers(doc: Document) -> list[Document]:
    return [Document("b")]


def texts(doc: Document) -> list[str]:
    return ["b"]


def keyless(doc: Document) -> list[Document]:
    return [doc.child("")]


def breaks_off(doc: Document) -> Iterator[Document]:
    yield doc.child()
    raise PermanentError("page 2 is torn")


def lets_go(doc: Document) -> Iterator[Document]:
    yield doc.child()
    raise Dropped("a draft")


@pytest.mark.rule("child.twins")
@pytest.mark.parametrize(
    ("step", "status", "says"),
    [
        (empty, "DROPPED", "step step returned no document"),
        (lets_go, "DROPPED", "a draft"),
        (twins, "ERROR_DOC", "two children of one key, 'a#k'"),
        (itself_twice, "ERROR_DOC", "returned the document itself twice"),
        (strangers, "ERROR_DOC", "returned a document of another id, 'b': make children with document.child()"),
        (texts, "ERROR_DOC", "returned a str among its documents"),
        (keyless, "ERROR_DOC", "a child with an empty key"),
        (breaks_off, "ERROR_DOC", "page 2 is torn"),
    ],
)
def test_what_a_step_may_not_return(net: PlanWorld, step: Any, status: str, says: str) -> None:
    """It is the error of the document that the step was called for; none of the children goes on."""
    end(net.source().step("step", step), net)
    net.put("a")
    net.run()
    [event] = account.history(net.root, "a", net.plan)
    assert (event["document"], event["status"]) == ("a", status)
    assert says in event["message"]
    assert net.arrived("out") == {}


def test_two_steps_may_not_make_one_child(net: PlanWorld) -> None:
    """The second one's document ends, the first one's child is delivered."""

    def again(doc: Document) -> list[Document]:
        return [doc, Document("k").child()] if doc.id != "a" else [doc, doc.child("k")]

    def first(doc: Document) -> list[Document]:
        return [doc, doc.child("k")]

    def second(doc: Document) -> Any:
        return [doc, doc.child("k")] if doc.id == "a" else doc

    end(net.source().step("first", first).step("second", second), net)
    net.put("a")
    net.run()
    assert net.events("a", "out") == ["ERROR_DOC"]
    assert net.events("a#k", "out") == ["INDEXED"]


@pytest.mark.rule("child.default-key")
def test_the_default_key_goes_on_counting(net: PlanWorld) -> None:
    """Over the steps of a path."""

    def more(doc: Document) -> Any:
        return [doc, doc.child()] if doc.id == "a" else doc

    end(net.source().step("one", more).step("two", more), net)
    net.put("a")
    net.run()
    assert set(net.arrived("out")) == {"a", "a#0", "a#1"}


@pytest.mark.rule("child.stable")
def test_the_same_input_makes_the_same_children(net: PlanWorld) -> None:
    """Fed again they are the same documents: nothing is deleted, nothing is new."""
    end(net.source(detect="none").step("letters", letters).step("words", lambda doc: [doc, doc.child("k")]), net)
    net.put("a", text="xy")
    for _ in range(3):
        net.run()
    ids = ["a", "a#0", "a#1", "a#k", "a#0#k", "a#1#k"]
    assert net.arrived("out") == dict.fromkeys(ids, 3)


def test_a_generator_cannot_change_the_id_of_its_document(place: Path) -> None:
    """As a function cannot: what is delivered, and later deleted, has the id that the source gave."""
    net = PlanWorld.empty(place)
    net.source()

    def renaming(doc: Document) -> Any:
        doc.id = f"{doc.id}#another"
        yield doc

    net.plan.step("renaming", renaming, after="docs").destination("out", net.out("out"))
    net.put("a")
    net.run()
    net.drop("a")
    net.run()
    assert net.arrived("out") == {"a": 1, "-a": 1}
