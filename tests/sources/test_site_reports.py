"""Reports about crawlers, rebuilt on a real server beside ``Site``: each with its address, and what happens here."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from tests.support.site_scans import Scans, server
from tests.support.site_server import Served, SiteServer

from ferryman.sources.site.scope import with_scheme_of

__all__ = ["server"]

REFRESHES = [
    '<meta http-equiv="refresh" content="0; URL=/new">',
    "<META HTTP-EQUIV=REFRESH CONTENT='0;url=\"/new\"'>",
    '<meta content=" 1,/new" http-equiv=Refresh>',
]


@pytest.mark.parametrize("files", [pytest.param(2500, marks=pytest.mark.slow), 6], ids=["50 000 pages", "120 pages"])
def test_twenty_sitemaps_of_which_one_is_broken(server: SiteServer, files: int) -> None:
    """The pages of the broken one stay, known or not; those of the others come."""
    parts = [[f"/s{part}/p{n}" for n in range(files)] for part in range(20)]
    for number, paths in enumerate(parts):
        server.sitemap(dict.fromkeys(paths, "2024-05-01"), f"/map{number}.xml")
    maps = "".join(f"<sitemap><loc>{server.url}/map{n}.xml</loc></sitemap>" for n in range(20))
    server.put("/sitemap.xml", f"<sitemapindex>{maps}</sitemapindex>", mime="text/xml")
    gone: set[str] = set()

    class Pages(dict[str, Any]):
        def get(self, path: str, default: Any = None) -> Any:
            if path.startswith("/s") and "/p" in path:
                return None if path in gone else Served(f"<p>Page {path} of a large site", validators=("modified",))
            return super().get(path, default)

    server.pages = Pages(server.pages)
    scans = Scans(server, budget=10**6)
    whole = server.pages["/map7.xml"].body
    server.put("/map7.xml", whole[: len(whole) // 2], mime="text/xml")
    first = scans.scan()
    assert 19 * files + 3 < len(first) < 20 * files + 3
    assert "/map7.xml: it is broken in line 1" in str(scans.error)
    gone |= {parts[7][0], parts[3][0]}
    server.sitemap(dict.fromkeys(parts[3], "2024-06-01"), "/map3.xml")
    assert scans.scan() == first, "nothing is deleted"
    server.sitemap(dict.fromkeys(parts[7], "2024-06-01"), "/map7.xml")
    last = scans.scan()
    assert (len(last), scans.error) == (20 * files + 1, None)
    assert not gone & set(last)


def test_what_follows_a_packed_sitemap(server: SiteServer) -> None:
    """https://github.com/ArchiveTeam/wpull/issues/484: a plugin appended a comment to the packed bytes, and the crawl
    ended. https://github.com/crawler-commons/crawler-commons/issues/143: packed text. Several members are one file."""
    server.page("/x", "X is the first")
    server.page("/y", "Y is another one")
    members = [gzip.compress(f"{server.url}{path}\n".encode()) for path in ("/x", "/y")]
    server.put("/sitemap.xml", b"".join(members) + b"<!-- cached -->", mime="application/gzip")
    assert Scans(server).scan() == ["/", "/a", "/b", "/x", "/y"]


def test_addresses_in_cdata(server: SiteServer) -> None:
    """https://github.com/webrecorder/browsertrix-crawler/pull/578"""
    entry = f"<url><loc><![CDATA[\n{server.url}/x]]></loc></url>"
    server.put("/sitemap.xml", f"<urlset>{entry}</urlset>", mime="text/xml")
    server.page("/x", "X is the first")
    assert Scans(server).scan() == ["/", "/a", "/b", "/x"]


@pytest.mark.parametrize("body", ['{"error": "internal"}', "Too many requests", "<html>Welcome"])
def test_an_error_in_the_place_of_a_sitemap(server: SiteServer, body: str) -> None:
    """https://github.com/jaeksoft/opensearchserver/issues/1859: a sitemap failed, and the crawl stopped."""
    server.put("/robots.txt", "Sitemap: /sitemap.xml", mime="text/plain")
    server.sitemap({"/x": ""})
    server.page("/x", "X is the first")
    scans = Scans(server)
    scans.scan()
    server.put("/sitemap.xml", body)
    del server.pages["/x"]
    assert scans.scan() == ["/", "/a", "/b", "/x"]
    assert "it is not a sitemap" in str(scans.error)


def test_a_sitemap_that_names_another_host_is_said(server: SiteServer) -> None:
    server.sitemap({"/x": ""})
    server.put("/sitemap.xml", "<urlset><url><loc>https://www.example.org/x</loc></url></urlset>", mime="text/xml")
    scans = Scans(server)
    assert scans.scan() == ["/", "/a", "/b"]
    assert any("names 1 pages of other hosts, such as https://www.example.org/x" in note for note in scans.notes)


