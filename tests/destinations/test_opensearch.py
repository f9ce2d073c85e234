"""What ``OpenSearch`` keeps and refuses, against the real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Delivery, OpenSearch, Outcome
from ferryman.destinations.opensearch import documents
from ferryman.errors import UsageError
from ferryman.retrieval.search import search
from ferryman.testing.destinations import delete, delivery
from tests.destinations.plays import check_an_engine
from tests.destinations.search_index import SearchIndex, index, kinds, opened, opensearch
from tests.servers.opensearch import OpenSearchServer

__all__ = ["index", "opensearch"]


MAPPINGS = {"properties": {"title": {"type": "text"}, "year": {"type": "long"}, "text": {"type": "text"}}}


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_what_a_document_is(index: SearchIndex) -> None:
    """Fields as they are, the raw bytes as text, and what Ferryman knows of it."""
    child = Delivery(
        "plays/a.xml#act 1", hash="ab" * 16, sequence=7, fields={"title": "Act 1", "tags": ["x", "y"]},
        raw="Grüße \ufffd".encode() + b"\xff", version="cd" * 16, source="files", parent_id="plays/a.xml",
        origin_id="plays/a.xml", route=("left", "right"),
    )  # fmt: skip
    writer = opened(OpenSearch(index.url, index.name, MAPPINGS))
    assert kinds(writer.write([child, delivery("plain", 8, None)])) == ["ok", "ok"]
    stored = index.documents()["plays/a.xml#act 1"]
    assert len(stored["_ferryman"].pop("content_hash")) == 32
    assert stored == {
        "title": "Act 1",
        "tags": ["x", "y"],
        "text": "Grüße \ufffd\ufffd",
        "_ferryman": {
            "hash": "ab" * 16,
            "sequence": 7,
            "origin": "plays/a.xml",
            "parent": "plays/a.xml",
            "source": "files",
            "version": "cd" * 16,
            "route": ["left", "right"],
        },
    }
    assert "text" not in index.documents()["plain"]
    assert index.version("plays/a.xml#act 1") == 7
    assert index.found(text="grüße") == ["plays/a.xml#act 1"]


def test_a_field_of_the_texts_name_is_the_steps(index: SearchIndex) -> None:
    """It is not overwritten by the bytes that it was made of; under another name both are there."""
    one = delivery("one", 1, "raw", {"text": "clean", "body": {"text": "x"}})
    opened(OpenSearch(index.url, index.name)).write([one])
    assert index.documents()["one"]["text"] == "clean"
    opened(OpenSearch(index.url, index.name, text="content")).write([delivery("one", 2, "raw", {"text": "clean"})])
    assert (index.documents()["one"]["text"], index.documents()["one"]["content"]) == ("clean", "raw")
    opened(OpenSearch(index.url, index.name, text=None)).write([delivery("one", 3, "raw", {"a": 1})])
    assert index.documents()["one"].keys() == {"a", "_ferryman"}


@pytest.mark.rule("opensearch.once")
def test_a_delivery_that_comes_again_changes_nothing(index: SearchIndex) -> None:
    """It is the same version of the same bytes; a newer one between makes it stale, a delete too."""
    writer = opened(OpenSearch(index.url, index.name))
    chunk = [delivery("a", 5), delivery("b", 6), delete("c", 7)]
    assert kinds(writer.write(chunk)) == ["ok", "ok", "ok"]
    before = index.documents()
    assert kinds(writer.write(chunk)) == ["ok", "ok", "ok"]
    assert index.documents() == before
    assert index.version("a") == 5
    assert kinds(writer.write([delivery("a", 9), delete("b", 10)])) == ["ok", "ok"]
    assert kinds(writer.write(chunk)) == ["stale", "stale", "ok"]
    assert {id: d["_ferryman"]["sequence"] for id, d in index.documents().items()} == {"a": 9}


@pytest.mark.slow
def test_how_long_a_delete_is_remembered(index: SearchIndex, opensearch: OpenSearchServer) -> None:
    """Over a flush and over a kill; not over ``gc_deletes``, nor over an orderly restart: so the reference says."""

    def write(*chunk: Delivery) -> list[str]:
        return kinds(opened(OpenSearch(index.url, index.name)).write(list(chunk)))

    write(delivery("a", 1), delete("a", 3), delete("never", 3))
    index.ask("POST", "/_flush?force=true")
    opensearch.kill()
    opensearch.start()
    assert write(delete("b", 3)) == ["ok"]
    index.ask("POST", "/_refresh")
    assert write(delivery("b", 2)) == ["stale"]
    opensearch.stop()
    opensearch.start()
    assert write(delivery("b", 2)) == ["ok"], "it is remembered now: then the reference may promise more"


def test_what_is_written_can_be_found_at_once_if_asked(index: SearchIndex) -> None:
    """``refresh=True``, and "wait_for"; without, it is the index's business."""
    query = {"query": {"ids": {"values": ["a"]}}}
    index.ask("PUT", "", {"settings": {"index.refresh_interval": "1s"}})
    for sequence, refresh in enumerate((True, "wait_for"), 1):
        opened(OpenSearch(index.url, index.name, refresh=refresh)).write([delivery("a", sequence)])  # type: ignore[arg-type]
        [hit] = index.ask("POST", "/_search", query)["hits"]["hits"]
        assert hit["_source"]["_ferryman"]["sequence"] == sequence


