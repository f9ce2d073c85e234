"""Milvus keeps every promise of the port that it makes, by Milvus Lite as a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest

from ferryman.destinations import Delivery, Destination, Milvus
from ferryman.destinations.vectors import Declaration, VectorDestination
from ferryman.errors import Misconfigured
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.proxy import ProxyFault
from ferryman.testing.servers import ServerSuite
from ferryman.testing.vectors import VectorSuite
from tests.servers.registry import require_package
from tests.servers.server import Server

pymilvus = require_package("pymilvus")
pytestmark = pytest.mark.server


def collection(folder: Path) -> str:
    return "c" + "".join(c if c.isalnum() else "_" for c in f"{folder.parent.name}_{folder.name}")


class InOrder(Milvus):
    """With one writer at a time it does compare sequences, and is tested for it."""

    compares_sequences = True


class TestMilvus(ServerSuite):
    keyed = True
    trigger = b"/milvus.proto.milvus.MilvusService/Upsert"
    real: Server

    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], Server]) -> None:
        self.real = server("milvus")

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.real.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return InOrder(f"http://{host}:{port}", collection(folder), {"vector": 4})

    def hashes(self, folder: Path) -> list[str]:
        client = pymilvus.MilvusClient(self.real.url)
        pages = client.query_iterator(collection(folder), filter="deleted_at == 0", output_fields=["delivery_hash"])
        found = []
        while page := pages.next():
            found += [row["delivery_hash"] for row in page]
        client.close()
        return found

    def stop(self) -> None:
        self.real.kill()

    def start(self) -> None:
        self.real.start()

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence, text="x" * 70_000)

    def _breaks(self, folder: Path, chunk: list[Delivery], fault: ProxyFault) -> None:
        raise SkipTest("the client sends a request again by itself: nobody hears of a connection that broke once")

    @pytest.mark.parametrize("fault", ProxyFault)
    def test_a_connection_that_breaks_once_harms_nothing(self, tmp_path: Path, fault: ProxyFault) -> None:
        """Whether the server had the request or not, each delivery is stored once."""
        chunk = [delivery(f"doc-{i}", i) for i in range(1, 21)] + [delete("gone", 50)]
        with self._through(tmp_path) as (proxy, destination):
            proxy.break_next(fault, self.trigger)
            assert {o.kind for o in destination.write(chunk)} == {"ok"}
            assert proxy.broken == 1
        self._holds(tmp_path, chunk)


class TestVectors(VectorSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: Callable[[str], Server]) -> None:
        self.url = server("milvus").url

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return Milvus(self.url, collection(folder), vectors)


def test_a_server_that_keeps_no_missing_values_is_refused(
    server: Callable[[str], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Milvus 2.3 makes such a collection without a word, and would refuse each delete as its document's fault."""
    describe = pymilvus.MilvusClient.describe_collection

    def describe_as_2_3_does(*args: Any, **options: Any) -> dict[str, Any]:
        found = describe(*args, **options)
        fields = [{name: value for name, value in field.items() if name != "nullable"} for field in found["fields"]]
        return {**found, "fields": fields}

    destination = Milvus(server("milvus").url, collection(tmp_path), {"vector": 4})
    destination.check()
    monkeypatch.setattr(pymilvus.MilvusClient, "describe_collection", describe_as_2_3_does)
    with pytest.raises(Misconfigured, match=r"2\.5"):
        destination.check()


def test_a_token_from_the_environment_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the server repeats it, or the password in it."""

    def refuse(*args: Any, **options: Any) -> None:
        raise pymilvus.MilvusException(1100, "auth check failure: root:hunter2 (password hunter2)")

    monkeypatch.setenv("MILVUS_TOKEN", "root:hunter2")
    monkeypatch.setattr("pymilvus.MilvusClient", refuse)
    with pytest.raises(Misconfigured, match="auth check failure") as raised:
        Milvus("http://127.0.0.1:1", "pages", {"vector": 4}, token="${MILVUS_TOKEN}").check()
    assert "hunter2" not in str(raised.value)
