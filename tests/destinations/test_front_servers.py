"""Front servers that dislike one document or large requests, and rows that end a server's process: real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import OpenSearch, Solr, Sql
from ferryman.destinations.base import Destination
from ferryman.plan import Plan
from ferryman.sources import Memory
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.search_index import SearchIndex
from tests.support.firewall import Firewall
from tests.support.plan_world import Watch, run_plan

__all__ = ["database", "postgres"]

SUSPICIOUS = "<script>alert"


class Search:
    """An index of a real server, as a destination behind a front server sees it."""

    def __init__(
        self, address: tuple[str, int], make: Callable[[str], Destination], ids: Callable[[], set[str]]
    ) -> None:
        self.address, self.make, self.ids = address, make, ids


@pytest.fixture(params=["opensearch", "solr"])
def search(request: pytest.FixtureRequest, server: Callable[[str], Any], tmp_path: Path) -> Iterator[Search]:
    real = server(request.param)
    if request.param == "opensearch":
        index = SearchIndex(real.url, tmp_path.name)
        yield Search(
            ("127.0.0.1", real.port),
            lambda url: OpenSearch(url, index.name),
            lambda: set(index.documents()),
        )
        return
    path = real.collection(tmp_path.name).partition("/solr/")[2]
    yield Search(
        ("127.0.0.1", real.port),
        lambda url: Solr(f"{url}/solr/{path}", commit_within_ms=None),
        lambda: {found["id"] for found in real.documents(path)},
    )
    real.get("/admin/cores", action="UNLOAD", core=tmp_path.name, deleteInstanceDir="true")


def plan_of(documents: list[dict[str, Any]], out: Destination, **options: Any) -> Plan:
    plan = Plan("front", 1)
    plan.source("docs", Memory(documents)).destination("out", out, backoff=0, **options)
    return plan


def documents(n: int, *suspicious: int) -> list[dict[str, Any]]:
    return [{"id": f"d{i:04}", "title": SUSPICIOUS if i in suspicious else "x" * 100} for i in range(n)]


EACH_TIME = {"opensearch": (0, 401, 405, 502), "solr": (0, 403, 404, 504)}
"""Each status at one server, and each kind at both: a reset, credentials, another error of a request, a gateway's."""


@pytest.mark.rule("destination.doubted")
@pytest.mark.parametrize(
    ("search", "status"),
    [
        pytest.param(name, status, marks=[] if status in each_time else [pytest.mark.slow])
        for name, each_time in EACH_TIME.items()
        for status in (0, 401, 403, 404, 405, 502, 504)
    ],
    indirect=["search"],
)
def test_a_document_that_a_firewall_dislikes_fails_alone(search: Search, place: Path, status: int) -> None:
    """It answers with a page, or resets the connection."""
    with Firewall(*search.address, suspicious=(SUSPICIOUS.encode(),), status=status) as wall:
        plan = plan_of(documents(201, 57), search.make(wall.url), batch=50, attempts=2)
        watch = Watch()
        summary = run_plan(plan, place / "state", observer=watch)
        assert (summary.exit, summary.delivered, summary.failed) == (3, 200, 1), watch.messages
    assert search.ids() == {d["id"] for d in documents(201)} - {"d0057"}


@pytest.mark.rule("destination.takes")
def test_a_front_server_that_resets_large_requests(search: Search, place: Path) -> None:
    """All is delivered in one run, and the next one sends no request that is too large."""
    with Firewall(*search.address, most_bytes=8000) as wall:
        out = search.make(wall.url)
        assert run_plan(plan_of(documents(201), out, batch=200), place / "state").exit == 0
        assert search.ids() == {d["id"] for d in documents(201)}
        before = len(wall.refused)
        assert before > 0
        assert run_plan(plan_of(documents(402), out, batch=200), place / "state").exit == 0
        assert len(wall.refused) == before
    assert search.ids() == {d["id"] for d in documents(402)}


@pytest.mark.rule("destination.doubted")
def test_a_row_that_ends_the_servers_process_fails_alone(database: Database, place: Path) -> None:
    """A trigger ends the backend: the connection breaks, and the other rows are written over a new one."""
    out = Sql(database.url, columns={"title": "title"})
    out.check()
    database.query(
        f"""CREATE FUNCTION {database.name}.die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.title = '{SUSPICIOUS}' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END IF;
        RETURN NEW; END $$"""
    )
    database.query("CREATE TRIGGER die BEFORE INSERT ON documents FOR EACH ROW EXECUTE FUNCTION die()")
    watch = Watch()
    summary = run_plan(plan_of(documents(101, 13), out, batch=50, attempts=2), place / "state", observer=watch)
    assert (summary.exit, summary.delivered, summary.failed) == (3, 100, 1), watch.messages
    assert len(database.hashes()) == 100
