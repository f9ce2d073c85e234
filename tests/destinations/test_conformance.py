"""Every shipped destination keeps every promise of the port."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from ferryman.destinations import Destination, JsonLines, Memory, Null, Sql
from ferryman.testing.destinations import DestinationSuite


def sql_hashes(path: Path, table: str = "documents") -> list[str]:
    with sqlite3.connect(path) as connection:
        return [digest for (digest,) in connection.execute(f'SELECT delivery_hash FROM "{table}"')]


class TestSqlUpsert(DestinationSuite):
    keyed = True

    def destination(self, folder: Path) -> Destination:
        return Sql(f"sqlite:///{folder / 'out.db'}", columns={"title": "title"})

    def hashes(self, folder: Path) -> list[str]:
        return sql_hashes(folder / "out.db")


class TestSqlUpsertFullText(DestinationSuite):
    keyed = True

    def destination(self, folder: Path) -> Destination:
        url = f"sqlite:///{folder / 'out.db'}"
        return Sql(url, table='od"d table', columns={"title": "title"}, full_text=["title", "text"])

    def hashes(self, folder: Path) -> list[str]:
        with sqlite3.connect(folder / "out.db") as connection:
            connection.execute('INSERT INTO "od""d table_fts"("od""d table_fts", rank) VALUES(\'integrity-check\', 1)')
            rows = connection.execute('SELECT fts_row FROM "od""d table"').fetchall()
            docsizes = connection.execute('SELECT id FROM "od""d table_fts_docsize"').fetchall()
            assert sorted(rows) == sorted(docsizes), "the index and the table hold different rows"
            return [digest for (digest,) in connection.execute('SELECT delivery_hash FROM "od""d table"')]


class TestSqlAppend(DestinationSuite):
    def destination(self, folder: Path) -> Destination:
        return Sql(f"sqlite:///{folder / 'out.db'}", mode="append", columns={"title": "title"}, full_text=["text"])

    def hashes(self, folder: Path) -> list[str]:
        with sqlite3.connect(folder / "out.db") as connection:
            connection.execute("INSERT INTO documents_fts(documents_fts, rank) VALUES('integrity-check', 1)")
        return sql_hashes(folder / "out.db")


class TestJsonLines(DestinationSuite):
    def destination(self, folder: Path) -> Destination:
        return JsonLines(folder / "out")

    def hashes(self, folder: Path) -> list[str]:
        """By the rule that its docstring gives to readers: of a hash the first line counts."""
        seen: dict[str, Path] = {}
        for path in sorted((folder / "out").glob("[!.]*.jsonl")):
            for line in path.read_bytes().splitlines():
                seen.setdefault(json.loads(line)["hash"], path)
        return list(seen)


class TestMemory(DestinationSuite):
    def destination(self, folder: Path) -> Destination:
        return Memory()

    def hashes(self, folder: Path) -> list[str]:
        return [delivery.hash for delivery in Memory.of(self.node(folder))]


class TestNull(DestinationSuite):
    def destination(self, folder: Path) -> Destination:
        return Null()
