"""``Sql`` on MariaDB and MySQL keeps every promise of the port, and of destinations that are servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Delivery, Destination, Sql
from ferryman.destinations.sql.mysql import quoted
from ferryman.testing.destinations import delivery
from ferryman.testing.servers import ServerSuite
from tests.destinations.mysql import MySqlDatabase
from tests.servers.mysql import PASSWORD


class OnMySql(ServerSuite):
    secret = PASSWORD
    trigger = b"COMMIT"
    table = "documents"
    name: str

    @pytest.fixture(autouse=True)
    def _database(self, server: Callable[[str], Any]) -> Iterator[None]:
        self.database = MySqlDatabase(server(self.name))
        yield
        self.database.drop()

    def sql(self, url: str) -> Sql:
        raise NotImplementedError

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.database.server.port

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return self.sql(self.database.url_at(port))

    def stop(self) -> None:
        self.database.server.kill()

    def start(self) -> None:
        self.database.server.start()

    def wrong_credentials(self, folder: Path) -> Destination:
        return self.sql(self.database.url.replace(PASSWORD, f"{PASSWORD}-and-wrong"))

    def unfit(self, id: str, sequence: int) -> Delivery:
        """One that a column's type refuses."""
        self.database.query(f"ALTER TABLE {quoted(self.table)} MODIFY title VARCHAR(80)")
        return delivery(id, sequence, fields={"title": "unfit " * 20})

    def hashes(self, folder: Path) -> list[str]:
        return self.database.hashes(self.table)


class Upsert(OnMySql):
    keyed = True
    table = "od`d tab%le: 1"

    def sql(self, url: str) -> Sql:
        return Sql(url, table=self.table, columns={"title": "title"})


class Append(OnMySql):
    def sql(self, url: str) -> Sql:
        return Sql(url, mode="append", columns={"title": "title"})


class TestMariaDb(Upsert):
    name = "mariadb"


class TestMariaDbAppend(Append):
    name = "mariadb"


@pytest.mark.slow
class TestMySql(Upsert):
    name = "mysql"


@pytest.mark.slow
class TestMySqlAppend(Append):
    name = "mysql"
