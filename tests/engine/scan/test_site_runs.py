"""Runs over a web site: what they ask the server for, and what becomes of its pages, also after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import TransientError
from ferryman.sources import Site, Source
from ferryman.testing.sources import SourceSuite
from tests.support.plan_world import Interrupted, PlanWorld, Until
from tests.support.site_server import SiteServer

PAGES = ("/", "/a", "/b", "/c")


@pytest.fixture
def server() -> Iterator[SiteServer]:
    with SiteServer() as site:
        site.page("/", "Home of a site about ferries and rivers", *PAGES[1:])
        for path in PAGES[1:]:
            site.page(path, f"The page {path} about ferries")
        yield site


def site(server: SiteServer, **options: Any) -> Site:
    return Site(server.url, rate=100_000, **options)


def arrived(trial: PlanWorld, server: SiteServer) -> dict[str, int]:
    return {id.replace(server.url, ""): count for id, count in trial.arrived().items()}


@pytest.mark.rule("site.doubt")
def test_what_is_unchanged_is_not_sent(trial: PlanWorld, server: SiteServer) -> None:
    trial.build(source=site(server))
    assert trial.run().exit == 0
    assert arrived(trial, server) == dict.fromkeys(PAGES, 1)
    server.asked()
    assert trial.run().exit == 0
    assert (server.statuses[304], arrived(trial, server)) == (4, dict.fromkeys(PAGES, 1))
    server.page("/a", "It has changed")
    del server.pages["/b"]
    server.put("/c", status=503)
    summary = trial.run()
    assert any("1 pages are in doubt" in message for message in summary.messages)
    assert arrived(trial, server) == {"/": 1, "/a": 2, "/b": 1, "/c": 1, "-/b": 1}
    assert trial.counts() == {"delivered": 3, "deleted": 1}


def test_a_retry_asks_for_its_page_only(trial: PlanWorld, server: SiteServer, place: Path) -> None:
    def fails_once(doc: Document) -> Document:
        if doc["url"].endswith("/b") and not (place / "tried").exists():
            (place / "tried").touch()
            raise TransientError("not now")
        return doc

    trial.build(fails_once, source=site(server))
    assert trial.run(wait=30).exit == 0
    assert arrived(trial, server) == dict.fromkeys(PAGES, 1)
    assert server.asked() == sorted([*PAGES, "/b"])


def test_a_forced_retry_reads_again(trial: PlanWorld, server: SiteServer) -> None:
    trial.build(source=site(server))
    trial.run()
    trial.retry(force=True, document=server.url + "/a")
    trial.run()
    assert arrived(trial, server) == {**dict.fromkeys(PAGES, 1), "/a": 2}


def test_too_many_deletes_behind_a_login_wait(
    trial: PlanWorld, server: SiteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "t")
    trial.build(source=site(server, auth="Bearer ${TOKEN}"))
    trial.run()
    del server.pages["/a"]
    summary = trial.run()
    assert summary.exit == 2
    assert any("max_deleted=0.1" in message for message in summary.messages)
    assert trial.run(allow_deletes=True).exit == 0
    assert arrived(trial, server)["-/a"] == 1


def test_a_host_that_is_away_leaves_all_as_it_is(trial: PlanWorld, server: SiteServer) -> None:
    trial.build(source=site(server))
    trial.run()
    server.stop()
    assert trial.run(wait=0).exit == 4
    server.start()
    assert trial.run().exit == 0
    assert arrived(trial, server) == dict.fromkeys(PAGES, 1)


def test_a_budget_needs_several_runs(trial: PlanWorld, server: SiteServer) -> None:
    trial.build(source=site(server, budget=3))
    summary = trial.run(wait=0)
    assert summary.exit == 4
    assert any("as budget=3 allows; the next scan goes on" in message for message in summary.messages)
    server.asked()
    assert trial.run(wait=0).exit == 0
    assert len(server.asked()) == 1
    assert arrived(trial, server) == dict.fromkeys(PAGES, 1)


@pytest.mark.rule("site.killed")
@pytest.mark.parametrize("phase", ["transform", "commit"])
def test_after_a_kill_only_the_pages_of_that_scan_are_asked_for_again(
    trial: PlanWorld, server: SiteServer, phase: str
) -> None:
    """A crawl of several scans loses one of them at most: ``budget`` pages."""
    trial.build(source=site(server, budget=2))
    trial.run(wait=0)
    first = server.asked()
    with pytest.raises(Interrupted):
        trial.run(wait=0, observer=Until(2, phase))
    second = server.asked()
    trial.run(wait=0)
    again = server.asked()
    assert (len(first), len(second)) == (2, 2)
    assert not {*first} & {*second, *again}
    assert {*second} <= {*again}
    trial.run(wait=0)
    assert trial.run(wait=0).exit == 0
    assert arrived(trial, server) == dict.fromkeys(PAGES, 1)


@pytest.mark.parametrize(("wave", "phase"), [(1, "transform"), (1, "commit"), (2, "deliver")])
def test_a_killed_run_goes_on(trial: PlanWorld, server: SiteServer, wave: int, phase: str) -> None:
    server.page("/", "Home " + "x" * 2000, *PAGES[1:])
    trial.build(source=site(server))
    with pytest.raises(Interrupted):
        trial.run(observer=Until(wave, phase), wave_bytes=2000)
    assert trial.run().exit == 0
    assert arrived(trial, server) == dict.fromkeys(PAGES, 1)


class TestSite(SourceSuite):
    """The promises of the port, on a server."""

    @pytest.fixture(autouse=True)
    def _serve(self, server: SiteServer) -> None:
        self.server = server

    def source(self, folder: Path) -> Source:
        return site(self.server)

    def change(self, source: Source, id: str) -> None:
        self.server.page(id.removeprefix(self.server.url), "Another text", *PAGES[1:])

    def remove(self, source: Source, id: str) -> None:
        path = id.removeprefix(self.server.url)
        self.server.put(path, "No such page", status=404)
        self.server.sitemap(dict.fromkeys(PAGES, ""))
