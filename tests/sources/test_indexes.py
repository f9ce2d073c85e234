"""The sources ``OpenSearch``, ``Elasticsearch`` and ``Solr``, over the real servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pytest
from tests.destinations.search_index import SearchIndex
from tests.servers.server import Server
from tests.servers.solr import SolrServer
from tests.support.front_server import FrontHandler, FrontServer
from tests.support.plan_world import place, run_plan
from tests.support.waiting import wait_until

from ferryman import Plan, account
from ferryman.destinations import Elasticsearch as ToElasticsearch
from ferryman.destinations import OpenSearch as ToOpenSearch
from ferryman.document import Document
from ferryman.errors import TransientError, Unavailable, UsageError
from ferryman.sources import Bookmark, Elasticsearch, Listed, Note, OpenSearch, Solr, Source, indexes
from ferryman.state.state import state_root
from ferryman.testing.sources import SourceSuite

__all__ = ["place"]


class InSearchEngine:
    """An index of OpenSearch or Elasticsearch, filled from outside."""

    def __init__(self, server: Server, name: str) -> None:
        self.index = SearchIndex(server.url, name)
        self.index.ask("DELETE", "", status=(200, 404))

    def put(self, documents: dict[str, dict[str, Any]]) -> None:
        lines = [line for id, each in documents.items() for line in ({"index": {"_id": id}}, each)]
        for start in range(0, len(lines), 10_000):
            self._bulk(lines[start : start + 10_000])

    def delete(self, id: str) -> None:
        self._bulk([{"delete": {"_id": id}}])

    def _bulk(self, lines: list[dict[str, Any]]) -> None:
        request = urllib.request.Request(
            f"{self.index.url}/{self.index.name}/_bulk?refresh=true",
            "".join(json.dumps(line) + "\n" for line in lines).encode(),
            {"content-type": "application/x-ndjson"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert not json.load(answer)["errors"]


class InSolr:
    """A collection of Solr, filled from outside."""

    def __init__(self, server: SolrServer, name: str) -> None:
        self.server = server
        self.url = server.collection(name)

    def put(self, documents: dict[str, dict[str, Any]]) -> None:
        self.post("/update?commit=true", [{"id": id, **each} for id, each in documents.items()])

    def delete(self, *ids: str) -> None:
        self.post("/update?commit=true", {"delete": list(ids)})

    def post(self, path: str, body: Any) -> None:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert answer.status == 200


def scan(source: Source, bookmarks: dict[str, Any] | None = None) -> list[Any]:
    """Everything that a scan yields; an error is its last entry."""
    found: list[Any] = []
    try:
        for piece in source.partitions_after(bookmarks or {}):
            for entry in source.listing(piece):
                found.append(entry)  # noqa: PERF402 - what came before an error stays
    except Exception as e:
        found.append(e)
    return found


def documents(entries: list[Any]) -> dict[str, dict[str, Any]]:
    return {entry.id: entry.fields for entry in entries if isinstance(entry, Document)}


def bookmarks(entries: list[Any]) -> dict[str, Any]:
    return {entry.partition: entry.value for entry in entries if isinstance(entry, Bookmark)}


PLAYS = {f"play {n}/{'x' * 500 if n == 3 else n}": {"title": f"Title {n}", "year": 1590 + n} for n in range(1, 6)}


# --- the conformance suites -------------------------------------------------------------------------------------------


class OnSearchEngine(SourceSuite):
    kind: type[OpenSearch]
    name: str
    more: dict[str, Any] = {}  # noqa: RUF012 - a constant

    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], Server]) -> None:
        self.real = server(self.name)

    def source(self, folder: Path) -> OpenSearch:
        self.there = InSearchEngine(self.real, folder.name)
        self.there.put(PLAYS)
        return self.kind(self.real.url, folder.name, **self.more)

    def absent(self, folder: Path) -> OpenSearch:
        return self.kind(self.real.url, f"{folder.name}-absent")

    def change(self, source: Source, id: str) -> None:
        self.there.put({id: {"title": "changed"}})

    def remove(self, source: Source, id: str) -> None:
        self.there.delete(id)


class TestOpenSearch(OnSearchEngine):
    kind = OpenSearch
    name = "opensearch"


class TestElasticsearch8(OnSearchEngine):
    kind = Elasticsearch
    name = "elasticsearch8"
    more = {"content": "title"}  # noqa: RUF012


@pytest.mark.slow
class TestElasticsearch7(TestElasticsearch8):
    name = "elasticsearch7"


class TestSolr(SourceSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], SolrServer]) -> None:
        self.real = server("solr")

    def source(self, folder: Path) -> Solr:
        self.there = InSolr(self.real, folder.name)
        self.there.put(PLAYS)
        return Solr(self.there.url, content="title")

    def absent(self, folder: Path) -> Solr:
        return Solr(f"{self.real.url}/{folder.name}-absent")

    def change(self, source: Source, id: str) -> None:
        self.there.put({id: {"title": "changed"}})

    def remove(self, source: Source, id: str) -> None:
        self.there.delete(id)


# --- OpenSearch and Elasticsearch -------------------------------------------------------------------------------------

ENGINES = [
    pytest.param((OpenSearch, "opensearch"), id="opensearch"),
    pytest.param((Elasticsearch, "elasticsearch7"), id="elasticsearch7", marks=pytest.mark.slow),
    pytest.param((Elasticsearch, "elasticsearch8"), id="elasticsearch8", marks=pytest.mark.slow),
]


often = pytest.mark.parametrize(
    "engine", [*ENGINES[:2], pytest.param((Elasticsearch, "elasticsearch8"), id="elasticsearch8")], indirect=True
)
"""Tests that run on Elasticsearch in the ordinary run, too."""


class Engine:
    """A server, and the class that reads from it."""

    def __init__(self, kind: type[OpenSearch], real: Server, name: str) -> None:
        self.kind, self.real = kind, real
        self.there = InSearchEngine(real, name)
        self.name = name

    def source(self, index: str = "", **options: Any) -> OpenSearch:
        return self.kind(self.real.url, index or self.name, **options)

    def open_points(self) -> int:
        """How many points in time and scrolls the server keeps open."""
        stats = SearchIndex(self.real.url, "").ask("GET", "_nodes/stats/indices/search")
        [node] = stats["nodes"].values()
        search = node["indices"]["search"]
        return int(search["open_contexts"]) + int(search.get("point_in_time_current", 0))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, server: Callable[[str], Any], tmp_path: Path) -> Iterator[Engine]:
    kind, name = request.param
    made = Engine(kind, server(name), tmp_path.name)
    yield made
    made.there.index.ask("DELETE", "", status=(200, 404))


@often
def test_documents_are_what_was_indexed(engine: Engine) -> None:
    """Whatever JSON they have; without what Ferryman's own destination adds."""
    fields = {
        "title": "Henry",
        "nested": {"a": [{"b": None}, {"b": 1}]},
        "list": ["b", "a", "a"],
        "huge": 2**62,
        "half": 0.5,
    }
    ids = {"a b": fields, "#%23": fields, "汉字": {}, "l" * 512: fields}
    engine.there.put({id: {**each, "_ferryman": {"hash": "f", "sequence": 1}} for id, each in ids.items()})
    found = scan(engine.source())
    assert documents(found) == ids
    found = scan(engine.source(content="list", query={"ids": {"values": ["a b"]}}))
    [first] = [entry for entry in found if isinstance(entry, Document)]
    assert (first.id, first.raw, first.get("list")) == ("a b", b"b\na\na", None)


