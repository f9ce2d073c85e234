"""``Sql`` on PostgreSQL keeps every promise of the port, and of destinations that are servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferryman.destinations import Delivery, Destination, Sql
from ferryman.testing.destinations import delivery
from ferryman.testing.servers import ServerSuite
from tests.destinations.postgres import Database, database, postgres
from tests.servers.postgres import PASSWORD

__all__ = ["database", "postgres"]


class OnPostgres(ServerSuite):
    secret = PASSWORD
    trigger = b"COMMIT"
    table = "documents"

    @pytest.fixture(autouse=True)
    def _database(self, database: Database) -> None:
        self.database = database

    def sql(self, url: str) -> Sql:
        raise NotImplementedError

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.database.server.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return self.sql(self.database.url_at(port))

    def stop(self) -> None:
        self.database.server.stop()

    def start(self) -> None:
        self.database.server.start()

    def wrong_credentials(self, folder: Path) -> Destination:
        return self.sql(self.database.url.replace(PASSWORD, f"{PASSWORD}-and-wrong"))

    def unfit(self, id: str, sequence: int) -> Delivery:
        """One that a constraint of the table refuses."""
        self.database.query(
            f'ALTER TABLE "{self.table.replace(chr(34), chr(34) * 2)}" DROP CONSTRAINT IF EXISTS fit, '
            "ADD CONSTRAINT fit CHECK (title <> 'unfit')"
        )
        return delivery(id, sequence, fields={"title": "unfit"})

    def hashes(self, folder: Path) -> list[str]:
        return self.database.hashes(self.table)


class TestUpsert(OnPostgres):
    keyed = True

    def sql(self, url: str) -> Sql:
        return Sql(url, columns={"title": "title"})


class TestUpsertFullText(OnPostgres):
    keyed = True
    table = 'od"d tab%le: 1'

    def sql(self, url: str) -> Sql:
        return Sql(url, table=self.table, columns={"title": "title"}, full_text=["title", "text"])


class TestAppend(OnPostgres):
    def sql(self, url: str) -> Sql:
        return Sql(url, mode="append", columns={"title": "title"})


@pytest.mark.slow
class TestAppendFullText(OnPostgres):
    """Each of its two options is tried each time, by itself."""

    def sql(self, url: str) -> Sql:
        return Sql(url, mode="append", columns={"title": "title"}, full_text=["text"])
