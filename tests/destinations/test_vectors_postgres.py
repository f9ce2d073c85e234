"""Vectors in PostgreSQL with pgvector: the promises of the port, indexes, and what is checked before."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.destinations import Sql
from ferryman.destinations.vectors import Declaration, VectorDestination, VectorField, vector_fields
from ferryman.testing.vectors import VectorSuite
from tests.destinations.postgres import Database, database, postgres

__all__ = ["database", "postgres"]


class OnPostgres(VectorSuite):
    @pytest.fixture(autouse=True)
    def _database(self, database: Database) -> None:
        self.database = database

    def table(self, folder: Path) -> str:
        return f"t{abs(hash(str(folder)))}"


class TestPostgres(OnPostgres):
    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return Sql(self.database.url, self.table(folder), vectors=vectors)


class TestPostgresWithIndex(OnPostgres):
    """With an index "hnsw" that is there before the first row, full text, and columns."""

    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        indexed = {
            name: VectorField(v.dimensions, metric=v.metric, index="hnsw") for name, v in vector_fields(vectors).items()
        }
        return Sql(
            self.database.url,
            self.table(folder),
            columns={"number": "n"},
            full_text=["text"],
            vectors=indexed,
        )

    def settle(self, destination: VectorDestination) -> None:
        destination.maintain()