@pytest.mark.parametrize(
    ("origin", "url", "becomes"),
    [
        ("https://a.org", "http://a.org/x", "https://a.org/x"),
        ("https://a.org:8443", "http://a.org/x", "http://a.org/x"),
        ("http://a.org", "http://a.org/x", "http://a.org/x"),
        ("https://a.org", "http://a.org.evil/x", "http://a.org.evil/x"),
    ],
)
def test_addresses_from_before_a_site_had_tls(origin: str, url: str, becomes: str) -> None:
    """https://github.com/Webperf-se/webperf_core/issues/40: an https site whose robots.txt and sitemap say http."""
    assert with_scheme_of(origin, url) == becomes


def test_relative_links_without_end(server: SiteServer) -> None:
    """https://github.com/webrecorder/browsertrix-crawler/issues/931, https://github.com/autogram-is/spidergram/issues/42:
    a server ignores the end of an address, and a link without a scheme leads to ever longer ones."""
    links = [f"www.example{n}.com/policies/" for n in range(9)]

    class Trap(dict[str, Any]):
        text = "A page about ferries, whatever follows its address"

        def get(self, path: str, default: Any = None) -> Any:
            if path.startswith("/event/1234"):
                return Served(f"<p>{self.text}</p>" + "".join(f"<a href='{link}'>more</a>" for link in links))
            return super().get(path, default)

    server.pages = Trap(server.pages)
    server.page("/", "Home", "/a", "/b", "/event/1234/")
    scans = Scans(server)
    listed = scans.scan()
    assert (len(listed), scans.error) == (4 + len(links), None)
    assert any("9 pages have the text of a page above them" in note for note in scans.notes)
    assert (scans.scan(), scans.read) == (listed, [])
    Trap.text = "Another text"
    assert scans.scan() == listed


def test_addresses_that_repeat_themselves(server: SiteServer) -> None:
    """As above, on a server that writes the address into the page."""

    class Trap(dict[str, Any]):
        def get(self, path: str, default: Any = None) -> Any:
            if path.startswith("/wiki/"):
                return Served(f"<p>This page is {path}</p><a href='docs/'>docs</a><a href='www.a.org/terms/'>terms</a>")
            return super().get(path, default)

    server.pages = Trap(server.pages)
    server.page("/", "Home", "/wiki/")
    scans = Scans(server)
    assert len(scans.scan()) < 100
    assert scans.error is None
    assert any("repeat a part of them" in note for note in scans.notes)


@pytest.mark.parametrize("tag", REFRESHES)
def test_a_page_that_leads_elsewhere_by_itself_has_moved(server: SiteServer, tag: str) -> None:
    """https://github.com/apache/stormcrawler/issues/350, https://github.com/Norconex/crawler/issues/141: the first page
    of a site was indexed empty, and no other one. Places that cannot redirect, such as GitHub Pages, do it so."""
    server.page("/new", "The new home of ferries", "/a")
    server.put("/", f"<html><head>{tag}</head></html>")
    scans = Scans(server)
    assert (scans.scan(), scans.error) == (["/a", "/new"], None)
    server.put("/a", f"<link rel=canonical href=/new><meta name=robots content=noindex>{tag}<h1>Redirecting</h1>")
    assert (scans.scan(), scans.error) == (["/new"], None)


def test_a_page_that_leads_nowhere_by_itself_stays(server: SiteServer) -> None:
    """A page that keeps robots out leads to itself with a question behind it, and an empty frame is there."""
    scans = Scans(server)
    scans.scan()
    for path in ("/", "/a", "/b"):
        server.put(path, f"<meta http-equiv=refresh content='0; url={path}?challenge=1'><script>prove()</script>")
    server.put("/a?challenge=1", "<form><input type=password></form>")
    server.other = Served("<script>prove()</script>")
    assert set(scans.scan()) >= {"/", "/a", "/b"}
    assert any("leads at once to" in note and "3 pages are in doubt" in note for note in scans.notes)


@pytest.mark.parametrize(
    "tag",
    [
        "<meta http-equiv=refresh content=300>",
        "<meta http-equiv=refresh content='30; /new'>",
        f"<meta http-equiv=refresh content='{'9' * 5000}; /new'>",
        f"<meta http-equiv=refresh content=';{' ' * 1_000_000}&quot;&quot;'>",
    ],
    ids=["nowhere", "after 30 s", "after ages", "a long blank"],
)
def test_a_page_that_is_shown_again_after_a_while_is_a_page(server: SiteServer, tag: str) -> None:
    server.page("/a", "The news of today", head=tag)
    assert Scans(server).scan() == ["/", "/a", "/b"]


