"""Qdrant keeps every promise of the port, by the real storage engine behind HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferryman.destinations import Delivery, Destination, DestinationContext, Guarantee, Outcome, Qdrant
from ferryman.destinations.qdrant import OBJECT, point_id
from ferryman.destinations.vectors import TOMBSTONE_S, Declaration, VectorDestination, VectorField
from ferryman.errors import Misconfigured, PlanError, Unavailable
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.servers import ServerSuite
from ferryman.testing.vectors import VectorSuite, vector_delivery
from tests.servers.qdrant import ProtectedQdrant
from tests.servers.registry import require_package
from tests.servers.server import Server
from tests.support.receiver import Receiver, Reply, Request

client = require_package("qdrant_client")
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


def test_the_collection_remembers_the_model(server: Callable[[str], Server], tmp_path: Path) -> None:
    """Another one is refused with the way on; a plan that begins to name one is believed."""
    url = server("qdrant").url

    def named(model: str) -> Qdrant:
        return Qdrant(url, tmp_path.name, {"vector": VectorField(4, model=model)})

    for model in ("", "m1", "m1", ""):
        named(model).check()
    with pytest.raises(Misconfigured, match=r"model m1 there.*--from-version"):
        named("m2").check()


def test_a_delete_is_forgotten_when_nobody_can_undo_it(
    server: Callable[[str], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an hour an older upsert is stale, and nothing of ours shows it; then its point goes."""
    url = server("qdrant").url
    destination = Qdrant(url, tmp_path.name, {"vector": 4})
    context = DestinationContext("suite", 1, "node", 1, Guarantee.EXACTLY_ONCE)
    destination.check()
    destination.open(context)
    destination.write([vector_delivery("a", 1, [1, 0, 0, 0]), delete("a", 3), vector_delivery("b", 2, [0, 1, 0, 0])])
    assert destination.write([vector_delivery("a", 2, [1, 0, 0, 0])]) == [Outcome.stale()]
    assert [hit.id for hit in destination.nearest("vector", [1, 0, 0, 0], 10)] == ["b"]
    reader = client.QdrantClient(url=url, check_compatibility=False)
    destination.check()
    assert reader.count(tmp_path.name).count == 2
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + TOMBSTONE_S + 2)
    destination.check()
    assert reader.count(tmp_path.name).count == 1
    reader.close()
    destination.close()


def test_what_is_not_ours_is_left_alone(server: Callable[[str], Server], tmp_path: Path) -> None:
    """A point that another program has written at a document's place is not overwritten, and named."""
    url, name = server("qdrant").url, tmp_path.name
    destination = Qdrant(url, name, {"vector": 4})
    destination.check()
    destination.open(DestinationContext("suite", 1, "node", 1, Guarantee.EXACTLY_ONCE))
    reader = client.QdrantClient(url=url, check_compatibility=False)
    theirs = client.models.PointStruct(id=point_id("a"), vector={"vector": [1, 0, 0, 0]}, payload={"theirs": 1})
    reader.upsert(name, [theirs], wait=True)
    first, second = destination.write([vector_delivery("a", 1, [1, 0, 0, 0]), vector_delivery("b", 2, [0, 1, 0, 0])])
    assert (first.kind, second.kind) == ("permanent", "ok")
    assert "another program" in first.why
    assert reader.retrieve(name, [point_id("a")])[0].payload == {"theirs": 1}
    reader.close()
    destination.close()


def test_a_server_without_conditions_is_refused() -> None:
    """It would take an older version over a newer one, without a word."""
    destination = Qdrant("http://localhost:6333", "pages", {"vector": 4})
    for version in ("1.15.5", "0.11.0", "?"):
        with pytest.raises(Misconfigured, match=r"1\.16"):
            destination.check_version(version)
    destination.check_version("1.16.0")
    destination.check_version("2.0.1-dev")


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "localhost:6333"}, {"collection": "a/b"}, {"vectors": {"_ferryman": 4}}, {"text": "_ferryman"},
        {"payload_indexes": {"team": "word"}}, {"vectors": {"v": 0}},
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    """When the plan is made."""
    with pytest.raises(PlanError):
        Qdrant(**{"url": "http://localhost:6333", "collection": "pages", "vectors": {"vector": 4}, **wrong})


BUSY = {
    "a time": {"retry-after": "10000"},
    "a date": {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"},
    "nothing": {},
}


@pytest.mark.parametrize("headers", BUSY.values(), ids=[*BUSY])
def test_a_server_that_is_busy_is_away(headers: dict[str, str]) -> None:
    """429: with what it asks for in the message. Nothing is sent again before that."""
    with Receiver(lambda request: Reply(429, headers=headers)) as receiver:
        out = Qdrant(receiver.url.removesuffix("/hook"), "plays", {"vector": 4})
        out.open(DestinationContext("tests", 1, "node", 1, Guarantee.AT_LEAST_ONCE))
        with pytest.raises(Unavailable, match="asks to wait 10000 s" if headers.get("retry-after") == "10000" else ""):
            out.write([vector_delivery("a", 1, [1.0, 0.0, 0.0, 0.0])])
        assert len(receiver.requests) == 1


def test_a_short_wait_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(
        "ferryman.destinations.qdrant.time", SimpleNamespace(sleep=waited.append, monotonic=lambda: 0.0)
    )
    sent = vector_delivery("a", 1, [1.0, 0.0, 0.0, 0.0])

    def answer(request: Request) -> Reply:
        if not waited:
            return Reply(429, headers={"retry-after": "2"})
        result: list[Any] = [{"operation_id": 0, "status": "completed"}]
        if not request.path.partition("?")[0].endswith("/batch"):
            own = {"id": sent.id, "hash": sent.hash, "sequence": sent.sequence}
            result = [{"id": point_id(sent.id), "payload": {OBJECT: own}}]
        return Reply(body=json.dumps({"result": result, "status": "ok", "time": 0.0}).encode())

    with Receiver(answer) as receiver:
        out = Qdrant(receiver.url.removesuffix("/hook"), "plays", {"vector": 4})
        out.open(DestinationContext("tests", 1, "node", 1, Guarantee.AT_LEAST_ONCE))
        assert out.write([sent]) == [Outcome.ok()]
    assert waited == [2]
