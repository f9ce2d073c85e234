"""``read_xml``: elements and attributes to fields, and XML that must not be believed."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.errors import BadDocument
from tests.steps.corpus import LAUGHS

RECORD = b"""<?xml version="1.0"?>
<r:record xmlns:r="urn:r" xmlns="urn:plain" xmlns:dc="http://purl.org/dc/elements/1.1/" id="7" xml:lang="en">
  <dc:title>Henry
     <b>the Fifth</b></dc:title>
  <dc:creator>W. S.</dc:creator><dc:creator>J. F.</dc:creator><dc:creator> </dc:creator>
  <file size="12" href="a.pdf"/><file size="30"/>
  <empty/><!-- a comment --><?target data?>
</r:record>"""
NAMES = {"dc": "http://purl.org/dc/elements/1.1/", "p": "urn:plain"}


def fields(raw: bytes, paths: dict[str, str], **options: Any) -> dict[str, Any]:
    return steps.read_xml(paths, **{"namespaces": NAMES, **options})(Document("d", raw=raw)).fields


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dc:title", "Henry the Fifth"),
        ("//dc:creator", ["W. S.", "J. F."]),
        ("dc:creator[1]", "W. S."),
        ("@id", "7"),
        ("@xml:lang", "en"),
        ("p:file/@size", ["12", "30"]),
        ("sum(p:file/@size)", 42),
        ("sum(p:file/@size) div 4", 10.5),
        ("count(p:file) > 1", True),
        ("string(p:file/@href)", "a.pdf"),
        ("concat(dc:creator[1], '; ', dc:creator[2])", "W. S.; J. F."),
        ("comment()", "a comment"),
        ("p:empty", None),
        ("p:nowhere", None),
        ("file", None),
        ("number('x')", None),
    ],
)
def test_a_path_finds(path: str, value: Any) -> None:
    """One text, a list of several, a number; nothing where there is nothing."""
    assert fields(RECORD, {"found": path}) == ({} if value is None else {"found": value})


def test_what_is_found_replaces_what_is_there() -> None:
    """Else the field stays; so does the XML."""
    doc = Document("d", raw=RECORD, title="old", other="old")
    steps.read_xml({"title": "dc:title", "other": "nowhere"}, NAMES)(doc)

    assert (doc["title"], doc["other"], doc.raw) == ("Henry the Fifth", "old", RECORD)


def test_a_document_without_content_goes_on() -> None:
    doc = Document("d", title="x")
    assert steps.read_xml({"a": "a"})(doc) is doc


SECRET = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (LAUGHS.encode(), "it is not XML: Maximum entity amplification"),
        (SECRET, "declares entities, which are not resolved"),
        (b'<!DOCTYPE a [<!ENTITY x "y">]><a/>', "declares entities"),
        (b'<!DOCTYPE a [<!ENTITY % p SYSTEM "http://127.0.0.1:9/x.dtd"> %p;]><a/>', "declares entities"),
        (b"<a>" * 5000, "Excessive depth"),
        (b"<a><b></a>", "it is not XML"),
        (b"", "it is not XML"),
        (b"text", "it is not XML"),
        (b"<a/>" + b" " * 100, "more than max_bytes=100"),
    ],
    ids=["laughs", "secret", "declared", "parameter", "deep", "broken", "empty", "text", "large"],
)
def test_xml_that_must_not_be_believed(raw: bytes, words: str) -> None:
    """Refused in words, and nothing of it is read."""
    with pytest.raises(BadDocument) as refused:
        fields(raw, {"a": "."}, max_bytes=100 if words.endswith("=100") else 10**6)
    assert words in str(refused.value)
    assert "root:" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_document_type_without_entities_is_no_harm() -> None:
    """Nothing is loaded for it."""
    raw = b'<!DOCTYPE a PUBLIC "-//X//Y" "http://127.0.0.1:9/x.dtd"><a>b</a>'
    assert fields(raw, {"a": "."}) == {"a": "b"}


@pytest.mark.parametrize("paths", [{}, {"": "a"}, {"a": "//["}, {"a": "x:b"}, {"a": "nofunction()"}])
def test_paths_that_cannot_be_meant(paths: dict[str, str]) -> None:
    """Found when the step is made."""
    with pytest.raises(ValueError, match=r"give|Give"):
        steps.read_xml(paths)
