"""Each store of vectors keeps the promises of the port."""

from __future__ import annotations

from pathlib import Path

from ferryman.destinations import Sql
from ferryman.destinations.vectors import Declaration, VectorDestination
from ferryman.testing.vectors import MemoryVectors, VectorSuite


class TestMemoryVectors(VectorSuite):
    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return MemoryVectors(str(folder), vectors)


class TestSqlite(VectorSuite):
    metrics = ("cosine", "l2")

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return Sql(f"sqlite:///{folder / 'out.db'}", vectors=vectors)


class TestSqliteWithFullText(VectorSuite):
    metrics = ("cosine", "l2")

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        url, columns = f"sqlite:///{folder / 'out.db'}", {"number": "n"}
        return Sql(url, 'od"d table', columns=columns, full_text=["text"], vectors=vectors)
