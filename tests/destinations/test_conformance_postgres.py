"""``Sql`` on PostgreSQL keeps every promise of the port, and of destinations that are servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from ferryman.destinations import Delivery
from ferryman.testing.destinations import delivery
from tests.destinations.postgres import Database, database, postgres
from tests.destinations.sql_table import SqlServerSuite
from tests.servers.postgres import PASSWORD

__all__ = ["database", "postgres"]


class OnPostgres(SqlServerSuite):
    secret = PASSWORD

    @pytest.fixture(autouse=True)
    def _database(self, database: Database) -> None:
        self.database = database

    def unfit(self, id: str, sequence: int) -> Delivery:
        """One that a constraint of the table refuses."""
        self.database.query(
            f'ALTER TABLE "{self.table.replace(chr(34), chr(34) * 2)}" DROP CONSTRAINT IF EXISTS fit, '
            "ADD CONSTRAINT fit CHECK (title <> 'unfit')"
        )
        return delivery(id, sequence, fields={"title": "unfit"})


class TestUpsert(OnPostgres):
    keyed = True


class TestUpsertFullText(OnPostgres):
    keyed = True
    table = 'od"d tab%le: 1'
    options: ClassVar[Mapping[str, Any]] = {"full_text": ["title", "text"]}


class TestAppend(OnPostgres):
    options: ClassVar[Mapping[str, Any]] = {"mode": "append"}


@pytest.mark.slow
class TestAppendFullText(OnPostgres):
    """Each of its two options is tried each time, by itself."""

    options: ClassVar[Mapping[str, Any]] = {"mode": "append", "full_text": ["text"]}
