"""Every kind of source is killed while its changes are found and committed: what arrives is what a run without faults
delivers, each delivery once, and nothing is deleted that is there."""

from __future__ import annotations

import importlib.util
import json
import mailbox
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.destinations.elsewhere import Served
from tests.servers.registry import require
from tests.support import source_story
from tests.support.git_server import GitRepository
from tests.support.mails import mail
from tests.support.plan_world import place
from tests.support.program import run_program
from tests.support.site_server import SiteServer

__all__ = ["place"]

POINTS = ["scan.listed:1", "scan.judged:1", "commit.ready:1", "commit.ready:2", "wave.logged:1", "wave.logged:2"]
"""A scan is one, and its changes are several waves."""

BEFORE = {name: f"About {name}, a ferry" for name in ("alma", "bertha", "clara", "dora", "ella", "frieda")}
"""What there is at first; then two of it change, one goes, and one comes."""

AFTER = {**BEFORE, "alma": "Alma has moved", "dora": "Dora was painted", "greta": "A new ferry"}
del AFTER["clara"]


class World:
    """What a source reads, as the outside world changes it.

    Attributes:
        options: of the source.
        environment: variables that it needs.
    """

    environment: dict[str, str] = {}  # noqa: RUF012 - a constant
    options: dict[str, Any]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.there: dict[str, str] = {}

    def become(self, documents: dict[str, str]) -> None:
        """Have these documents, and no others."""
        gone = self.there.keys() - documents.keys()
        self.change({name: text for name, text in documents.items() if self.there.get(name) != text}, sorted(gone))
        self.there = dict(documents)

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        raise NotImplementedError


class InRows(World):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "rows.json"
        self.options = {"path": str(self.path), "max_deleted": 1}
        self.rows: dict[str, Any] = {}

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        self.rows |= {name: {"id": name, "text": text} for name, text in put.items()}
        for name in gone:
            del self.rows[name]
        self.path.write_text(json.dumps(list(self.rows.values())))


class InChanges(World):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "changes.json"
        self.options = {"path": str(self.path)}
        self.changes: list[dict[str, str]] = []

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        self.changes += [{"id": name, "text": text} for name, text in put.items()] + [{"id": name} for name in gone]
        self.path.write_text(json.dumps(self.changes))


class InRepository(World):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.repository = GitRepository(folder / "r")
        self.options = {"url": str(folder / "r"), "cache": str(folder / "cache"), "max_deleted": 1}

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        for name, text in put.items():
            self.repository.put(name, text)
        if gone:
            self.repository.git("rm", "--quiet", *gone)
        self.repository.commit()


