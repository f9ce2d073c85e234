"""The ``Solr`` destination, against a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Delivery, Destination, Solr
from ferryman.testing.destinations import delivery
from ferryman.testing.servers import ServerSuite
from tests.servers.solr import SolrServer


@pytest.fixture(scope="module")
def solr(server: Callable[[str], Any]) -> SolrServer:
    found: SolrServer = server("solr")
    return found


def name_of(folder: Path) -> str:
    """A test's own collection."""
    return f"{folder.parent.name}-{folder.name}"


class Promises(ServerSuite):
    """What both kinds of collections keep."""

    keyed = True
    trigger = b"/update"
    streams = True
    kind: str
    versions: str | None

    @pytest.fixture(autouse=True)
    def _solr(self, solr: SolrServer, tmp_path: Path) -> Iterator[None]:
        self.solr = solr
        solr.collection(name_of(tmp_path), self.kind)
        yield
        solr.get("/admin/cores", action="UNLOAD", core=name_of(tmp_path), deleteInstanceDir="true")

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.solr.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return Solr(f"http://{host}:{port}/solr/{name_of(folder)}", versions=self.versions)

    def destination(self, folder: Path) -> Destination:
        return self.destination_at(folder, "127.0.0.1", self.solr.port if hasattr(self, "solr") else 1)

    def hashes(self, folder: Path) -> list[str]:
        found = self.solr.documents(name_of(folder), fq="ferryman_hash_s:*")
        return [document["ferryman_hash_s"] for document in found]

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence, fields={"words": "many"})

    def stop(self) -> None:
        self.solr.kill()

    def start(self) -> None:
        self.solr.start()


class TestPlain(Promises):
    kind, versions = "plain", None


class TestVersions(Promises):
    kind, versions = "versions", SolrServer.delete_parameter


del Promises  # pytest would collect it