@pytest.mark.parametrize(
    "answer",
    [
        Served("<p>All about ferries and what else there is", cut=20),
        Served("<p>not packed", headers={"content-encoding": "gzip"}),
        Served(b"\x1b\x03packed", headers={"content-encoding": "br"}),
        Served(""),
        Served("", mime="application/pdf"),
    ],
    ids=["cut off", "not packed", "not unpacked", "empty", "empty file"],
)
def test_an_answer_that_is_not_whole_is_doubt(server: SiteServer, answer: Served) -> None:
    """https://github.com/Norconex/crawler/issues/98, https://github.com/Norconex/crawler/issues/792: documents were
    deleted when their server was slow, or broken for a moment."""
    scans = Scans(server)
    scans.scan()
    server.pages["/a"] = answer
    assert (scans.scan(), scans.read, scans.error) == (["/", "/a", "/b"], [], None)
    assert any("1 pages are in doubt" in note and "/a (" in note for note in scans.notes)


def test_a_page_that_is_a_picture_now_is_looked_at_twice(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/a", b"GIF89a", mime="image/gif", validators=())
    assert scans.scan() == ["/", "/a", "/b"]
    assert any("it is image/gif now" in note for note in scans.notes)
    assert scans.scan() == ["/", "/b"]


def test_an_error_page_behind_a_redirect_is_gone(server: SiteServer) -> None:
    """https://github.com/Norconex/crawler/issues/424: a host leads to its error page by 302."""
    server.put("/error", "<p>We are sorry that this page is not here any more</p>")
    server.other = Served(status=302, headers={"location": "/error"})
    scans = Scans(server)
    assert scans.scan() == ["/", "/a", "/b"]
    del server.pages["/a"]
    assert scans.scan() == ["/", "/b"]


@pytest.mark.parametrize(
    ("value", "is_indexed"),
    [
        ("googlebot: nofollow, noindex", True),
        ("noindex, googlebot: nofollow", False),
        ("ferryman: nofollow, noindex", False),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST, noindex", False),
        ("max-snippet: 5, otherbot: noindex", True),
    ],
)
def test_directives_for_one_crawler(server: SiteServer, value: str, is_indexed: bool) -> None:
    """https://github.com/crawler-commons/crawler-commons/pull/566"""
    server.put("/a", "<p>All about ferries</p>", headers={"x-robots-tag": value})
    assert ("/a" in Scans(server).scan()) == is_indexed


def test_directives_in_a_comment(server: SiteServer) -> None:
    """https://github.com/Norconex/crawler/issues/60"""
    head = '<!-- <META NAME="ROBOTS" CONTENT="NOINDEX, NOFOLLOW"> --><META NAME="ROBOTS" CONTENT="INDEX, FOLLOW" />'
    server.page("/a", "All about ferries", head=head)
    assert Scans(server).scan() == ["/", "/a", "/b"]


def test_chains_of_redirects_over_hosts(server: SiteServer) -> None:
    """One that comes back to the site is followed; one without end, or in a circle over two hosts, is doubt."""
    with SiteServer() as other:
        other.page("/", "Another host of ferries")
        scans = Scans(server, hosts=other.url)
        first = scans.scan()
        server.put("/a", status=302, headers={"location": other.url + "/hop"})
        other.put("/hop", status=302, headers={"location": server.url + "/home"})
        server.page("/home", "All about ferries, by a detour")
        assert (scans.scan(), scans.notes) == (first, [])
        assert b"by a detour" in scans.contents["/a"]
        other.put("/hop", status=302, headers={"location": server.url + "/a"})
        server.put("/b", status=302, headers={"location": "/chain0"})
        for n in range(40):
            server.put(f"/chain{n}", status=302, headers={"location": f"/chain{n + 1}"})
        assert scans.scan() == first
        assert any("2 pages are in doubt" in note for note in scans.notes)


def test_a_slow_host_is_waited_for_and_no_longer(server: SiteServer) -> None:
    """Pages that come late are read; of a host that falls silent nothing is deleted, and the next scan goes on."""
    scans = Scans(server, timeout_s=0.5)
    first = scans.scan()
    for path in first:
        server.put(path, hang=True)
    assert scans.scan() == first
    assert len(server.requests) < 20
    for path in first:
        server.page(path, f"Back again at {path}", *first)
    assert (scans.scan(), scans.error) == (first, None)
    assert scans.read == first
