"""``Sql`` on MariaDB and MySQL keeps every promise of the port, and of destinations that are servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from ferryman.destinations import Delivery
from ferryman.destinations.sql.mysql import quoted
from ferryman.testing.destinations import delivery
from tests.destinations.mysql import MySqlDatabase
from tests.destinations.sql_table import SqlServerSuite
from tests.servers.mysql import PASSWORD


class OnMySql(SqlServerSuite):
    secret = PASSWORD
    name: str

    @pytest.fixture(autouse=True)
    def _database(self, server: Callable[[str], Any]) -> Iterator[None]:
        self.database = MySqlDatabase(server(self.name))
        yield
        self.database.drop()

    def stop(self) -> None:
        self.database.server.kill()

    def unfit(self, id: str, sequence: int) -> Delivery:
        """One that a column's type refuses."""
        self.database.query(f"ALTER TABLE {quoted(self.table)} MODIFY title VARCHAR(80)")
        return delivery(id, sequence, fields={"title": "unfit " * 20})


class Upsert(OnMySql):
    keyed = True
    table = "od`d tab%le: 1"


class Append(OnMySql):
    options: ClassVar[Mapping[str, Any]] = {"mode": "append"}


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
