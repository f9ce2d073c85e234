"""``Sql`` on PostgreSQL keeps every promise of the port."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.destinations import Destination, Sql
from ferryman.testing.destinations import DestinationSuite
from tests.destinations.postgres import Database, database, postgres

__all__ = ["database", "postgres"]


class OnPostgres(DestinationSuite):
    secret = "not-so-secret"
    table = "documents"

    @pytest.fixture(autouse=True)
    def _database(self, database: Database) -> None:
        self.database = database

    def hashes(self, folder: Path) -> list[str]:
        return self.database.hashes(self.table)


class TestUpsert(OnPostgres):
    keyed = True

    def destination(self, folder: Path) -> Destination:
        return Sql(self.database.url, columns={"title": "title"})


class TestUpsertFullText(OnPostgres):
    keyed = True
    table = 'od"d tab%le'

    def destination(self, folder: Path) -> Destination:
        columns = {"title": "title"}
        return Sql(self.database.url, table=self.table, columns=columns, full_text=["title", "text"])


class TestAppend(OnPostgres):
    def destination(self, folder: Path) -> Destination:
        return Sql(self.database.url, mode="append", columns={"title": "title"})


class TestAppendFullText(OnPostgres):
    def destination(self, folder: Path) -> Destination:
        return Sql(self.database.url, mode="append", columns={"title": "title"}, full_text=["text"])
