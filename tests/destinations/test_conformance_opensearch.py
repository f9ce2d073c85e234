"""OpenSearch keeps every promise of the port, against the real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ferryman.destinations import Delivery, Destination, OpenSearch
from ferryman.testing.destinations import delivery
from ferryman.testing.servers import ServerSuite
from tests.destinations.search_index import SearchIndex
from tests.servers.server import Server
from tests.support.gate import Gate

MAPPINGS = {"properties": {"title": {"type": "text"}, "year": {"type": "long"}}}


class Suite(ServerSuite):
    """Over a server of the same protocol; ``name`` says which."""

    keyed = True
    secret = "s3cret-0f-the-tests"
    trigger = b"/_bulk"
    name: str
    real: Server

    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], Server]) -> None:
        self.real = server(self.name)

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.real.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return OpenSearch(f"http://{host}:{port}", folder.name, MAPPINGS)

    def hashes(self, folder: Path) -> list[str]:
        return SearchIndex(self.real.url, folder.name).hashes()

    def stop(self) -> None:
        self.real.kill()

    def start(self) -> None:
        self.real.start()

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence, fields={"year": f"MD{'C' * (sequence % 7)}"})


class TestOpenSearch(Suite):
    name = "opensearch"

    @pytest.fixture(autouse=True)
    def _gate(self, gate: Gate) -> None:
        self.gate = gate

    def wrong_credentials(self, folder: Path) -> Destination:
        return OpenSearch(self.gate.url, folder.name, auth=("ferryman", self.secret), ca=self.gate.ca)
