"""The how-to guides about databases are true: their commands and queries are run with real servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.destinations.postgres import Database, database, postgres
from tests.support.page import HOW_TO, QuickShell
from tests.support.plan_world import place

__all__ = ["database", "place", "postgres"]


@pytest.fixture
def shell(place: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickShell]:
    monkeypatch.setenv("DATABASE_URL", database.url)
    with QuickShell(place) as made:
        yield made


def test_index_into_postgresql(shell: QuickShell, database: Database) -> None:
    """The page's commands, then its queries."""
    page = HOW_TO / "index-into-postgresql.md"
    shell.follow(page)
    queries = re.findall(r"^```sql\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(queries) == 2
    for query in queries:
        database.query(query)


def test_index_a_database(shell: QuickShell) -> None:
    """The page's commands."""
    shell.follow(HOW_TO / "index-a-database.md")