class InMaildir(World):
    """A mail does not change: another one comes in its place."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mails = mailbox.Maildir(folder / "mails")
        self.options = {"path": str(folder / "mails"), "max_deleted": 1}
        self.keys: dict[str, str] = {}

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        for name in (*gone, *(put.keys() & self.keys.keys())):
            self.mails.remove(self.keys.pop(name))
        for name, text in put.items():
            self.keys[name] = self.mails.add(mail(f"{name}{len(text)}", text))


class OnImap(World):
    def __init__(self, folder: Path, server: Any) -> None:
        super().__init__(folder)
        from imapclient import IMAPClient

        from tests.servers.dovecot import PASSWORD

        self.environment = {"IMAP_PASSWORD": PASSWORD}
        user = "".join(filter(str.isalnum, folder.parent.name)).lower()
        self.options = {"host": "127.0.0.1", "user": user, "security": "none", "port": server.port, "max_deleted": 1}
        self.client = IMAPClient("127.0.0.1", server.port, ssl=False)
        self.client.login(user, PASSWORD)

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        self.client.select_folder("INBOX")
        for name in (*gone, *(put.keys() & self.there.keys())):
            self.client.delete_messages(self.client.search(["SUBJECT", f"Mail {name}"]))
        self.client.expunge()
        for name, text in put.items():
            self.client.append("INBOX", mail(f"{name}{len(text)}", text, Subject_=name))


class OnSite(World):
    def __init__(self, folder: Path, server: SiteServer) -> None:
        super().__init__(folder)
        self.server = server
        self.options = {"url": f"{server.url}/", "rate": 100_000, "max_deleted": 1}

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        for name, text in put.items():
            self.server.page(f"/{name}", text)
        for name in gone:
            del self.server.pages[f"/{name}"]
        names = sorted((self.there.keys() | put.keys()) - set(gone))
        self.server.page("/", "Ferries", *(f"/{name}" for name in names))


class OnDrive(World):
    def __init__(self, folder: Path, served: Served) -> None:
        super().__init__(folder)
        self.served = served
        served.folder.mkdir()
        self.environment = {name: value for name, value in served.server.login.items() if name.isupper()}
        self.options = {"root": served.url, "storage_options": served.options or None, "max_deleted": 1}

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        then = time.time() - 3600
        for name, text in put.items():
            self.served.write(name, text.encode())
            os.utime(self.served.folder / name, (then - len(text), then - len(text)))
        for name in gone:
            (self.served.folder / name).unlink()


class InIndex(World):
    def __init__(self, folder: Path, there: Any, **options: Any) -> None:
        super().__init__(folder)
        self.index = there
        self.options = {**options, "max_deleted": 1}

    def change(self, put: dict[str, str], gone: list[str]) -> None:
        self.index.put({name: {"title": text} for name, text in put.items()})
        for name in gone:
            self.index.delete(name)


KINDS = ("Rows", "Cursor", "Dlt", "Site", "Git", "Mailbox")
ON_SERVERS = ("Imap", "OpenSearch", "Elasticsearch", "Solr", "Files")
OFTEN = {"Rows": "wave.logged:2", "Cursor": "commit.ready:2", "Dlt": "scan.judged:1", "Site": "wave.logged:1",
         "Git": "wave.logged:1", "Mailbox": "commit.ready:1", "Imap": "wave.logged:1", "OpenSearch": "commit.ready:2",
         "Elasticsearch": "wave.logged:1", "Solr": "scan.listed:1", "Files": "wave.logged:2"}  # fmt: skip
"""The kill of each kind in the ordinary run."""


@pytest.fixture
def site() -> Iterator[SiteServer]:
    with SiteServer() as server:
        yield server


def world_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> World:
    folder.mkdir()
    if kind == "Dlt" and importlib.util.find_spec("dlt") is None:
        require("dlt is not installed")
    if kind == "Git" and not shutil.which("git"):
        require("git is not installed")
    simple = {"Rows": InRows, "Dlt": InRows, "Cursor": InChanges, "Git": InRepository, "Mailbox": InMaildir}
    if kind in simple:
        return simple[kind](folder)
    if kind == "Site":
        return OnSite(folder, request.getfixturevalue("site"))
    server: Callable[[str], Any] = request.getfixturevalue("server")
    if kind == "Imap":
        return OnImap(folder, server("dovecot"))
    if kind == "Files":
        return OnDrive(folder, Served(server("webdav"), request.getfixturevalue("monkeypatch")))
    from tests.sources.test_indexes import InSearchEngine, InSolr

    name = f"killed-{folder.parent.name}-{folder.name}".lower()
    if kind == "Solr":
        there = InSolr(server("solr"), name)
        return InIndex(folder, there, url=there.url, content="title")
    real = server({"OpenSearch": "opensearch", "Elasticsearch": "elasticsearch8"}[kind])
    return InIndex(folder, InSearchEngine(real, name), url=real.url, index=name, content="title")


def cases(kinds: tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(kind, point, id=f"{kind}-{point}", marks=[] if OFTEN.get(kind) == point else [pytest.mark.slow])
        for kind in kinds
        for point in POINTS
    ]


def kill_and_go_on(kind: str, point: str, place: Path, request: pytest.FixtureRequest) -> None:
    world = world_of(kind, place / "world", request)
    for name, value in world.environment.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    killed, told = place / "killed", (kind, json.dumps(world.options), json.dumps(world.environment))
    world.become(BEFORE)
    source_story.run(killed, kind, world.options)
    world.become(AFTER)
    ended = run_program("tests.support.source_story", killed, *told, point=point)
    assert ended.returncode == -signal.SIGKILL, (ended.returncode, ended.stderr)
    for _ in range(2):
        source_story.run(killed, kind, world.options)
    source_story.run(place / "whole", kind, world.options)
    there, sent = source_story.delivered(killed)
    assert there == source_story.delivered(place / "whole")[0]
    home = 1 if kind == "Site" else 0  # the page that has the links
    assert len(there) == len(AFTER) + home
    gone = 3 if kind in ("Mailbox", "Imap") else 1  # there, a changed one is a new one
    assert Counter(sent) == {"upsert": len(BEFORE) + 3 + 2 * home, "delete": gone}


@pytest.mark.rule("source.killed")
@pytest.mark.parametrize(("kind", "point"), cases(KINDS))
def test_a_source_is_killed(kind: str, point: str, place: Path, request: pytest.FixtureRequest) -> None:
    kill_and_go_on(kind, point, place, request)


@pytest.mark.rule("source.killed")
@pytest.mark.server
@pytest.mark.parametrize(("kind", "point"), cases(ON_SERVERS))
def test_a_source_on_a_server_is_killed(kind: str, point: str, place: Path, request: pytest.FixtureRequest) -> None:
    kill_and_go_on(kind, point, place, request)
