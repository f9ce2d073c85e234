"""LanceDB keeps every promise of the port, in a folder and in an object store; two writers, kills and compaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.destinations import Destination, LanceDB
from ferryman.destinations.vectors import Declaration, VectorDestination
from ferryman.testing.destinations import DestinationSuite
from ferryman.testing.vectors import VectorSuite

lancedb = pytest.importorskip("lancedb")


def hashes(folder: Path, table: str = "documents") -> list[str]:
    """Delivery hashes of the table's live rows, read as any program reads them."""
    opened = lancedb.connect(folder).open_table(table)
    return opened.search().where("deleted_at IS NULL").select(["delivery_hash"]).to_arrow()["delivery_hash"].to_pylist()


class TestLanceDB(DestinationSuite):
    keyed = True

    def destination(self, folder: Path) -> Destination:
        return LanceDB(folder / "index", vectors={"vector": 4})

    def hashes(self, folder: Path) -> list[str]:
        return hashes(folder / "index")


class TestVectors(VectorSuite):
    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return LanceDB(folder / "index", vectors=vectors)
