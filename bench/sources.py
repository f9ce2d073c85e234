"""Sources beside bare clients: a site, a repository and a mailbox that have not changed, a commit, a new mail; a
collection of Solr that moves into OpenSearch."""

from __future__ import annotations

import json
import mailbox
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from imapclient import IMAPClient
from tests.servers.dovecot import PASSWORD, Dovecot
from tests.servers.opensearch import OpenSearchServer
from tests.servers.solr import SolrServer
from urllib3 import PoolManager

from bench.harness import Row, Sizes, alternate, empty_folder, limit_row, phases, print_progress, spark, time_row
from ferryman import Plan, run
from ferryman.destinations import OpenSearch
from ferryman.limits import format_count
from ferryman.sources import Bookmark, Complete, Git, Imap, Listed, Mailbox, Site, Solr, Source
from ferryman.sources import OpenSearch as OpenSearchSource

PAGES = 10_000
FILES = 200_000
MAILS = 300_000
INDEXED = 1_000_000
PAGE = 1000
ELASTICDUMP = "elasticdump@6.125.1"
FLAT = 1.3
"""Greatest ratio of the peaks of memory at ten times the documents."""

UNCHANGED_S = 2.0
"""Seconds that the design allows for 200 000 files of a repository."""


class _Page(BaseHTTPRequestHandler):
    """A site of pages that link to a hundred others each."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    count = PAGES
    sitemap = b""

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if self.path == "/sitemap.xml" and self.sitemap:
            self._say(200, self.sitemap)
        elif self.path in ("/sitemap.xml", "/robots.txt") or not self.path.removeprefix("/page").isdecimal():
            self._say(200 if self.path == "/" else 404, _page(0, self.count))
        elif self.headers.get("if-none-match") == '"1"':
            self._say(304, b"")
        else:
            self._say(200, _page(int(self.path.removeprefix("/page")), self.count))

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("etag", '"1"')
        self.send_header("content-type", "text/xml" if body[:4] == b"<url" else "text/html")
        if status != 304:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _page(number: int, count: int) -> bytes:
    links = "".join(f"<a href=/page{(number * 7 + n * 101 + 1) % count}>{n}</a> " for n in range(100))
    return f"<title>{number}</title><p>This is page number {number} of a site about ferries.</p>{links}".encode()


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    pages, files = (PAGES, FILES) if sizes.rounds > 1 else (PAGES // 10, FILES // 10)
    yield from _measure_site(sizes.rounds, pages)
    yield from _measure_repository(sizes.rounds, files, empty_folder(folder / "repository"))
    yield from _measure_mails(sizes.rounds, MAILS if sizes.rounds > 1 else MAILS // 10)
    yield from _measure_move(sizes.rounds, INDEXED if sizes.rounds > 1 else INDEXED // 10, folder / "move")
    yield from _measure_copy(
        sizes.rounds, INDEXED if sizes.rounds > 1 else INDEXED // 10, empty_folder(folder / "copy")
    )


def _measure_site(rounds: int, pages: int) -> Iterator[Row]:
    handler = type("Handler", (_Page,), {"count": pages})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    urls = "".join(f"<url><loc>{url}/page{n}</loc><lastmod>2024-05-01</lastmod></url>" for n in range(pages))
    try:
        source = Site(url, rate=1e6, budget=10 * pages)
        marks = _scan(source, {})
        client = PoolManager(maxsize=1)

        def ask_bare() -> None:
            for n in range(pages):
                answer = client.request("GET", f"{url}/page{n}", headers={"if-none-match": '"1"'})
                assert answer.status == 304

        ours, bare = alternate(rounds, lambda: _scan(source, marks), ask_bare)
        yield time_row(f"{pages} pages unchanged, asked for one by one; beside urllib3", pages, ours, bare, 3.0)
        handler.sitemap = f"<urlset>{urls}</urlset>".encode()  # type: ignore[attr-defined]
        marks = _scan(source, marks)
        [with_sitemap] = alternate(rounds, lambda: _scan(source, marks))
        yield time_row(
            f"{pages} pages unchanged, by lastmod and a sample; beside urllib3", pages, with_sitemap, bare, 1.0
        )
    finally:
        server.shutdown()
        server.server_close()


def _measure_repository(rounds: int, files: int, folder: Path) -> Iterator[Row]:
    path = folder / "repository"
    print_progress(f"making a repository of {files} files")
    _git(folder, "init", "--quiet", "--initial-branch=main", str(path))
    for setting in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        _git(path, "config", setting, "true")
    _commit(path, {f"d{n // 1000}/f{n}.txt": f"File {n}\n" for n in range(files)})
    source = Git(f"file://{path}", cache=folder / "cache")
    marks = _scan(source, {})
    clone = folder / "bare"
    _git(folder, "clone", "--quiet", "--bare", f"file://{path}", str(clone))

    def fetch_bare() -> None:
        _git(clone, "fetch", "--quiet", "origin", "main")

    ours, bare = alternate(rounds, lambda: _scan(source, marks), fetch_bare)
    yield limit_row(f"{files} files of a repository, the same commit", ours, UNCHANGED_S, "")
    yield time_row(f"{files} files of a repository, the same commit; beside git fetch", files, ours, bare, 3.0)
    for count in (1, 100, files // 20):
        yield _measure_commit(rounds, files, count, path, clone, source, marks)
        marks = _scan(source, marks)


def _measure_commit(
    rounds: int, files: int, count: int, path: Path, clone: Path, source: Git, marks: dict[str, Any]
) -> Row:
    """Measure a commit that changes some files."""
    number = 0

    def commit() -> None:
        nonlocal number
        number += 1
        every = files // count
        _commit(path, {f"d{n // 1000}/f{n}.txt": f"{count} {number} {n}\n" for n in range(0, files, every)})

    def list_changes() -> None:
        nonlocal marks
        commit()
        marks = _scan(source, marks)

    def list_bare() -> None:
        commit()
        _git(clone, "fetch", "--quiet", "origin", "main")
        _git(clone, "ls-tree", "-r", "-z", "FETCH_HEAD")

    ours, bare = alternate(rounds, list_changes, list_bare)
    what = f"a commit of {format_count(count)} among {files} files of a repository"
    return time_row(f"{what}; beside git fetch and ls-tree", count, ours, bare, 3.0)


def _measure_mails(rounds: int, mails: int) -> Iterator[Row]:
    print_progress(f"making {mails} mails")
    os.environ["IMAP_PASSWORD"] = PASSWORD
    with Dovecot() as server:
        folder = server.folder / "mail" / "ann"
        for name in ("cur", "new", "tmp"):
            (folder / name).mkdir(parents=True)
        for number in range(mails):
            (folder / "cur" / f"{number}.host:2,S").write_bytes(_mail(number))
        subprocess.run(["chown", "-R", "--reference", folder.parent, folder], check=True)
        source = Imap("127.0.0.1", user="ann", security="none", port=server.port)
        marks = _scan(source, {})
        client = IMAPClient("127.0.0.1", server.port, ssl=False)
        client.login("ann", PASSWORD)

        def list_bare() -> None:
            client.select_folder("INBOX", readonly=True)
            assert len(client.fetch("1:*", ["FLAGS"])) >= mails

        ours, bare = alternate(rounds, lambda: _scan(source, marks), list_bare)
        yield time_row(f"{mails} mails unchanged; beside IMAPClient, flags of all", mails, ours, bare, 1.0)
        number = mails

        def arrive() -> None:
            nonlocal number, marks
            number += 1
            client.append("INBOX", _mail(number))
            marks = _scan(source, marks)

        def arrive_bare() -> None:
            nonlocal number
            number += 1
            client.append("INBOX", _mail(number))
            list_bare()

        ours, bare = alternate(rounds, arrive, arrive_bare)
        yield time_row(f"one new mail among {mails}; beside IMAPClient, flags of all", mails, ours, bare, 1.0)
        files = Mailbox(folder)
        marks = _scan(files, {})

        def list_files() -> None:
            assert len(mailbox.Maildir(folder).keys()) >= mails

        ours, bare = alternate(rounds, lambda: _scan(files, marks), list_files)
        yield time_row(f"{mails} mails of a Maildir unchanged; beside mailbox.Maildir", mails, ours, bare, 5.0)


def _measure_move(rounds: int, count: int, folder: Path) -> Iterator[Row]:
    print_progress(f"filling a collection of Solr with {count} documents")
    text = "Ferries cross a river on a rope or a chain, and carry what comes. " * 6
    with SolrServer() as old, OpenSearchServer() as new:
        url = old.collection("bench")
        client = PoolManager(maxsize=1)
        for start in range(0, count, 10_000):
            rows = [{"id": f"d{n:07}", "title_s": f"Ferry {n}", "text_s": text} for n in range(start, start + 10_000)]
            _ask(client, f"{url}/update", json.dumps(rows).encode())
        _ask(client, f"{url}/update?commit=true", b"[]")

        def move() -> None:
            plan = Plan("move", version=1)
            plan.source("old", Solr(url)).destination("new", OpenSearch(new.url, "ours"))
            with phases() as watch:
                summary = run(plan, state=empty_folder(folder / "state"), spark=spark(), observer=watch)
            assert summary.delivered == count, summary
            client.request("DELETE", f"{new.url}/ours")

        def move_bare() -> None:
            mark, after, number = "", "*", 0
            while after != mark:
                mark = after
                form = {"q": "*:*", "sort": "id asc", "rows": str(PAGE), "cursorMark": mark, "wt": "json"}
                answer = json.loads(
                    client.request_encode_body("POST", f"{url}/select", form, encode_multipart=False).data
                )
                after, lines = answer["nextCursorMark"], []
                for row in answer["response"]["docs"]:
                    number += 1
                    action = {"_id": row["id"], "version": number, "version_type": "external_gte"}
                    lines += [
                        json.dumps({"index": action}),
                        json.dumps({"title_s": row["title_s"], "text_s": row["text_s"]}),
                    ]
                if lines:
                    body = "\n".join([*lines, ""]).encode()
                    assert not _ask(client, f"{new.url}/bare/_bulk", body, "application/x-ndjson")["errors"]
            assert number == count
            client.request("DELETE", f"{new.url}/bare")

        ours, bare = alternate(rounds, move, move_bare)
        yield time_row(
            f"{count} documents from Solr into OpenSearch; a loop, one page at a time", count, ours, bare, 2.0
        )


def _measure_copy(rounds: int, count: int, folder: Path) -> Iterator[Row]:
    """Measure what copies an index of OpenSearch to another one, and its memory at two sizes."""
    print_progress(f"filling an index of OpenSearch with {count} documents")
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), ELASTICDUMP]
    subprocess.run(install, check=True)
    text = "Ferries cross a river on a rope or a chain, and carry what comes. " * 6
    with OpenSearchServer() as server:
        client = PoolManager(maxsize=1)
        for start in range(0, count, 10_000):
            lines = []
            for n in range(start, min(start + 10_000, count)):
                lines += [json.dumps({"index": {"_id": f"d{n:07}"}}), json.dumps({"title": f"Ferry {n}", "text": text})]
            for index in ("old", "few") if start < count // 10 else ("old",):
                body = "\n".join([*lines, ""]).encode()
                assert not _ask(client, f"{server.url}/{index}/_bulk", body, "application/x-ndjson")["errors"]
        client.request("POST", f"{server.url}/old,few/_refresh")

        def copy(index: str, expected: int) -> None:
            plan = Plan("copy", version=1)
            plan.source("old", OpenSearchSource(server.url, index)).destination("new", OpenSearch(server.url, "ours"))
            with phases() as watch:
                summary = run(plan, state=empty_folder(folder / "state"), spark=spark(), observer=watch)
            assert summary.delivered == expected, summary
            client.request("DELETE", f"{server.url}/ours")

        def dump() -> None:
            command = [str(folder / "node_modules" / ".bin" / "elasticdump"), f"--input={server.url}/old"]
            command += [f"--output={server.url}/dumped", "--type=data", f"--limit={PAGE}", "--quiet"]
            subprocess.run(command, check=True, capture_output=True)
            client.request("POST", f"{server.url}/dumped/_refresh")
            [found] = client.request("GET", f"{server.url}/_cat/count/dumped?format=json").json()
            assert int(found["count"]) == count, found
            client.request("DELETE", f"{server.url}/dumped")

        few = client.request("GET", f"{server.url}/_cat/count/few?format=json").json()[0]["count"]
        ours, peer, small = alternate(rounds, lambda: copy("old", count), dump, lambda: copy("few", int(few)))
        yield time_row(f"{count} documents from OpenSearch into OpenSearch; elasticdump", count, ours, peer, 1.0)
        for kind in ("driver", "worker"):
            ratio = ours.mb[kind] / small.mb[kind]
            yield Row(
                f"peak memory of the {kind}: {count} documents of an index; {few} documents",
                f"{ours.mb[kind]} MB",
                f"{small.mb[kind]} MB",
                f"{ratio:.2f}×",
                f"≤ {FLAT}×",
                ratio <= FLAT,
            )


def _ask(client: PoolManager, url: str, body: bytes, kind: str = "application/json") -> dict[str, Any]:
    answer = client.request("POST", url, body=body, headers={"content-type": kind})
    assert answer.status == 200, answer.data[:500]
    found: dict[str, Any] = answer.json()
    return found


def _mail(number: int) -> bytes:
    return f"Message-ID: <{number}@example.org>\nSubject: Mail {number}\n\nAbout ferries.\n".encode()


def _scan(source: Source, marks: dict[str, Any]) -> dict[str, Any]:
    """List everything; return the bookmarks for the next scan."""
    found = dict(marks)
    listed = 0
    for partition in source.partitions_after(marks):
        for entry in source.listing(partition):
            if isinstance(entry, Bookmark):
                found[entry.partition] = entry.value
            if isinstance(entry, Complete) and entry.bookmark is not None:
                found[entry.bookmark.partition] = entry.bookmark.value
            listed += isinstance(entry, Listed)
    return {name: value for name, value in found.items() if value is not None}


def _git(folder: Path, *arguments: str, given: bytes = b"") -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], input=given, check=True, capture_output=True)


def _commit(path: Path, files: dict[str, str]) -> None:
    """Commit these files on top of the branch, by one stream."""
    lines = ["commit refs/heads/main", "committer A <a@example.org> 1714557600 +0000", "data 1", "x"]
    has_parent = subprocess.run(["git", "-C", str(path), "rev-parse", "main"], capture_output=True, check=False)
    if not has_parent.returncode:
        lines.append("from refs/heads/main^0")
    for name, text in files.items():
        lines += [f"M 100644 inline {name}", f"data {len(text)}", text]
    _git(path, "fast-import", "--quiet", "--force", given="\n".join([*lines, ""]).encode())
