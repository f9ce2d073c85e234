"""Qdrant keeps every promise of the port, by the real storage engine behind HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Delivery, Destination, Qdrant
from ferryman.destinations.qdrant import OBJECT
from ferryman.destinations.vectors import Declaration, VectorDestination
from ferryman.testing.destinations import delivery
from ferryman.testing.servers import ServerSuite
from ferryman.testing.vectors import VectorSuite
from tests.servers.qdrant import ProtectedQdrant
from tests.servers.server import Server

client = pytest.importorskip("qdrant_client")
pytestmark = pytest.mark.server


def points(url: str, collection: str) -> list[dict[str, Any]]:
    """Payloads of the collection's live points, read as any program reads them."""
    reader = client.QdrantClient(url=url, check_compatibility=False)
    deleted = client.models.FieldCondition(key=f"{OBJECT}.deleted_at", range=client.models.Range(gt=0))
    live = client.models.Filter(must_not=[deleted])
    found, rest = reader.scroll(collection, scroll_filter=live, limit=100_000, with_payload=True)
    reader.close()
    assert rest is None
    return [point.payload for point in found]


class TestQdrant(ServerSuite):
    keyed = True
    secret = "s3cret-0f-the-tests"
    trigger = b"/points/batch"
    real: Server

    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], Server]) -> None:
        self.real = server("qdrant")
        self.protected = server(ProtectedQdrant.name)

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.real.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return Qdrant(f"http://{host}:{port}", folder.name, {"vector": 4})

    def hashes(self, folder: Path) -> list[str]:
        return [payload[OBJECT]["hash"] for payload in points(self.real.url, folder.name)]

    def stop(self) -> None:
        self.real.kill()

    def start(self) -> None:
        self.real.start()

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence, fields={"n": 2**70})

    def wrong_credentials(self, folder: Path) -> Destination:
        return Qdrant(self.protected.url, folder.name, {"vector": 4}, api_key=self.secret)


class TestVectors(VectorSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], Server]) -> None:
        self.url = server("qdrant").url

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return Qdrant(self.url, f"{folder.parent.name}-{folder.name}", vectors)
