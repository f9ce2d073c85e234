"""The how-to guides about databases are true: their commands and queries are run with real servers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_how_to import commands_of, is_shown
from tests.destinations.postgres import Database, database, postgres
from tests.docs.test_how_to import HOW_TO, Shell, parts
from tests.support.places import place

__all__ = ["database", "place", "postgres"]


def run_page(shell: Shell, page: Path) -> None:
    """Each command of the page in its order; each line that the page shows is a line of its output."""
    for file, text in parts(page):
        if file:
            (shell.folder / file).write_text(text)
            continue
        for line, shown in commands_of(text):
            came = shell.run(line)
            assert came or not shown, f"{line}: it said nothing"
            for wanted in shown:
                assert is_shown(wanted, came), f"{line}: no line {wanted!r} in:\n" + "\n".join(came)


@pytest.fixture
def shell(place: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("DATABASE_URL", database.url)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    made = Shell(place)
    yield made
    made.close()


def test_index_into_postgresql(shell: Shell, database: Database) -> None:
    """The page's commands, then its queries."""
    page = HOW_TO / "index-into-postgresql.md"
    run_page(shell, page)
    queries = re.findall(r"^```sql\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(queries) == 2
    for query in queries:
        database.query(query)


def test_index_a_database(shell: Shell) -> None:
    """The page's commands."""
    run_page(shell, HOW_TO / "index-a-database.md")