def test_it_can_be_searched(index: SearchIndex) -> None:
    """As a database is: all words, phrases, beginnings, alternatives, ß; nothing that is typed is an error."""
    opened(OpenSearch(index.url, index.name, refresh=True)).write(
        [
            delivery("henry", 1, "O for a Muse of fire", {"title": "King Henry V", "cast": {"lead": "Falstaff"}}),
            delivery("berlin", 2, "In der Straße", {"title": "Berlin"}),
        ]
    )
    url = f"{index.url}/{index.name}"
    check_an_engine(search, url)
    assert [hit.id for hit in search(url, "falstaff")] == ["henry"]
    with pytest.raises(UsageError, match="404"):
        search(f"{index.url}/nothing-there", "muse")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_an_id_that_is_too_long_is_refused_by_its_name(index: SearchIndex) -> None:
    """512 bytes are the most, not characters; the chunk's others are there."""
    longest, over = "a" * 510 + "é", "long/" + "é" * 254
    outcomes = opened(OpenSearch(index.url, index.name)).write(
        [delivery(longest, 1), delivery(over, 2), delivery("", 3)]
    )
    assert kinds(outcomes) == ["ok", "permanent", "permanent"]
    assert outcomes[1].why.startswith("long/éé")
    assert "its id has 513 bytes, 512 is the most. Give it a shorter one in the source." in outcomes[1].why
    assert index.documents().keys() == {longest}


def test_a_field_too_many_is_its_documents_trouble(index: SearchIndex) -> None:
    """The mapping is full: the limit of fields is the server's, and what fits is written."""
    settings = {"index.mapping.total_fields.limit": 20}
    writer = opened(OpenSearch(index.url, index.name, settings=settings))
    wide = delivery("wide", 1, fields={f"field_{i}": "x" for i in range(30)})
    outcomes = writer.write([delivery("a", 2), wide, delivery("b", 3)])
    assert kinds(outcomes) == ["ok", "permanent", "ok"]
    assert "Limit of total fields [20] has been exceeded" in outcomes[1].why
    assert not outcomes[1].universal


