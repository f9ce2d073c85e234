"""Scans of a site on a real server, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.sources import Bookmark, Fetched, Listed, Note, Site
from tests.support.site_server import SiteServer


class Scans:
    """Scans of a site, one after the other, each with the memory of the one before."""

    def __init__(self, server: SiteServer, **options: Any) -> None:
        self.server = server
        self.options = {"rate": 100_000, **options}
        self.marks: dict[str, Any] = {}
        self.notes: list[str] = []
        self.error: Exception | None = None
        self.read: list[str] = []
        self.contents: dict[str, bytes] = {}

    def source(self, **options: Any) -> Site:
        return Site(self.server.url + "/", **{**self.options, **options})

    def scan(self, **options: Any) -> list[str]:
        """Scan, and return the paths of the documents; ``read`` has those of them that came with content."""
        self.notes, self.error, self.read = [], None, []
        listed: dict[str, None] = {}
        marks = {}
        source = self.source(**options)
        for partition in source.partitions_after(dict(self.marks)):
            try:
                for entry in source.listing(partition):
                    match entry:
                        case Note():
                            self.notes.append(entry.text)
                        case Bookmark():
                            marks[entry.partition] = entry.value
                        case Fetched():
                            path = entry.document.id.removeprefix(self.server.url)
                            listed[path] = None
                            self.read.append(path)
                            self.contents[path] = entry.document.raw or b""
                        case Listed():
                            listed[entry.id.removeprefix(self.server.url)] = None
            except Exception as e:
                self.error = e
        self.marks = {name: value for name, value in (self.marks | marks).items() if value is not None}
        self.read.sort()
        return sorted(listed)


@pytest.fixture
def server() -> Iterator[SiteServer]:
    with SiteServer() as site:
        site.page("/", "Home of a site about ferries and rivers", "/a", "b#part")
        site.page("/a", "All about ferries on a chain")
        site.page("/b", "All about ferries on a rope", "/a")
        yield site
