"""After many rounds of edits a store finds as much as one that is filled anew, and is not much larger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferryman.destinations import DestinationContext, Guarantee, Milvus, OpenSearch, Qdrant, Sql
from ferryman.destinations.base import Delivery
from ferryman.destinations.vectors import VectorDestination, VectorField
from ferryman.testing.destinations import delete, delivery
from tests.destinations.postgres import Database, database, postgres
from tests.servers.server import Server

__all__ = ["database", "postgres"]

DOCUMENTS = 3000
DIMENSIONS = 48
ROUNDS = 20
QUESTIONS = 50
NEAREST = 10

pytestmark = pytest.mark.slow


class Edited:
    """Vectors that are edited, and the deliveries of it: a tenth in each round, of which a few are deleted and come
    back."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(11)
        self._sequence = 0
        self.vectors: dict[str, Any] = {}

    def load(self) -> list[Delivery]:
        return [self._upsert(f"doc-{i}") for i in range(DOCUMENTS)]

    def edit(self) -> list[Delivery]:
        chosen = [f"doc-{i}" for i in self._random.choice(DOCUMENTS, DOCUMENTS // 10, replace=False)]
        deleted = {id for id in chosen[::10] if id in self.vectors}
        return [self._delete(id) if id in deleted else self._upsert(id) for id in chosen]

    def _upsert(self, id: str) -> Delivery:
        self._sequence += 1
        self.vectors[id] = self._random.standard_normal(DIMENSIONS).astype(np.float32)
        return delivery(id, self._sequence, "text", {"vector": self.vectors[id]})

    def _delete(self, id: str) -> Delivery:
        self._sequence += 1
        del self.vectors[id]
        return delete(id, self._sequence)

    def current(self) -> list[Delivery]:
        """Deliveries that fill a store anew."""
        return [delivery(id, i + 1, "text", {"vector": v}) for i, (id, v) in enumerate(self.vectors.items())]

    def recall(self, destination: VectorDestination) -> float:
        """Return the share of the nearest documents that are found."""
        ids, points = list(self.vectors), np.stack(list(self.vectors.values()))
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
        found = 0
        for question in np.random.default_rng(5).standard_normal((QUESTIONS, DIMENSIONS)).astype(np.float32):
            nearest = {ids[i] for i in np.argsort(-points @ question)[:NEAREST]}
            found += len(nearest & {hit.id for hit in destination.nearest("vector", question, NEAREST)})
        return found / QUESTIONS / NEAREST


def write(destination: VectorDestination, chunk: list[Delivery]) -> None:
    destination.check()
    guarantee = Guarantee.EXACTLY_ONCE if destination.transactional else Guarantee.AT_LEAST_ONCE
    destination.open(DestinationContext("test", 1, "index", 1, guarantee))
    assert {o.kind for o in destination.write(chunk)} == {"ok"}
    destination.close()
    destination.maintain()


def edit_and_compare(
    edited: VectorDestination, fresh: VectorDestination, size: Callable[[VectorDestination], int] | None
) -> None:
    """Assert that after 20 rounds of 10 % edits the recall is 0.95 of a fresh store's, and the size twice at most.

    Args:
        size: bytes of a store; None: the server decides when space becomes free.
    """
    documents = Edited()
    write(edited, documents.load())
    for _ in range(ROUNDS):
        write(edited, documents.edit())
    write(fresh, documents.current())
    before, after = documents.recall(fresh), documents.recall(edited)
    sizes = (size(edited), size(fresh)) if size else (0, 0)
    measured = f"recall {after:.3f}, fresh {before:.3f}; bytes {sizes[0]}, fresh {sizes[1]}"
    assert after >= 0.95 * before, measured
    assert before >= 0.9, measured
    assert sizes[0] <= 2 * sizes[1], measured
    logging.getLogger("ferryman").info(measured)


def test_sqlite(tmp_path: Path) -> None:
    """Each vector is compared, so nothing is missed; space is used again."""
    stores = [Sql(f"sqlite:///{tmp_path}/{name}.db", vectors={"vector": DIMENSIONS}) for name in ("edited", "fresh")]
    names = {id(stores[0]): "edited", id(stores[1]): "fresh"}
    edit_and_compare(stores[0], stores[1], lambda store: (tmp_path / f"{names[id(store)]}.db").stat().st_size)


def test_postgres(database: Database) -> None:
    """The index that was kept up to date finds what one that was built at the end finds."""
    vectors = {"vector": VectorField(DIMENSIONS, index="hnsw")}
    edited, fresh = (Sql(database.url, name, vectors=vectors) for name in ("edited", "fresh"))

    def size(store: VectorDestination) -> int:
        name = "edited" if store is edited else "fresh"
        [(total,)] = database.query(f"SELECT pg_total_relation_size('{name}')")
        return int(total)

    edit_and_compare(edited, fresh, size)


def test_opensearch(server: Callable[[str], Server]) -> None:
    """What was replaced is no longer found. The server keeps it for copies of a shard, for a while."""
    url = f"http://127.0.0.1:{server('opensearch-knn').port}"
    edited, fresh = (
        OpenSearch(url, name, refresh=True, vectors={"vector": DIMENSIONS}, settings={"number_of_replicas": 0})
        for name in ("recall-edited", "recall-fresh")
    )
    edit_and_compare(edited, fresh, None)


def test_qdrant(server: Callable[[str], Server]) -> None:
    """Its engine merges segments by itself."""
    pytest.importorskip("qdrant_client")
    running = server("qdrant")
    edited, fresh = (
        Qdrant(f"http://127.0.0.1:{running.port}", name, {"vector": DIMENSIONS})
        for name in ("recall-edited", "recall-fresh")
    )
    edit_and_compare(edited, fresh, None)


def test_milvus(server: Callable[[str], Server]) -> None:
    """Milvus Lite keeps the index up to date."""
    pytest.importorskip("pymilvus")
    running = server("milvus")
    edited, fresh = (
        Milvus(f"http://127.0.0.1:{running.port}", name, {"vector": DIMENSIONS})
        for name in ("recall_edited", "recall_fresh")
    )
    edit_and_compare(edited, fresh, None)