def test_many_pages_shards_and_slices(engine: Engine) -> None:
    """Each document once; a page is as large as the documents let it be."""
    engine.there.index.ask("PUT", "", {"settings": {"number_of_shards": 3, "number_of_replicas": 0}})
    expected = {f"doc-{n}": {"n": n, "text": "x" * (n % 7)} for n in range(1_050)}
    engine.there.put(expected)
    with mock.patch.object(indexes, "SMALL", 100), mock.patch.object(indexes, "MOST_HITS", 250):
        source = engine.source(pieces=5)
        pieces = source.partitions_after({})
        assert len(pieces) == (3 if engine.kind is OpenSearch else 5)
        found = [entry for piece in pieces for entry in source.listing(piece)]
    ids = [entry.id for entry in found if isinstance(entry, Document)]
    assert len(ids) == len(expected)
    assert documents(found) == expected
    engine.there.put({"large": {"text": "x" * 9_000_000}})
    assert len(documents(scan(engine.source()))) == 1_051


def test_changes_while_it_is_read_are_of_the_next_scan(engine: Engine) -> None:
    """A point in time is one: nothing is missing, nothing twice, whatever is written and deleted meanwhile."""
    expected = {f"doc-{n}": {"n": n} for n in range(500)}
    engine.there.put(expected)
    source = engine.source()
    pieces = source.partitions_after({})
    listing = source.listing(pieces[0])
    found = [next(listing) for _ in range(50)]
    engine.there.put({f"doc-{n}": {"n": -n} for n in range(300, 500)} | {f"new-{n}": {"n": n} for n in range(50)})
    for id in ("doc-499", "doc-1"):
        engine.there.delete(id)
    found += [*listing, *(entry for piece in pieces[1:] for entry in source.listing(piece))]
    assert documents(found) == expected
    after = documents(scan(source, bookmarks(found)))
    assert len(after) == 548
    assert after["doc-400"] == {"n": -400}


