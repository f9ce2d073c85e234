"""``Site``: a real server's pages become a listing, and its faults delete nothing."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from tests.support.site_scans import Scans, server
from tests.support.site_server import Served, SiteServer

from ferryman.errors import Misconfigured, TransientError, Unavailable, UsageError
from ferryman.sources import Fetched, Listed, Site, Unchanged

__all__ = ["server"]


def test_links_are_followed_and_what_is_unchanged_is_not_read(server: SiteServer) -> None:
    scans = Scans(server)
    assert (scans.scan(), scans.error) == (["/", "/a", "/b"], None)
    assert scans.read == ["/", "/a", "/b"]
    server.asked()
    assert (scans.scan(), scans.read, scans.error) == (["/", "/a", "/b"], [], None)
    assert server.statuses[304] == 3
    assert server.asked() == ["/", "/a", "/b"], "each page was asked for once"
    server.page("/a", "Ferries on a chain are old")
    assert (scans.scan(), scans.read) == (["/", "/a", "/b"], ["/a"])


def test_one_connection_for_all_requests(server: SiteServer) -> None:
    server.page("/", "Home", "/a", "/b", "/gone", "/moved")
    server.put("/moved", status=301, headers={"location": "/a"})
    scans = Scans(server)
    scans.scan()
    scans.scan()
    assert server.connections == 2, "one a scan"


@pytest.mark.parametrize("validators", [("modified",), ("etag", "modified"), ()])
def test_any_validators(server: SiteServer, validators: tuple[str, ...]) -> None:
    for served in server.pages.values():
        served.validators = validators
    scans = Scans(server)
    scans.scan()
    server.asked()
    assert (scans.scan(), scans.read) == (["/", "/a", "/b"], [])
    assert server.statuses[304] == (3 if validators else 0)


def test_documents_have_the_address_and_what_the_server_states(server: SiteServer) -> None:
    server.page("/a", "café", mime="text/html; charset=ISO-8859-1", validators=("modified",))
    source = Site(server.url + "/a", rate=1000)
    [found] = [each for each in source.listing(source.partitions_after({})[0]) if isinstance(each, Fetched)]
    fields = found.document.fields
    assert (found.document.id, fields["url"]) == (server.url + "/a", server.url + "/a")
    assert (fields["mime"], fields["charset"], fields["modified"]) == (
        "text/html", "iso-8859-1", "2024-05-01T10:00:00Z",
    )  # fmt: skip
    assert found.fingerprint == fields["content_hash"]


def test_only_what_is_below_the_folder(server: SiteServer) -> None:
    server.page("/docs/", "Docs", "/docs/one", "/a", "../b", "/docs2/x")
    server.page("/docs/one", "One of the docs")
    scans = Scans(server)
    source = Site(server.url + "/docs/", rate=1000)
    scans.source = lambda **_: source  # type: ignore[method-assign]
    assert scans.scan() == ["/docs/", "/docs/one"]


def test_one_page_under_five_addresses(server: SiteServer) -> None:
    """A fragment, a session, the order of a query and a canonical link make no other page."""
    names = ("/p?b=2&a=1", "/p?a=1&b=2#x", "/p;jsessionid=7?a=1&b=2", "/p?utm_source=z&a=1&b=2", "/p?print=1")
    server.page("/", "Home of ferries", *names)
    canonical = '<link rel=canonical href="/p?a=1&amp;b=2">'
    server.page("/p?a=1&b=2", "One page of many names about ferries", head=canonical)
    server.page("/p?print=1", "One page of many names about ferries printed", head=canonical)
    scans = Scans(server)
    assert scans.scan() == ["/", "/p?a=1&b=2"]
    assert scans.scan() == ["/", "/p?a=1&b=2"]


def test_canonical_links_in_a_circle_or_to_another_page_are_not_believed(server: SiteServer) -> None:
    server.page("/a", "All about ferries on a chain", head='<link rel=canonical href="/b">')
    server.page("/b", "All about ferries on a rope", head='<link rel=canonical href="/a">')
    server.page("/", "Home", "/a", "/b", "/c", "/d")
    server.page("/c", "Bridges are made of stone and steel and last longer", head='<link rel=canonical href="/">')
    server.page("/d", "Tunnels are dug below a river", head='<link rel=canonical href="/nowhere">')
    assert Scans(server).scan() == ["/", "/a", "/b", "/c", "/d"]


@pytest.mark.parametrize("status", [404, 410])
def test_gone_is_deleted(server: SiteServer, status: int) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/a", "no", status=status)
    assert (scans.scan(), scans.error) == (["/", "/b"], None)
    server.page("/a", "All about ferries on a chain")
    assert (scans.scan(), scans.read) == (["/", "/a", "/b"], ["/a"]), "it is back"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 502, 503, 418, 206])
def test_doubt_deletes_nothing(server: SiteServer, status: int) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/a", "no", status=status)
    assert (scans.scan(), scans.read, scans.error) == (["/", "/a", "/b"], [], None)
    assert any("1 pages are in doubt" in note and f"/a ({status})" in note for note in scans.notes)


def test_no_answer_is_doubt(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/a", hang=True)
    assert scans.scan(timeout_s=0.3) == ["/", "/a", "/b"]
    assert any("/a (no answer within 0.3 s)" in note for note in scans.notes)


def test_while_a_page_is_in_doubt_nothing_that_links_led_to_is_deleted(server: SiteServer) -> None:
    server.page("/b", "All about ferries on a rope", "/c")
    server.page("/c", "Ropes break in winter")
    scans = Scans(server)
    assert scans.scan() == ["/", "/a", "/b", "/c"]
    server.page("/b", "Nothing here any more")
    del server.pages["/c"]
    server.put("/a", status=503)
    assert scans.scan() == ["/", "/a", "/b", "/c"]
    server.page("/a", "All about ferries on a chain")
    assert scans.scan() == ["/", "/a", "/b"]


def test_a_page_that_nothing_leads_to_stays_while_it_is_there(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    server.page("/", "Home of a site about ferries and rivers")
    assert scans.scan() == ["/", "/a", "/b"]
    del server.pages["/b"]
    assert scans.scan() == ["/", "/a"]


def test_an_unchanged_page_keeps_its_links_alive(server: SiteServer) -> None:
    server.page("/b", "All about ferries on a rope", "/c", "/d")
    server.page("/c", "Ropes break in winter")
    server.page("/d", "Ropes are of hemp")
    scans = Scans(server)
    scans.scan()
    server.asked()
    assert scans.scan() == ["/", "/a", "/b", "/c", "/d"]
    assert server.asked() == ["/", "/a", "/b", "/c", "/d"]


@pytest.mark.parametrize("status", [301, 308])
def test_moved_for_good_deletes_the_old_address(server: SiteServer, status: int) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/a", status=status, headers={"location": "/new#top"})
    server.page("/new", "All about ferries on a chain")
    assert (scans.scan(), scans.error) == (["/", "/b", "/new"], None)
    assert scans.scan() == ["/", "/b", "/new"]


@pytest.mark.parametrize("status", [302, 303, 307])
def test_moved_for_now_keeps_the_address(server: SiteServer, status: int) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/a", status=status, headers={"location": "/new"})
    server.page("/new", "Ferries on a chain, today elsewhere")
    assert (scans.scan(), scans.read) == (["/", "/a", "/b"], ["/a"])
    assert b"today elsewhere" in scans.contents["/a"]


def test_moved_to_a_page_in_doubt_deletes_nothing(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/a", status=301, headers={"location": "/new"})
    server.put("/new", status=500)
    assert scans.scan() == ["/", "/a", "/b"]


@pytest.mark.parametrize("status", [301, 302])
def test_redirects_in_a_circle(server: SiteServer, status: int) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/a", status=status, headers={"location": "/b"})
    server.put("/b", status=status, headers={"location": "/a"})
    for _ in range(2):
        assert (scans.scan(), scans.error) == (["/", "/a", "/b"], None)
        assert any("2 pages are in doubt" in note for note in scans.notes)


def test_a_login_in_the_place_of_pages_is_doubt(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    login = "<title>Log in</title><form>Who are you <input type=password></form>"
    server.put("/a", login)
    server.put("/b", status=302, headers={"location": "/login"})
    server.put("/login", login)
    assert scans.scan() == ["/", "/a", "/b"]
    assert scans.read == []
    assert any("asks for a password" in note for note in scans.notes)


def test_a_soft_404_is_gone(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    server.other = Served("<title>Sorry</title><p>We are sorry but there is no such page here, try the search</p>")
    del server.pages["/a"]
    assert scans.scan() == ["/", "/b"]


def test_an_answer_for_everything_is_no_soft_404(server: SiteServer) -> None:
    """A site that answers each address with the same text says nothing by it."""
    scans = Scans(server)
    server.pages.clear()
    server.other = Served("<title>App</title><p>Welcome to the application of ferries, please wait</p><a href=/a>a</a>")
    assert scans.scan() == ["/", "/a"]
    assert scans.scan() == ["/", "/a"]


def test_noindex_and_nofollow(server: SiteServer) -> None:
    scans = Scans(server)
    server.page("/", "Home", "/a", "/b", "/c")
    server.page("/a", "Not for an index", "/x", head='<meta name="robots" content="noindex">')
    server.page("/x", "Behind it")
    server.page("/b", "Do not follow", "/y", head='<meta name="ROBOTS" content="nofollow">')
    server.page("/y", "Not reached")
    server.put("/c", "<p>by header</p>", headers={"x-robots-tag": "noindex"})
    assert scans.scan() == ["/", "/b", "/x"]


def test_a_nonce_is_no_change(server: SiteServer) -> None:
    numbers = iter(range(1000))

    def page(_: object) -> Served:
        n = next(numbers)
        return Served(
            f"<script nonce={n}>var t={n}</script><!-- {n} --><p>Ferries</p><input type=hidden value={n}>",
            validators=(),
        )

    server.pages["/a"] = page
    scans = Scans(server)
    scans.scan()
    assert (scans.scan(), scans.read) == (["/", "/a", "/b"], [])


# -- robots.txt ------------------------------------------------------------------------------------


def test_robots_rules(server: SiteServer) -> None:
    server.put("/robots.txt", "User-agent: *\nDisallow: /a\nSitemap: /map.xml", mime="text/plain")
    server.sitemap({"/c": ""}, "/map.xml")
    server.page("/c", "Only in the sitemap")
    scans = Scans(server)
    assert scans.scan() == ["/", "/b", "/c"]
    assert any("robots.txt forbids 1 pages" in note for note in scans.notes)
    assert "/a" not in server.asked()
    assert scans.scan(robots=False) == ["/", "/a", "/b", "/c"]


def test_robots_that_forbids_everything_since_yesterday(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/robots.txt", "User-agent: *\nDisallow: /", mime="text/plain")
    server.asked()
    assert scans.scan() == ["/", "/a", "/b"]
    assert any("3 pages are in doubt" in note and "robots.txt forbids it" in note for note in scans.notes)
    assert server.asked() == []
    del server.pages["/robots.txt"]
    assert (scans.scan(), scans.notes) == (["/", "/a", "/b"], [])


@pytest.mark.parametrize("status", [500, 503, 429])
def test_robots_that_does_not_answer_forbids_for_now(server: SiteServer, status: int) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/robots.txt", status=status)
    server.asked()
    scans.scan()
    assert isinstance(scans.error, Unavailable)
    assert f"robots.txt: {status}" in str(scans.error)
    assert server.asked() == []
    server.put("/robots.txt", "", mime="text/plain")
    assert (scans.scan(), scans.error) == (["/", "/a", "/b"], None)


def test_robots_that_is_a_page(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    server.put("/robots.txt", "<!DOCTYPE html><p>Welcome")
    del server.pages["/a"]
    assert scans.scan() == ["/", "/a", "/b"]
    assert isinstance(scans.error, TransientError)
    assert any("is a page, not a robots file" in note for note in scans.notes)


@pytest.mark.parametrize("status", [401, 404])
def test_no_robots_forbids_nothing(server: SiteServer, status: int) -> None:
    server.put("/robots.txt", status=status)
    assert Scans(server).scan() == ["/", "/a", "/b"]


# -- sitemaps and feeds ------------------------------------------------------------------------------


def test_a_sitemap_index_of_gzip_with_blanks_before_it(server: SiteServer) -> None:
    server.put(
        "/sitemap.xml",
        f"\n  <?xml version='1.0'?><sitemapindex><sitemap><loc> {server.url}/one.xml </loc></sitemap>"
        f"<sitemap><loc></loc></sitemap><sitemap><loc>{server.url}/sitemap.xml</loc></sitemap></sitemapindex>",
        mime="text/xml",
    )
    inner = f"<urlset><url><loc>{server.url}/x</loc></url><url><loc/></url><url></url></urlset>"
    server.put("/one.xml", gzip.compress(inner.encode()), mime="text/xml")
    server.page("/x", "Only there")
    scans = Scans(server)
    assert (scans.scan(), scans.error) == (["/", "/a", "/b", "/x"], None)


@pytest.mark.parametrize("how", ["cut", "status", "entity", "html", "packed"])
def test_a_broken_sitemap_deletes_nothing(server: SiteServer, how: str) -> None:
    server.sitemap({"/x": "", "/y": ""}, "/two.xml")
    index = f"<sitemapindex><sitemap><loc>{server.url}/two.xml</loc></sitemap></sitemapindex>"
    server.put("/sitemap.xml", index, mime="text/xml")
    server.page("/x", "X is the first")
    server.page("/y", "Y is another one")
    scans = Scans(server)
    assert scans.scan() == ["/", "/a", "/b", "/x", "/y"]
    whole = server.pages["/two.xml"].body
    bad = {
        "cut": Served(whole[: whole.index("/y") - 5], mime="text/xml"),
        "status": Served(status=500),
        "entity": Served('<!DOCTYPE u [<!ENTITY a "aa">]><urlset/>', mime="text/xml"),
        "html": Served("<html><p>Sorry"),
        "packed": Served(gzip.compress(whole.encode())[:-9], mime="text/xml"),
    }
    server.pages["/two.xml"] = bad[how]
    for path in ("/y", "/a"):
        del server.pages[path]
    assert scans.scan() == ["/", "/a", "/b", "/x", "/y"]
    assert "/two.xml" in str(scans.error)
    server.pages["/two.xml"] = Served(whole, mime="text/xml")
    assert (scans.scan(), scans.error) == (["/", "/b", "/x"], None)


def test_what_left_the_sitemap_gets_one_more_look(server: SiteServer) -> None:
    server.sitemap({"/x": "", "/y": ""})
    server.page("/x", "X is the first")
    server.page("/y", "Y is another one")
    scans = Scans(server)
    assert scans.scan() == ["/", "/a", "/b", "/x", "/y"]
    server.sitemap({})
    del server.pages["/y"]
    server.put("/a", status=500)
    assert scans.scan() == ["/", "/a", "/b", "/x"], "doubt elsewhere does not keep what a sitemap named"


def many(server: SiteServer, lastmod: str = "2024-05-01", count: int = 60) -> list[str]:
    paths = [f"/p{n}" for n in range(count)]
    for path in paths:
        server.page(path, f"Page {path} about ferries")
    server.sitemap(dict.fromkeys(paths, lastmod))
    return paths


def test_lastmod_is_believed_beside_a_sample(server: SiteServer) -> None:
    many(server)
    scans = Scans(server)
    listed = scans.scan()
    assert len(listed) == 63
    server.asked()
    assert (scans.scan(), scans.read) == (listed, [])
    asked = server.asked()
    assert len([path for path in asked if path.startswith("/p")]) == 20
    assert set(asked) >= {"/", "/a", "/b"}, "pages without lastmod are all asked for"


def test_lastmod_that_changes_is_looked_at(server: SiteServer) -> None:
    paths = many(server)
    scans = Scans(server)
    scans.scan()
    server.asked()
    many(server, "2024-06-01")
    assert scans.scan()
    assert scans.read == []
    assert set(server.asked()) >= set(paths)


def test_lastmod_that_never_changes_is_found_out(server: SiteServer) -> None:
    paths = many(server)
    scans = Scans(server)
    scans.scan()
    for path in paths:
        server.page(path, f"Page {path} has changed")
    scans.scan()
    assert scans.read == sorted(paths), "the sample showed that the sitemap is wrong, so all were asked for"
    assert any("lastmod is not believed for 7 days" in note for note in scans.notes)
    server.asked()
    scans.scan()
    assert set(server.asked()) >= set(paths), "it is still not believed"


def test_every_page_is_asked_for_now_and_then(server: SiteServer) -> None:
    paths = many(server)
    scans = Scans(server, refetch=0)
    scans.scan()
    server.asked()
    scans.scan()
    assert set(server.asked()) >= set(paths)


FEED = "<rss version='2.0'><channel>{}</channel></rss>"


def feed(*entries: tuple[str, str]) -> str:
    return FEED.format("".join(f"<item><link>{link}</link><guid>{guid}</guid></item>" for link, guid in entries))


def test_a_feed_forgets_its_entries_and_the_site_does_not(server: SiteServer) -> None:
    for n in range(6):
        server.page(f"/post{n}", f"Post number {n} of a blog")
    server.put("/feed", feed(("/post0", "0"), ("/post1", "1")), mime="application/rss+xml")
    scans = Scans(server, feeds=server.url + "/feed")
    assert scans.scan() == ["/", "/a", "/b", "/post0", "/post1"]
    server.put("/feed", feed(("/post1", "1"), ("/post2", "2")), mime="application/rss+xml")
    assert (scans.scan(), scans.notes) == (["/", "/a", "/b", "/post0", "/post1", "/post2"], [])
    server.put("/feed", feed(("/post4", "4"), ("/post5", "5")), mime="application/rss+xml")
    del server.pages["/post0"]
    assert scans.scan() == ["/", "/a", "/b", "/post1", "/post2", "/post4", "/post5"]
    assert any("some may have been missed" in note for note in scans.notes)


@pytest.mark.parametrize("answers", [True, False])
def test_guids_that_prove_stable_name_the_entries(server: SiteServer, answers: bool) -> None:
    """An entry under another link is not a gap, and its old page gives way to the new one, unless that still answers:
    some feeds give a guid to one entry after the other."""
    for path in ("/post0", "/post1", "/post1-new", "/post2"):
        server.page(path, f"Post at {path}")
    scans = Scans(server, feeds=server.url + "/feed")
    for _ in range(2):
        server.put("/feed", feed(("/post0", "0"), ("/post1", "1")), mime="application/rss+xml")
        assert (scans.scan(), scans.notes) == (["/", "/a", "/b", "/post0", "/post1"], [])
    server.put("/feed", feed(("/post1-new", "1")), mime="application/rss+xml")
    if not answers:
        del server.pages["/post1"]
    left = ["/post1"] if answers else []
    for _ in range(2):
        assert (scans.scan(), scans.notes) == (["/", "/a", "/b", "/post0", *left, "/post1-new"], [])


def test_a_feed_that_is_none_deletes_nothing(server: SiteServer) -> None:
    server.put("/feed", "<html>maintenance")
    scans = Scans(server, feeds=server.url + "/feed")
    assert scans.scan() == ["/", "/a", "/b"]
    assert "/feed: it is not a feed" in str(scans.error)


def test_lastmod_that_is_always_today(server: SiteServer) -> None:
    """Every page is asked for, conditionally, and only what has changed is read."""
    paths = many(server, "2024-06-01")
    scans = Scans(server)
    scans.scan()
    for today in ("2024-06-02", "2024-06-03"):
        server.sitemap(dict.fromkeys(paths, today))
        server.page("/p7", f"Page 7 of {today}")
        server.asked()
        scans.scan()
        assert scans.read == ["/p7"]
        assert server.statuses[304] >= len(paths) - 1


# -- bounds ----------------------------------------------------------------------------------------


def test_a_budget_is_kept_and_the_next_scan_goes_on(server: SiteServer) -> None:
    paths = sorted([*many(server), "/", "/a", "/b"])
    scans = Scans(server, budget=25)
    read: list[str] = []
    for left in (True, True, False):
        scans.scan()
        read += scans.read
        assert (scans.error is not None) == left
    assert sorted(read) == paths, "each page was read once"
    server.asked()
    many(server, "2024-06-01")
    del server.pages["/p7"]
    for left in (True, True, False):
        listed = scans.scan()
        assert ("/p7" in listed) == left, "nothing is deleted before all were looked at"
    assert sorted(server.asked()) == paths


def test_a_calendar_without_end(server: SiteServer) -> None:
    class Calendar(dict[str, Any]):
        def get(self, path: str, default: Any = None) -> Any:
            if path.startswith("/calendar?month="):
                n = int(path.rpartition("=")[2])
                links = "".join(f'<a href="/calendar?month={m}">m</a>' for m in range(n + 1, n + 4))
                return Served(f"<p>Month {n} of the calendar</p>{links}")
            return super().get(path, default)

    server.pages = Calendar(server.pages)
    server.page("/", "Home", "/a", "/calendar?month=1")
    scans = Scans(server, per_pattern=30)
    listed = scans.scan()
    assert (len(listed), scans.error) == (32, None)
    assert any("/calendar?month" in note and "per_pattern" in note for note in scans.notes)
    assert scans.scan() == listed
    assert len(Scans(server, depth=5).scan()) == 15


def test_more_pages_than_allowed(server: SiteServer) -> None:
    many(server)
    scans = Scans(server, max_pages=40)
    assert len(scans.scan()) == 40
    assert "max_pages=40" in str(scans.error)


def test_revisit(server: SiteServer) -> None:
    scans = Scans(server, revisit="1h")
    scans.scan()
    server.asked()
    assert (scans.scan(), server.requests) == (["/", "/a", "/b"], [])


def test_a_large_page_and_one_that_is_too_large(server: SiteServer) -> None:
    server.page("/a", "ferry " * 1_700_000)
    scans = Scans(server)
    assert (scans.scan(), len(scans.contents["/a"]) > 10_000_000) == (["/", "/a", "/b"], True)
    small = Site(server.url, rate=1000, max_bytes=1000)
    refused = [e for e in small.listing(small.partitions_after({})[0]) if isinstance(e, Listed) and e.refused]
    assert [e.id for e in refused] == [server.url + "/a"]


def test_other_files(server: SiteServer) -> None:
    server.page("/", "Home", "/a.pdf", "/p.png", "/s.css", "/n.txt")
    server.put("/a.pdf", b"%PDF-1.4 and so on", mime="application/pdf")
    server.put("/p.png", b"\x89PNG", mime="image/png")
    server.put("/s.css", b"p{}", mime="text/css")
    server.put("/n.txt", b"plain", mime="")
    scans = Scans(server)
    assert scans.scan() == ["/", "/a.pdf", "/n.txt"]
    assert scans.contents["/a.pdf"] == b"%PDF-1.4 and so on"


def test_exclude_removes_what_was_there(server: SiteServer) -> None:
    scans = Scans(server)
    scans.scan()
    server.asked()
    assert scans.scan(exclude="/a*") == ["/", "/b"]
    assert scans.scan(include=["/", "/a"]) == ["/", "/a"]
    server.asked()


def test_a_304_for_a_page_that_was_not_asked_for_so(server: SiteServer) -> None:
    server.pages["/a"] = lambda headers: Served(status=304) if "cache-control" not in headers else Served("<p>Ferries")
    scans = Scans(server)
    assert scans.scan() == ["/", "/a", "/b"]
    server.pages["/b"] = lambda _: Served(status=304, validators=())
    again = Scans(server)
    assert again.scan() == ["/", "/a"], "nothing is known of it"


@pytest.mark.parametrize(
    ("mime", "body"),
    [
        ("text/html; charset=windows-1251", "<a href='/я'>я</a>".encode("windows-1251")),
        ("text/html", b"<meta charset=windows-1251>" + "<a href='/я'>я</a>".encode("windows-1251")),
        ("text/html", "<a href='/я'>я</a>".encode()),
        ("text/html", "\ufeff<a href='/я'>я</a>".encode()),
        ("text/html; charset=nonsense", "<a href='/я'>я</a>".encode()),
    ],
)
def test_charsets(server: SiteServer, mime: str, body: bytes) -> None:
    server.put("/", body, mime=mime)
    server.page("/%D1%8F", "The last letter")
    assert Scans(server).scan() == ["/", "/%D1%8F"]


# -- JavaScript ------------------------------------------------------------------------------------


def test_a_site_that_is_made_by_javascript(server: SiteServer) -> None:
    server.put("/", "<div id=app></div><script src=app.js></script>")
    scans = Scans(server)
    assert scans.scan() == ["/"]
    assert any("1 of 1 pages are nearly empty: this site is made by JavaScript: give fetch=" in n for n in scans.notes)

    def fetch(url: str) -> str:
        return f"<p>Shown at {url}</p><a href='/a'>a</a>"

    shown = Scans(server, fetch=fetch)
    assert shown.scan() == ["/", "/a"]
    assert b"Shown at" in shown.contents["/"]
    assert shown.notes == []

    def fails(url: str) -> str:
        raise RuntimeError("the browser is gone")

    shown.scan(fetch=fails)
    assert any("the browser is gone" in note for note in shown.notes)


# -- hosts and secrets -----------------------------------------------------------------------------


def test_a_host_that_is_away_and_back(server: SiteServer) -> None:
    many(server)
    scans = Scans(server)
    listed = scans.scan()
    server.stop()
    scans.scan()
    assert isinstance(scans.error, Unavailable)
    server.start()
    assert (scans.scan(), scans.read, scans.error) == (listed, [], None)


def test_a_host_that_goes_away_in_the_middle(server: SiteServer) -> None:
    """What was read before is not read again, and nothing is deleted."""
    paths = many(server)
    scans = Scans(server)

    def last(_: object) -> Served:
        server.is_away = True
        return Served("<p>the last page")

    server.pages["/p30"] = last
    first = scans.scan()
    assert isinstance(scans.error, Unavailable), scans.notes
    server.is_away = False
    server.page("/p30", "Back")
    server.asked()
    assert len(scans.scan()) == len(paths) + 3
    assert scans.error is None
    assert not set(server.asked()) & set(first)


def test_secrets_go_to_the_named_host_only(server: SiteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    with SiteServer() as other:
        other.page("/x", "Elsewhere")
        other.page("/", "Its home")
        server.put("/a", status=302, headers={"location": other.url + "/x"})
        server.page("/b", "B", other.url + "/linked")
        other.page("/linked", "Linked from the first host")
        secrets: dict[str, Any] = {
            "auth": "Bearer ${TOKEN}", "headers": {"X-Key": "${TOKEN}"}, "cookies": {"session": "${TOKEN}"},
        }  # fmt: skip
        scans = Scans(server, hosts=other.url, **secrets)
        assert scans.scan() == ["/", "/a", "/b", other.url + "/"]
        assert scans.scan() == ["/", "/a", "/b", other.url + "/", other.url + "/linked"]
        assert {each.get("authorization") for each in server.sent} == {"Bearer s3cret"}
        assert {each.get("cookie") for each in server.sent} == {"session=s3cret"}
        assert all("s3cret" not in str(each) for each in other.sent)
        assert "s3cret" not in repr(scans.marks) + repr(scans.source())
        assert scans.source().max_deleted == 0.1
        alone = Scans(server, **secrets)
        other.asked()
        assert alone.scan() == ["/", "/b"]
        assert other.requests == []
    monkeypatch.delenv("TOKEN")
    with pytest.raises(Misconfigured, match="TOKEN"):
        scans.source().check()


def test_an_address_that_another_host_may_not_have(server: SiteServer) -> None:
    """A host that the plan names may be private, and one that ``hosts`` names must not be one of a cloud's own."""
    scans = Scans(server, hosts="http://169.254.169.254")
    assert scans.scan() == ["/", "/a", "/b"]
    assert "may not be asked for" in str(scans.error)


