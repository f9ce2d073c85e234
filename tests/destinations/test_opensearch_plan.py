"""A folder of 44 files and a table of 44 rows, both into one index of a real server, on Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman import Plan
from ferryman.destinations import OpenSearch
from ferryman.document import Document
from ferryman.sources import DataFrame, Files
from tests.destinations.search_index import SearchIndex
from tests.servers.opensearch import OpenSearchServer
from tests.support.plan_world import PlanWorld

MAPPINGS = {"properties": {"year": {"type": "integer"}, "name": {"type": "keyword"}}}


def dated(doc: Document) -> Document:
    """The first line says the year."""
    doc["year"] = doc.text().partition("\n")[0]
    return doc


class Library(PlanWorld):
    """Files and rows that are changed between runs of one plan."""

    def __init__(self, folder: Path, index: SearchIndex, runner: Any) -> None:
        super().__init__(folder, each_time=True, runner=runner)
        self.index = index
        self.corpus = folder / "corpus"
        self.corpus.mkdir()
        for number in range(44):
            self.write(number, f"{1590 + number}\nplay number {number}")
        self.rows = [(f"row-{n}", f"name {n}", 1700 + n) for n in range(44)]

    def write(self, number: int, text: str) -> None:
        self.file(number).write_text(text)

    def file(self, number: int) -> Path:
        return self.corpus / f"play-{number:02}.txt"

    def make_plan(self) -> Plan:
        rows = list(self.rows)
        plan = Plan("library", version=1)
        files = plan.source("files", Files(self.corpus, prefix="file/")).step("dated", dated)
        table = plan.source(
            "table", DataFrame(lambda session: session.createDataFrame(rows, "id string, name string, year int"))
        )
        out = OpenSearch(self.index.url, self.index.name, MAPPINGS)
        plan.destination("index", out, after=[files, table], batch=10, backoff=0)
        return plan


@pytest.mark.spark
@pytest.mark.rule("opensearch.outcomes")
def test_changed_deleted_and_unindexable(
    server: Callable[[str], Any],
    place: Path,
    tmp_path: Path,
    spark: Any,
) -> None:
    """Index, ledger and exit code say the same, after each of these; what is mended is delivered."""
    real: OpenSearchServer = server("opensearch")
    index = SearchIndex(real.url, tmp_path.name)
    library = Library(place, index, spark)

    summary = library.run()
    assert (summary.exit, summary.delivered) == (0, 88)
    documents = index.documents()
    assert documents.keys() == {f"file/play-{n:02}.txt" for n in range(44)} | {f"row-{n}" for n in range(44)}
    assert documents["row-7"]["name"] == "name 7"
    assert documents["file/play-03.txt"]["text"] == "1593\nplay number 3"
    assert documents["file/play-03.txt"]["_ferryman"]["source"] == "files"
    assert index.found(text="number") != []

    library.write(3, "1600\nchanged")
    library.file(4).unlink()
    library.write(5, "MDXCV\nnot a year that the mapping knows")
    library.rows[6] = ("row-6", "changed", 1)
    del library.rows[7]
    summary = library.run()
    assert (summary.exit, summary.failed, summary.pending) == (3, 1, 0)
    assert library.counts("index") == {"delivered": 85, "deleted": 2, "failed": 1}
    after = index.documents()
    assert documents.keys() - after.keys() == {"file/play-04.txt", "row-7"}
    assert after["file/play-03.txt"]["text"] == "1600\nchanged"
    assert after["row-6"]["name"] == "changed"
    assert after["file/play-05.txt"] == documents["file/play-05.txt"], "what was refused leaves what is there"
    unchanged = after.keys() - {"file/play-03.txt", "row-6"}
    assert {id: after[id] for id in unchanged} == {id: documents[id] for id in unchanged}

    library.write(5, "1595\na year again")
    summary = library.run()
    assert (summary.exit, summary.delivered) == (0, 1)
    assert library.counts("index") == {"delivered": 86, "deleted": 2}
    assert index.documents()["file/play-05.txt"]["text"] == "1595\na year again"
    assert library.run().waves == 0