@often
def test_points_in_time_are_closed(engine: Engine) -> None:
    """By the next scan, also by one of another process, which knows them from the bookmark; by the same one if it lists
    again."""
    engine.there.put(PLAYS)
    before = engine.open_points()
    first = scan(engine.source())
    assert engine.open_points() > before
    again = engine.source()
    for _ in range(3):
        second = scan(again, bookmarks(first))
    once = engine.open_points() - before
    assert once > 0
    gone = SearchIndex(engine.real.url, "")
    for value in bookmarks(second).values():
        for point in value["points"]:
            body = {"pit_id": [point]} if engine.kind is OpenSearch else {"id": point}
            gone.ask("DELETE", "_search/point_in_time" if engine.kind is OpenSearch else "_pit", body)
    assert engine.open_points() == before
    assert documents(scan(engine.source(), bookmarks(second))) == PLAYS  # points that are gone are no error


@pytest.mark.rule("index.partial")
def test_a_point_in_time_that_expires_makes_it_incomplete(engine: Engine) -> None:
    engine.there.put({f"doc-{n}": {"n": n} for n in range(300)})
    source = engine.source()
    pieces = source.partitions_after({})
    listing = source.listing(pieces[0])
    next(listing)
    source.partitions_after({})  # closes the first one
    with pytest.raises(Unavailable, match="point in time has expired"):
        list(listing)


def test_an_emptied_index_deletes_nothing(engine: Engine) -> None:
    """Unless that is said to be right; it says what it saw."""
    engine.there.put(PLAYS)
    marks = bookmarks(scan(engine.source()))
    for id in PLAYS:
        engine.there.delete(id)
    [error] = scan(engine.source(), marks)
    assert isinstance(error, TransientError)
    assert "no documents, where 5 were known" in str(error)
    found = scan(engine.source(may_be_empty=True), marks)
    assert [type(entry) for entry in found] == [Bookmark]


class PartialAnswers(FrontServer):
    """A server whose answers to searches say that they are partial.

    Attributes:
        changes: members of the answer that are other than the server's; "counted": of how many documents it knows.
    """

    changes: dict[str, Any] = {}  # noqa: RUF012 - set by each test

    def change(self, request: FrontHandler, status: int, content: bytes) -> bytes:
        if request.path.partition("?")[0] != "/_search" or status != 200:
            return content
        answer = json.loads(content) | {name: value for name, value in self.changes.items() if name != "counted"}
        if "counted" in self.changes and "total" in answer["hits"]:
            answer["hits"]["total"]["value"] = self.changes["counted"]
        return json.dumps(answer).encode()