def test_the_agent_has_a_contact(server: SiteServer) -> None:
    scans = Scans(server, contact="search@example.org")
    scans.scan()
    assert {each["user-agent"].partition("/")[0] for each in server.sent} == {"ferryman"}
    assert all("(+search@example.org)" in each["user-agent"] for each in server.sent)


def test_read_is_for_documents_that_are_tried_again(server: SiteServer) -> None:
    source = Site(server.url, rate=1000)
    [partition] = source.partitions_of_ids([server.url + "/a"], {})
    [listed] = source.listing(partition)
    assert isinstance(listed, Listed)
    assert server.requests == []
    found = source.read(listed)
    assert isinstance(found, Fetched)
    assert b"on a chain" in (found.document.raw or b"")
    assert source.read(listed._replace(known=found.fingerprint)) == Unchanged()
    del server.pages["/a"]
    with pytest.raises(TransientError, match="404"):
        source.read(listed)


def test_a_login_in_the_place_of_a_page_that_is_tried_again(server: SiteServer) -> None:
    """It is not sent under the page's id. A page that always asked for a password is."""
    server.page("/b", "Ferries on a rope, for members", "/a", head="<input type=password>")
    scans = Scans(server)
    scans.scan()
    server.put("/a", "<title>Log in</title><form>Who are you <input type=password></form>")
    server.put("/", status=302, headers={"location": "/a"})
    source = scans.source()
    [waiting] = source.partitions_of_ids([server.url + path for path in ("/", "/a", "/b")], scans.marks)
    [all_pages] = source.partitions_after(scans.marks)
    for partition in (waiting, all_pages):
        listed = {each.id: each for each in source.listing(partition) if isinstance(each, Listed)}
        for path in ("/", "/a"):
            with pytest.raises(TransientError, match="asks for a password is in its place"):
                source.read(listed[server.url + path])
        assert isinstance(source.read(listed[server.url + "/b"]), Fetched)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": "ftp://x/"}, "not an http"),
        ({"url": ()}, "give the address"),
        ({"url": "https://user:pw@x/"}, "auth="),
        ({"url": "https://x/", "rate": "fast"}, "rate="),
        ({"url": "https://x/", "refetch": "soon"}, "refetch"),
        ({"url": "https://x/", "budget": 0}, "above 0"),
    ],
)
def test_arguments_that_cannot_be_meant(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as e:
        Site(**options)
    assert "pw" not in str(e.value)