@pytest.mark.rule("opensearch.outcomes")
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"year": "MDC"}, "failed to parse field [year] of type [long]"),
        ({"year": {"from": 1600}}, "failed to parse field [year] of type [long]"),
        ({"day": "soon"}, "failed to parse field [day] of type [date]"),
        ({"title": {"de": "x"}}, "failed to parse field [title] of type [text]"),
        ({"place": "here"}, "object mapping for [place] tried to parse field [place] as object"),
        ({"other": 1}, "mapping set to strict, dynamic introduction of [other] within [_doc] is not allowed"),
        ({"_id": "x"}, "_id"),
        ({"": "nameless"}, ""),
    ],
)
def test_what_a_mapping_refuses(index: SearchIndex, fields: dict[str, Any], says: str) -> None:
    """Permanent, about this document, naming field and type but neither id nor value: equal trouble, equal words."""
    mappings = {
        "dynamic": "strict",
        "properties": {
            **MAPPINGS["properties"],
            "day": {"type": "date"},
            "place": {"properties": {"lat": {"type": "float"}}},
        },
    }
    writer = opened(OpenSearch(index.url, index.name, mappings))
    outcomes = writer.write([delivery("one", 1, fields=fields), delivery("good", 2), delivery("two", 3, fields=fields)])
    assert kinds(outcomes) == ["permanent", "ok", "permanent"]
    assert outcomes[0] == outcomes[2]
    assert says in outcomes[0].why
    assert not outcomes[0].universal
    assert outcomes[0].why.endswith("Correct the field in a step, or the mappings.")
    assert "MDC" not in outcomes[0].why


def test_ferrymans_own_object_is_no_field(index: SearchIndex) -> None:
    """A document that brings one is refused: its hash would not be ours."""
    [outcome] = opened(OpenSearch(index.url, index.name)).write([delivery("a", 1, fields={"_ferryman": {"hash": "x"}})])
    assert outcome.kind == "permanent"
    assert "Rename the field in a step" in outcome.why


def test_requests_are_cut_by_bytes(index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a chunk needs; a document that is larger alone is sent alone."""
    sizes: list[int] = []
    monkeypatch.setattr(documents, "REQUEST_BYTES", 10_000)
    chunk = [delivery(f"doc-{i}", i, "x" * (20_000 if i == 30 else 1000)) for i in range(1, 60)]
    writer = opened(OpenSearch(index.url, index.name))
    for piece in documents.split_requests(writer._writer.rows(chunk, [None] * len(chunk))):
        sizes.append(sum(len(row.lines) for row in piece))
    assert max(size for size in sizes if size < 20_000) <= 10_000
    assert len(sizes) > 6
    assert kinds(writer.write(chunk)) == ["ok"] * 59
    assert len(index.documents()) == 59


def test_a_document_that_no_request_can_hold(opensearch: OpenSearchServer, tmp_path: Path) -> None:
    """The server takes 100 MB: that one is refused for good, whatever stands beside it."""
    writer = opened(OpenSearch(opensearch.url, tmp_path.name))
    outcomes = writer.write([delivery("a", 1), delivery("huge", 2, "x" * 101 * 2**20), delivery("b", 3)])
    assert kinds(outcomes) == ["ok", "permanent", "ok"]
    assert "413" in outcomes[1].why
    assert "http.max_content_length" in outcomes[1].why


def test_a_server_that_refuses_the_whole_request(opensearch: OpenSearchServer, tmp_path: Path) -> None:
    """400 and 413 of a whole request are halved until the one that is meant stands alone."""
    index = SearchIndex(opensearch.url, tmp_path.name)
    made = OpenSearch(opensearch.url, tmp_path.name)
    writer = opened(made)
    bad = delivery("bad", 50)
    lines = writer._writer.rows

    def broken(chunk: list[Delivery], outcomes: list[Outcome | None]) -> Any:
        for row in lines(chunk, outcomes):
            yield row._replace(lines=b'{"nonsense":{}}\n{}\n') if chunk[row.position] is bad else row

    writer._writer.rows = broken  # type: ignore[method-assign]
    outcomes = writer.write([*[delivery(f"doc-{i}", i) for i in range(1, 20)], bad])
    assert kinds(outcomes) == ["ok"] * 19 + ["permanent"]
    assert "answered 400" in outcomes[-1].why
    assert len(index.documents()) == 19
