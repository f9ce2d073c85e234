"""The index that ``OpenSearch`` makes or finds."""

from __future__ import annotations

import logging

import pytest

from ferryman.destinations import Elasticsearch, OpenSearch
from ferryman.errors import Misconfigured, PermanentError, PlanError
from ferryman.testing.destinations import delete, delivery
from tests.destinations.search_index import SearchIndex, index, kinds, opened, opensearch
from tests.servers.opensearch import OpenSearchServer

__all__ = ["index", "opensearch"]


MAPPINGS = {"properties": {"title": {"type": "text"}, "year": {"type": "long"}, "text": {"type": "text"}}}


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


def test_an_index_that_wants_a_routing_is_refused(index: SearchIndex) -> None:
    """It would refuse each document: by ``check``, and by a write if it is made so behind our back."""
    made = OpenSearch(index.url, index.name, {"_routing": {"required": True}})
    with pytest.raises(Misconfigured, match=r"require a routing for each document\. Ferryman sends no routing"):
        made.check()
    later = SearchIndex(index.url, f"{index.name}-later")
    behind = opened(OpenSearch(later.url, later.name))
    later.ask("DELETE")
    later.ask("PUT", "", {"mappings": {"_routing": {"required": True}}})
    [outcome] = behind.write([delivery("a", 1)])
    assert (outcome.kind, outcome.universal) == ("permanent", True)
    assert "Ferryman sends no routing" in outcome.why


@pytest.mark.parametrize("setting", ["index.default_pipeline", "index.final_pipeline"])
def test_a_pipeline_that_is_not_there_is_the_indexs_trouble(index: SearchIndex, setting: str) -> None:
    """Seen by ``check``, and by a write if it is removed after that; one that is there is used."""
    pipeline = f"{index.name}-pipeline"
    server = SearchIndex(index.url, f"_ingest/pipeline/{pipeline}")
    server.ask("PUT", "", {"processors": []})
    index.ask("PUT", "", {"settings": {setting: pipeline}})
    there = opened(OpenSearch(index.url, index.name))
    assert kinds(there.write([delivery("a", 1)])) == ["ok"]
    index.ask("PUT", "/_settings", {setting: "_none"})
    server.ask("DELETE", "")
    index.ask("PUT", "/_settings", {setting: pipeline})
    [outcome] = there.write([delivery("a", 2)])
    assert (outcome.kind, outcome.universal) == ("permanent", True)
    assert "Make the ingest pipeline" in outcome.why
    with pytest.raises(Misconfigured, match=rf"its {setting} is {pipeline}, and there is no such pipeline\. Make the"):
        OpenSearch(index.url, index.name).check()


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
    assert "Run again: Ferryman creates the index" in outcomes[0].why
    assert kinds(opened(OpenSearch(index.url, index.name)).write([delivery("a", 1)])) == ["ok"]


def test_a_blocked_index_is_waited_for(index: SearchIndex) -> None:
    """As the server blocks its indices when the disk is full: no document is blamed."""
    writer = opened(OpenSearch(index.url, index.name))
    index.ask("PUT", "/_settings", {"index.blocks.read_only_allow_delete": True})
    outcomes = writer.write([delivery("a", 1), delivery("b", 2)])
    assert {(o.kind, o.universal) for o in outcomes} == {("transient", True)}
    index.ask("PUT", "/_settings", {"index.blocks.read_only_allow_delete": None})
    assert kinds(writer.write([delivery("a", 1), delivery("b", 2)])) == ["ok", "ok"]


def test_a_data_stream_is_refused(opensearch: OpenSearchServer, index: SearchIndex) -> None:
    """Also one of several backing indices; the reason is said."""
    root = SearchIndex(opensearch.url, "")
    name = index.name.replace("_", "-").lower()
    template = {"index_patterns": [f"{name}*"], "data_stream": {}, "priority": 500}
    root.ask("PUT", f"_index_template/{name}", template)
    root.ask("PUT", f"_data_stream/{name}")
    for made in (OpenSearch, Elasticsearch):
        with pytest.raises(Misconfigured, match="is a data stream, which takes new documents only: no versions"):
            made(opensearch.url, name).check()
    root.ask("POST", f"{name}/_rollover")
    with pytest.raises(Misconfigured, match="is a data stream"):
        OpenSearch(opensearch.url, name).check()
    with pytest.raises(Misconfigured, match="data stream"):  # one that the template would make
        OpenSearch(opensearch.url, f"{name}-2").check()
    root.ask("DELETE", f"_data_stream/{name}")
    root.ask("DELETE", f"_index_template/{name}")


def test_elasticsearch_goes_by_its_name() -> None:
    """In messages and representations; all else is the twin's."""
    made = Elasticsearch("http://host:9200", "plays")
    assert repr(made) == "Elasticsearch('http://host:9200/plays')"
    assert made.target() == OpenSearch("http://host:9200", "plays").target()
    with pytest.raises(PlanError, match=r"Elasticsearch\('http://host', 'Plays'\): an index has a name of lower-case"):
        Elasticsearch("http://host", "Plays")
