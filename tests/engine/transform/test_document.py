"""What a step holds in its hands: a document's attributes, its fields, its text, its version."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from hashlib import blake2b
from typing import Any

import pytest

from ferryman import Document
from tests.support.plan_world import PlanWorld


@pytest.mark.rule("doc.attributes")
def test_attributes(trial: PlanWorld) -> None:
    """As a step sees them, of a document of the source and of its child."""

    def split(doc: Document) -> list[Document]:
        return [doc, doc.child("k", raw=b"part")]

    def look(doc: Document) -> Document:
        doc["seen"] = [doc.id, doc.parent_id, doc.origin_id, doc.operation, str(doc.raw), doc.version]
        return doc

    trial.build(split, look)
    trial.put("a")
    trial.documents.append({"id": "b", "n": 1})
    assert trial.run().exit == 0
    versions = {e["origin"]: e["version"] for id in "ab" for e in trial.history(id)}
    assert {line["id"]: line["fields"]["seen"] for line in trial.out().lines()} == {
        "a": ["a", None, "a", "upsert", "b'one'", versions["a"]],
        "a#k": ["a#k", "a", "a", "upsert", "b'part'", versions["a"]],
        "b": ["b", None, "b", "upsert", "None", versions["b"]],
        "b#k": ["b#k", "b", "b", "upsert", "b'part'", versions["b"]],
    }


@pytest.mark.rule("doc.mapping")
def test_no_attribute_can_be_deleted() -> None:
    """A step that does so is told at once: whoever gets the document next relies on each."""
    doc = Document("a", n=1)
    with pytest.raises(AttributeError, match="raw of a document cannot be deleted"):
        del doc.raw
    del doc["n"]
    assert doc.raw is None


def test_fields_are_a_mutable_mapping() -> None:
    """Reading, setting, asking, deleting, going through."""
    doc = Document("a", raw=b"x", title="T", year=1599)
    assert isinstance(doc, MutableMapping)
    doc["tags"] = ["comedy"]
    del doc["year"]
    assert (doc["title"], doc.get("year"), doc.get("year", 7)) == ("T", None, 7)
    assert ("title" in doc, "year" in doc, "raw" in doc) == (True, False, False)
    assert (list(doc), len(doc)) == (["title", "tags"], 2)
    with pytest.raises(KeyError):
        doc["year"]


@pytest.mark.rule("doc.text")
def test_text_is_raw_decoded(trial: PlanWorld) -> None:
    """UTF-8, or what is asked for; nothing is empty text."""
    assert Document("a", raw="é".encode()).text() == "é"
    assert Document("a", raw="é".encode("latin-1")).text("latin-1") == Document("a", raw=b"\xe9").text(
        encoding="cp1252"
    )
    assert Document("a").text() == Document("a", raw=b"").text() == ""

    def read(doc: Document) -> Document:
        doc["text"] = doc.text()
        return doc

    trial.build(read)
    trial.put("good")
    trial.documents.append({"id": "bad", "raw": b"0123456\xff8"})
    assert trial.run().exit == 3
    assert trial.counts() == {"delivered": 1, "rejected": 1}
    assert trial.history("bad")[0]["message"].startswith("bad: not utf-8 text: byte 7 (0xff)")


@pytest.mark.rule("doc.version")
def test_a_version_is_a_hash_of_what_the_source_gave(trial: PlanWorld) -> None:
    """BLAKE2b of 128 bits over the fields as JSON, their keys sorted, and the raw bytes after a NUL."""

    def change(doc: Document) -> Document:
        doc.raw, doc["title"] = b"another", "another"
        return doc

    trial.build(change)
    trial.documents += [{"id": "a", "raw": b"one", "title": "T", "n": 1}, {"id": "b", "n": 1}]
    trial.run()

    def version(raw: bytes | None, **fields: Any) -> str:
        content = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        return blake2b(content + (b"" if raw is None else b"\0" + raw), digest_size=16).hexdigest()

    assert trial.history("a")[0]["version"] == version(b"one", title="T", n=1)
    assert trial.history("b")[0]["version"] == version(None, n=1)
    assert {line["version"] for line in trial.out().lines()} == {e["version"] for i in "ab" for e in trial.history(i)}


@pytest.mark.parametrize(
    ("given", "has"), [({}, ["group:a"]), ({"allowed": ["user:b"]}, ["user:b"]), ({"allowed": None}, None)]
)
def test_a_child_may_be_read_by_who_may_read_its_document(given: dict[str, Any], has: Any) -> None:
    """Unless it says otherwise itself; it has a list of its own."""
    parent = Document("a", allowed=["group:a"])
    child = parent.child(1, text="x", **given)
    assert child["allowed"] == has
    parent["allowed"].append("group:b")
    assert child["allowed"] == has
    assert "allowed" not in Document("b").child(1)
