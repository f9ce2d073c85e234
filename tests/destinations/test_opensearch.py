"""What ``OpenSearch`` keeps, refuses and says, against the real server."""

from __future__ import annotations

import logging
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Delivery, DestinationContext, Guarantee, OpenSearch, Outcome
from ferryman.destinations.opensearch import body, destination
from ferryman.errors import PermanentError, PlanError, TransientError
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.proxy import Proxy, ProxyFault
from tests.destinations.search_index import SearchIndex
from tests.servers.opensearch import OpenSearchServer
from tests.support.gate import API_KEY, PASSWORD, USER, Gate

MAPPINGS = {"properties": {"title": {"type": "text"}, "year": {"type": "long"}, "text": {"type": "text"}}}


@pytest.fixture
def opensearch(server: Callable[[str], Any]) -> OpenSearchServer:
    found: OpenSearchServer = server("opensearch")
    return found


@pytest.fixture
def index(opensearch: OpenSearchServer, tmp_path: Path) -> SearchIndex:
    """This test's own; it is not there yet."""
    return SearchIndex(opensearch.url, tmp_path.name)


def opened(made: OpenSearch, guarantee: Guarantee = Guarantee.EXACTLY_ONCE) -> OpenSearch:
    """Checked and opened."""
    made.check()
    made.open(DestinationContext("tests", 1, "node", 1, guarantee))
    return made


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind for outcome in outcomes]


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
    assert index.documents()["plays/a.xml#act 1"] == {
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
    monkeypatch.setattr(body.pieces, "__defaults__", (10_000,))
    chunk = [delivery(f"doc-{i}", i, "x" * (20_000 if i == 30 else 1000)) for i in range(1, 60)]
    writer = opened(OpenSearch(index.url, index.name))
    for piece in body.pieces(writer._writer.rows(chunk, [None] * len(chunk))):
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


# --- the index --------------------------------------------------------------------------------------------------------


def test_the_index_is_made_as_the_plan_says(index: SearchIndex) -> None:
    """With its mappings and settings; deletes are remembered for ten minutes. Again, it changes nothing."""
    made = OpenSearch(index.url, index.name, {"dynamic": "strict", **MAPPINGS}, settings={"number_of_replicas": 0})
    made.check()
    first = index.ask("GET", "?flat_settings=true")[index.name]
    assert first["mappings"]["dynamic"] == "strict"
    assert first["mappings"]["properties"].keys() == {"title", "year", "text", "_ferryman"}
    assert first["mappings"]["properties"]["_ferryman"]["properties"]["hash"] == {"type": "keyword"}
    assert first["settings"]["index.gc_deletes"] == "600s"
    assert first["settings"]["index.number_of_replicas"] == "0"
    made.check()
    assert index.ask("GET", "?flat_settings=true")[index.name] == first
    assert kinds(opened(made).write([delivery("a", 1, fields={"title": "x"})])) == ["ok"]


def test_an_index_that_is_there_gets_what_it_lacks(index: SearchIndex) -> None:
    """Fields are added; those that are there stay."""
    index.ask("PUT", "", {"mappings": {"properties": {"title": {"type": "text"}, "own": {"type": "keyword"}}}})
    OpenSearch(index.url, index.name, MAPPINGS).check()
    fields = index.ask("GET", "/_mapping")[index.name]["mappings"]["properties"]
    assert fields.keys() == {"title", "own", "year", "text", "_ferryman"}


def test_an_index_that_contradicts_the_plan_is_refused(index: SearchIndex) -> None:
    """By the name of the field; nothing is changed."""
    index.ask("PUT", "", {"mappings": {"properties": {"year": {"type": "keyword"}}}})
    with pytest.raises(PermanentError, match=r"mappings contradict the plan's: .*year.*Correct mappings=") as caught:
        OpenSearch(index.url, index.name, MAPPINGS).check()
    assert caught.value.universal
    assert index.ask("GET", "/_mapping")[index.name]["mappings"]["properties"].keys() == {"year"}


def test_mappings_that_nobody_knows_are_refused(index: SearchIndex) -> None:
    with pytest.raises(PermanentError, match=r"cannot be made: .*\[wort\].*Correct index=, mappings= or settings="):
        OpenSearch(index.url, index.name, {"properties": {"title": {"type": "wort"}}}).check()


def test_an_alias_means_one_index(index: SearchIndex) -> None:
    """Of two, a document that changes would be in both."""
    for name in ("one", "two"):
        SearchIndex(index.url, f"{index.name}-{name}").ask("PUT", "")
    aliased = OpenSearch(index.url, f"{index.name}-alias")
    SearchIndex(index.url, f"{index.name}-one").ask("PUT", f"/_alias/{index.name}-alias")
    assert kinds(opened(aliased).write([delivery("a", 1)])) == ["ok"]
    SearchIndex(index.url, f"{index.name}-two").ask("PUT", f"/_alias/{index.name}-alias")
    with pytest.raises(PermanentError, match="is an alias of 2 indices"):
        aliased.check()


def test_an_index_that_forgets_deletes_too_soon_is_warned_of(
    index: SearchIndex, caplog: pytest.LogCaptureFixture
) -> None:
    """Naming the setting; the default of a minute is enough."""
    index.ask("PUT", "")
    with caplog.at_level(logging.WARNING, "ferryman"):
        OpenSearch(index.url, index.name).check()
        assert not caplog.records
        index.ask("PUT", "/_settings", {"index.gc_deletes": "5s"})
        OpenSearch(index.url, index.name).check()
    assert "index.gc_deletes is 5s" in caplog.text


def test_a_deleted_index_is_the_destinations_trouble(index: SearchIndex) -> None:
    """Where indices are not made by themselves: universal, and the next run makes it anew."""
    writer = opened(OpenSearch(index.url, index.name))
    cluster = SearchIndex(index.url, "_cluster")
    index.ask("DELETE")
    cluster.ask("PUT", "/settings", {"persistent": {"action.auto_create_index": "false"}})
    try:
        outcomes = writer.write([delivery("a", 1), delete("b", 2)])
    finally:
        cluster.ask("PUT", "/settings", {"persistent": {"action.auto_create_index": None}})
    assert {(o.kind, o.universal) for o in outcomes} == {("permanent", True)}
    assert "Run again: the index is made anew" in outcomes[0].why
    assert kinds(opened(OpenSearch(index.url, index.name)).write([delivery("a", 1)])) == ["ok"]


def test_a_blocked_index_is_waited_for(index: SearchIndex) -> None:
    """As the server blocks its indices when the disk is full: no document is blamed."""
    writer = opened(OpenSearch(index.url, index.name))
    index.ask("PUT", "/_settings", {"index.blocks.read_only_allow_delete": True})
    outcomes = writer.write([delivery("a", 1), delivery("b", 2)])
    assert {(o.kind, o.universal) for o in outcomes} == {("transient", True)}
    index.ask("PUT", "/_settings", {"index.blocks.read_only_allow_delete": None})
    assert kinds(writer.write([delivery("a", 1), delivery("b", 2)])) == ["ok", "ok"]


# --- who may, and what is shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "auth",
    [(USER, "${OPENSEARCH_PASSWORD}"), (USER, PASSWORD), "${OPENSEARCH_KEY}", API_KEY, "Bearer ${OPENSEARCH_KEY}"],
)
def test_password_key_and_certificate(
    gate: Gate, tmp_path: Path, index: SearchIndex, auth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through TLS, from the environment or not; nothing shows them."""
    monkeypatch.setenv("OPENSEARCH_PASSWORD", PASSWORD)
    monkeypatch.setenv("OPENSEARCH_KEY", API_KEY)
    made = OpenSearch(gate.url, index.name, auth=auth, ca=gate.ca)
    assert kinds(opened(made).write([delivery("a", 1)])) == ["ok"]
    assert index.documents().keys() == {"a"}
    assert gate.seen
    for secret in (PASSWORD, API_KEY):
        assert secret not in f"{made!r} {made.target()}"
    if "${" in str(auth):
        assert PASSWORD.encode() not in pickle.dumps(made)
        assert API_KEY.encode() not in pickle.dumps(made)


def test_a_missing_variable_is_named(index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENSEARCH_PASSWORD", raising=False)
    with pytest.raises(PermanentError, match="variable OPENSEARCH_PASSWORD is not set"):
        OpenSearch(index.url, index.name, auth=("me", "${OPENSEARCH_PASSWORD}")).check()


def test_a_certificate_that_nobody_vouches_for(gate: Gate, index: SearchIndex) -> None:
    """Says what to do."""
    with pytest.raises(PermanentError, match=r"its certificate is refused: .* Give its authority: ca="):
        OpenSearch(gate.url, index.name, auth=API_KEY).check()


def test_credentials_that_are_taken_away(gate: Gate, index: SearchIndex) -> None:
    """In the middle of a wave: for a person, about all, before and after."""
    writer = opened(OpenSearch(gate.url, index.name, auth=API_KEY, ca=gate.ca))
    gate.forbidden = "_bulk"
    [outcome] = writer.write([delivery("a", 1)])
    assert (outcome.kind, outcome.universal) == ("permanent", True)
    assert "403" in outcome.why
    assert "no permissions for POST" in outcome.why
    gate.lets_in = lambda _: False  # type: ignore[method-assign]
    [outcome] = writer.write([delivery("a", 1)])
    assert (outcome.kind, outcome.universal) == ("permanent", True)
    assert outcome.why.endswith("answered 401 Unauthorized (Unauthorized). Correct auth=.")
    assert API_KEY not in outcome.why


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"url": "localhost:9200"}, "no http or https URL"),
        ({"index": "Plays"}, "lower-case"),
        ({"index": "a b"}, "without spaces"),
        ({"index": ".plays"}, "begins with"),
        ({"index": ""}, "lower-case"),
        ({"refresh": "soon"}, "True, False or 'wait_for'"),
        ({"auth": ["a", "b"]}, "neither"),
        ({"url": "http://me:pw@localhost", "auth": "key"}, "leave one of them out"),
        ({"mappings": {"title": {"type": "text"}}}, "under 'properties'"),
        ({"mappings": {"mappings": {}}}, "under 'properties'"),
        ({"text": "_ferryman"}, "Ferryman's own"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, Any], says: str) -> None:
    """Are refused when the plan is built, without a password in the text."""
    with pytest.raises(PlanError, match=re.escape(says)) as caught:
        OpenSearch(**{"url": "http://localhost:9200", "index": "plays", **arguments})
    assert "me:pw" not in str(caught.value)


# --- connections ------------------------------------------------------------------------------------------------------


def test_what_answers_there_is_something_else(tmp_path: Path, server: Callable[[str], Any]) -> None:
    """A web server that is no search engine is named as that."""
    from tests.servers.test_servers import Small

    with Small() as small:
        (small.folder / "index").write_text("<html>")
        with pytest.raises(PermanentError, match="neither OpenSearch nor Elasticsearch") as caught:
            OpenSearch(small.url, "index").check()
    assert caught.value.universal


def test_a_server_that_hangs_is_given_up_in_time(
    index: SearchIndex, opensearch: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the engine gives up the write; what becomes of the chunk is not known then."""
    monkeypatch.setattr(destination, "WRITE_S", 0.5)
    with Proxy("127.0.0.1", opensearch.port, delay_s=3) as proxy:
        writer = opened(OpenSearch(f"http://127.0.0.1:{proxy.port}", index.name))
        proxy.break_next(ProxyFault.DELAY_ANSWER, b"/_bulk")
        began = time.monotonic()
        with pytest.raises(ConnectionError, match=r"it was sent, but no answer within"):
            writer.write([delivery("a", 1)])
        assert time.monotonic() - began < 2.5
    assert kinds(opened(OpenSearch(index.url, index.name)).write([delivery("a", 1)])) == ["ok"]


@pytest.mark.rule("opensearch.once")
def test_nothing_is_sent_late(index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped within a write, and goes on when a delete may be forgotten, sends nothing more."""
    writer = opened(OpenSearch(index.url, index.name))
    rows = writer._writer.rows

    def stopped_meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(destination.time, "monotonic", lambda real=time.monotonic: real() + destination.WRITE_S)
        return rows(*args)

    writer._writer.rows = stopped_meanwhile  # type: ignore[method-assign]
    [outcome] = writer.write([delivery("a", 1)])
    assert (outcome.kind, outcome.universal) == ("transient", True)
    assert index.documents() == {}


def test_at_most_once_says_what_it_knows(
    index: SearchIndex, opensearch: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chunk in several requests: those before the one that was lost are known, those after it were never sent."""
    monkeypatch.setattr(body.pieces, "__defaults__", (1,))
    with Proxy("127.0.0.1", opensearch.port) as proxy:
        writer = opened(OpenSearch(f"http://127.0.0.1:{proxy.port}", index.name), Guarantee.AT_MOST_ONCE)
        proxy.break_next(ProxyFault.SWALLOW_ANSWER, b'"doc-2"')
        outcomes = writer.write([delivery(f"doc-{i}", i) for i in range(1, 5)])
    assert kinds(outcomes) == ["ok", "unknown", "transient", "transient"]
    assert outcomes[2].universal
    assert index.documents().keys() == {"doc-1", "doc-2"}


def test_a_server_that_is_not_there(index: SearchIndex) -> None:
    """Within a write too it is certain that nothing was sent."""
    writer = OpenSearch("http://127.0.0.1:9", index.name)
    with pytest.raises(TransientError, match="Connection refused"):
        writer.check()
    writer.open(DestinationContext("tests", 1, "node", 1, Guarantee.AT_MOST_ONCE))
    [outcome] = writer.write([delivery("a", 1)])
    assert (outcome.kind, outcome.universal) == ("transient", True)