@pytest.mark.rule("index.partial")
@often
def test_what_is_partial_is_incomplete(engine: Engine) -> None:
    """Failed shards, time that was not enough, fewer documents than were counted: each by its reason."""
    engine.there.put(PLAYS)
    failed = {"total": 3, "failed": 1, "failures": [{"reason": {"reason": "disk"}}]}
    parts = urlsplit(engine.real.url)
    with PartialAnswers(parts.hostname or "", parts.port or 0) as front:
        source = engine.kind(front.url, engine.name)
        assert documents(scan(source)) == PLAYS
        for changes, kind, says in (
            ({"_shards": failed}, Unavailable, r"1 of 3 shards did not answer \(disk\)"),
            ({"_shards": {"total": 21, "successful": 6, "failed": 0}}, Unavailable, "15 of 21 shards did not answer"),
            ({"timed_out": True}, Unavailable, "its time limit was too short"),
            ({"counted": 7}, TransientError, "5 documents came, where the server had counted 7"),
        ):
            front.changes = changes
            error = scan(source)[-1]
            assert isinstance(error, kind)
            assert re.search(says, str(error))


def test_an_index_that_is_deleted_or_made_anew_while_it_is_read(engine: Engine) -> None:
    """Nothing counts as complete; of one that is there again and empty, neither."""
    engine.there.put({f"doc-{n}": {"n": n} for n in range(300)})
    source = engine.source()
    marks = bookmarks(scan(source))
    listing = source.listing(source.partitions_after(marks)[0])
    next(listing)
    engine.there.index.ask("DELETE", "")
    with pytest.raises((Unavailable, TransientError, UsageError)):
        list(listing)
    for made in (False, True):
        if made:
            engine.there.index.ask("PUT", "")
        assert isinstance(scan(source, marks)[-1], UsageError | TransientError)


def test_a_shard_that_no_node_has(engine: Engine) -> None:
    """https://github.com/elasticsearch-dump/elasticsearch-dump/issues/126 and /issues/889,
    https://github.com/uvacw/inca/issues/455: a shard was on no node, the server said that none had failed, and an
    export ended well with a part of the documents."""
    engine.there.put(PLAYS)
    marks = bookmarks(scan(engine.source()))
    nowhere = {"index.routing.allocation.require._name": "no-such-node", "number_of_replicas": 0, "number_of_shards": 2}
    engine.there.index.ask("DELETE", "")
    body = {"settings": nowhere}
    SearchIndex(engine.real.url, engine.name).ask("PUT", "?wait_for_active_shards=0&timeout=1s", body)
    [error] = scan(engine.source(), marks)
    assert isinstance(error, Unavailable | UsageError | TransientError), error


@pytest.mark.parametrize("mapping", [{"enabled": False}, {"excludes": ["text"]}, {"includes": ["title"]}])
def test_an_index_without_its_source_is_refused(engine: Engine, mapping: dict[str, Any]) -> None:
    engine.there.index.ask("PUT", "", {"mappings": {"_source": mapping}})
    with pytest.raises(UsageError, match="do not keep the whole _source"):
        engine.source().check()


def test_aliases_and_patterns(engine: Engine) -> None:
    """All indices of a name are read; an alias shows what its filter lets through."""
    engine.there.put(PLAYS)
    other = InSearchEngine(engine.real, f"{engine.name}-2")
    other.put({"other": {"title": "Other", "year": 1700}})
    root = SearchIndex(engine.real.url, "")
    early = {"filter": {"range": {"year": {"lte": 1592}}}}
    add = {"index": engine.name, "alias": f"{engine.name}-early", **early}
    root.ask("POST", "_aliases", {"actions": [{"add": add}]})
    assert documents(scan(engine.source(f"{engine.name}*"))).keys() == {*PLAYS, "other"}
    assert documents(scan(engine.source(f"{engine.name},{engine.name}-2"))).keys() == {*PLAYS, "other"}
    assert {each["year"] for each in documents(scan(engine.source(f"{engine.name}-early"))).values()} == {1591, 1592}
    with pytest.raises(UsageError, match="there is no such index"):
        engine.source(f"{engine.name}-nothing*").check()
    other.index.ask("DELETE", "")


def test_several_aliases_of_one_index(engine: Engine) -> None:
    """What a search by the same name finds: what any filter lets through, and all if the index is named itself."""
    engine.there.put(PLAYS)
    root = SearchIndex(engine.real.url, "")
    for name, condition in (("early", {"lte": 1592}), ("late", {"gte": 1595})):
        add = {"index": engine.name, "alias": f"{engine.name}-{name}", "filter": {"range": {"year": condition}}}
        root.ask("POST", "_aliases", {"actions": [{"add": add}]})
    for expression, count in (
        ("{0}-early,{0}-late", 3), ("{0}-e*", 2), ("{0}-*,-{0}-late", 2), ("{0}-*", 3), ("{0}-early,{0}", 5)
    ):  # fmt: skip
        name = expression.format(engine.name)
        searched = root.ask("POST", f"{name}/_search", {})["hits"]["hits"]
        listed = documents(scan(engine.source(name)))
        assert (listed.keys(), len(listed)) == ({hit["_id"] for hit in searched}, count), expression


def test_a_document_that_is_hardly_json_is_refused_alone(engine: Engine) -> None:
    """The server gives it back as it was given it."""
    engine.there.index.ask("PUT", "", {"mappings": {"properties": {"any": {"type": "object", "enabled": False}}}})
    engine.there.put(PLAYS)
    for id, number, text in (("half", "1", r"\ud83d"), ("huge", "1e400", "a")):
        body = f'{{"any": {{"number": {number}}}, "title": "{text}"}}'.encode()
        request = urllib.request.Request(
            f"{engine.real.url}/{engine.name}/_doc/{id}?refresh=true", body, {"content-type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=120).close()
    assert documents(scan(engine.source())).keys() == {*PLAYS, "half", "huge"}
    by_title = scan(engine.source(content="title"))
    [refused] = [entry for entry in by_title if isinstance(entry, Listed)]
    assert (refused.id, "half a character" in refused.refused) == ("half", True)
    assert documents(by_title).keys() == {*PLAYS, "huge"}


@pytest.mark.rule("opensearch.outcomes")
def test_a_field_that_the_target_refuses(engine: Engine, place: Path) -> None:
    """The document fails with the target's reason, and those beside it arrive, also that of the longest id; mended in
    the old index, it arrives, too."""
    long = "i" * 512
    engine.there.put({"good": {"year": "1599"}, "bad": {"year": "unknown"}, long: {"year": "1600"}})
    new = SearchIndex(engine.real.url, f"{engine.name}-new")
    new.ask("DELETE", status=(200, 404))
    plan = Plan("move", version=1)
    target = ToOpenSearch if engine.kind is OpenSearch else ToElasticsearch
    out = target(engine.real.url, new.name, {"properties": {"year": {"type": "integer"}}})
    plan.source("old", engine.source()).destination("new", out, backoff=0)
    summary = run_plan(plan, place / "state")
    assert (summary.delivered, summary.failed, set(new.documents())) == (2, 1, {"good", long})
    [failed] = account.deliveries(state_root(plan, place / "state"), plan=plan, status="failed")
    assert failed["document"] == "bad"
    assert "year" in failed["message"], failed
    engine.there.put({"bad": {"year": "1601"}})
    assert run_plan(plan, place / "state").exit == 0
    assert {id: each["year"] for id, each in new.documents().items()} == {"good": "1599", "bad": "1601", long: "1600"}


def test_a_server_that_goes_away_is_waited_for(engine: Engine) -> None:
    engine.there.put({f"doc-{n}": {"n": n} for n in range(300)})
    source = engine.source()
    [piece] = source.partitions_after({})
    listing = source.listing(piece)
    next(listing)
    engine.real.kill()
    try:
        with pytest.raises(Unavailable):
            list(listing)
        with pytest.raises(Unavailable):
            source.check()
    finally:
        engine.real.start()
    with pytest.raises(Unavailable, match="point in time has expired"):
        list(source.listing(piece))
    assert len(documents(scan(source))) == 300


class ManyDocuments(FrontServer):
    """A server of an index of so many documents, which it makes as they are asked for."""

    def __init__(self, count: int) -> None:
        super().__init__("", 0)
        self.count = count

    def handle(self, request: FrontHandler, body: bytes) -> bool:
        request.say(200, self._answer(request.path.partition("?")[0], body).encode(), "application/json")
        return True

    def _answer(self, path: str, body: bytes) -> str:
        if path == "/_search":
            asked = json.loads(body)
            part = asked.get("slice", {"id": 0, "max": 1})
            first, end = (self.count * number // part["max"] for number in (part["id"], part["id"] + 1))
            start = asked.get("search_after", [first])[0]
            hits = ",".join(
                f'{{"_id":"d{n}","_source":{{"title":"Ferry {n}","text":"It crosses a river."}},"sort":[{n + 1}]}}'
                for n in range(start, min(start + asked["size"], end))
            )
            return f'{{"hits":{{"total":{{"value":{end - first}}},"hits":[{hits}]}}}}'
        index = {"aliases": {}, "mappings": {}, "settings": {"index.number_of_shards": "1"}}
        answers = {
            "/": {"version": {"number": "3.3.0"}},
            "/many": {"many": index},
            "/many/_count": {"count": self.count},
        }
        return json.dumps(answers.get(path, {"pit_id": "point"}))


READ_ALL = """
import resource, sys
from ferryman.document import Document
from ferryman.sources import OpenSearch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

source = OpenSearch(sys.argv[1], "many")
seen = bytearray(int(sys.argv[2]))
early = 0
for piece in source.partitions_after({}):
    for entry in source.listing(piece):
        if isinstance(entry, Document):
            seen[int(entry.id[1:])] += 1
            early = early or (entry.id == "d20000" and peak())
print(seen.count(1), peak() - early)
"""


@pytest.mark.rule("source.large")
@pytest.mark.parametrize("count", [40_000, pytest.param(5_000_000, marks=pytest.mark.slow)])
def test_millions_of_documents_in_bounded_memory(count: int) -> None:
    """Each once; a worker holds a page of them."""
    with ManyDocuments(count) as server:
        command = [sys.executable, "-c", READ_ALL, server.url, str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
    seen, mb = map(int, done.stdout.split())
    assert seen == count
    assert mb < 50, "between the first pages and the last one"


# --- Solr -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def solr(server: Callable[[str], Any]) -> SolrServer:
    found: SolrServer = server("solr")
    return found


def test_documents_of_solr(solr: SolrServer, tmp_path: Path) -> None:
    """Stored fields and docValues; nothing of Solr's own, nothing that Ferryman has added, no copies. What cannot be
    read is named."""
    there = InSolr(solr, tmp_path.name)
    there.post(
        "/schema",
        {
            "add-field": [
                {"name": "hidden", "type": "text", "stored": False},
                {"name": "sorted", "type": "string", "stored": False, "multiValued": True},
                {"name": "copy", "type": "string", "stored": True, "multiValued": True},
            ],
            "add-dynamic-field": {"name": "*_copy", "type": "string", "stored": True},
            "add-copy-field": [{"source": "name", "dest": "copy"}, {"source": "*_s", "dest": "*_copy"}],
        },
    )
    there.put(
        {
            "a b": {"title": ["Henry", "V"], "year": 1599, "name": "n", "hidden": "gone", "sorted": ["b", "a", "a"]},
            "c#1": {"word_s": "w", "ferryman_hash_s": "f" * 32, "ferryman_sequence_l": 1, "alone_copy": "own"}
            | {"ferryman_origin_s": '["files","v",[]]'},
        }
    )
    found = scan(Solr(there.url))
    assert documents(found) == {
        "a b": {"title": ["Henry", "V"], "year": 1599, "name": "n", "sorted": ["a", "b"]},
        "c#1": {"word_s": "w", "alone_copy": "own"},
    }
    notes = [entry.text for entry in found if isinstance(entry, Note)]
    assert notes == [
        "fields that are not stored cannot be read, and are missing from each document: hidden",
        "fields with several values that are only in docValues come sorted and without repeated values: sorted",
    ]
    [first] = [e for e in scan(Solr(there.url, "year:[1590 TO *]", content="title")) if isinstance(e, Document)]
    assert (first.id, first.raw) == ("a b", b"Henry\nV")


def test_pages_and_parts_of_solr(solr: SolrServer, tmp_path: Path) -> None:
    """Each document once."""
    there = InSolr(solr, tmp_path.name)
    expected = {f"doc-{n}": {"year": n} for n in range(1_050)}
    there.put(expected)
    with mock.patch.object(indexes, "SMALL", 100), mock.patch.object(indexes, "MOST_HITS", 120):
        source = Solr(there.url, pieces=3)
        pieces = source.partitions_after({})
        each = [[entry.id for entry in source.listing(piece) if isinstance(entry, Document)] for piece in pieces]
    assert len(each) == 3
    assert all(len(part) > 200 for part in each)
    assert sorted(id for part in each for id in part) == sorted(expected)


def test_changes_while_solr_is_read(solr: SolrServer, tmp_path: Path) -> None:
    """What stays is met, whatever comes, goes or changes before and behind the cursor."""
    there = InSolr(solr, tmp_path.name)
    there.put({f"doc-{n:03}": {"year": n} for n in range(300)})
    source = Solr(there.url)
    [piece] = source.partitions_after({})
    listing = source.listing(piece)
    found = [next(listing) for _ in range(50)]
    there.put({f"doc-{n:03}": {"year": -1} for n in (10, 200)} | {"doc-000a": {"year": 0}, "zzz": {"year": 0}})
    there.delete("doc-020", "doc-250")
    found += list(listing)
    assert documents(found).keys() >= {f"doc-{n:03}" for n in range(300)} - {"doc-020", "doc-250"}
    assert documents(found)["doc-200"] == {"year": -1}


def test_what_solr_does_not_tell_whole_is_incomplete(solr: SolrServer, tmp_path: Path) -> None:
    """Partial results; fewer documents than at any time; nothing where something was; a handler that hides some."""
    there = InSolr(solr, tmp_path.name)
    there.put(PLAYS)
    source = Solr(there.url)
    marks = bookmarks(scan(source))
    [piece] = source.partitions_after({})
    real = indexes.IndexServer.ask

    def answering(header: dict[str, Any], added: int = 0) -> Any:
        def ask(self: Any, *more: Any, **options: Any) -> Any:
            answer, size = real(self, *more, **options)
            answer["responseHeader"] |= header
            if "response" in answer:
                answer["response"]["numFound"] += added
            return answer, size

        return mock.patch.object(indexes.IndexServer, "ask", ask)

    with answering({"partialResults": True}), pytest.raises(Unavailable, match="its results are partial"):
        list(source.listing(piece))
    with answering({}, 2), pytest.raises(TransientError, match="5 documents came, where Solr had at least 7"):
        list(source.listing(piece))
    with answering({"params": {"fq": "kind:play"}}), pytest.raises(UsageError, match="adds fq=kind:play"):
        source.check()
    there.delete(*PLAYS)
    [error] = scan(source, marks)
    assert "no documents, where 5 were known" in str(error)
    with pytest.raises(UsageError, match="Correct the url, the query"):
        Solr(there.url, "year:[").check()


def test_solr_killed_in_the_middle(solr: SolrServer, tmp_path: Path) -> None:
    there = InSolr(solr, tmp_path.name)
    there.put({f"doc-{n:03}": {"year": n} for n in range(300)})
    source = Solr(there.url)
    [piece] = source.partitions_after({})
    listing = source.listing(piece)
    next(listing)
    solr.kill()
    try:
        with pytest.raises(Unavailable):
            list(listing)
    finally:
        solr.start()
    wait_until(lambda: documents(scan(source)))  # it answers before it has loaded its collections
    assert len(documents(scan(source))) == 300


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OpenSearch("ftp://host", "plays"), "not an http or https URL"),
        (lambda: OpenSearch("http://host", ""), "give the name of an index"),
        (lambda: Elasticsearch("http://host", "a b"), "give the name of an index"),
        (lambda: OpenSearch("http://host", "plays", pieces=1025), "from 1 to 1024"),
        (lambda: Solr("http://host/solr/plays", pieces=0), "from 1 to 1024"),
        (lambda: Solr("http://me:p/w@host/solr/plays"), "percent-encode"),
        (lambda: OpenSearch("http://host", "plays", auth=7), "neither"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_cannot_be_meant(make: Callable[[], Source], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_secrets_are_not_shown() -> None:
    source = OpenSearch("https://me:secret@host:9200", "plays")
    assert (source.place(), repr(source)) == ("https://host:9200/plays", "OpenSearch('https://host:9200/plays')")
    assert "secret" not in repr(Solr("https://me:secret@host/solr/plays"))
